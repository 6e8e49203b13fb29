"""Kinds of losses: what is taken from a recording or done to its clock, and which doubt is the right answer.

Each kind raises `Undetectable` where what is left does not differ from an intact recording of less work, and
`Absent` where the recording has nothing to lose in this way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.conformance.losses.damage import Damage, RankDamage, Undetectable
from tests.conformance.losses.recordings import US_A_MS, WAITS, Bool, RankRecording, Recording, Replay

Rng = np.random.Generator
Injection = Callable[[Rng, Recording], Damage]
KINDS: dict[str, Kind] = {}

KERNELS = frozenset(("missing kernels", "missing graph kernels"))
LAUNCHES = frozenset(("missing launches",))
REPLAYS = frozenset(("missing graph kernels", "missing work"))
"""A launch does not say how many kernels its graph has: that work is missing is as right."""
FEW = 3
"""Fewer calls or kernels without their counterpart may be an API's oddity, as memsets of no bytes are."""
SMALL = 0.01
"""A loss of less than this share of GPU time, and of the launches, changes no result."""


class Absent(Exception):
    """The recording has nothing of this kind."""


@dataclass(frozen=True)
class Kind:
    name: str
    inject: Injection
    seeds: int


def kind(name: str, seeds: int = 1) -> Callable[[Injection], Injection]:
    """Register a kind of loss, with this many cases for each recording."""

    def keep(inject: Injection) -> Injection:
        KINDS[name] = Kind(name, inject, seeds)
        return inject

    return keep


def pick(rng: Rng, recording: Recording) -> tuple[int, RankRecording, RankDamage]:
    """A rank with GPU work."""
    indices = [index for index, rank in enumerate(recording.ranks) if rank.gpu.any()]
    if not indices:
        raise Absent("no GPU work")
    index = int(rng.choice(indices))
    return index, recording.ranks[index], RankDamage(recording.ranks[index])


def some(rng: Rng, mask: Bool, fraction: float) -> Bool:
    rows = np.flatnonzero(mask)
    chosen = np.zeros_like(mask)
    chosen[rng.choice(rows, size=round(len(rows) * fraction), replace=False)] = True
    return chosen


def between(rank: RankRecording, mask: Bool, first: float, last: float) -> Bool:
    """The events of a mask from one share of them to another, in order of time."""
    rows = np.flatnonzero(mask)
    rows = rows[np.argsort(rank.ts[rows], kind="stable")]
    chosen = np.zeros_like(mask)
    chosen[rows[int(first * len(rows)) : int(last * len(rows))]] = True
    return chosen


def weighs(edits: RankDamage) -> None:
    launches = edits.rank.launch & ~edits.drop
    bare = edits.bare_launches()
    if edits.lost_fraction() < SMALL and bare < 2 * SMALL * max(1, int(launches.sum())):
        raise Undetectable("under 1% of GPU time and under 2% of launches are lost")


def has_lost_kernels(edits: RankDamage) -> None:
    weighs(edits)
    if edits.bare_launches() < FEW and not edits.uneven_replays():
        raise Undetectable("what is gone was in graph replays that have no sibling, or had no launch")


def kernel_reasons(edits: RankDamage) -> frozenset[str]:
    return KERNELS if edits.bare_launches() >= FEW else REPLAYS


# -- kernels -------------------------------------------------------------------------------------------


@kind("a third of the kernels", seeds=2)
def random_kernels(rng: Rng, recording: Recording) -> Damage:
    index, rank, edits = pick(rng, recording)
    edits.drop_work(some(rng, rank.gpu, 1 / 3))
    has_lost_kernels(edits)
    return Damage({index: edits}, kernel_reasons(edits), f"{edits.bare_launches()} launches without kernels")


