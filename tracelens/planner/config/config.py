"""The configuration of a run: model, layout, toggles and training, by field name. No torch here."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from functools import cache
from itertools import accumulate
from math import isfinite
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np

from tracelens.config_files import read_toml
from tracelens.dtypes import element_bytes
from tracelens.errors import TracelensError, UnknownName

DtypeName = Literal["bfloat16", "float32"]
RoutingName = Literal["learned", "balanced", "skewed"]
FP8_MULTIPLE = 16
"""Rows of matrices of 1-byte elements begin at multiples of 16 bytes."""
TRAINING_HELP = {
    "seq": "tokens per sequence",
    "micro_batch": "sequences per micro-batch on each data-parallel rank",
    "micro_batches": "micro-batches per step on each data-parallel rank",
    "dtype": "type of parameters and activations: bfloat16 or float32",
    "main_params": "keep float32 main parameters for the optimizer (with bfloat16)",
    "routing": "tokens to experts: learned, or for experiments balanced (all experts equally) or skewed "
    "(most tokens go to the first experts)",
    "learning_rate": "learning rate of AdamW",
    "seed": "seed of weights and data",
}


@dataclass(frozen=True)
class Training:
    """Batch, precision and optimization; fields are described in TRAINING_HELP."""

    seq: int = 4096
    micro_batch: int = 1
    micro_batches: int = 1
    dtype: DtypeName = "bfloat16"
    main_params: bool = True
    routing: RoutingName = "learned"
    learning_rate: float = 1e-5
    seed: int = 0

    def __post_init__(self) -> None:
        one_of(self)
        at_least_one(self, ("seq", "micro_batch", "micro_batches"))

    @property
    def element_bytes(self) -> int:
        """Bytes of a parameter or an element of an activation."""
        return element_bytes(self.dtype)


DIMENSIONS = ("pp", "dp", "cp", "tp")
"""Outermost first: consecutive ranks differ in `tp`."""


@dataclass(frozen=True)
class Layout:
    """Ranks as a grid of pipeline x data x context x tensor parallelism; experts lie across the last three.

    HELP describes the fields. Raises TracelensError if the ranks cannot be divided in this way.
    """

    ranks: int = 1
    pp: int = 1
    vpp: int = 1
    cp: int = 1
    tp: int = 1
    ep: int = 0
    node: int = 0
    pp_layout: str = ""

    def __post_init__(self) -> None:
        at_least_one(self, ("ranks", "pp", "vpp", "cp", "tp"))
        inner = self.pp * self.cp * self.tp
        if self.ranks % inner:
            raise TracelensError(f"{self.ranks} ranks are not a multiple of pp x cp x tp = {inner}")
        if self.ep < 0 or self.stage_ranks % self.experts_over:
            raise TracelensError(f"ep ({self.ep}) must divide the {self.stage_ranks} ranks of a stage")
        if self.node < 0 or self.ranks % (self.node or self.ranks):
            raise TracelensError(f"node ({self.node}) must divide the {self.ranks} ranks")
        if self.vpp > 1 and self.pp == 1:
            raise TracelensError("vpp above 1 needs a pipeline: pp above 1")

    @property
    def dp(self) -> int:
        return self.ranks // (self.pp * self.cp * self.tp)

    @property
    def stage_ranks(self) -> int:
        return self.ranks // self.pp

    @property
    def experts_over(self) -> int:
        """Ranks that share the experts: `ep`, or all of a stage."""
        return self.ep or self.stage_ranks

    def coordinates(self, rank: int) -> dict[str, int]:
        """Index of a rank in each dimension of the grid, and in the groups "ep" and "edp"."""
        coordinates, rest = {}, rank
        for name in reversed(DIMENSIONS):
            rest, coordinates[name] = divmod(rest, getattr(self, name))
        coordinates["edp"], coordinates["ep"] = divmod(rank % self.stage_ranks, self.experts_over)
        return coordinates

    def groups(self, *names: str) -> list[list[int]]:
        """Ranks that differ in these dimensions only, one list per group, ascending.

        Args:
            names: of DIMENSIONS, or one of "ep" (ranks that share the experts) and "edp" (ranks with the
                same experts).
        """
        sizes = {name: getattr(self, name) for name in DIMENSIONS}
        if names in (("ep",), ("edp",)):
            sizes = {
                "pp": self.pp, "edp": self.stage_ranks // self.experts_over, "ep": self.experts_over
            }  # fmt: skip
        grid = np.arange(self.ranks).reshape(*sizes.values())
        axes = [axis for axis, name in enumerate(sizes) if name in names]
        size = np.prod([grid.shape[axis] for axis in axes], dtype=int)
        groups: list[list[int]] = np.moveaxis(grid, axes, range(-len(axes), 0)).reshape(-1, size).tolist()
        return groups

    def chunks(self, layers: int) -> list[range]:
        """Layers of each model chunk, in model order: chunk c lies on stage c % pp.

        Raises:
            TracelensError: `pp_layout` does not match chunks or layers; fewer layers than chunks.
        """
        count = self.pp * self.vpp
        if self.pp_layout:
            try:
                shares = [int(text) for text in self.pp_layout.split(",")]
            except ValueError:
                raise TracelensError(
                    f"pp_layout must list the layers per chunk, as in 3,4,4,3, not {self.pp_layout!r}"
                ) from None
            if len(shares) != count or sum(shares) != layers or min(shares) < 0:
                raise TracelensError(
                    f"pp_layout {self.pp_layout} must have {count} chunks (pp x vpp), {layers} layers in "
                    "total"
                )
        else:
            if layers < count:
                raise TracelensError(f"{layers} layers are too few for {count} chunks (pp x vpp)")
            shares = [layers // count + (chunk < layers % count) for chunk in range(count)]
        ends = accumulate(shares)
        return [range(end - share, end) for end, share in zip(ends, shares, strict=True)]


ExpertsName = Literal["loop", "multistream", "grouped"]
DispatchName = Literal["alltoall", "allgather", "dedup", "deepep"]
FusionName = Literal["plain", "fused"]
OverlapName = Literal["off", "1f1b"]
CollectionName = Literal["auto", "manual"]
BindingName = Literal["off", "bind"]
ReductionName = Literal["reduce_scatter", "all_reduce", "hierarchical"]
TensorOverlapName = Literal["off", "chunked", "symmetric"]
GraphName = Literal["off", "step"]
Fp8Name = Literal["off", "experts"]
OPTIMISED: dict[str, str] = {"experts": "grouped", "permute": "fused", "router": "fused", "loss": "fused"}
"""Toggles that save memory and kernels in every layout."""
HOST_SIZES, DEVICE_PERMUTE, DEVICE_COUNTS, STATIC = range(4)
"""Values of `sync_free`; see TOGGLES_HELP.

