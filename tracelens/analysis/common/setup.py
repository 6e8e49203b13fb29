"""What was run and on what: devices, hosts without one, names of process groups."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import pairwise
from typing import Any

import orjson
from msgspec import Struct, field
from msgspec.structs import asdict, replace

from tracelens.devices import Device, match, read_device
from tracelens.devices import device as device_named
from tracelens.errors import TracelensError
from tracelens.filenames import SIDECAR
from tracelens.table import Result
from tracelens.trace import Scope, Trace, TraceMeta, decoded, gpu_work

_SIZES = frozenset(
    {
        "hidden_size",
        "intermediate_size",
        "moe_intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "num_experts",
        "num_local_experts",
        "n_routed_experts",
        "n_shared_experts",
        "num_experts_per_tok",
        "vocab_size",
        "head_dim",
        "kv_lora_rank",
        "q_lora_rank",
        "num_layers",
        "ffn_hidden_size",
    }
)
"""Names of the sizes of a model in a flat configuration, as Hugging Face and Megatron have them."""


_FIGURES = re.compile(r"\d+ CUs, \d+\.\d+, \d+ GB$")
"""What stands in traces for the name of a GPU whose driver gives it none."""

LARGEST_SIDECAR_BYTES = 64 * 2**20
"""Of a run.json that is read; it grows with what the program adds."""


class Setup(Struct, frozen=True):
    """What one run was; empty where nobody says."""

    device: str = ""
    ranks: int = 0  # of the job
    model: Mapping[str, Any] = field(default_factory=dict)  # its sizes
    layout: Mapping[str, Any] = field(default_factory=dict)  # of the ranks: tp, pp, ep, ...
    dtype: str = ""
    tokens: int = 0  # a step
    software: Mapping[str, str] = field(default_factory=dict)  # name to version

    @staticmethod
    def of(devices: Collection[str], ranks: int, facts: Mapping[str, Any]) -> Setup:
        """From a run's devices and what the recorder wrote of it: config, mesh and software.

        Args:
            devices: names of the GPUs of all ranks.
            ranks: of the job.
            facts: the header of its traces, or its run.json.
        """
        config, mesh = _mapping(facts.get("config")), _mapping(facts.get("mesh"))
        training = _mapping(config.get("training"))
        model = _mapping(config.get("model")) or {key: config[key] for key in config if key in _SIZES}
        per_rank = [training.get(key, 0) for key in ("seq", "micro_batch", "micro_batches")]
        tokens = 0
        if all(isinstance(count, int) and count > 0 for count in [*per_rank, mesh.get("dp", 0)]):
            tokens = per_rank[0] * per_rank[1] * per_rank[2] * mesh["dp"]
        dtype = training.get("dtype") or config.get("torch_dtype") or config.get("dtype") or ""
        return Setup(
            device=", ".join(sorted(set(devices))),
            ranks=ranks,
            model=model,
            layout=mesh or _mapping(config.get("layout")),
            dtype=str(dtype).removeprefix("torch."),
            tokens=tokens,
            software={name: str(text) for name, text in _mapping(facts.get("software")).items()},
        )

    @staticmethod
    def read(document: object) -> Setup:
        """From what `document` wrote; what is damaged counts as not told."""
        fields = _mapping(document)
        plain = Setup()
        values = {
            name: fields[name]
            for name, default in asdict(plain).items()
            if name in fields and isinstance(fields[name], type(default))
        }
        return Setup(**values)

    def document(self) -> dict[str, Any]:
        """What is known of it, as JSON can hold it."""
        return {name: value for name, value in asdict(self).items() if value}


def setup_of(metas: Sequence[TraceMeta], ranks: Sequence[int]) -> Setup:
    """The setup of a run from its traces' headers and its run.json.

    Args:
        metas: of its traces.
        ranks: those that were read.
    """
    facts: dict[str, Any] = {}
    if metas:
        path = metas[0].path
        sidecar = os.path.join(os.path.dirname(path), SIDECAR)
        beside: Mapping[str, Any] = {}
        with suppress(OSError, ValueError):  # none that can be read
            if os.path.isfile(path) and os.path.getsize(sidecar) <= LARGEST_SIDECAR_BYTES:
                with open(sidecar, "rb") as file:
                    beside = _mapping(orjson.loads(file.read()))
        software = {**metas[0].software, **_mapping(beside.get("software"))}
        software = {key: text for key, text in software.items() if text}
        facts = {**beside, **metas[0].program, "software": software}
    world_size = max((meta.world_size for meta in metas), default=-1)
    return Setup.of(device_names(metas), world_size if world_size > 0 else len(set(ranks)), facts)


HOST = "cpu (host ops)"
"""In the place of a device's name."""
RECORD = "record with ProfilerActivity.CUDA (also on ROCm)"
NO_GPU = (
    "CPU-only trace: the CPU counts as the device, its innermost ops and gloo communication as the GPU's "
    f"kernels; if the program ran on a GPU, {RECORD}"
)
NO_LAUNCH = "not applicable to a CPU-only run: no kernels are launched"
"""Why a detector of such a signature is silent."""
NOTE = "CPU-only trace: GPU means the CPU here, and kernels are the host's ops."
MIXED = "Some ranks are CPU-only: for them GPU means the CPU, and kernels are the host's ops."