@kind("a third of a stream", seeds=2)
def stream_kernels(rng: Rng, recording: Recording) -> Damage:
    index, rank, edits = pick(rng, recording)
    lanes = [lane for lane in rank.gpu_lanes if (rank.launched & (rank.lane == lane)).sum() >= 3 * FEW]
    if not lanes:
        raise Absent("no stream with nine kernels")
    lane = rng.choice(lanes)
    edits.drop_work(some(rng, rank.launched & (rank.lane == lane), 1 / 3))
    has_lost_kernels(edits)
    return Damage({index: edits}, kernel_reasons(edits), f"{edits.bare_launches()} launches without kernels")


@kind("all kernels of a stretch", seeds=2)
def kernel_stretch(rng: Rng, recording: Recording) -> Damage:
    index, rank, edits = pick(rng, recording)
    first, length = rng.uniform(0.1, 0.5), rng.uniform(0.05, 0.35)
    edits.drop_work(between(rank, rank.launched, first, first + length))
    has_lost_kernels(edits)
    return Damage({index: edits}, kernel_reasons(edits), f"{edits.bare_launches()} launches without kernels")


@kind("a stream ends early")
def stream_ends(rng: Rng, recording: Recording) -> Damage:
    index, rank, edits = pick(rng, recording)
    lanes = [lane for lane in rank.gpu_lanes if (rank.launched & (rank.lane == lane)).sum() >= 3 * FEW]
    if not lanes:
        raise Absent("no stream with nine kernels")
    lane = rng.choice(lanes)
    edits.drop_work(between(rank, rank.launched & (rank.lane == lane), rng.uniform(0.3, 0.7), 1.0))
    has_lost_kernels(edits)
    ends = {"ends early"} if len(rank.gpu_lanes) > 1 else {"ends early", "cut"}
    return Damage({index: edits}, KERNELS | ends, f"stream {rank.events[_any(rank, lane)]['tid']}")


def _any(rank: RankRecording, lane: int) -> int:
    return int(np.flatnonzero(rank.gpu & (rank.lane == lane))[0])


# -- launches ------------------------------------------------------------------------------------------


def _without_launches(index: int, edits: RankDamage) -> Damage:
    rank = edits.rank
    orphans = edits.orphans()
    calls = np.unique(rank.correlation[rank.launch & ~edits.drop])
    lost = rank.launched & ~np.isin(rank.correlation, calls)
    if orphans < FEW or rank.dur[lost].sum() < SMALL * rank.dur[rank.gpu].sum():
        raise Undetectable("under 1% of GPU time is without its launch")
    return Damage({index: edits}, LAUNCHES, f"{orphans} kernels without launch")


@kind("a third of the launches")
def random_launches(rng: Rng, recording: Recording) -> Damage:
    index, rank, edits = pick(rng, recording)
    edits.drop_launches(some(rng, rank.launch, 1 / 3), arrows=True)
    return _without_launches(index, edits)


@kind("a third of the launches, arrows stay")
def random_launches_with_arrows(rng: Rng, recording: Recording) -> Damage:
    index, rank, edits = pick(rng, recording)
    edits.drop_launches(some(rng, rank.launch, 1 / 3), arrows=False)
    return _without_launches(index, edits)


@kind("all launches of a stretch")
def launch_stretch(rng: Rng, recording: Recording) -> Damage:
    index, rank, edits = pick(rng, recording)
    first, length = rng.uniform(0.15, 0.5), rng.uniform(0.08, 0.35)
    edits.drop_launches(between(rank, rank.launch, first, first + length), arrows=bool(rng.integers(2)))
    return _without_launches(index, edits)


# -- graph replays -------------------------------------------------------------------------------------


def _replay(rng: Rng, recording: Recording) -> tuple[int, RankRecording, RankDamage, Replay]:
    indices = [index for index, rank in enumerate(recording.ranks) if rank.siblings]
    if not indices:
        raise Absent("no graph replays with siblings")
    index = int(rng.choice(indices))
    rank = recording.ranks[index]
    group = rank.siblings[int(rng.integers(len(rank.siblings)))]
    return index, rank, RankDamage(rank), group[int(rng.integers(len(group)))]


