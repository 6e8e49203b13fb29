"""Exact interval sums that an independent tool reports for traces of several generations of the profiler.

That tool leaves out the last ProfilerStep of a trace with two or more: it keeps a piece of GPU work if and
only if a launch call of the same correlation is in the trace and began before the last step's mark. When
the work itself ran does not matter; work launched before the recording began is left out.
A trace with one step or none is taken whole. The timeline of what is kept must be the tool's to the ns.
"""

from pathlib import Path

import numpy as np
import pytest

import tracelens
from tests.conformance.corpus import part_metrics
from tracelens.trace import STEP_MARK, Trace, Work, gpu_work, steps_of

EXACT_US = {
    "misc/hta_control.json.gz": {
        "idle": 62119, "computation": 234760, "non_compute": 86525, "total": 383404,
        "overlap": 62313, "comm": 132510,
    },
    "misc/hta_test.json.gz": {
        "idle": 46910, "computation": 429216, "non_compute": 152245, "total": 628371,
        "overlap": 130876, "comm": 190234,
    },
    "misc/negative_queue.json.gz": {
        "idle": 705853, "computation": 143836, "non_compute": 166865, "total": 1016554,
        "overlap": 1871, "comm": 136490,
    },
    "misc/ns_resolution.json.gz": {"idle": 6452.701, "computation": 374738.006, "total": 384634.463},
    "misc/nccl_data.json.gz": {"idle": 336419.714},
    "mi250/mi250_minitoy_train_ROCm6_2_kineto.json.gz": {"computation": 110.881},
}  # fmt: skip
"""Trace to sums in us; `non_compute` = busy - computation, `overlap` = communication while computing."""

OVERLAP_PERCENT = {
    "misc/hta_control.json.gz": 47.03,
    "misc/hta_test.json.gz": 68.80,
    "misc/negative_queue.json.gz": 1.37,
    "misc/nccl_data.json.gz": 14.76,
}
"""Trace to the share of communication that is overlapped, as rounded by the tool."""


def without_last_step(trace: Trace) -> Work:
    """The GPU work of a trace that the tool looks at."""
    work = gpu_work(trace)
    steps = steps_of(trace)
    marks = [edge for label, edge in zip(steps.labels, steps.marks, strict=False) if STEP_MARK.match(label)]
    if len(marks) < 2:
        return work
    called = trace.events["ts_ns"].to_numpy()[np.maximum(work.launch, 0)]
    return work.take((work.launch >= 0) & (called < marks[-1]))


def sums(path: Path) -> dict[str, int]:
    """The timeline of what the tool looks at, with the sums derived from it, in ns."""
    (trace,) = tracelens.load(path).traces
    found = part_metrics(without_last_step(trace), "computation")
    found["non_compute"] = found["busy"] - found["computation"]
    found["overlap"] = found["comm"] - found["exposed_comm"]
    return found


@pytest.mark.parametrize("name", EXACT_US)
def test_sums_are_exact(name: str, corpus: Path) -> None:
    found = sums(corpus / name)
    expected = {metric: round(value * 1000) for metric, value in EXACT_US[name].items()}
    assert {metric: found[metric] for metric in expected} == expected


@pytest.mark.parametrize("name", OVERLAP_PERCENT)
def test_overlapped_share_of_communication(name: str, corpus: Path) -> None:
    found = sums(corpus / name)
    assert round(100 * found["overlap"] / found["comm"], 2) == OVERLAP_PERCENT[name]