# Megatron-LM's descriptions, in an order in which the first that fits is right.
_PHRASES = (
    ("expert_tensor_model_pipeline_parallel", "ETP-EP-PP"),
    ("expert_tensor_and_model_parallel", "ETP-EP"),
    ("expert_tensor_parallel", "ETP"),
    ("expert_data_parallel", "EDP"),
    ("expert_(?:model_)?parallel", "EP"),
    ("tensor_and_data_parallel", "TP-DP"),
    ("tensor_and_context_parallel", "TP-CP"),
    ("tensor_(?:model_)?parallel", "TP"),
    ("pipeline_(?:model_)?parallel", "PP"),
    ("context_parallel", "CP"),
    ("sequence_parallel", "SP"),
    ("distributed_optimizer", "optimizer"),
    ("data_parallel", "DP"),
    ("model_parallel", "TP-PP"),
    ("^default_pg$|^world(?:_|$)", "world"),
)
# Dimensions of a device mesh (mesh_dp_shard_cp) and the groups of serving engines (tp:0).
_DIMENSIONS = ("pp", "tp", "cp", "sp", "dp", "ep", "etp", "edp", "fsdp", "hsdp")
_WORDS = {**{name: name.upper() for name in _DIMENSIONS}, "moe": "MoE", "shard": "shard", "replicate": "rep"}
_FILLERS = ("mesh", "group", "pg", "")
_LISTED = 4
"""Ranges of ranks that are listed; of more, the first ones."""
Group = tuple[str, tuple[int, ...]]
"""The name of a process group and its ranks; one name may stand for several groups."""
_LARGEST = 1 << 53
"""No rank, count or size is larger, and sums of them stay within 64 bits."""


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def choose_device(name: str | None, file: str | os.PathLike[str] | None) -> Device | None:
    """The device of the options `device` and `device_file`, None where neither is given.

    Raises:
        TracelensError: both are given, no such device, or the file is no device file.
    """
    if name and file:
        raise TracelensError("--device and --device-file both name a device; pass only one")
    if file:
        return read_device(os.fspath(file))
    return device_named(name) if name else None


def own_device(trace: Trace) -> Device | None:
    """The device that did the work; None for several, one that is not known, or the host."""
    if trace.meta.cpu_only:
        return None
    devices = {match(name) for name in trace.meta.devices.values()}
    return devices.pop() if len(devices) == 1 else None