def _in_replay(rank: RankRecording, replay: Replay) -> Bool:
    return rank.gpu & (rank.correlation == replay.correlation)


@kind("a graph replay", seeds=2)
def whole_replay(rng: Rng, recording: Recording) -> Damage:
    index, rank, edits, replay = _replay(rng, recording)
    edits.drop_work(_in_replay(rank, replay))
    return Damage({index: edits}, KERNELS, f"{len(replay.rows)} kernels of a replay")


@kind("part of a graph replay", seeds=3)
def replay_part(rng: Rng, recording: Recording) -> Damage:
    index, rank, edits, replay = _replay(rng, recording)
    work, share = _in_replay(rank, replay), rng.uniform(0.15, 0.8)
    parts = (some(rng, work, share), between(rank, work, 0, share), between(rank, work, 1 - share, 1))
    which = int(rng.integers(3))
    edits.drop_work(parts[which])
    if which and replay.correlation in (rank.replays[0].correlation, rank.replays[-1].correlation):
        raise Undetectable("the first and the last of a model's graphs may begin later or end earlier")
    return Damage(
        {index: edits},
        REPLAYS,
        f"{share:.0%} of {len(replay.rows)} kernels, {('some', 'head', 'tail')[which]}",
    )


@kind("a few kernels of a graph replay")
def replay_kernels(rng: Rng, recording: Recording) -> Damage:
    index, rank, edits, replay = _replay(rng, recording)
    edits.drop_work(some(rng, _in_replay(rank, replay), 2.5 / len(replay.rows)))
    return Damage({index: edits}, frozenset(("missing graph kernels",)), f"2 of {len(replay.rows)} kernels")


# -- steps ---------------------------------------------------------------------------------------------


def _steps(recording: Recording, rng: Rng) -> tuple[int, RankRecording, RankDamage]:
    index, rank, edits = pick(rng, recording)
    if len(rank.steps) < 2:
        raise Absent("no two steps with GPU work")
    return index, rank, edits


def _alike(rank: RankRecording) -> None:
    if min(rank.kernels_by_step) < 0.7 * max(rank.kernels_by_step):
        raise Undetectable("steps differ in work by themselves, so that a short one is no loss")


@kind("the kernels of a rank's last step")
def last_step_kernels(rng: Rng, recording: Recording) -> Damage:
    index, rank, edits = _steps(recording, rng)
    edits.drop_work(rank.launched_in(rank.steps[-1]))
    has_lost_kernels(edits)
    return Damage({index: edits}, KERNELS | {"short step", "ends early"}, f"{edits.drop.sum()} events")


@kind("kernels and launches of the last step")
def last_step_device(rng: Rng, recording: Recording) -> Damage:
    index, rank, edits = _steps(recording, rng)
    _alike(rank)
    work = rank.launched_in(rank.steps[-1])
    edits.drop_work(work)
    edits.drop_launches(rank.launch & np.isin(rank.correlation, rank.correlation[work]), arrows=True)
    return Damage({index: edits}, frozenset(("short step", "ends early")), f"{work.sum()} kernels")


@kind("all of a rank's last step")
def last_step(rng: Rng, recording: Recording) -> Damage:
    index, rank, edits = _steps(recording, rng)
    if len(recording.ranks) < 2:
        raise Undetectable("one rank without its last step is a recording of fewer steps")
    edits.end_at(float(rank.ts[rank.steps[-1]]))
    edits.drop_work(rank.launched_in(rank.steps[-1]))
    return Damage(
        {index: edits}, frozenset(("ends early", "short step", "cut")), f"{edits.drop.sum()} events"
    )


