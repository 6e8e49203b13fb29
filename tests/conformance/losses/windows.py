"""Losses at the edges: windows that are cut, records of the device that stop, files cut short, notices."""

from __future__ import annotations

import numpy as np

from tests.conformance.losses.damage import Damage, RankDamage, Undetectable
from tests.conformance.losses.kinds import FEW, KERNELS, Rng, kind, pick
from tests.conformance.losses.recordings import RankRecording, Recording

HEAD = frozenset(("cut", "missing launches", "short step"))
FAR_FEWER = 0.5
"""A step with so much of the kernels of its siblings is short beyond doubt."""


def _span(rank: RankRecording) -> tuple[float, float]:
    """Of what the host does and the GPU does in answer, without the profiler's own calls at the end."""
    events = rank.host | rank.gpu
    if rank.launch.any():
        first, last = float(rank.ts[rank.launch].min()), float(rank.ts[rank.launch].max())
        return min(first, rank.gpu_span[0]), max(last, rank.gpu_span[1])
    return float(rank.ts[events].min()), float(rank.end[events].max())


def _short_last_step(edits: RankDamage) -> bool:
    """Whether the last step that is left has far fewer kernels than its siblings, which are alike."""
    rank = edits.rank
    whole = rank.kernels_by_step
    if len(whole) < 2 or min(whole) < 0.7 * max(whole):
        return False
    left = [int((rank.launched_in(step) & ~edits.drop).sum()) for step in rank.steps if not edits.drop[step]]
    return len(left) > 1 and left[-1] <= FAR_FEWER * float(np.median(whole))


def _work_before_first_step(edits: RankDamage) -> bool:
    """Whether steps are marked, and a fifth of one's work stands before the first mark that is left."""
    rank = edits.rank
    left = [step for step in rank.steps if not edits.drop[step]]
    gone = [step for step in rank.steps if edits.drop[step]]
    if not left or not gone:
        return False
    kept = rank.launch & ~edits.drop & (rank.ts < rank.ts[left[0]])
    work = rank.gpu & ~edits.drop & np.isin(rank.correlation, rank.correlation[kept])
    return bool(work.sum() >= 0.2 * np.median(rank.kernels_by_step))


def _lost(edits: RankDamage) -> float:
    launched = edits.rank.launched
    return float((launched & edits.drop).sum() / max(1, launched.sum()))


@kind("the end is cut, of one rank")
def tail_of_rank(rng: Rng, recording: Recording) -> Damage:
    index, rank, edits = pick(rng, recording)
    start, end = _span(rank)
    edits.end_at(start + rng.uniform(0.3, 0.85) * (end - start))
    reasons = {"cut", "ends early", *KERNELS}
    if _short_last_step(edits):
        reasons.add("short step")
    elif edits.bare_launches() < FEW and (len(recording.ranks) < 2 or _lost(edits) < 0.05):
        raise Undetectable("nothing was under way on the GPU, and no sibling tells that work is missing")
    return Damage({index: edits}, frozenset(reasons), f"{edits.bare_launches()} launches without kernels")


@kind("the end is cut, of all ranks")
def tail_of_all(rng: Rng, recording: Recording) -> Damage:
    _, rank, _ = pick(rng, recording)
    start, end = _span(rank)
    cut = start + rng.uniform(0.3, 0.85) * (end - start)
    damages = {index: RankDamage(rank) for index, rank in enumerate(recording.ranks)}
    for edits in damages.values():
        edits.end_at(cut)
    reasons = {"cut", *KERNELS}
    if any(_short_last_step(edits) for edits in damages.values()):
        reasons.add("short step")
    elif max(edits.bare_launches() for edits in damages.values()) < FEW:
        raise Undetectable("nothing was under way on the GPU, and no sibling tells that work is missing")
    return Damage(damages, frozenset(reasons), f"{len(damages)} ranks")


def _no_host(edits: RankDamage) -> bool:
    """Whether most GPU time is left without its launches.

    Less than that is in recordings which nobody cut, too: they begin while the GPU is behind the host.
    """
    rank = edits.rank
    calls = rank.correlation[rank.launch & ~edits.drop]
    left = rank.gpu & ~edits.drop
    orphans = left & ~np.isin(rank.correlation, calls)
    return bool(left.any() and rank.dur[orphans].sum() > 0.5 * rank.dur[left].sum())


