"""Projections of a training run before it exists, in the words of the command line.

`project_memory` says what a layout needs, `search_layouts` which layouts fit and how fast they are,
`project_scaling` how throughput grows with the GPUs that share the experts, `project_pipeline` and
`project_bubble` what a pipeline idles, and `project_bounds` the speed of light of collectives.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from tracelens.errors import TracelensError
from tracelens.read import TraceFiles
from tracelens.session.reading import DEVICE_FILE, PATHS, STEP, Partial, Source
from tracelens.session.request import (
    DEVICE,
    RUN,
    ApiRequest,
    CommandOption,
    OptionGroup,
    Texts,
    function_of,
    option,
)

if TYPE_CHECKING:
    from tracelens.devices import Device
    from tracelens.planner.config import Config
    from tracelens.planner.memory import Assumptions
    from tracelens.planner.options import Devices, Numbers
    from tracelens.table import Result

Precision: TypeAlias = Literal["bf16", "bf16-fp32-gradients", "bf16-no-main", "fp32"]

LAYOUT, TRAINING, FIT, SEARCH = "Layout", "Training", "Fit", "Search"
COMPARED, TIME = "Compared", "Step time"
SCHEDULE, TIMES, MODELED, MEASURED = "Schedule", "Times", "Times from --model", "Times from --from"
SHAPES, MACHINE = "Shapes", "Machine"
_FILE_OR_1 = "as in the model file, or 1"


def _number(text: str, panel: str, shown: str | None = None, doc: str = "") -> CommandOption:
    """A number of the layout; the command line takes several of them for a search."""
    return CommandOption(help=text, panel=panel, doc=doc, metavar="N", type=str | None, shown=shown)


MODEL = CommandOption(
    help="A bundled model (`tracelens list models`), or a file: .toml, Hugging Face config.json, Megatron or "
    "Primus YAML.",
    doc="a bundled model or a file (.toml, config.json, .yaml).",
    panel=LAYOUT,
    metavar="MODEL",
    type=str,
    complete="models",
)
GPUS = CommandOption(help="GPUs of the run.", panel=LAYOUT, min=1)
PP = _number(
    "Pipeline stages. With --search, this and the sizes below may be lists: 8,16.",
    LAYOUT,
    _FILE_OR_1,
    doc="pipeline stages.",
)
EP = _number("GPUs that share the experts.", LAYOUT, "all GPUs of a pipeline stage")
CP = _number("GPUs that share a sequence.", LAYOUT, _FILE_OR_1)
TP = _number("GPUs that share each dense matrix.", LAYOUT, _FILE_OR_1)
VPP = _number("Model chunks per stage (interleaved pipeline).", LAYOUT, _FILE_OR_1)
MBS = _number("Sequences per micro-batch.", TRAINING, "as in the model")
SEQ = CommandOption(help="Tokens per sequence.", panel=TRAINING, min=1, shown="as in the model")
RECOMPUTE = CommandOption(
    help="Recompute in the backward pass: none, attention (of each layer), full (each layer), or layers as "
    "in 0,1,2; in Megatron-core also moe, moe_act or mla_up_proj. With --search, what to try: none, full, or "
    "a number of layers per chunk, as in none,2,full.",
    panel=TRAINING,
    metavar="LAYERS",
)
LAYOUTS = CommandOption(
    help="A layout to compare, as in 'pp=24 ep=8 vpp=4', or to try with --search, as in 'pp=24 ep=8,16'. "
    "Repeatable.",
    panel=LAYOUT,
    name="layout",
    metavar="FIELDS",
)
SETTINGS = CommandOption(
    help="Any other field of model, layout, toggles or training, as in sync_free=2. Repeatable.",
    panel=TRAINING,
    name="set",
    metavar="FIELD=VALUE",
)
DEVICES = CommandOption(
    help="Check this device (`tracelens list devices`). Repeatable.",
    doc="to check the fit on: names, TOML files (.toml or a Path) or devices.",
    panel=FIT,
    name="device",
    metavar="NAME",
    type=list[str] | None,
    complete="devices",
    file=CommandOption(help="Check the device in this TOML file. Repeatable.", panel=FIT, metavar="FILE"),
)
ASSUME = CommandOption(
    help="An assumption, as in imbalance=1.2; with --search also of the step time, as in "
    "nic_bytes_per_s=25e9, of which the result lists all. Repeatable.",
    doc="assumptions, as in imbalance=1.2; those of the step time matter to a search.",
    metavar="NAME=VALUE",
)


class Trained(OptionGroup, panel=TRAINING):
    """How a model is trained, and what of it is counted."""

    optimizer: Literal["adamw", "momentum", "sgd"] = option(
        "adamw keeps 2 states per parameter, momentum 1, sgd 0.", default="adamw"
    )
    precision: Precision | None = option(
        "bf16 keeps main parameters and optimizer states in float32, bf16-fp32-gradients gradients as well; "
        "bf16-no-main keeps all in bfloat16.",
        default=None,
        shown="as in the model; in Megatron-core bf16-fp32-gradients",
    )
    optimised: bool = option(
        "Use fused kernels: experts=grouped permute=fused router=fused loss=fused.", default=False
    )
    imbalance: float = option(
        "Tokens of the busiest GPU's experts / mean over GPUs.",
        doc="ratio of the tokens of the busiest GPU's experts to the mean over GPUs.",
        metavar="RATIO",
        default=1.0,
    )
    overlap: bool = option(
        "1F1B with overlapped all-to-alls: one more forward in flight; --search overlaps them as well.",
        doc="1F1B with overlapped all-to-alls: one more forward in flight; the step time of a search "
        "overlaps them as well.",
        default=False,
    )
    stage_buffers: Literal["in_flight", "all"] = option(
        "Hold activations from other stages while they are needed (in_flight), or in buffers for all "
        "micro-batches (all), as torch's schedules do.",
        default="in_flight",
    )
    framework: Literal["megatron", "workload", "amd-guide"] = option(
        "What to count: Megatron-core's tensors and what its allocator reserves (megatron), the tensors of "
        "the reference workload (workload), or as the two memory charts of AMD's MoE training guide do "
        "(amd-guide).",
        default="megatron",
    )
    megatron: Texts = option(
        "An option of Megatron-core: layers=local (without Transformer Engine), "
        "gradient_accumulation=separate, states=bfloat16 or main=bfloat16 (precision-aware optimizer), "
        "combined=kept (what all-to-alls bring back is kept to the backward, as in Primus). "
        "Repeatable.",
        metavar="NAME=VALUE",
        default=(),
    )
    settings: Texts = option(SETTINGS, default=())
    assume: Texts = option(ASSUME, default=())
    reserve_gib: float | None = option(
        "GiB of each device to keep free for the driver and communication contexts.",
        FIT,
        name="reserve",
        metavar="GIB",
        default=None,
        shown="4; with --framework amd-guide, all above the nameplate",
    )

    def assumptions(self, policy: Any = "layers", is_timed: bool = False) -> Assumptions:
        """What the memory depends on beside the configuration; raises TracelensError for unknown options."""
        from tracelens.planner import options

        names = ("framework", "optimizer", "imbalance", "overlap", "stage_buffers")
        return options.memory_assumptions(
            self.megatron, self.precision, self.assume, is_timed, recompute=policy, **self.values(*names)
        )


class MemorySizes(OptionGroup):
    """The layout of a run whose memory is projected."""

    model: str | Config = option(
        MODEL, doc="a bundled model, a file (.toml, config.json, .yaml), or a configuration.", kw_only=False
    )
    gpus: int | None = option(GPUS, default=None, shown="1")
    pp: int | None = option(PP, default=None)
    ep: int | None = option(EP, default=None)
    cp: int | None = option(CP, default=None)
    tp: int | None = option(TP, default=None)
    vpp: int | None = option(VPP, default=None)
    mbs: int | None = option(MBS, default=None)
    seq: int | None = option(SEQ, default=None)
    micro_batches: int | None = option(
        "Micro-batches per step on each data-parallel rank; beyond 2 x pp, more add no memory.",
        TRAINING,
        default=None,
        min=1,
        shown="2 x pp in a pipeline",
    )
    layouts: Texts = option(LAYOUTS, doc='to compare, each like "pp=24 ep=8 vpp=4".', default=())
    recompute: str | None = option(
        RECOMPUTE,
        doc='in the backward: "none", "attention" (of each layer), "full", or layers as in "0,1,2"; in '
        'Megatron-core also "moe", "moe_act" or "mla_up_proj".',
        default=None,
    )


class MemoryRequest(Trained, MemorySizes, ApiRequest["Result"]):
    """Memory per GPU at the peak of a training step, by component and pipeline rank.

    Returns:
        tables `fits` (with devices), `memory` and `ranks`.

    Raises:
        TracelensError: unknown model, device or field, or an invalid layout.
    """

    devices: Devices = option(DEVICES, default=())

    def answer(self) -> Result:
        """The memory of each layout."""
        from tracelens.planner import options
        from tracelens.planner.memory import memory

        names = ("pp", "vpp", "ep", "cp", "tp", "gpus", "mbs", "micro_batches", "seq")
        policy, recomputed = options.recomputation(self.recompute)
        assigned = options.assignments(self.values(*names), self.optimised, self.precision)
        settings = [*assigned, *recomputed, *options.texts(self.settings)]
        assumptions = self.assumptions(policy)
        runs = options.configurations(self.model, settings, self.layouts)
        return memory(runs, assumptions, options.chosen(self.devices), options.reserved(self.reserve_gib))


class SearchRequest(Trained, ApiRequest["Result"], panel=SEARCH):
    """Layouts of a model that fit on a number of GPUs, shortest step first.

    Returns:
        tables `layouts` (shortest step first), `parts` of their steps, `refused` and `assumptions`.

    Raises:
        TracelensError: unknown model, device or field, or values that cannot be tried.
    """

    model: str = option(MODEL, kw_only=False)
    gpus: int = option(GPUS, kw_only=False)
    devices: Devices = option(
        DEVICES, doc="to fit on: names, TOML files (.toml or a Path) or devices.", kw_only=False
    )
    pp: Numbers = option(
        PP, doc='pipeline stages to try: 8, (8, 16) or "8,16"; by default all sensible ones.', default=()
    )
    ep: Numbers = option(EP, doc="GPUs that share the experts, likewise.", default=())
    cp: Numbers = option(CP, doc="GPUs that share a sequence, likewise.", default=())
    tp: Numbers = option(TP, doc="GPUs that share each dense matrix, likewise.", default=())
    vpp: Numbers = option(VPP, doc="model chunks per stage, likewise.", default=())
    mbs: Numbers = option(MBS, doc="sequences per micro-batch, likewise.", default=())
    seq: int | None = option(SEQ, default=None)
    layouts: Texts = option(LAYOUTS, doc='to try, each like "pp=24 ep=8,16".', default=())
    recompute: Texts = option(
        RECOMPUTE, doc='layers per chunk to recompute, like "none,2,full".', type=str | None, default=()
    )
    global_batch: int | None = option(
        "Sequences per step on all GPUs.", default=None, min=1, shown="as in the model file, or 15360"
    )
    network: str = option(
        "Network of the step time: a bundled one, as in mi300x-8x400g, or a TOML file.",
        metavar="FILE",
        default="",
        complete="networks",
    )
    top: int = option("Layouts to show per device.", type=int | None, default=10, min=1, shown="10")

    def answer(self) -> Result:
        """The layouts, ranked."""
        from tracelens.planner import options
        from tracelens.planner.search import search

        assumptions = self.assumptions(is_timed=True)
        assigned = options.assignments({"seq": self.seq}, self.optimised, self.precision)
        axes = self.values("pp", "vpp", "ep", "cp", "tp", "mbs", "recompute")
        spaces = [options.space(axes, text) for text in options.texts(self.layouts) or [""]]
        if not (targets := options.chosen(self.devices)):
            raise TracelensError(
                "--search needs a device to fit: give --device; see `tracelens list devices`"
            )
        asked = options.question(
            self.model,
            [*assigned, *options.texts(self.settings)],
            self.global_batch,
            gpus=self.gpus,
            memory=assumptions,
            machine=options.step_machine(self.assume, self.imbalance, self.network, self.overlap),
            reserve=options.reserved(self.reserve_gib),
        )
        return search(asked, targets, spaces, self.top)


class ScalingRequest(ApiRequest["Result"], panel=LAYOUT):
    """Throughput over the GPUs that share the experts, and where the time of a step goes.

    Returns:
        tables `scaling`, `breakdown`, `exchange`, `assumptions`, and `published` for the run of a published
        measurement.

    Raises:
        TracelensError: unknown model, device, network or field, or no valid layout.
    """

    model: str = option(MODEL, kw_only=False)
    gpus: int = option(GPUS, kw_only=False)
    device: Devices = option(
        "Device (`tracelens list devices`) or device file (.toml).",
        TIME,
        doc="that it runs on: a name, a TOML file (.toml or a Path) or a device.",
        metavar="NAME",
        type=str,
        complete="devices",
        kw_only=False,
    )
    ep: Numbers = option(
        "GPUs that share the experts, as in 8,16,32,64.",
        COMPARED,
        doc='GPUs that share the experts: 8, (8, 16) or "8,16".',
        metavar="LIST",
        type=str,
    )
    dispatch: Texts = option(
        "Ways to dispatch tokens: alltoall, dedup, deepep. Speedups are over the first.",
        COMPARED,
        doc='ways to dispatch tokens: "alltoall", "dedup" (a copy per rank) or "deepep" (a copy per node '
        "over the network, then per rank); the first one is the baseline.",
        metavar="LIST",
        type=str,
        default="alltoall,deepep",
    )
    overlap: Texts = option(
        "Dispatches that 1F1B hides behind the computation of another micro-batch, or none.",
        COMPARED,
        metavar="LIST",
        type=str,
        default="deepep",
    )
    network: str = option(
        "A bundled network, as in mi300x-8x400g, or a TOML file with nodes, links and NICs.",
        TIME,
        metavar="FILE",
        default="",
        shown="400 Gb/s per GPU at line rate",
        complete="networks",
    )
    assume: Texts = option(
        ASSUME,
        TIME,
        doc="assumptions of the step time.",
        help="An assumption of the step time, as in jitter=0.05; the result lists all. Repeatable.",
        default=(),
    )
    routing: str = option(
        "Recorded routing: a NumPy file (.npy) with the experts of each token of a layer, one row per token.",
        TIME,
        metavar="FILE",
        default="",
        shown="balanced",
    )
    pp: int | None = option(
        "Pipeline stages.",
        default=None,
        min=1,
        shown="as in the model file, or one expert group of the largest --ep each",
    )
    vpp: int | None = option(VPP, type=int | None, default=None, min=1)
    cp: int | None = option(CP, type=int | None, default=None, min=1)
    tp: int | None = option(TP, type=int | None, default=None, min=1)
    mbs: int | None = option(MBS, type=int | None, default=None, min=1, shown="as in the model, or 1")
    micro_batches: int | None = option(
        "Micro-batches per step on each data-parallel rank.", TRAINING, default=None, min=1, shown="4 x pp"
    )
    seq: int | None = option(SEQ, default=None)
    recompute: str | None = option(
        "Recompute in the backward pass: none, full, or layers as in 0,1,2.",
        TRAINING,
        metavar="LAYERS",
        default=None,
        shown="none",
    )
    settings: Texts = option(SETTINGS, default=())

    def answer(self) -> Result:
        """The projection for each number of GPUs that share the experts."""
        from tracelens.planner import options
        from tracelens.planner.scaling import scaling

        devices, eps = options.chosen(self.device), options.numbers("ep", self.ep)
        if len(devices) != 1:
            raise TracelensError("a scaling projection is for one device: give --device once")
        sizes = self.values("gpus", "vpp", "cp", "tp", "mbs", "seq", "pp", "micro_batches")
        names = ("recompute", "settings", "dispatch", "overlap", "assume", "network", "routing")
        return scaling(options.scaling_request(self.model, eps, sizes, **self.values(*names)), devices[0])


class BubbleRequest(ApiRequest["Result"], panel="Pipeline"):
    """The idle share of a pipeline, in closed form.

    Returns:
        tables `bubble`, `by_vpp` and, for the configuration of a published measurement, `published`.

    Raises:
        TracelensError: sizes that do not divide each other.
    """

    pp: int = option("Pipeline stages.", kw_only=False)
    global_tokens: int = option("Tokens per step on all GPUs.", kw_only=False)
    nodes: int = option("Number of nodes.", kw_only=False)
    seq: int = option("Tokens per sequence.", default=4096)
    mbs: int = option("Sequences per micro-batch.", default=1)
    vpp: int = option("Model chunks per stage.", default=1)
    gpus_per_node: int = option("GPUs per node.", default=8)
    cp: int = option("Ranks that share a sequence.", default=1)
    tp: int = option("Ranks that share each matrix.", default=1)

    def answer(self) -> Result:
        """The bubble."""
        from tracelens.planner import PipelineSizes, bubble

        names = ("pp", "global_tokens", "seq", "nodes", "mbs", "gpus_per_node", "cp", "tp")
        return bubble(PipelineSizes(**self.values(*names)), self.vpp)


class PublishedRequest(ApiRequest["Result"], panel=COMPARED):
    """AMD's published measurements beside their projection, with the errors.

    Returns:
        tables `summary` (largest error of each figure), `throughput`, `shares`, `runs` and `assumptions`.

    Raises:
        TracelensError: no such figure.
    """

    figure: Numbers = option(
        "A figure of AMD's MoE training guide, as in 6 or 5,6,7.",
        doc='figures of AMD\'s MoE training guide: 6, (5, 6) or "5,6"; all by default.',
        metavar="LIST",
        type=str | None,
        default=(),
        shown="all",
        kw_only=False,
    )

    def answer(self) -> Result:
        """The comparison."""
        from tracelens.planner import options
        from tracelens.planner.published import published

        return published(options.numbers("figure", self.figure) if self.figure else ())


class PipelineRequest(Partial, ApiRequest["Result"], panel=SCHEDULE):
    """Simulate pipeline schedules: step time, bubble, and activations in flight on each stage.

    The times are those of a recorded run (`run`), of the roofline of a model (`model`), or `forward_ms`.

    Returns:
        tables `summary` (one row per schedule), `stages`, `partition`, `spans` and `in_flight`.

    Raises:
        TracelensError: no source of times or several, or sizes that a schedule does not allow.
    """

    schedules: Texts = option(
        "gpipe, 1f1b, 1f1b-overlap, interleaved, interleaved-overlap, zb-h1, zb-h2, zb-v, all, or a CSV file "
        "of torch.distributed.pipelining. Repeatable.",
        name="schedule",
        metavar="NAME",
        default=(),
        shown="1f1b, and interleaved with --vpp",
        complete="schedules",
    )
    pp: int | None = option("Pipeline stages.", default=None, min=1)
    micro_batches: int | None = option("Micro-batches per step on each rank (GA).", default=None, min=1)
    vpp: int | None = option("Model chunks per stage, for interleaved schedules.", default=None, min=1)
    turn: int = option(
        "Micro-batches per turn through a chunk, for interleaved schedules.",
        doc="micro-batches per turn through a chunk, for interleaved schedules; `pp` by default.",
        default=0,
        min=0,
        shown="--pp",
    )
    partition: str = option(
        "Layers of each chunk in model order, as in 3,4,4,3.",
        name="layout",
        metavar="LAYERS",
        default="",
        shown="even",
    )
    best_partition: bool = option("Search for the partition with the shortest schedule.", default=False)
    forward_ms: float | None = option(
        "Forward time per micro-batch and stage, over all its chunks.", TIMES, metavar="MS", default=None
    )
    backward_ms: float | None = option(
        "Backward time, likewise.", TIMES, metavar="MS", default=None, shown="twice the forward"
    )
    exchange_share: float | None = option(
        "Exposed all-to-all as a share of forward and backward; an overlapping schedule can hide it.",
        TIMES,
        metavar="SHARE",
        default=None,
        min=0,
        max=1,
        shown="0.0",
    )
    run: Source | None = option(
        "A recorded run: a trace, a directory of ranks, or a pattern. Repeatable.",
        MEASURED,
        doc="source of times: a recorded run from `load`, or its path.",
        name="source",
        flags=("--from",),
        metavar="PATH",
        type=list[str] | None,
        convert=TraceFiles,
        default=None,
        kw_only=False,
    )
    step: str | int | None = option(
        "Only this step: 2 or ProfilerStep#2.", MEASURED, metavar="STEP", default=None, shown="all steps"
    )
    layers: int = option(
        "Layers of the model, if neither --model nor the trace says.",
        MEASURED,
        doc="of the model, if neither `model` nor annotations of the trace tell.",
        default=0,
        min=0,
        shown=None,
    )
    model: str | None = option(
        "Roofline of this model: a name (`tracelens list models`) or a file.",
        MODELED,
        doc="source of times: the roofline of this model, a name or a file.",
        metavar="MODEL",
        default=None,
        complete="models",
    )
    device: str | None = option(
        "Device for the roofline.", MODELED, metavar="NAME", default=None, complete="devices"
    )
    gpus: int | None = option("GPUs of the run.", MODELED, default=None, min=0, shown="one per stage")
    ep: int | None = option("Ranks that share the experts.", MODELED, default=None)
    tp: int | None = option("Ranks that share each matrix.", MODELED, default=None)
    cp: int | None = option("Ranks that share a sequence.", MODELED, default=None)
    seq: int | None = option("Tokens per sequence.", MODELED, default=None)
    mbs: int | None = option("Sequences per micro-batch.", MODELED, default=None)
    settings: Texts = option(
        SETTINGS,
        MODELED,
        help="Another field of the run, as in recompute_layer_ids=0,1. Repeatable.",
        default=(),
    )
    assume: Texts = option(
        ASSUME,
        MODELED,
        doc="assumptions that change the roofline, as in matrix=by-size.",
        help="An assumption that changes the roofline, as in matrix=by-size. Repeatable.",
        default=(),
    )
    p2p_us: float | None = option(
        "Time of a message between stages.",
        TIMES,
        metavar="US",
        default=None,
        min=0,
        shown="as measured, from the device's links, or 0",
    )
    weight_share: float = option(
        "Weight gradients as a share of the backward, for zero-bubble schedules.",
        TIMES,
        metavar="SHARE",
        default=0.5,
        min=0,
        max=1,
    )
    activation_gb: float | None = option(
        "GB (decimal) of activations of a micro-batch on a stage, all its chunks.",
        metavar="GB",
        default=None,
        min=0,
        shown="with --model, as in `tracelens project memory`",
    )

    def answer(self) -> Result:
        """The simulation."""
        from tracelens.planner import options
        from tracelens.planner.pipeline import pipeline

        of_model = self.values("ep", "tp", "cp", "seq", "mbs", "device") | {"gpus": self.gpus or None}
        of_times = {"backward-ms": self.backward_ms, "exchange-share": self.exchange_share or None}
        options.check_sources(
            {
                "--from": (self.run, {"step": self.step, "partial": self.partial or None}),
                "--model": (
                    self.model,
                    of_model | {"set": self.settings or None, "assume": self.assume or None},
                ),
                "--forward-ms": (self.forward_ms, of_times),
            }
        )
        names = ("schedules", "pp", "micro_batches", "vpp", "turn", "partition", "best_partition")
        setting = options.setting(**self.values(*names))
        measured, times = None, None
        if self.run is not None:
            run = self.loaded(self.run, self.step)
            self.progress("reading the passes of the pipeline")
            setting, times, measured = options.as_measured(setting, run, self.layers)
        elif self.model is not None:
            layout = self.values("ep", "tp", "cp", "seq", "mbs", "gpus")
            setting, times = options.by_roofline(
                setting, self.model, self.device, layout, self.settings, self.layers, self.assume
            )
        else:
            share = self.exchange_share or 0.0
            setting, times = options.uniform(
                setting, self.forward_ms or 0.0, self.backward_ms, share, self.layers
            )
        setting = options.with_costs(setting, self.p2p_us, self.weight_share, self.activation_gb)
        return pipeline(setting, times, measured)


class BoundsRequest(Partial, ApiRequest["Result"], panel=SHAPES):
    """Speed of light of collectives and the GEMMs next to them: what links, memory and matrix units allow.

    Without a run: MoE all-to-all, GEMM + reduce-scatter and all-gather + GEMM on one node, and all-reduce
    algorithms by message size. With a run: its collectives, without waiting, against the links of its GPUs.

    Returns:
        without a run tables `bounds`, `geometric_means`, `published`, `all_reduce`, `algorithms`,
        `crossovers` and `assumptions`; with one `collectives`, `fit`, `pairs` and `assumptions`.

    Raises:
        TracelensError: an unknown device, type or assumption, or a shape that the GPUs cannot share.
    """

    run: Source | None = option(
        PATHS,
        help="A recorded run: trace files, directories of ranks, or quoted patterns. Its own collectives are "
        "compared with their links.",
        doc="a recorded run from `load`, or its path.",
        type=list[str] | None,
        convert=lambda paths: TraceFiles(paths) if paths else None,
        default=None,
        kw_only=False,
    )
    all_to_all: Texts = option(
        "MoE dispatch and combine, as in 'experts=256 topk=8 hidden=7168 tokens=256' (tokens per GPU). "
        "Repeatable.",
        metavar="FIELDS",
        default=(),
    )
    gemm_rs: Texts = option(
        "GEMM + reduce-scatter, as in 8192x8192x29568: m x n x k, with k divided among the GPUs. Repeatable.",
        metavar="MxNxK",
        default=(),
    )
    ag_gemm: Texts = option(
        "All-gather + GEMM, likewise, with n divided among the GPUs. Repeatable.",
        doc="GEMMs behind an all-gather, likewise (n divided). Without any shape, those of the AMD Developer "
        "Challenge 2025.",
        metavar="MxNxK",
        default=(),
        shown="without any shape, those of the AMD Developer Challenge 2025",
    )
    dtype: str = option("Element type of these shapes.", metavar="TYPE", default="bf16")
    nodes: int | None = option("Nodes of the all-reduce.", MACHINE, default=None, min=1, shown="2")
    gpus_per_node: int = option("GPUs per node.", MACHINE, default=8, min=1)
    assume: Texts = option(
        "A rate or latency, as in nic_bytes_per_s=25e9; the result lists all. Repeatable.",
        MACHINE,
        metavar="NAME=VALUE",
        default=(),
    )
    step: str | int | None = option(
        STEP, RUN, help="Only this step of the run: 2 or ProfilerStep#2.", doc="", default=None
    )
    device: str | os.PathLike[str] | Device | None = option(
        "Take rates from this device (`tracelens list devices`).",
        DEVICE,
        doc="a name, a TOML file (.toml or a Path) or a device; by default mi300x, or the traced one.",
        metavar="NAME",
        type=str | None,
        default=None,
        shown="the traced one, or mi300x",
        complete="devices",
        file=DEVICE_FILE,
    )

    def answer(self) -> Result:
        """The bounds."""
        from tracelens.planner import options
        from tracelens.planner.bounds import bounds, trace_bounds, traced_device

        shapes = self.all_to_all, self.gemm_rs, self.ag_gemm
        device = options.chosen(self.device)[0] if self.device is not None else None
        if self.run is None:
            if self.step is not None:
                raise TracelensError("--step is for traces: pass their paths")
            of_shapes = options.platform(
                device or options.chosen("mi300x")[0], self.nodes or 2, self.gpus_per_node, self.assume
            )
            return bounds(of_shapes, options.operations(*shapes, self.gpus_per_node, self.dtype))
        if any(shapes) or self.nodes is not None:
            name = "--nodes" if self.nodes is not None else "a shape"
            raise TracelensError(f"{name} is not for traces, which hold their own collectives and ranks")
        run = self.loaded(self.run, self.step)
        of_run = options.platform(device or traced_device(run), 2, self.gpus_per_node, self.assume)
        self.progress("matching collectives")
        return trace_bounds(run, of_run)


project_memory = function_of("project_memory", MemoryRequest)
search_layouts = function_of("search_layouts", SearchRequest)
project_scaling = function_of("project_scaling", ScalingRequest)
project_bubble = function_of("project_bubble", BubbleRequest)
project_published = function_of("project_published", PublishedRequest)
project_pipeline = function_of("project_pipeline", PipelineRequest)
project_bounds = function_of("project_bounds", BoundsRequest)