@kind("a buffer is lost in a step")
def lost_buffer(rng: Rng, recording: Recording) -> Damage:
    """Launches and kernels are gone together, as with a lost buffer of GPU records; ops stay."""
    index, rank, edits = _steps(recording, rng)
    _alike(rank)
    step = rank.launched_in(rank.steps[int(rng.integers(len(rank.steps)))])
    first, share = rng.uniform(0.0, 0.3), rng.uniform(0.55, 0.7)
    work = between(rank, step, first, first + share)
    edits.drop_work(work)
    calls = np.unique(rank.correlation[work & ~np.isin(rank.correlation, rank.correlation[step & ~work])])
    edits.drop_launches(rank.launch & np.isin(rank.correlation, calls), arrows=True)
    return Damage(
        {index: edits}, frozenset(("short step",)), f"{work.sum()} of {step.sum()} kernels of a step"
    )


@kind("the host's side of a thread")
def thread(rng: Rng, recording: Recording) -> Damage:
    index, rank, edits = pick(rng, recording)
    lanes, counts = np.unique(rank.lane[rank.launch], return_counts=True)
    if not (counts >= 20).any():
        raise Absent("no thread with 20 launches")
    edits.drop |= rank.lane == rng.choice(lanes[counts >= 20])
    return _without_launches(index, edits)


@kind("one in twenty kernels")
def few_kernels(rng: Rng, recording: Recording) -> Damage:
    index, rank, edits = pick(rng, recording)
    edits.drop_work(some(rng, rank.launched, 1 / 20))
    has_lost_kernels(edits)
    return Damage({index: edits}, kernel_reasons(edits), f"{edits.bare_launches()} launches without kernels")


# -- work and launches together ------------------------------------------------------------------------


@kind("all kernels of a name")
def kernels_of_a_name(rng: Rng, recording: Recording) -> Damage:
    """As when a kind of activity is not recorded; evenly in all steps."""
    index, rank, edits = pick(rng, recording)
    names, counts = np.unique(rank.name[rank.launched].astype(str), return_counts=True)
    if not (counts >= 3 * FEW).any():
        raise Absent("no kernel that runs nine times")
    name = rng.choice(names[counts >= 3 * FEW])
    if name.startswith("Memset"):
        raise Undetectable("a memset of no bytes has no work in intact recordings, either")
    edits.drop_work(rank.launched & (rank.name == name))
    has_lost_kernels(edits)
    if edits.bare_launches() < FEW:
        raise Undetectable("all replays of a graph lack the same")
    return Damage({index: edits}, KERNELS, str(name)[:60])


@kind("work under a blocking call")
def work_under_a_wait(rng: Rng, recording: Recording) -> Damage:
    """Launches and kernels of what the host waits for are gone, so that it waits for nothing."""
    index, rank, edits = pick(rng, recording)
    calls = np.flatnonzero(rank.call & rank.named(WAITS) & (rank.dur > 0.05 * np.ptp(rank.gpu_span)))
    calls = [call for call in calls if _under(rank, call).sum() >= 3 * FEW and rank.dur[call] > US_A_MS]
    if not calls:
        raise Absent("no blocking call of over 5% of the time")
    work = _under(rank, int(rng.choice(calls)))
    edits.drop_work(work)
    whole = np.unique(rank.correlation[work & ~np.isin(rank.correlation, rank.correlation[rank.gpu & ~work])])
    edits.drop_launches(rank.launch & np.isin(rank.correlation, whole), arrows=True)
    reasons = {"missing work", "short step"}
    if not (rank.gpu & ~edits.drop & (rank.ts > rank.ts[work].max())).any():
        reasons.add("ends early")
    return Damage({index: edits}, frozenset(reasons), f"{work.sum()} kernels")


def _under(rank: RankRecording, call: int) -> Bool:
    """GPU work that runs while the host is in a call, other than what ends with it."""
    start, end = rank.ts[call], rank.end[call]
    answer = rank.gpu & (rank.correlation == rank.correlation[call])
    return rank.gpu & (rank.end > start) & (rank.ts < end) & ~answer
