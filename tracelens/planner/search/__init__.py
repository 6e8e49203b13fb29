"""A layout search: every layout of a model on a number of GPUs, those that fit, and the fastest of them.

    search(Question(MODELS["moe_1t"], gpus=768), [device("mi300x")], [Space(pp=(24, 48))])

Layouts are sized by the bytes of their fullest GPU, and those that fit on a device are ranked by step time.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product
from math import isqrt
from operator import attrgetter
from typing import Any, NamedTuple

from tracelens.devices import Device
from tracelens.errors import TracelensError
from tracelens.planner.config import Config, Layout, Model, Toggles, Training, at_least_one
from tracelens.planner.memory import Assumptions, Stages, guide_stage, static
from tracelens.planner.memory import room as room_of
from tracelens.planner.step_time import ASSUMED, Estimate, Machine, assumed, estimate
from tracelens.planner.step_time import PARTS as STEP_PARTS
from tracelens.registry import purpose
from tracelens.table import Column, Result, Schema, Skip

_COMPUTING = ("forward", "backward", "recompute")
_COMMUNICATION = ("experts_exchange", "context_exchange", "tensor_exchange", "stage_exchange", "gradients")

LAYOUTS = Schema(
    "Layouts",
    (
        Column("device", "category", doc="device that the layout runs on"),
        Column(
            "position",
            "int64",
            "count",
            "rank by step time among those that fit; missing: does not fit",
            absent=-1,
        ),
        Column("pp", "int64", doc="pipeline stages"),
        Column("vpp", "int64", doc="model chunks per stage"),
        Column("ep", "int64", doc="ranks that share the experts"),
        Column("cp", "int64", doc="ranks that share a sequence"),
        Column("tp", "int64", doc="ranks that share each matrix"),
        Column("dp", "int64", doc="data-parallel ranks"),
        Column("micro_batch_size", "int64", doc="sequences per micro-batch"),
        Column("recompute", "category", doc="recomputed layers per chunk"),
        Column("step_ns", "int64", "ns", "projected step time"),
        Column("mfu", "float64", "fraction", "model FLOPs / the data-sheet peak"),
        Column("bytes", "int64", "bytes", "memory that the fullest GPU needs"),
        Column("free_bytes", "int64", "bytes", "free after the reserve; negative: does not fit"),
        Column("compute_fraction", "float64", "fraction", "of the step: forward, backward, recomputation"),
        Column("comm_fraction", "float64", "fraction", "of the step: exposed communication"),
        Column("bubble", "float64", "fraction", "of the step: waiting for other pipeline stages"),
        Column("tokens_per_s", "float64", doc="per GPU"),
        Column("micro_batches", "int64", doc="micro-batches per step on each data-parallel rank"),
    ),
    doc="Step times are projected from FLOPs, bytes, messages and launches; see the assumptions.",
)
PARTS = Schema(
    "Where the time goes",
    (
        Column("device", "category", doc="device that the layout runs on"),
        Column(
            "position", "int64", "count", "of the layout, as in `layouts`; missing: does not fit", absent=-1
        ),
        Column("layout", "str", doc="sizes of the layout"),
        Column("part", "category", doc="part of the slowest stage's step"),
        Column("ns", "int64", "ns", "time of the part per step"),
    ),
    detail=True,
)
REFUSED = Schema(
    "Invalid, or does not fit",
    (
        Column("device", "category", doc="device without room for them; '': invalid on any device"),
        Column("reason", "str", doc="why they are left out; N stands for numbers", prose=True),
        Column("count", "int64", "count", "layouts"),
        Column("example", "str", doc="one of these layouts", prose=True),
    ),
    kind="entries",
)
TABLES = {"layouts": LAYOUTS, "parts": PARTS, "refused": REFUSED, "assumptions": ASSUMED}

BATCH = 15360
"""Default sequences per step, as for DeepSeek-V3 (arXiv:2412.19437, section 4.2): 63M tokens."""
NEAREST = 5
"""Layouts shown if none fits: those that need least memory."""
GIB = 2**30
LAYOUT_SIZES = ("pp", "vpp", "ep", "cp", "tp")


@dataclass(frozen=True)
class Question:
    """The run to find a layout for."""

    model: Model  # its architecture
    gpus: int  # of the run
    global_batch: int = BATCH  # sequences per step on all GPUs, the same for all layouts
    # sequence length, precision and so on; micro-batches follow from the global batch
    training: Training = field(default_factory=Training)
    toggles: Toggles = field(default_factory=Toggles)  # of the run; the search decides on recomputation
    memory: Assumptions = field(default_factory=Assumptions)  # assumptions of the memory projection
    machine: Machine = field(default_factory=Machine)  # assumptions of the step time
    # bytes of each GPU to keep free; None for the default of the memory projection
    reserve: int | None = None

    def __post_init__(self) -> None:
        at_least_one(self, ("gpus", "global_batch"))


class Sized(NamedTuple):
    """A candidate with its bytes on the fullest GPU."""

    candidate: Candidate  # the layout
    size: int  # bytes
    at_least: bool = False  # whether `size` counts only the model state, which already exceeds every device


@lru_cache(maxsize=4096)
def _static(model: Model, layout: Layout, training: Training, assumptions: Assumptions) -> int:
    """Model state of the first pipeline rank."""
    return sum(static(Config(model, layout, training=training), 0, assumptions).held.values())


def at_least(config: Config, assumptions: Assumptions) -> int:
    """A cheap lower bound of `footprint`, which many runs share; 0 for none."""
    if assumptions.framework == "amd-guide":
        return 0
    # Data- and context-parallel ranks hold the same parameters.
    layout = replace(config.layout, cp=1)
    training = replace(config.training, micro_batch=1, micro_batches=layout.pp)
    return _static(config.model, layout, training, assumptions)


class Candidate(NamedTuple):
    """A valid layout, with its recomputed layers per chunk as in `Space`."""

    config: Config
    recompute: str


Sizes = list[Sized]
"""One layout with increasing recomputation, up to the amount that fits everywhere."""


class TimedLayout(NamedTuple):
    """A candidate with its bytes and its step on one device."""

    sized: Sized
    time: Estimate


class Ranked(NamedTuple):
    """The layouts on one device."""

    device: Device  # that they run on
    room: int  # its bytes for training
    fitting: list[TimedLayout]  # layouts that fit, shortest step first
    nearest: list[TimedLayout]  # if none fits, those that need least memory
    refused: list[Refusal]  # those that do not fit

    @property
    def shown(self) -> list[tuple[int, TimedLayout]]:
        """Layouts with their rank by step time, -1 for those that do not fit."""
        return [(-1, timed) for timed in self.nearest] if self.nearest else list(enumerate(self.fitting, 1))


_size = attrgetter("size")

IDLE_SHARE = 0.1
"""What Megatron-core's allocator reserves beyond its tensors / activations and temporary tensors.

