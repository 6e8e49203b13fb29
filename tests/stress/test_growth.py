"""Four times the trace takes at most five times as long and as much memory, whatever it has more of."""

from __future__ import annotations

import pytest

from tests.effort import effort
from tests.stress.inputs import INPUTS
from tests.stress.measure import Cost, measure, sides

pytestmark = pytest.mark.rare
TIMES, MOST = 4, 5
FLOOR_S, FLOOR_MB = effort((0.25, 40.0), (0.4, 60.0))
"""Below these, what does not grow is most of the cost, and noise decides."""

CASES: dict[str, tuple[int, tuple[str, ...]]] = {
    "threads": (150, ("whatif", "diff", "idle")),
    "steps": (500, ("timeline", "steps", "diff", "gate", "whatif")),
    "overlapping_collectives": (700, ("stragglers", "collectives", "overlap", "roofline", "whatif")),
    "nested_annotations": (1200, ("scopes", "idle", "diff")),
    "equal_annotations": (1200, ("scopes", "idle", "diff")),
    "nested_ops": (1000, ("breakdown", "ops", "diff")),
    "ranks": (40, ("stragglers", "timeline", "diff", "whatif", "gate", "fuse", "replay")),
    "moe_layers": (500, ("moe",)),
    "routed_layers": (800, ("moe", "grouped_gemm")),
    "serving_steps": (400, ("serving", "whatif")),
    "no_durations": (1500, ("diff", "diff_back")),
    "micro_batches": (500, ("collectives", "stragglers", "pipeline")),
}
"""Input to its smaller size, and the commands that are measured on it."""
SHARE = effort(0.6, 1.0)
"""Of these sizes; what grows with the square of them is above the floors all the same."""


def is_little(cost: Cost) -> bool:
    """Whether it is within the floors, whatever a smaller trace costs."""
    return not cost.problem and cost.cpu_s <= FLOOR_S and cost.rss_mb <= FLOOR_MB


def grown(one: Cost, other: Cost) -> str:
    """What grew too much between two sizes, "" for nothing."""
    if one.problem or other.problem:
        return one.problem or other.problem
    if other.cpu_s > FLOOR_S and other.cpu_s > MOST * one.cpu_s:
        return f"{one.cpu_s:.2f} s to {other.cpu_s:.2f} s"
    if other.rss_mb > FLOOR_MB and other.rss_mb > MOST * one.rss_mb:
        return f"{one.rss_mb:.0f} MB to {other.rss_mb:.0f} MB"
    return ""


@pytest.mark.parametrize("name", CASES)
def test_cost_grows_no_faster_than_the_trace(name: str) -> None:
    size, commands = int(CASES[name][0] * SHARE), CASES[name][1]
    small, large = (sides(INPUTS[name](count), commands) for count in (size, TIMES * size))
    found = {}
    for command in commands:
        for _ in range(3):  # a busy machine may slow one of both down
            cost = measure(large, [command])[command]
            why = "" if is_little(cost) else grown(measure(small, [command])[command], cost)
            if not why:
                break
        if why:
            found[command] = why
    assert not found