@kind("the start is cut, of one rank")
def head_of_rank(rng: Rng, recording: Recording) -> Damage:
    index, rank, edits = pick(rng, recording)
    start, end = _span(rank)
    edits.begin_at(start + rng.uniform(0.15, 0.7) * (end - start))
    others = len(recording.ranks) > 1 and _lost(edits) >= 0.05
    if not (_no_host(edits) or _work_before_first_step(edits) or others):
        raise Undetectable("a recording that begins while the GPU is behind the host is an ordinary one")
    return Damage({index: edits}, HEAD, f"{edits.orphans()} kernels without launch")


@kind("the start is cut, of all ranks")
def head_of_all(rng: Rng, recording: Recording) -> Damage:
    _, rank, _ = pick(rng, recording)
    start, end = _span(rank)
    cut = start + rng.uniform(0.15, 0.7) * (end - start)
    damages = {index: RankDamage(rank) for index, rank in enumerate(recording.ranks)}
    for edits in damages.values():
        edits.begin_at(cut)
    if not any(_no_host(edits) or _work_before_first_step(edits) for edits in damages.values()):
        raise Undetectable("a recording that begins while the GPU is behind the host is an ordinary one")
    return Damage(damages, HEAD, f"{len(damages)} ranks")


@kind("records of the device stop")
def device_stops(rng: Rng, recording: Recording) -> Damage:
    """The profiler's buffers are full: calls and GPU work are gone from a moment on, ops go on."""
    index, rank, edits = pick(rng, recording)
    start, end = rank.gpu_span
    cut = start + rng.uniform(0.3, 0.75) * (end - start)
    edits.drop_work(rank.gpu & (rank.end > cut))
    edits.drop_launches(rank.call & (rank.ts > cut), arrows=True)
    if _lost(edits) < 0.05:
        raise Undetectable("under 5% of the kernels came after")
    reasons = {"ends early", "cut", "short step", *KERNELS}
    return Damage({index: edits}, frozenset(reasons), f"{_lost(edits):.0%} of the kernels lost")


# -- files ---------------------------------------------------------------------------------------------


@kind("the file is cut short")
def cut_file(rng: Rng, recording: Recording) -> Damage:
    index, _, edits = pick(rng, recording)
    edits.kept_bytes = rng.uniform(0.3, 0.97)
    return Damage({index: edits}, frozenset(("truncated",)), f"{edits.kept_bytes:.0%} of the bytes")


@kind("the archive is cut short")
def cut_archive(rng: Rng, recording: Recording) -> Damage:
    index, _, edits = pick(rng, recording)
    edits.kept_bytes, edits.zipped = rng.uniform(0.4, 0.97), True
    return Damage({index: edits}, frozenset(("truncated",)), f"{edits.kept_bytes:.0%} of the bytes")


# As Kineto writes them beside traceEvents: the lines of its log, by severity.
_STAMP = "2026-11-02 10:11:12 77:77"
_BUFFERS = "CuptiActivityApi.cpp:135] Exceeded max GPU buffer count (33 >= 33) - terminating tracing"
_ROWS = "RoctracerLogger.cpp:52] Exceeded max GPU buffer count (1000000 > 1000000) - terminating tracing"
_COUNTS = (
    "CuptiActivityProfiler.cpp:395] Record counts: Out-of-range = 11, Blocklisted runtime = 9, Invalid ext "
    "correlations = 0, CPU GPU out-of-order = 0, Unexpected CUDA events = 0, CUPTI stopped early? = 1"
)
_NOTICES = (
    {"WARNING": [f"WARNING:{_STAMP} {_BUFFERS}"]},
    {"WARNING": [f"WARNING:{_STAMP} {_ROWS}"]},
    {"INFO": [f"INFO:{_STAMP} {_COUNTS}"]},
)


@kind("the profiler says that it dropped events")
def notice(rng: Rng, recording: Recording) -> Damage:
    index, rank, edits = pick(rng, recording)
    edits.head = _NOTICES[int(rng.integers(len(_NOTICES)))]
    # A recording may hold notices already, and a key must not stand twice.
    edits.head = {key: [*rank.head.get(key, []), *lines] for key, lines in edits.head.items()}
    edits.head_last = not set(edits.head) & set(rank.head) and bool(rng.integers(2))
    return Damage({index: edits}, frozenset(("dropped events",)), str(edits.head)[:60])
