"""Runs recorded for these tests on one H200, on one machine, one after the other: step time in ms without the
profiler, of 20 steps before the recording and of 20 after it.

A Mixture-of-Experts model of 12 layers with 8 experts in a Python loop: 96 blocking calls a step, so that the
host decides. SAME is one program; SLOWER_2 and SLOWER_8 run as many extra 4096 x 4096 GEMMs a step as take
2 % and 8.5 % of the first run's step.
"""

from __future__ import annotations

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
