"""Changes that take nothing from what a recording says of the GPU, and must raise no doubt."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.conformance.losses.damage import Damage, RankDamage
from tests.conformance.losses.kinds import Absent, Injection, Kind, Rng
from tests.conformance.losses.recordings import RankRecording, Recording

HARMLESS: dict[str, Kind] = {}
NOTHING: frozenset[str] = frozenset()
STEP_MARKS = "user_annotation"
CONSIDERABLE = 0.05
US_A_S = 1e6


def harmless(name: str) -> Callable[[Injection], Injection]:
    def keep(inject: Injection) -> Injection:
        HARMLESS[name] = Kind(name, inject, 1)
        return inject

    return keep


def _all(recording: Recording) -> dict[int, RankDamage]:
    return {index: RankDamage(rank) for index, rank in enumerate(recording.ranks)}


def _without(recording: Recording, *categories: str) -> Damage:
    damages = _all(recording)
    for edits in damages.values():
        edits.drop |= np.array([event.get("cat") in categories for event in edits.rank.events])
    if not any(edits.drop.any() for edits in damages.values()):
        raise Absent(f"no {', '.join(categories)}")
    behind = max(_launched_before(rank) for rank in recording.ranks)
    also = {"cut"} if behind >= CONSIDERABLE and STEP_MARKS in categories else set()
    return Damage(damages, NOTHING, f"{behind:.1%} launched before", also=frozenset(also))


def _launched_before(rank: RankRecording) -> float:
    """Share of GPU time that was launched before the recording began.

    Step marks tell such work from the rest. Without them a recording with a considerable share of it begins
    amid work; a few kernels are ordinary.
    """
    gpu_us = float(rank.dur[rank.gpu].sum())
    return float(rank.dur[rank.gpu & ~rank.launched].sum()) / gpu_us if gpu_us else 0.0


@harmless("without Python frames")
def no_frames(rng: Rng, recording: Recording) -> Damage:
    return _without(recording, "python_function")


@harmless("without annotations, and so without step marks")
def no_annotations(rng: Rng, recording: Recording) -> Damage:
    return _without(recording, "user_annotation", "gpu_user_annotation")


@harmless("without ops")
def no_ops(rng: Rng, recording: Recording) -> Damage:
    host = ("cpu_op", "python_function", "fwdbwd")
    return _without(recording, *host, "user_annotation", "gpu_user_annotation")


@harmless("without arrows")
def no_arrows(rng: Rng, recording: Recording) -> Damage:
    damages = _all(recording)
    for edits in damages.values():
        edits.drop |= np.array([event.get("ph") in ("s", "t", "f") for event in edits.rank.events])
    return Damage(damages, NOTHING)


@harmless("in whole microseconds")
def whole_microseconds(rng: Rng, recording: Recording) -> Damage:
    damages = _all(recording)
    for edits in damages.values():
        edits.ts, edits.dur = np.floor(edits.ts), np.floor(edits.dur)
    return Damage(damages, NOTHING)


@harmless("in another order of the file")
def another_order(rng: Rng, recording: Recording) -> Damage:
    damages = _all(recording)
    for edits in damages.values():
        edits.order = rng.permutation(len(edits.rank.events))
    return Damage(damages, NOTHING)


@harmless("a rank on another host's clock")
def another_clock(rng: Rng, recording: Recording) -> Damage:
    """The traces name the hosts: unnamed ranks with GPUs 0 to 7 are of one machine, which reads one clock."""
    if len(recording.ranks) < 2:
        raise Absent("one rank only")
    index = int(rng.integers(len(recording.ranks)))
    damages = _all(recording)
    for rank, edits in damages.items():
        edits.head = {"host_name": "other" if rank == index else "first"}
    damages[index].ts += rng.uniform(-0.5, 2.0) * US_A_S
    return Damage(damages, NOTHING)


@harmless("one rank alone")
def alone(rng: Rng, recording: Recording) -> Damage:
    if len(recording.ranks) < 2:
        raise Absent("one rank only")
    index = int(rng.integers(len(recording.ranks)))
    return Damage({index: RankDamage(recording.ranks[index])}, NOTHING, alone=True)


@harmless("on slower machines")
def slower(rng: Rng, recording: Recording) -> Damage:
    return _paced(recording, rng.uniform(2, 5))


@harmless("on faster machines")
def faster(rng: Rng, recording: Recording) -> Damage:
    return _paced(recording, rng.uniform(0.2, 0.5))


def _paced(recording: Recording, factor: float) -> Damage:
    damages = _all(recording)
    start = min(float(np.nanmin(edits.ts)) for edits in damages.values())
    for edits in damages.values():
        edits.ts = start + (edits.ts - start) * factor
        edits.dur = edits.dur * factor
    return Damage(damages, NOTHING, f"factor {factor:.2f}")


@harmless("without the last steps, where the GPU keeps up")
def fewer_steps(rng: Rng, recording: Recording) -> Damage:
    damages = _all(recording)
    count = min(len(edits.rank.steps) for edits in damages.values())
    if count < 2:
        raise Absent("no two steps with GPU work")
    left = int(rng.integers(1, count))
    for edits in damages.values():
        _leave_steps(edits, left)
    return Damage(damages, NOTHING, f"{left} of {count} steps")


def _leave_steps(edits: RankDamage, left: int) -> None:
    """Take out the time of the later steps; what comes after them, as the profiler's last wait, stays."""
    rank = edits.rank
    first, last = float(rank.ts[rank.steps[left]]), float(rank.end[rank.steps[-1]])
    before = rank.launched & (rank.ts[rank.launch_row] < first)
    if (rank.end[before] > first).any() or (rank.gpu & ~rank.launched & (rank.end > first)).any():
        raise Absent("the GPU is behind the host between steps")
    edits.drop |= (rank.ts >= first) & (rank.ts < last)
    edits.drop_work(rank.launched & ~before)
    edits.drop |= rank.on_gpu_lane & (rank.ts >= first)
    spans = (rank.ts < first) & (rank.end > first)
    edits.dur[spans] = np.maximum(rank.dur[spans] - (last - first), first - rank.ts[spans])
    edits.ts[rank.ts >= last] -= last - first