def noted(result: Result, metas: Iterable[TraceMeta]) -> Result:
    """A result whose text says so where the work of any rank is the host's."""
    cpu_only = [meta.cpu_only for meta in metas]
    note = NOTE if all(cpu_only) else MIXED
    if not any(cpu_only) or note in result.doc:
        return result
    return replace(result, doc=f"{result.doc} {note}".strip())


def device_names(metas: Iterable[TraceMeta]) -> list[str]:
    """Names of the devices that did the work, sorted."""
    names = {name for meta in metas for name in ([HOST] if meta.cpu_only else meta.devices.values())}
    return sorted(set(map(device_title, names)))


@cache
def device_title(name: str) -> str:
    """What a device is called by its name in a trace.

    That of the bundled device which has its figures, where the driver gives it no name.
    """
    known = match(name) if _FIGURES.search(name) else None
    return known.title if known else name


def no_gpu_work(trace: Trace, scope: Scope) -> str:
    """Why an analyzer has no GPU work to look at."""
    if scope == "linked" and len(gpu_work(trace).event):
        return "no GPU work is linked to a launch call; use --scope all"
    return f"the trace has no GPU work; {RECORD}"


@cache
def role(description: str) -> str:
    """What a process group is for, by the description that the program gave it: 'EP'; '' if unknown."""
    text = re.sub(r"[\W_]+", "_", description.lower())
    for phrase, name in _PHRASES:
        if re.search(phrase, text):
            return name
    words = [word for word in re.split(r"_|\d+", text) if word not in _FILLERS]
    known = [_WORDS[word] for word in words if word in _WORDS]
    # Words that are no dimensions may say anything.
    return "-".join(known) if known and len(known) == len(words) else ""


def rank_ranges(ranks: Sequence[int]) -> str:
    """Ranks as text: '0-3', '0,4', '0,8…56', '0-3,8-11'."""
    ordered = sorted(ranks)
    steps = {after - before for before, after in pairwise(ordered)}
    if len(ordered) > _LISTED and len(steps) == 1 and steps != {1}:
        return f"{ordered[0]},{ordered[1]}…{ordered[-1]}"
    ranges: list[list[int]] = []
    for rank in ordered:
        if ranges and rank == ranges[-1][1] + 1:
            ranges[-1][1] = rank
        else:
            ranges.append([rank, rank])
    texts = [str(low) if low == high else f"{low}-{high}" for low, high in ranges]
    return ",".join(texts) if len(texts) <= _LISTED else f"{','.join(texts[:_LISTED])},…"


def group_name(name: str, description: str, ranks: Sequence[int]) -> str:
    """A process group as people know it: 'EP 0-3'; 'ranks 0-3' without a description; else its own name.

    Args:
        name: that the program numbers it by, such as '53'.
        description: of the program, may be ''.
        ranks: of the group; empty where they are not recorded.
    """
    what = role(description) or description
    if not ranks:
        return what or (f"group {name}" if name.isdigit() else name)
    return f"{what or 'ranks'} {rank_ranges(ranks)}"


def group_kind(name: str, description: str, ranks: Sequence[int]) -> str:
    """The same of all groups of one kind, such as 'EP', so that ranks can be compared."""
    return role(description) or description or group_name(name, "", ranks)


def distinct_names(groups: Mapping[Group, str]) -> dict[Group, str]:
    """A name of each process group that no other has.

    Args:
        groups: (name, ranks) to description.
    """
    names = {
        (name, ranks): group_name(name, description, ranks) for (name, ranks), description in groups.items()
    }
    shared = Counter(names.values())
    return {
        (name, ranks): f"{text} ({name})" if shared[text] > 1 and text != name else text
        for (name, ranks), text in names.items()
    }


def integers(text: str) -> list[int]:
    """A JSON list of integers; empty for anything else, such as a list that the profiler cut off."""
    numbers = decoded(text)
    return numbers if all(type(item) is int and abs(item) < _LARGEST for item in numbers) else []
