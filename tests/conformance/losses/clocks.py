"""Clocks that are wrong, and durations that no device can have.

A whole rank that is shifted by a constant is none of these: ranks of different hosts have different clocks,
and the run is aligned by its collectives.
"""

from __future__ import annotations

import re

import numpy as np

from tests.conformance.losses.damage import Damage, RankDamage, Undetectable
from tests.conformance.losses.kinds import Absent, Rng, kind, pick
from tests.conformance.losses.recordings import DEVICE_WAIT, US_A_MS, Float, RankRecording, Recording

CLOCK = frozenset(("clock",))
DISORDER = frozenset(("clock", "overlapping kernels"))
CLEAR_US = 10.0
_COLLECTIVE = re.compile(r"(?i)nccl")


def _launched(rng: Rng, recording: Recording) -> tuple[int, RankRecording, RankDamage]:
    index, rank, edits = pick(rng, recording)
    if rank.launched.sum() < 20:
        raise Absent("under 20 kernels with a launch")
    return index, rank, edits


def _delays(edits: RankDamage) -> Float:
    """From the begin of the launch to the begin of the work, with the new times."""
    rank = edits.rank
    rows = np.flatnonzero(rank.launched & ~edits.drop)
    return edits.ts[rows] - edits.ts[rank.launch_row[rows]]


def _outlast_a_wait(edits: RankDamage) -> bool:
    """Whether GPU work that was launched before the host waited for the device ends after the wait."""
    rank = edits.rank
    rows = np.flatnonzero(rank.launched)
    launch, end = edits.ts[rank.launch_row[rows]], edits.ts[rows] + edits.dur[rows]
    waits = np.flatnonzero(rank.call & rank.named(DEVICE_WAIT))
    return any(
        (end[launch < edits.ts[row]] > edits.ts[row] + edits.dur[row] + CLEAR_US).sum() >= 5 for row in waits
    )


def _out_of_order(edits: RankDamage) -> int:
    """Pieces of GPU work that begin before one which the host launched earlier on the same stream."""
    rank, count = edits.rank, 0
    for lane in rank.gpu_lanes:
        rows = np.flatnonzero(rank.launched & (rank.lane == lane))
        rows = rows[np.argsort(edits.ts[rows], kind="stable")]
        launch = rank.ts[rank.launch_row[rows]]
        count += int((launch < np.maximum.accumulate(launch)).sum())
    return count


def _in_order(edits: RankDamage) -> None:
    if _out_of_order(edits) < max(5, 0.01 * edits.rank.launched.sum()):
        raise Undetectable("the order of the kernels stays")


def _before_launch(edits: RankDamage, fraction: float) -> bool:
    return bool((_delays(edits) < -CLEAR_US / 10).mean() >= fraction)


@kind("the GPU's clock is early")
def gpu_early(rng: Rng, recording: Recording) -> Damage:
    index, rank, edits = _launched(rng, recording)
    shift = float(np.median(_delays(edits))) + rng.uniform(0.05, 1.0) * US_A_MS
    edits.ts[rank.on_gpu_lane] -= shift
    return Damage({index: edits}, CLOCK, f"{shift / US_A_MS:.2f} ms")


@kind("the GPU's clock is late")
def gpu_late(rng: Rng, recording: Recording) -> Damage:
    index, rank, edits = _launched(rng, recording)
    start, end = rank.gpu_span
    shift = rng.uniform(0.05, 0.3) * (end - start)
    edits.ts[rank.on_gpu_lane] += shift
    if not _outlast_a_wait(edits):
        raise Undetectable("the host waits for the device nowhere, so that the GPU may be late")
    return Damage({index: edits}, CLOCK, f"{shift / US_A_MS:.2f} ms")


@kind("a stream's clock is early")
def stream_early(rng: Rng, recording: Recording) -> Damage:
    index, rank, edits = _launched(rng, recording)
    lanes = [lane for lane in rank.gpu_lanes if (rank.launched & (rank.lane == lane)).sum() >= 20]
    if len(rank.gpu_lanes) < 2 or not lanes:
        raise Absent("one stream only")
    lane = rng.choice(lanes)
    rows = np.flatnonzero(rank.launched & (rank.lane == lane))
    delay = np.median(rank.ts[rows] - rank.ts[rank.launch_row[rows]])
    edits.ts[rank.lane == lane] -= delay + rng.uniform(0.05, 1.0) * US_A_MS
    return Damage({index: edits}, CLOCK, f"{len(rows)} kernels")


@kind("a thread's clock is late")
def thread_late(rng: Rng, recording: Recording) -> Damage:
    index, rank, edits = _launched(rng, recording)
    lanes, counts = np.unique(rank.lane[rank.launch], return_counts=True)
    if not (counts >= 20).any():
        raise Absent("no thread with 20 launches")
    lane = rng.choice(lanes[counts >= 20])
    rows = np.flatnonzero(rank.launched)
    rows = rows[rank.lane[rank.launch_row[rows]] == lane]
    delay = np.median(rank.ts[rows] - rank.ts[rank.launch_row[rows]])
    edits.ts[rank.lane == lane] += delay + rng.uniform(0.05, 2.0) * US_A_MS
    if not _before_launch(edits, 0.05):
        raise Undetectable("few kernels are launched by this thread")
    return Damage({index: edits}, CLOCK, f"{len(rows)} kernels")