Host syncs in the forward of an MoE layer with e experts per rank, for experts=loop up to 1 and
experts=grouped from 2 on (grouped at 0: 1 instead of e). The backward has none, unless it recomputes the
layer:

    sync_free    0      1   2   3
    alltoall     4 + e  2   1   0
    allgather    2 + e  2   1   0
    dedup        3 + e  2   1   0

With deepep the library polls a counter for the sizes of messages, except at 3.
"""


@dataclass(frozen=True)
class Toggles:
    """One field per optimization, described in TOGGLES_HELP; the defaults are the baseline.

    Raises TracelensError for an unknown value, or toggles that do not combine.
    """

    experts: ExpertsName = "loop"
    dispatch: DispatchName = "alltoall"
    sync_free: int = HOST_SIZES
    permute: FusionName = "plain"
    router: FusionName = "plain"
    loss: FusionName = "plain"
    overlap_exchange: OverlapName = "off"
    overlap_shared: bool = False
    recompute_layer_ids: tuple[int, ...] = ()
    gc: CollectionName = "auto"
    numa: BindingName = "off"
    kernarg_pool: bool = False
    grad_reduce: ReductionName = "reduce_scatter"
    tp_overlap: TensorOverlapName = "off"
    graph: GraphName = "off"
    fp8: Fp8Name = "off"

    def __post_init__(self) -> None:
        one_of(self, CHOICES)
        if self.sync_free >= DEVICE_COUNTS and self.experts != "grouped":
            raise TracelensError(
                f"sync_free={self.sync_free} keeps tokens per expert on the device, which needs "
                f"experts=grouped, not {self.experts}"
            )
        if self.fp8 != "off" and self.experts != "grouped":
            raise TracelensError(
                f"fp8=experts needs experts=grouped, not {self.experts}: only the grouped GEMM has scales"
            )
        if self.graph != "off":
            if self.sync_free < STATIC:
                raise TracelensError(
                    f"graph=step needs sync_free={STATIC}, not {self.sync_free}: a graph has no host syncs"
                )
            if self.overlap_exchange != "off":
                raise TracelensError(
                    f"graph=step needs overlap_exchange=off, not {self.overlap_exchange}: it runs forward "
                    "and backward on two threads, and a graph is captured from one"
                )
            if self.dispatch == "deepep":
                raise TracelensError(
                    "graph=step needs dispatch=alltoall, allgather or dedup, not deepep: the library cannot "
                    "be captured"
                )
            if self.tp_overlap == "symmetric":
                raise TracelensError(
                    "graph=step needs tp_overlap=off or chunked, not symmetric: torch does not guarantee "
                    "that symmetric memory keeps its address, as a graph needs"
                )

    @property
    def unoptimised(self) -> dict[str, str]:
        """The toggles of OPTIMISED that are at their baseline, with that value."""
        return {name: getattr(self, name) for name in OPTIMISED if name not in self.changed()}

    def optimised(self) -> Toggles:
        """The same with the `unoptimised` toggles changed to OPTIMISED."""
        values: dict[str, Any] = {name: OPTIMISED[name] for name in self.unoptimised}
        return replace(self, **values)

    def changed(self) -> dict[str, object]:
        """The toggles that differ from the baseline."""
        base = Toggles()
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: value for name, value in values.items() if value != getattr(base, name)}


@cache
def literals(kind: Any) -> Mapping[str, tuple[object, ...]]:
    """The fields of a class that are typed as a Literal, with their values."""
    hints = get_type_hints(kind).items()
    return {name: get_args(hint) for name, hint in hints if get_origin(hint) is Literal}


def one_of(part: object, choices: Mapping[str, Collection[object]] | None = None) -> None:
    """Raise UnknownName for the first field without a valid value; by default the `literals` are checked."""
    kind: Any = type(part)
    for name, known in (literals(kind) if choices is None else choices).items():
        if getattr(part, name) not in known:
            raise UnknownName(name, str(getattr(part, name)), [str(value) for value in known])


CHOICES: dict[str, tuple[object, ...]] = {"sync_free": tuple(range(4)), **literals(Toggles)}
"""Toggle to its values; without booleans and lists of layers."""


def at_least_one(part: object, names: Iterable[str]) -> None:
    """Raise TracelensError for the first of these fields that is below 1."""
    for name in names:
        if getattr(part, name) < 1:
            raise TracelensError(f"{name} must be at least 1, not {getattr(part, name)}")


@dataclass(frozen=True)
class Config:
    """The configuration of a run; raises TracelensError where its parts do not fit together."""

    model: Model
    layout: Layout = field(default_factory=Layout)
    toggles: Toggles = field(default_factory=Toggles)
    training: Training = field(default_factory=Training)

    def __post_init__(self) -> None:
        model, layout, training, toggles = self.model, self.layout, self.training, self.toggles
        layout.chunks(model.layers)
        shards = layout.cp * layout.tp
        if training.seq % shards:
            raise TracelensError(f"seq ({training.seq}) must be a multiple of cp x tp = {shards}")
        if model.moe_layers and model.experts_count % layout.experts_over:
            raise TracelensError(
                f"experts_count ({model.experts_count}) must be a multiple of ep = {layout.experts_over}"
            )
        for name in ("heads", "kv_groups", "dense_ffn", "shared_ffn"):
            if getattr(model, name) % layout.tp:
                raise TracelensError(
                    f"{name} ({getattr(model, name)}) must be a multiple of tp = {layout.tp}"
                )
        if wrong := [layer for layer in toggles.recompute_layer_ids if not 0 <= layer < model.layers]:
            raise TracelensError(f"recompute_layer_ids: there is no layer {wrong[0]} of {model.layers}")
        if toggles.overlap_exchange != "off" and (layout.pp > 1 or training.micro_batches < 2):
            raise TracelensError(
                "overlap_exchange=1f1b needs pp=1 and at least 2 micro_batches: one's forward overlaps "
                "another's backward"
            )
        if toggles.fp8 != "off":
            # FP8 matrix instructions take rows of such widths only.
            for name in ("hidden", "expert_ffn"):
                if (width := getattr(model, name)) % FP8_MULTIPLE:
                    raise TracelensError(
                        f"fp8=experts needs a multiple of {FP8_MULTIPLE} for {name}, not {width}: use fp8=off"
                    )
        if toggles.graph != "off" and layout.pp > 1:
            raise TracelensError(
                f"graph=step needs pp=1, not {layout.pp}: torch's pipeline schedules cannot be captured"
            )
        if layout.pp > 1 and training.micro_batches < layout.pp:
            raise TracelensError(f"a pipeline of {layout.pp} stages needs at least {layout.pp} micro_batches")
        if layout.vpp > 1 and training.micro_batches % (rounds := training.micro_batches // layout.pp):
            raise TracelensError(
                f"with vpp={layout.vpp}, micro_batches ({training.micro_batches}) must be a multiple of the "
                f"{rounds} rounds through pp={layout.pp} stages"
            )

    @property
    def tokens(self) -> int:
        """T: tokens of a micro-batch on one rank, between attention layers."""
        return self.training.micro_batch * self.training.seq // (self.layout.cp * self.layout.tp)

    @property
    def global_tokens(self) -> int:
        training = self.training
        return training.micro_batch * training.micro_batches * training.seq * self.layout.dp

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


LAYOUT_HELP = {
    "ranks": "ranks of the run; data parallelism takes what the other dimensions leave",
    "pp": "pipeline stages",
    "vpp": "model chunks per stage; above 1 the schedule is interleaved",
    "cp": "context parallelism: ranks that share a sequence in attention",
    "tp": "tensor and sequence parallelism: ranks that share each dense matrix",
    "ep": "expert parallelism: ranks of a stage that share the experts; 0 for all",
    "node": "ranks per node, for hierarchical collectives; 0 for all",
    "pp_layout": "layers of each chunk in model order, as in 3,4,4,3; empty for an even split",
}
TOGGLES_HELP = {
    "experts": "routed experts: one by one (loop), on four streams (multistream), or as one grouped GEMM "
    "(grouped)",
    "dispatch": "tokens to experts: a copy per expert (alltoall), all tokens to all ranks (allgather), a "
    "copy per rank (dedup), or the DeepEP library (deepep)",
    "sync_free": "host syncs in an MoE layer: 0 every size, 1 sizes of messages and of experts, 2 sizes of "
    "messages, 3 none (worst-case buffers)",
    "permute": "sort tokens by expert: torch ops (plain), or one kernel each way (fused)",
    "router": "select experts: torch ops (plain), or one kernel (fused)",
    "loss": "cross-entropy: torch ops in float32 (plain), or one kernel on the logits (fused)",
    "overlap_exchange": "1f1b: overlap the all-to-alls of one micro-batch's forward with the backward of the "
    "previous micro-batch, and vice versa",
    "overlap_shared": "compute the shared expert during the dispatch",
    "recompute_layer_ids": "layers to recompute in the backward, as in 0,1,2",
    "gc": "Python garbage collection: automatic (auto), or only between steps (manual)",
    "numa": "bind: pin each rank to the cores of its GPU's NUMA node",
    "kernarg_pool": "HSA_KERNARG_POOL_SIZE=12582912, for cheaper launches on AMD GPUs",
    "grad_reduce": "gradient reduction: reduce-scatter (reduce_scatter), all-reduce (all_reduce), or "
    "reduce-scatter in the node, all-reduce across nodes, all-gather in the node (hierarchical)",
    "tp_overlap": "all-gather + GEMM and GEMM + reduce-scatter of tensor parallelism: sequential (off), in "
    "chunks (chunked), or over torch symmetric memory (symmetric)",
    "graph": "step: capture forward and backward of a step in a CUDA or HIP graph and replay it with one "
    "launch; needs a GPU and sync_free=3, and --profile-start 4 or later to record its ops",
    "fp8": "experts: routed experts in FP8 with a scale per row, forward and input gradients; weight "
    "gradients stay in bfloat16",
}
HELP = LAYOUT_HELP | TRAINING_HELP | TOGGLES_HELP
"""Field of layout, training or toggles to its help."""

AttentionName = Literal["mla", "gqa"]
ScoreName = Literal["softmax", "sigmoid"]
# Grouped GEMM kernels need rows aligned to 16 bytes: 8 elements of bfloat16.
GEMM_ALIGNMENT = 8
MOST_LAYERS = 1_000
MOST_EXPERTS = 100_000
"""Far more than any model has: some results are computed for each layer or expert."""
SIZES = ("layers", "hidden", "heads", "experts_count", "top_k", "expert_ffn", "vocab")


@dataclass(frozen=True)
class Model:
    """A DeepSeek-style Mixture-of-Experts transformer.

    Raises:
        TracelensError: sizes that do not fit together.
    """

    layers: int  # transformer layers, dense ones included
    hidden: int  # model width D
    heads: int  # attention heads H
    experts_count: int  # routed experts E
    top_k: int  # routed experts K per token
    expert_ffn: int  # inner width F of one expert
    vocab: int  # vocabulary V
    dense_layers: int = 1  # leading layers with a plain MLP instead of experts
    dense_ffn: int = 0  # inner width of a dense layer's MLP
    shared_ffn: int = 0  # inner width of the shared expert, 0 for none
    attention: AttentionName = "mla"  # "mla" (multi-head latent attention) or "gqa" (grouped queries)
    kv_groups: int = 0  # key and value heads ("gqa")
    head_dim: int = 128  # head width ("gqa")
    q_lora: int = 0  # width of the query latent, 0 for none ("mla")
    kv_lora: int = 512  # width of the latent of keys and values ("mla")
    qk_dim: int = 128  # width of a query and key head without rotary position ("mla")
    rope_dim: int = 64  # width of its rotary part ("mla")
    v_dim: int = 128  # width of a value head ("mla")
    score: ScoreName = "softmax"  # of the router, "softmax" over all experts or "sigmoid" of each
    expert_groups: int = 1  # groups of experts, of which the router first selects `top_groups`; 1 for none
    top_groups: int = 1  # groups selected per token
    aux_loss: float = 0.001  # coefficient of the sequence-wise balance loss, 0 for none

    def __post_init__(self) -> None:
        one_of(self)
        at_least_one(self, SIZES)
        for name, most in (("layers", MOST_LAYERS), ("experts_count", MOST_EXPERTS)):
            if getattr(self, name) > most:
                raise TracelensError(f"{name} must be at most {most:,}, not {getattr(self, name):,}")
        for name in ("dense_ffn", "shared_ffn", "q_lora", "aux_loss"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise TracelensError(f"{name} must be 0 or more, not {getattr(self, name)}")
        if not 0 <= self.dense_layers <= self.layers:
            raise TracelensError(f"dense_layers must be 0 to {self.layers} (layers), not {self.dense_layers}")
        if self.dense_layers and self.dense_ffn < 1:
            raise TracelensError("dense_layers needs dense_ffn, the inner width of the dense MLP")
        if self.top_k > self.experts_count:
            raise TracelensError(f"top_k ({self.top_k}) exceeds experts_count ({self.experts_count})")
        for name in ("hidden", "expert_ffn"):
            if getattr(self, name) % GEMM_ALIGNMENT:
                raise TracelensError(f"{name} ({getattr(self, name)}) must be a multiple of {GEMM_ALIGNMENT}")
        at_least_one(self, ("kv_lora", "qk_dim", "v_dim") if self.attention == "mla" else ("head_dim",))
        if self.attention == "gqa" and (self.kv_groups < 1 or self.heads % self.kv_groups):
            raise TracelensError(
                f"heads ({self.heads}) must be a multiple of kv_groups ({self.kv_groups}), which must be at "
                "least 1"
            )
        if self.rotary_dim < 2 or self.rotary_dim % 2:
            raise TracelensError(f"the rotary width of a head must be even, not {self.rotary_dim}")
        if self.expert_groups < 1 or self.experts_count % self.expert_groups:
            raise TracelensError(
                f"experts_count ({self.experts_count}) must be a multiple of expert_groups "
                f"({self.expert_groups})"
            )
        if not 1 <= self.top_groups <= self.expert_groups:
            raise TracelensError(f"top_groups must be 1 to {self.expert_groups}, not {self.top_groups}")
        reachable = self.experts_count // self.expert_groups * self.top_groups
        if self.top_k > reachable:
            raise TracelensError(
                f"top_k ({self.top_k}) exceeds the {reachable} experts in {self.top_groups} groups"
            )

    @property
    def rotary_dim(self) -> int:
        """Width of the rotary part of a head."""
        return self.rope_dim if self.attention == "mla" else self.head_dim

    @property
    def query_dim(self) -> int:
        """Width of a query and key head."""
        return self.qk_dim + self.rope_dim if self.attention == "mla" else self.head_dim

    @property
    def value_dim(self) -> int:
        return self.v_dim if self.attention == "mla" else self.head_dim

    @property
    def moe_layers(self) -> int:
        return self.layers - self.dense_layers


PARTS = {"model": Model, "layout": Layout, "toggles": Toggles, "training": Training}
_TRAINING = {
    "tiny": Training(seq=32, micro_batch=2, micro_batches=2, dtype="float32", main_params=False),
    "small": Training(seq=2048, micro_batch=2),
}
_SWITCH = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}
_TYPE_TEXT = {bool: "true or false", int: "a whole number", float: "a number", tuple: "numbers, as in 0,1,2"}

_SOURCE_KEYS = ("title", "url", "date", "fields")
# Annotated type of a field to the types that a file may have, and their name in messages.
_KINDS: dict[str, tuple[UnionType | type, str]] = {
    "int": (int, "a whole number"),
    "float": (int | float, "a number"),
}


class _Bundled(Mapping[str, Model]):
    """The bundled models, read on first use."""

    def __getitem__(self, name: str) -> Model:
        return bundled()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(bundled())

    def __len__(self) -> int:
        return len(bundled())


@cache
def bundled() -> Mapping[str, Model]:
    """The models of `models/*.toml` by name, from small to large."""
    models = {file.stem: read_model(file) for file in (Path(__file__).parent / "models").glob("*.toml")}
    # The weights of the routed experts dominate.
    sizes = {name: m.layers * m.experts_count * m.hidden * m.expert_ffn for name, m in models.items()}
    return {name: models[name] for name in sorted(models, key=lambda name: (sizes[name], name))}


def read_model(path: Path) -> Model:
    """Read a model file.

    Its keys are the fields of `Model`; those with a default are optional. `title`, and `[sources.NAME]` with
    title, url, date and the `fields` it documents, are for people.

    Raises:
        TracelensError: no such file, not TOML, or a key is missing, unknown or has a wrong value.
    """
    content = read_toml(path)
    sources = content.pop("sources", {})
    if not isinstance(content.pop("title", ""), str):
        raise TracelensError(f"{path}: title must be text in quotes")
    model_fields = [item.name for item in fields(Model)]
    for source in sources.values() if isinstance(sources, dict) else [sources]:
        if not isinstance(source, dict) or not isinstance(source.get("title"), str):
            raise TracelensError(f"{path}: a source must be a table [sources.NAME] with a title")
        for key in source:
            if key not in _SOURCE_KEYS:
                raise TracelensError(f"{path}: {UnknownName('key of a source', key, _SOURCE_KEYS)}")
        for name in source.get("fields", []):
            if name not in model_fields:
                raise TracelensError(f"{path}: {UnknownName('field of a source', str(name), model_fields)}")
    return make_model(str(path), content)


def make_model(path: str, values: Mapping[str, Any]) -> Model:
    """A model of these fields.

    Raises:
        TracelensError: a field is missing, unknown or of the wrong type, or they do not fit together; the
            message names the file.
    """
    kinds = {item.name: item for item in fields(Model)}
    for name, value in values.items():
        if name not in kinds:
            raise TracelensError(f"{path}: {UnknownName('key', name, kinds)}")
        kind, words = _KINDS.get(str(kinds[name].type), (str, "text in quotes"))
        if isinstance(value, bool) or not isinstance(value, kind):
            raise TracelensError(f"{path}: {name} must be {words}, not {value!r}")
    if missing := [name for name, item in kinds.items() if item.default is MISSING and name not in values]:
        raise TracelensError(f"{path}: {missing[0]!r} is missing; add it")
    try:
        return Model(**values)
    except TracelensError as error:
        raise TracelensError(f"{path}: {error}") from None


MODELS: Mapping[str, Model] = _Bundled()
"""The bundled models by name, from small to large."""


def preset(name: str) -> Config:
    """The named preset on one rank, all toggles at their baseline; raises UnknownName."""
    if name not in MODELS:
        raise UnknownName("preset", name, MODELS)
    return Config(MODELS[name], training=_TRAINING.get(name, Training()))


def override(config: Config, assignments: Iterable[str]) -> Config:
    """The configuration with fields of any part replaced at once, so that their order does not matter.

    Args:
        config: provides the other fields.
        assignments: texts `field=value`; the last one wins for a repeated field.

    Raises:
        TracelensError: malformed text, unknown field, wrong type, or parts that do not fit together.
    """
    part_of = {item.name: part for part, kind in PARTS.items() for item in fields(kind)}
    changes: dict[str, dict[str, Any]] = {part: {} for part in PARTS}
    for text in assignments:
        name, separator, value = text.partition("=")
        if not separator:
            raise TracelensError(f"{text!r} is not of the form field=value")
        if name not in part_of:
            raise UnknownName("config field", name, part_of)
        current = getattr(getattr(config, part_of[name]), name)
        changes[part_of[name]][name] = parse_value(name, value, current)
    parts = {part: replace(getattr(config, part), **values) for part, values in changes.items() if values}
    return replace(config, **parts)


def parse_value(name: str, text: str, like: object) -> object:
    """A text as a value of the type of `like`: bool (true, on, 1, ...), int, float, tuple (0,1,2) or str.

    Raises:
        TracelensError: it is not of that type; the message names the field.
    """
    try:
        if isinstance(like, bool):
            return _SWITCH[text.lower()]
        if isinstance(like, int):
            return int(text)
        if isinstance(like, float):
            if not isfinite(number := float(text)):
                raise ValueError(text)
            return number
        if isinstance(like, tuple):
            return tuple(int(part) for part in text.split(",") if part)
    except (ValueError, KeyError):
        raise TracelensError(f"{name} must be {_TYPE_TEXT[type(like)]}, not {text!r}") from None
    return text