The simulation gives 4% to 14% for the layouts of tests/planner/memory/megatron_peaks.toml; it would take a
tenth of a second for each of the hundreds of layouts of a search.
"""

NONE, FULL = "none", "full"
PARALLEL_SIZES = (1, 2, 4, 8)
"""Default ranks of tensor and of context parallelism."""
CHUNKS = (1, 2, 3, 4, 6, 8)
"""Default model chunks per stage."""
EACH = 4
"""Up to this many layers per chunk, every number of recomputed layers is tried."""
_NUMBER = re.compile(r"\d[\d,.]*")


@dataclass(frozen=True)
class Space:
    """The layouts to try; an empty field means all sensible values."""

    pp: tuple[int, ...] = ()  # pipeline stages; empty: every divisor of the GPUs up to the number of layers
    vpp: tuple[int, ...] = ()  # chunks per stage; empty: CHUNKS that split the layers evenly
    cp: tuple[int, ...] = ()  # ranks that share a sequence; empty: PARALLEL_SIZES
    tp: tuple[int, ...] = ()  # ranks that share each matrix; empty: PARALLEL_SIZES
    # ranks that share the experts; empty: every divisor of the experts and of the ranks per stage
    ep: tuple[int, ...] = ()
    micro_batch: tuple[int, ...] = ()  # sequences per micro-batch; empty: that of the training settings
    # recomputed layers per chunk: "none", "full" or a number; empty: these two, numbers up to EACH, and
    # powers of two beyond
    recompute: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("pp", "vpp", "cp", "tp", "ep", "micro_batch"):
            if wrong := [value for value in getattr(self, name) if value < 1]:
                raise TracelensError(f"{name} must be at least 1, not {wrong[0]}")
        for text in self.recompute:
            if text not in (NONE, FULL) and not text.isdecimal():
                raise TracelensError(f"recompute must be {NONE}, {FULL} or layers per chunk, not {text!r}")


class Refusal(NamedTuple):
    """A layout that is invalid or does not fit."""

    reason: str  # without numbers, so that refusals of one kind are equal
    example: str  # the layout, with the full reason


def search(
    question: Question, devices: Sequence[Device], spaces: Sequence[Space] = (Space(),), top: int = 10
) -> Result:
    """Which layouts fit, and which of them has the shortest step?

    Args:
        question: model, GPUs and batch.
        devices: to rank the layouts on, each separately.
        spaces: layouts to try; by default all sensible ones.
        top: layouts to show per device.

    Returns:
        tables `layouts` (best first per device; if none fits, those that need least memory), `parts` (where
        their time goes), `refused` (layouts that are invalid or do not fit, by reason) and `assumptions`.
        meta: tried, possible (valid layouts), fits (device to number of layouts), best (device to the best
        layout as text).

    Raises:
        TracelensError: no device, a device file without memory or rate, or nothing to try.
    """
    if not devices:
        raise TracelensError("a search needs a device: give --device")
    sized, refusals = sized_layouts(question, spaces, [room(question, device) for device in devices])
    if not sized:
        if not refusals:
            raise TracelensError("no layout to try: widen the search")
        most, *_ = _counted(("", refusal) for refusal in refusals)
        raise TracelensError(
            f"none of {len(refusals)} layouts is valid; {most['count']} as in {most['example']}"
        )
    rankings = [ranked(question, device, sized) for device in devices]
    best = {
        ranking.device.name: describe(ranking.fitting[0].sized.candidate)
        for ranking in rankings
        if ranking.fitting
    }
    shown = [(ranking, rank, timed) for ranking in rankings for rank, timed in ranking.shown[:top]]
    # Every layout gets all parts that any layout has.
    used = [part for part in STEP_PARTS if any(timed.time.parts[part] for *_, timed in shown)]
    layouts: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    for ranking, rank, timed in shown:
        (candidate, size, _), time = timed
        layout, training = candidate.config.layout, candidate.config.training
        layouts.append(
            {
                "device": ranking.device.name,
                "position": rank,
                **{name: getattr(layout, name) for name in LAYOUT_SIZES},
                "dp": layout.dp,
                "micro_batch_size": training.micro_batch,
                "micro_batches": training.micro_batches,
                "recompute": candidate.recompute,
                "step_ns": time.step_ns,
                "tokens_per_s": time.tokens_per_s,
                "mfu": time.mfu,
                "bytes": size,
                "free_bytes": ranking.room - size,
                "compute_fraction": sum(time.parts[name] for name in _COMPUTING) / time.step_ns,
                "comm_fraction": sum(time.parts[name] for name in _COMMUNICATION) / time.step_ns,
                "bubble": time.parts["bubble"] / time.step_ns,
            }
        )
        key = {"device": ranking.device.name, "position": rank, "layout": describe(candidate)}
        parts += [key | {"part": part, "ns": round(time.parts[part])} for part in used]
    refused = [("", refusal) for refusal in refusals]
    refused += [(ranking.device.name, refusal) for ranking in rankings for refusal in ranking.refused]
    return Result(
        "search",
        "Layouts that fit, fastest first",
        {
            "layouts": LAYOUTS.from_rows(layouts),
            "parts": PARTS.from_rows(parts),
            "refused": REFUSED.from_rows(_counted(refused)),
            "assumptions": assumed(question.machine, devices, question.training.dtype),
        },
        doc=purpose(search),
        skips=tuple(
            Skip(
                f"layouts on {ranking.device.name}",
                f"none fits in {ranking.room / GIB:,.1f} GiB; shown: those that need the least memory",
            )
            for ranking in rankings
            if not ranking.fitting
        ),
        meta={
            "gpus": question.gpus,
            "global_batch": question.global_batch,
            "seq": question.training.seq,
            "framework": question.memory.framework,
            "toggles": " ".join(f"{name}={value}" for name, value in question.toggles.changed().items())
            or "baseline",
            "tried": len(sized) + len(refusals),
            "possible": len(sized),
            "fits": {ranking.device.name: len(ranking.fitting) for ranking in rankings},
            "best": best,
            "step_times": question.machine.step_times,
        },
        command="tracelens project memory --search",
    )


def _counted(refused: Iterable[tuple[str, Refusal]]) -> list[dict[str, Any]]:
    """Rows of REFUSED, the most frequent first."""
    counts: dict[tuple[str, str], tuple[int, str]] = {}
    for device, (reason, example) in refused:
        count, first = counts.get((device, reason), (0, example))
        counts[device, reason] = (count + 1, first)
    rows = [
        {"device": device, "reason": reason, "count": count, "example": example}
        for (device, reason), (count, example) in counts.items()
    ]
    return sorted(rows, key=lambda row: -row["count"])


def describe(candidate: Candidate) -> str:
    """A layout as text, without sizes of 1."""
    layout, training = candidate.config.layout, candidate.config.training
    sizes = {name: getattr(layout, name) for name in LAYOUT_SIZES} | {"micro_batch": training.micro_batch}
    text = size_text({name: size for name, size in sizes.items() if size > 1}) or f"dp={layout.dp}"
    return text if candidate.recompute == NONE else f"{text} recompute={candidate.recompute}"


def sized_layouts(
    question: Question, spaces: Iterable[Space], rooms: Collection[int]
) -> tuple[list[Sizes], list[Refusal]]:
    """Layouts with their bytes, and invalid ones; `rooms` are the bytes of the devices."""
    sized, refusals = [], []
    fixed = (question.model, question.gpus, question.global_batch, question.training, question.toggles)
    seen: set[tuple[Layout, Training, tuple[str, ...]]] = set()
    layouts = ((space, config) for space in spaces for config in candidates(*fixed, space))
    for space, config in layouts:
        if isinstance(config, Refusal):
            refusals.append(config)
            continue
        key = (config.layout, config.training, space.recompute)
        if key in seen:
            continue
        seen.add(key)
        # AMD's guide does not cover recomputation.
        covers_recompute = question.memory.framework != "amd-guide" or space.recompute
        tried = space if covers_recompute else replace(space, recompute=(NONE,))
        sizes: Sizes = []
        try:
            # The least recomputation that fits, for each of the rooms.
            bound = at_least(config, question.memory)
            for candidate in variants(config, tried):
                if bound > max(rooms):
                    sizes.append(Sized(candidate, bound, at_least=True))
                    break
                sizes.append(Sized(candidate, footprint(candidate.config, question.memory)))
                if sizes[-1].size <= min(rooms):
                    break
            sized.append(sizes)
        except TracelensError as error:
            refusals.append(refusal(str(error), describe(Candidate(config, NONE))))
    return sized, refusals


def ranked(question: Question, device: Device, sized: Collection[Sizes]) -> Ranked:
    """The layouts on one device."""
    device_room, fitting, refused = room(question, device), [], []
    for sizes in sized:
        first_fit = next((variant for variant in sizes if variant.size <= device_room), None)
        if first_fit is not None:
            fitting.append(first_fit)
        else:
            least = min(sizes, key=_size)
            bound = "at least " if least.at_least else ""
            needs = f"{describe(least.candidate)} needs {bound}{least.size / GIB:,.1f} GiB"
            refused.append(Refusal("does not fit", needs))
    # At equal step time the smaller layout leaves more headroom.
    timed = sorted(
        _timed(question, device, fitting), key=lambda layout: (layout.time.step_ns, layout.sized.size)
    )
    nearest = []
    if not timed:
        # The layouts that need least, with their full footprint.
        smallest = (min(sizes, key=_size) for sizes in sized)
        few = sorted(smallest, key=lambda layout: (layout.at_least, layout.size))[:NEAREST]
        full = (Sized(c, footprint(c.config, question.memory)) for c, *_ in few)
        nearest = list(_timed(question, device, sorted(full, key=_size)))
    return Ranked(device, device_room, timed, nearest, refused)


def _timed(question: Question, device: Device, sized: Iterable[Sized]) -> Iterator[TimedLayout]:
    for layout in sized:
        yield TimedLayout(layout, estimate(layout.candidate.config, device, question.machine))


def room(question: Question, device: Device) -> int:
    """Bytes of the device for training."""
    return room_of(device, question.memory.framework, question.reserve).usable


def footprint(config: Config, assumptions: Assumptions) -> int:
    """Bytes of the fullest GPU at the peak of a step.

    The first of several stages with equal layers has most in flight, so one of each kind is enough.
    """
    if assumptions.framework == "amd-guide":
        return guide_stage(config, assumptions).total
    stages = Stages(config, assumptions)
    layout, dense = config.layout, config.model.dense_layers
    recomputed = frozenset(config.toggles.recompute_layer_ids)
    chunks = layout.chunks(config.model.layers)
    first_of_kind: dict[tuple[object, ...], int] = {}
    for pp_rank in range(layout.pp):
        held = tuple(
            tuple((layer < dense, layer in recomputed) for layer in chunk)
            for chunk in chunks[pp_rank :: layout.pp]
        )
        first_of_kind.setdefault((held, pp_rank == 0, pp_rank == layout.pp - 1), pp_rank)
    worst = max((stages.stage(pp_rank) for pp_rank in first_of_kind.values()), key=attrgetter("total"))
    if assumptions.framework != "megatron":
        return worst.total
    return worst.total + round(IDLE_SHARE * (worst.total - worst.moments["between"]))


def candidates(
    model: Model, gpus: int, global_batch: int, training: Training, toggles: Toggles, space: Space
) -> Iterator[Config | Refusal]:
    """Every layout of the space, without recomputation; a Refusal for each invalid one."""
    pps = space.pp or tuple(pp for pp in divisors(gpus) if pp <= model.layers)
    for pp, cp, tp in product(pps, space.cp or PARALLEL_SIZES, space.tp or PARALLEL_SIZES):
        if gpus % (pp * cp * tp):
            yield refusal(f"{gpus} GPUs are not a multiple of pp x cp x tp", f"pp={pp} cp={cp} tp={tp}")
            continue
        stage = gpus // pp
        eps = space.ep or tuple(ep for ep in divisors(stage) if model.experts_count % ep == 0)
        vpps = space.vpp or tuple(
            vpp for vpp in CHUNKS if vpp == 1 or (pp > 1 and model.layers % (pp * vpp) == 0)
        )
        sizes = product(eps if model.moe_layers else (1,), vpps, space.micro_batch or (training.micro_batch,))
        for ep, vpp, micro_batch in sizes:
            name = size_text({"pp": pp, "vpp": vpp, "cp": cp, "tp": tp, "ep": ep, "micro_batch": micro_batch})
            try:
                layout = Layout(ranks=gpus, pp=pp, vpp=vpp, cp=cp, tp=tp, ep=ep)
                # Micro-batches that the global batch makes on each data-parallel rank.
                count, rest = divmod(global_batch, layout.dp * micro_batch)
                if rest:
                    raise TracelensError(
                        f"a global batch of {global_batch} sequences is not a multiple of dp x micro_batch = "
                        f"{layout.dp} x {micro_batch}"
                    )
                batch = replace(training, micro_batch=micro_batch, micro_batches=count)
                config = Config(model, layout, replace(toggles, recompute_layer_ids=()), batch)
            except TracelensError as error:
                yield refusal(str(error), name)
                continue
            yield config


def size_text(sizes: dict[str, int]) -> str:
    """Sizes of a layout as text."""
    return " ".join(f"{name}={value}" for name, value in sizes.items())


def refusal(reason: str, layout: str) -> Refusal:
    """A refusal of this layout."""
    return Refusal(_NUMBER.sub("N", reason), f"{layout}: {reason}")


def divisors(number: int) -> tuple[int, ...]:
    """The divisors of a number, ascending."""
    small = [divisor for divisor in range(1, isqrt(number) + 1) if number % divisor == 0]
    return tuple(sorted({*small, *(number // divisor for divisor in small)}))


def variants(config: Config, space: Space) -> Iterator[Candidate]:
    """A layout with increasing recomputation."""
    chunks = config.layout.chunks(config.model.layers)
    layers = max(map(len, chunks))
    powers = [2**exponent for exponent in range((layers - 1).bit_length())]
    numbers = sorted({*range(1, min(layers - 1, EACH) + 1), *powers})
    amounts = space.recompute or (NONE, *map(str, numbers), FULL)
    amount = {text: int(text) for text in amounts if text.isdecimal()} | {NONE: 0, FULL: layers}
    # As many layers as the largest chunk has is the same as full.
    texts = {FULL if text != NONE and amount[text] >= layers else text for text in amounts}
    for text in sorted(texts, key=amount.__getitem__):
        if text == NONE:
            yield Candidate(config, text)
            continue
        # The first layers of each chunk are recomputed.
        count = config.model.layers if text == FULL else int(text)
        ids = tuple(layer for chunk in chunks for layer in chunk[:count])
        yield Candidate(replace(config, toggles=replace(config.toggles, recompute_layer_ids=ids)), text)