@kind("blocks of the GPU's time are shuffled")
def gpu_blocks(rng: Rng, recording: Recording) -> Damage:
    index, rank, edits = _launched(rng, recording)
    start, end = rank.gpu_span
    count = int(rng.integers(4, 12))
    order = rng.permutation(count)
    lanes = rank.on_gpu_lane
    block = np.clip(((rank.ts[lanes] - start) / (end - start) * count).astype(np.int64), 0, count - 1)
    edits.ts[lanes] += (order[block] - block) * (end - start) / count
    _in_order(edits)
    return Damage({index: edits}, DISORDER, f"{count} blocks")


@kind("a stream's timestamps are shuffled")
def stream_shuffled(rng: Rng, recording: Recording) -> Damage:
    index, rank, edits = _launched(rng, recording)
    lanes, counts = np.unique(rank.lane[rank.launched], return_counts=True)
    rows = np.flatnonzero(rank.gpu & (rank.lane == rng.choice(lanes[counts >= min(20, counts.max())])))
    edits.ts[rows] = rank.ts[rng.permutation(rows)]
    _in_order(edits)
    return Damage({index: edits}, DISORDER, f"{len(rows)} kernels")


@kind("the GPU's timestamps jitter")
def jitter(rng: Rng, recording: Recording) -> Damage:
    index, rank, edits = _launched(rng, recording)
    rows = np.flatnonzero(rank.gpu)
    width = 2 * float(np.median(_delays(edits))) + rng.uniform(20, 500)
    edits.ts[rows] += rng.uniform(-width, width, size=len(rows))
    _in_order(edits)
    return Damage({index: edits}, DISORDER, f"{width:.0f} µs")


@kind("the GPU's clock is slow or fast")
def gpu_scaled(rng: Rng, recording: Recording) -> Damage:
    index, rank, edits = _launched(rng, recording)
    factor = rng.uniform(0.6, 0.85) if rng.integers(2) else rng.uniform(1.15, 1.5)
    _scale(edits, rank.on_gpu_lane, factor)
    if not (_before_launch(edits, 0.05) or _outlast_a_wait(edits)):
        raise Undetectable("no kernel comes before its launch or outlasts a wait of the host")
    return Damage({index: edits}, CLOCK, f"factor {factor:.2f}")


@kind("a rank's clock is slow or fast")
def rank_scaled(rng: Rng, recording: Recording) -> Damage:
    if len(recording.ranks) < 2:
        raise Undetectable("a single rank may have any pace")
    index, rank, edits = _launched(rng, recording)
    if (rank.gpu & rank.named(_COLLECTIVE)).sum() < 12:
        raise Undetectable("under 12 collectives to compare clocks by")
    factor = rng.uniform(0.75, 0.9) if rng.integers(2) else rng.uniform(1.1, 1.3)
    _scale(edits, ~np.isnan(rank.ts), factor)
    return Damage({index: edits}, CLOCK, f"factor {factor:.2f}")


def _scale(edits: RankDamage, events: np.ndarray, factor: float) -> None:
    start = float(np.nanmin(edits.rank.ts[edits.rank.host | edits.rank.gpu]))
    edits.ts[events] = start + (edits.ts[events] - start) * factor
    edits.dur[events] *= factor


@kind("a rank's clock jumps back")
def jump_back(rng: Rng, recording: Recording) -> Damage:
    index, rank, edits = _launched(rng, recording)
    start, end = rank.gpu_span
    jump = rng.uniform(0.05, 0.2) * (end - start)
    later = rank.ts > start + rng.uniform(0.4, 0.7) * (end - start)
    edits.ts[later] -= jump
    _in_order(edits)
    return Damage({index: edits}, DISORDER, f"{jump / US_A_MS:.2f} ms")


# -- durations -----------------------------------------------------------------------------------------


@kind("some kernels run into the next twenty")
def long_kernels(rng: Rng, recording: Recording) -> Damage:
    index, rank, edits = pick(rng, recording)
    lanes, counts = np.unique(rank.lane[rank.gpu], return_counts=True)
    lane = lanes[np.argmax(counts)]
    rows = np.flatnonzero(rank.gpu & (rank.lane == lane))
    rows = rows[np.argsort(rank.ts[rows])]
    if len(rows) < 60:
        raise Absent("under 60 kernels on a stream")
    for first in rng.choice(len(rows) - 21, size=5, replace=False):
        edits.dur[rows[first]] = rank.end[rows[first + 20]] - rank.ts[rows[first]]
    if edits.dur[rows].sum() < 1.01 * rank.dur[rows].sum():
        raise Undetectable("the longer kernels add under 1% of GPU time")
    return Damage({index: edits}, frozenset(("overlapping kernels",)), f"of {len(rows)}")


@kind("all kernels take longer than they can")
def long_durations(rng: Rng, recording: Recording) -> Damage:
    index, rank, edits = pick(rng, recording)
    factor = rng.uniform(2.5, 8)
    edits.dur[rank.gpu] *= factor
    if _overlap(edits) < 0.01:
        raise Undetectable("kernels stand so far apart that the longer ones have room")
    return Damage({index: edits}, frozenset(("overlapping kernels",)), f"factor {factor:.1f}")


def _overlap(edits: RankDamage) -> float:
    """Share of GPU time in which a stream runs a kernel before the one before it has ended."""
    rank, total = edits.rank, 0.0
    for lane in rank.gpu_lanes:
        rows = np.flatnonzero(rank.gpu & (rank.lane == lane))
        rows = rows[np.argsort(edits.ts[rows], kind="stable")]
        ends = np.maximum.accumulate(edits.ts[rows] + edits.dur[rows])
        total += float(np.clip(ends[:-1] - edits.ts[rows[1:]], 0, edits.dur[rows[1:]]).sum())
    return total / float(edits.dur[rank.gpu].sum())
