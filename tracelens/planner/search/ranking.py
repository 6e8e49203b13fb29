"""Layouts with their bytes; on a device, those that fit by step time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tracelens.devices import Device
from tracelens.errors import TracelensError
from tracelens.planner.config import Config, Layout, Model, Toggles, Training
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
"""Default sequences per step, as DeepSeek-V3 (arXiv:2412.19437, section 4.2): 63M tokens."""

NEAREST = 5
"""Layouts shown if none fits: those that need least."""

GIB = 2**30

SIZES = ("pp", "vpp", "ep", "cp", "tp")


@dataclass(frozen=True)
class Question:
    """What is to be trained, and on what.

    Attributes:
        model: its architecture.
        gpus: of the run.
        global_batch: sequences of a step on all of them: layouts are compared at the same work.
        training: sequence length, precision and so on; its micro-batches follow from the batch.
        toggles: of the run; which layers are computed again is the search's.
        memory: what the memory projection takes for granted.
        machine: what the step time takes for granted.
        reserve: bytes of each GPU that are not for training; None: as in the memory projection.
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
        """Raise TracelensError for what cannot be."""
        for name in ("gpus", "global_batch"):
            if getattr(self, name) < 1:
                raise TracelensError(f"{name} must be at least 1, not {getattr(self, name)}")


class Sized(NamedTuple):
    """A candidate with its bytes on the fullest GPU.

    Attributes:
        candidate: the layout.
        size: bytes; where no device has as many for what it holds between steps, only these.
        at_least: whether that is so.
    """

    candidate: Candidate
    size: int
    at_least: bool = False


Sizes = list[Sized]
"""One layout with more and more recomputation, up to the amount that fits everywhere."""


class Timed(NamedTuple):
    """A candidate with its bytes and its step on one device."""

    sized: Sized
    time: Estimate


class Ranked(NamedTuple):
    """The layouts on one device.

    Attributes:
        device: which.
        room: its bytes for training.
        fitting: those that fit, shortest step first.
        nearest: where none fits, those that need least.
        refused: those that do not fit.
    """

    device: Device
    room: int
    fitting: list[Timed]
    nearest: list[Timed]
    refused: list[Refusal]

    @property
    def shown(self) -> list[tuple[int, Timed]]:
        """With their places, -1 for what does not fit."""
        return [(-1, timed) for timed in self.nearest] if self.nearest else list(enumerate(self.fitting, 1))


def describe(candidate: Candidate) -> str:
    """A layout as text, sizes of 1 left out."""
    layout, training = candidate.config.layout, candidate.config.training
    sizes = {name: getattr(layout, name) for name in SIZES} | {"micro_batch": training.micro_batch}
    text = size_text({name: size for name, size in sizes.items() if size > 1}) or f"dp={layout.dp}"
    return text if candidate.recompute == NONE else f"{text} recompute={candidate.recompute}"


def sized_layouts(
    question: Question, spaces: Iterable[Space], rooms: Collection[int]
) -> tuple[list[Sizes], list[Refusal]]:
    """Layouts with their bytes, and what cannot be; `rooms` are the bytes of the devices."""
    sized, refusals = [], []
    fixed = (question.model, question.gpus, question.global_batch, question.training, question.toggles)
    seen: set[tuple[Layout, Training, tuple[str, ...]]] = set()
    tried = ((space, config) for space in spaces for config in candidates(*fixed, space))
    for space, config in tried:
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
    """A layout with as little recomputation as fits, for each of the rooms."""
    sizes: Sizes = []
    bound = at_least(config, question.memory)
    if question.memory.convention == "brief" and not space.recompute:
        # Which does not tell of recomputation.
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
    size_of_device, small, large = room(question, device), [], []
    for sizes in sized:
        fitting = next((sized_ for sized_ in sizes if sized_.size <= size_of_device), None)
        if fitting is not None:
            small.append(fitting)
        else:
            large.append(Refusal("does not fit", _needs(min(sizes, key=lambda sized_: sized_.size))))
    # At equal step time the smaller one, which leaves more headroom.
    timed = sorted(
        _timed(question, device, small), key=lambda sized_: (sized_.time.step_ns, sized_.sized.size)
    )
    nearest = [] if timed else list(_timed(question, device, _nearest(question, sized)))
    return Ranked(device, size_of_device, timed, nearest, large)


def _needs(sized: Sized) -> str:
    """Bytes of a candidate in words."""
    bound = "at least " if sized.at_least else ""
    return f"{describe(sized.candidate)} needs {bound}{sized.size / GIB:,.1f} GiB"


def _nearest(question: Question, sized: Iterable[Sizes]) -> list[Sized]:
    """Those that need least, with all of their bytes."""
    least = (min(sizes, key=lambda sized_: sized_.size) for sizes in sized)
    small = sorted(least, key=lambda sized_: (sized_.at_least, sized_.size))[:NEAREST]
    nearest = [
        Sized(sized_.candidate, footprint(sized_.candidate.config, question.memory)) for sized_ in small
    ]
    return sorted(nearest, key=lambda sized_: sized_.size)


def _timed(question: Question, device: Device, sized: Iterable[Sized]) -> Iterator[Timed]:
    for candidate in sized:
        yield Timed(candidate, estimate(candidate.candidate.config, device, question.machine))


def room(question: Question, device: Device) -> int:
    """Bytes of the device for training."""
    return room_of(device, question.memory.convention, question.reserve).usable
