"""Two programs, recorded again and again for these tests on one H200 each, one run after the other.

Both are Mixture-of-Experts models; some runs are slower by extra GEMMs in each step. Step times are in ms:
without the profiler of 20 steps before the recording and of 20 after it, and of the steps in the trace.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tracelens.compare.gate import Samples

FOUR_PROGRAMS = Path(__file__).with_name("recorded_runs.json")
"""Runs of four programs on two H200 of one machine, alternating: eight as they are, four of each change.

A line a run: program, change, and its metrics, one value a step (mean over ranks), of the pace one value a
part. `ep` has experts on two ranks and is GPU-bound, `ep_small` the same but small, so that the host decides;
`gpu` and `host` are such programs on one GPU. Changes: gpu1, gpu2, gpu5 add GEMMs or passes over memory,
nominally 1, 2 and 5 % of the GPU work; host5 and host20 spin in Python for 5 and 20 % of the step; bytes adds
25 % of one all-to-all in each layer; waits lets the last rank sleep for 5 % of the step.
"""


@cache
def four_programs() -> dict[tuple[str, str], tuple[Samples, ...]]:
    """The runs of FOUR_PROGRAMS by program and change; "same" is none."""
    units = {"time": "ns", "pace": "ns", "count": "count", "bytes": "bytes", "fraction": "fraction"}
    runs: dict[tuple[str, str], tuple[Samples, ...]] = {}
    for program, change, metrics in json.loads(FOUR_PROGRAMS.read_text(encoding="utf-8")):
        key = (program, change)
        samples = Samples(
            name=f"{program} {change} {len(runs.get(key, ()))}",
            ranks=(0,),
            steps=tuple(map(str, range(len(metrics["step.time"])))),
            values={name: np.array([values], dtype=float) for name, values in metrics.items()},
            units={name: units[name.rpartition(".")[2]] for name in metrics},
            parts=("before", "after"),
        )
        runs[key] = (*runs.get(key, ()), samples)
    return runs


class Run(NamedTuple):
    """One recording of the program that the GPU decides."""

    pace: tuple[float, float]
    steps: tuple[float, ...]


# 9 layers, 16 experts of equal load in batched GEMMs, no blocking call; each run is a process of its own.
# Slower ones run 1 or 4 extra 8192 x 8192 GEMMs, 1.9 % and 8.2 % of a step.
GPU_SAME = (
    Run((79.316, 79.186), (79.409, 79.604, 79.507)),
    Run((79.184, 79.387), (79.583, 79.133, 79.108)),
    Run((79.319, 79.134), (78.942, 78.99, 79.018)),
    Run((79.288, 79.219), (78.965, 79.062, 79.544)),
    Run((79.423, 79.0), (79.605, 79.338, 79.522)),
    Run((79.614, 79.256), (79.611, 79.516, 80.206)),
)
GPU_SLOWER_2 = (
    Run((80.924, 80.689), (82.334, 80.269, 80.013)),
    Run((81.067, 80.919), (80.681, 81.036, 80.754)),
    Run((81.13, 80.832), (81.064, 80.849, 80.285)),
)
GPU_SLOWER_8 = (
    Run((85.97, 85.537), (85.684, 85.106, 84.82)),
    Run((85.989, 85.684), (84.828, 84.982, 85.753)),
)

# 12 layers with 8 experts in a Python loop: 96 blocking calls a step, so that the host decides. SLOWER_2 and
# SLOWER_8 run as many extra 4096 x 4096 GEMMs a step as take 2 % and 8.5 % of the first run's step.

SAME = (
    (80.84406845, 89.8012506),
    (88.936087, 115.76021245),
    (95.7679999, 97.6614259),
    (81.89124035, 101.2584467),
    (91.9106377, 114.9539692),
    (104.5722719, 117.6709052),
)
SLOWER_2 = ((74.6576524, 95.2971915), (88.25463775, 100.0162277), (97.5935734, 99.8399775))
SLOWER_8 = ((104.36080055, 116.97602215), (93.79283265, 126.9491915))
