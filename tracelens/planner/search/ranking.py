"""Layouts by memory, and those that fit on a device by step time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import NamedTuple

from tracelens.devices import Device
from tracelens.errors import TracelensError
from tracelens.planner.config import Config, Layout, Model, Toggles, Training, at_least_one
from tracelens.planner.memory import Assumptions
from tracelens.planner.memory import room as room_of
from tracelens.planner.search.footprint import at_least, footprint
from tracelens.planner.search.space import (
    NONE,
    Candidate,
    Refusal,
    Space,
    candidates,
    refusal,
    size_text,
    variants,
)
from tracelens.planner.step_time import Estimate, Machine, estimate

BATCH = 15360
"""Default sequences per step, as for DeepSeek-V3 (arXiv:2412.19437, section 4.2): 63M tokens."""

NEAREST = 5
"""Layouts shown if none fits: those that need least memory."""

GIB = 2**30

SIZES = ("pp", "vpp", "ep", "cp", "tp")


@dataclass(frozen=True)
class Question:
    """The run to find a layout for.

    Attributes:
        model: its architecture.
        gpus: of the run.
        global_batch: sequences per step on all GPUs, the same for all layouts.
        training: sequence length, precision and so on; micro-batches follow from the global batch.
        toggles: of the run; the search decides on recomputation.
        memory: assumptions of the memory projection.
        machine: assumptions of the step time.
        reserve: bytes of each GPU to keep free; None for the default of the memory projection.
    """

    model: Model
    gpus: int
    global_batch: int = BATCH
    training: Training = field(default_factory=Training)
    toggles: Toggles = field(default_factory=Toggles)
    memory: Assumptions = field(default_factory=Assumptions)
    machine: Machine = field(default_factory=Machine)
    reserve: int | None = None

    def __post_init__(self) -> None:
        at_least_one(self, ("gpus", "global_batch"))


class Sized(NamedTuple):
    """A candidate with its bytes on the fullest GPU.

    Attributes:
        candidate: the layout.
        size: bytes.
        at_least: whether `size` counts only the model state, which already exceeds every device.
    """

    candidate: Candidate
    size: int
    at_least: bool = False


Sizes = list[Sized]
"""One layout with increasing recomputation, up to the amount that fits everywhere."""


class Timed(NamedTuple):
    """A candidate with its bytes and its step on one device."""

    sized: Sized
    time: Estimate


class Ranked(NamedTuple):
    """The layouts on one device.

    Attributes:
        device: that they run on.
        room: its bytes for training.
        fitting: layouts that fit, shortest step first.
        nearest: if none fits, those that need least memory.
        refused: those that do not fit.
    """

    device: Device
    room: int
    fitting: list[Timed]
    nearest: list[Timed]
    refused: list[Refusal]

    @property
    def shown(self) -> list[tuple[int, Timed]]:
        """Layouts with their rank by step time, -1 for those that do not fit."""
        return [(-1, timed) for timed in self.nearest] if self.nearest else list(enumerate(self.fitting, 1))


def describe(candidate: Candidate) -> str:
    """A layout as text, without sizes of 1."""
    layout, training = candidate.config.layout, candidate.config.training
    sizes = {name: getattr(layout, name) for name in SIZES} | {"micro_batch": training.micro_batch}
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
        try:
            sized.append(_sizes(question, config, space, rooms))
        except TracelensError as error:
            refusals.append(refusal(str(error), describe(Candidate(config, NONE))))
    return sized, refusals


def _sizes(question: Question, config: Config, space: Space, rooms: Collection[int]) -> Sizes:
    """A layout with the least recomputation that fits, for each of the rooms."""
    sizes: Sizes = []
    bound = at_least(config, question.memory)
    if question.memory.framework == "amd-guide" and not space.recompute:
        # The guide does not cover recomputation.
        space = replace(space, recompute=(NONE,))
    for candidate in variants(config, space):
        if bound > max(rooms):
            return [Sized(candidate, bound, at_least=True)]
        sizes.append(Sized(candidate, footprint(candidate.config, question.memory)))
        if sizes[-1].size <= min(rooms):
            break
    return sizes


def ranked(question: Question, device: Device, sized: Collection[Sizes]) -> Ranked:
    """The layouts on one device."""
    device_room, fitting, refused = room(question, device), [], []
    for sizes in sized:
        first_fit = next((variant for variant in sizes if variant.size <= device_room), None)
        if first_fit is not None:
            fitting.append(first_fit)
        else:
            refused.append(Refusal("does not fit", _needs(min(sizes, key=_size))))
    # At equal step time the smaller layout leaves more headroom.
    timed = sorted(
        _timed(question, device, fitting), key=lambda layout: (layout.time.step_ns, layout.sized.size)
    )
    nearest = [] if timed else list(_timed(question, device, _nearest(question, sized)))
    return Ranked(device, device_room, timed, nearest, refused)


_size = attrgetter("size")


def _needs(sized: Sized) -> str:
    bound = "at least " if sized.at_least else ""
    return f"{describe(sized.candidate)} needs {bound}{sized.size / GIB:,.1f} GiB"


def _nearest(question: Question, sized: Iterable[Sizes]) -> list[Sized]:
    """The layouts that need least, with their full footprint."""
    least = (min(sizes, key=_size) for sizes in sized)
    small = sorted(least, key=lambda layout: (layout.at_least, layout.size))[:NEAREST]
    full = (Sized(c, footprint(c.config, question.memory)) for c, *_ in small)
    return sorted(full, key=_size)


def _timed(question: Question, device: Device, sized: Iterable[Sized]) -> Iterator[Timed]:
    for layout in sized:
        yield Timed(layout, estimate(layout.candidate.config, device, question.machine))


def room(question: Question, device: Device) -> int:
    """Bytes of the device for training."""
    return room_of(device, question.memory.framework, question.reserve).usable
