"""Recordings as they are: which are damaged by themselves, and the figures in their JSON that show it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tests.conformance.losses.recordings import STEP, WAITS, Bool, RankRecording, located
from tests.reference.traces import FOLDERS

_TRACES = (".json", ".json.gz", ".json.zst")
_LAUNCHES = re.compile(r"(cuda|cu|hip)\w*(LaunchKernel|GraphLaunch|Memcpy)")
_CAPTURES = (re.compile(r"(cuda|hip)StreamBeginCapture"), re.compile(r"(cuda|hip)StreamEndCapture"))
_NO_TRACE = ("run.json", "ladder.json", "execution_details.json")


def intact_runs() -> list[str]:
    """All recordings of the corpus, the foreign traces and the samples; a folder of ranks is one."""
    names = set()
    for folder in FOLDERS:
        root = located(folder + "/")
        for path in root.rglob("*"):
            if path.name.endswith(_TRACES) and path.name not in _NO_TRACE:
                run = path.parent if path.name.startswith("rank") else path
                names.add(f"{folder}/{run.relative_to(root).as_posix()}")
    return sorted(names)


SERVING = "foreign/mi300x-serving"
DAMAGED: Mapping[str, str] = {
    # Every step has a hole of 64 ms in which the host waits for the GPU and nothing runs there.
    "corpus/misc/negative_queue.json.gz": "blocked",
    # The first copy waits for 463 of 474 ms, in which nothing runs: for work in flight at the start.
    f"{SERVING}/sglang_decode/sglang_Qwen3-8B_decode.json.gz": "blocked",
    # The host waits for the device for 115 of 174 ms before anything is recorded on it: likewise.
    f"{SERVING}/vllm_prefilldecode_piecewise/capture_traces/"
    "graph_capture_rank_0.1773709679453551615.pt.trace.json.gz": "blocked",
    # The mark of a second step begins 0.05 ms before the recording ends.
    "corpus/mi250/mi250_minitoy_train_ROCm6_2_kineto.json.gz": "longest_step",
}
"""Recordings that are damaged by themselves or lack what was in flight, and the figure that shows it."""

ORDINARY = {
    "late_orphans": 0.0,
    "bare_launches": 0.0,
    "blocked": 0.05,
    "overlap": 0.001,
    "longest_step": 20.0,
}
"""What figures of recordings without damage reach at most.

A process that shares its GPU waits for it while none of its own work runs: in
sample_traces/faults/slow_kernels for 4.5% of the time. Steps of serving may be one token or a long prefill.
"""


def figures(path: Path, ranks: int | None = None) -> dict[str, float]:
    """What the JSON of a run shows, the worst of its first ranks, of all by default.

    head_orphans: share of GPU time in kernels without launch before the first kernel with one, by stream.
    late_orphans: the same after it.
    bare_launches: share of the launch calls, outside of captures, whose correlation no GPU work has.
    blocked: share of the time in which a blocking call lasts while no GPU work runs.
    overlap: share of GPU time in which a stream runs two things.
    longest_step: the longest step mark over the shortest.
    """
    files = sorted(path.glob("rank*.json*")) if path.is_dir() else [path]
    shown = [_figures(RankRecording(file)) for file in files[:ranks]]
    return {key: max(rank[key] for rank in shown) for key in shown[0]}


def _figures(rank: RankRecording) -> dict[str, float]:
    gpu_us = max(float(rank.dur[rank.gpu].sum()), 1e-9)
    head, late, overlap = 0.0, 0.0, 0.0
    for lane in rank.gpu_lanes:
        rows = np.flatnonzero(rank.gpu & (rank.lane == lane))
        rows = rows[np.argsort(rank.ts[rows], kind="stable")]
        launched = rank.launched[rows]
        after = np.logical_or.accumulate(launched)
        head += float(rank.dur[rows[~after]].sum())
        late += float(rank.dur[rows[after & ~launched]].sum())
        ends = np.maximum.accumulate(rank.end[rows])
        overlap += float(np.clip(ends[:-1] - rank.ts[rows[1:]], 0, rank.dur[rows[1:]]).sum())
    bare = launching(rank) & ~rank.launch
    marks = rank.host & rank.named(STEP) & ~rank.on_gpu_lane
    blocked_us, all_us = _blocked(rank)
    return {
        "head_orphans": head / gpu_us,
        "late_orphans": late / gpu_us,
        "bare_launches": float(bare.sum() / max(1, launching(rank).sum())),
        "blocked": blocked_us / max(all_us, 1e-9),
        "overlap": overlap / gpu_us,
        "longest_step": float(rank.dur[marks].max() / rank.dur[marks].min()) if marks.any() else 1.0,
    }


def launching(rank: RankRecording) -> Bool:
    """Calls that launch by their name, outside of captures, in which nothing runs."""
    calls = rank.call & rank.named(_LAUNCHES)
    begins, ends = (np.sort(rank.ts[rank.call & rank.named(pattern)]) for pattern in _CAPTURES)
    capturing = np.searchsorted(begins, rank.ts) > np.searchsorted(ends, rank.ts)
    return calls & ~capturing


def _blocked(rank: RankRecording) -> tuple[float, float]:
    """µs in which a blocking call of over 0.2 ms lasts though nothing runs on the GPU; µs recorded."""
    events = rank.host | rank.gpu
    if not rank.gpu.any():
        return 0.0, 0.0
    first, last = float(rank.ts[events].min()), float(rank.end[events].max())
    calls = np.flatnonzero(rank.call & rank.named(WAITS) & (rank.dur > 200))
    total = 0.0
    for start, end in _idle(rank, first, last):
        total += sum(
            max(0.0, min(end, float(rank.end[row])) - max(start, float(rank.ts[row]))) for row in calls
        )
    return total, last - first


def _idle(rank: RankRecording, first: float, last: float) -> list[tuple[float, float]]:
    """Gaps of over 0.2 ms between GPU work."""
    rows = np.flatnonzero(rank.gpu)
    rows = rows[np.argsort(rank.ts[rows])]
    ends = np.maximum.accumulate(np.concatenate(([first], rank.end[rows])))
    starts = np.concatenate((rank.ts[rows], [last]))
    return [(float(end), float(start)) for end, start in zip(ends, starts, strict=True) if start - end > 200]
