"""Calls outside MoE layers in which the host waits for the GPU. A column is 10 us."""

from __future__ import annotations

import pytest

from tests.builders import aligned, draw
from tracelens.findings import DETECTORS, Detection, Outcome, RankContext

blocking_calls = DETECTORS.get("other_blocking_calls")

STEPS = """
    step 1                        | --------------------
    step 2                        |                     --------------------
    op aten::mm                   |  ---        -----      ---        -----
    launch                        |  a          b          c          d
    s7 gemm                       |   aaaaaaa    bbbb       ccccccc    dddd
    launch cudaDeviceSynchronize  | SYNC
"""
ITEM = """
    op aten::item                 |     -------               -------
    launch cudaStreamSynchronize  |      -----                 -----
"""
AT_BEGIN = "=                    -"
AT_END = "                 ---                 ---"
IN_STEP = "      ----                 ----"


def outcome(*rows: str, sync: str = "") -> Outcome:
    text = STEPS.replace("SYNC", sync) if sync else STEPS.rpartition("    launch cuda")[0]
    return blocking_calls.of_rank(RankContext(draw(aligned(text + "".join(rows)), ns_per_char=10_000), None))


def detect(*rows: str, sync: str = "") -> Detection:
    found = outcome(*rows, sync=sync)
    assert isinstance(found, Detection), found
    return found


def calls(detection: Detection) -> float:
    return next(quantity.value for quantity in detection.quantities if quantity.measure == "calls per step")


@pytest.mark.parametrize("sync", [AT_BEGIN, AT_END])
def test_a_synchronize_between_steps_is_no_call_of_the_program(sync: str) -> None:
    alone = detect(sync=sync)
    assert (calls(alone), alone.cause, alone.confidence) == (1, "between steps", "low")
    assert alone.scenario == "no_blocking"
    beside = detect(ITEM, sync=sync)
    assert (calls(beside), beside.cause, beside.title) == (1, "inside steps", "")
    assert beside.scenario == "no_blocking=aten::item"
    assert beside.quantities == detect(ITEM).quantities


def test_a_synchronize_inside_the_step_is_found() -> None:
    found = detect(sync=IN_STEP)
    assert (calls(found), found.cause, found.scenario) == (1, "inside steps", "no_blocking")
    # In a module of the model, wherever in the step that is.
    module = "    python nn.Module: Model_0 |                 ---                 ----\n"
    assert detect(module, sync="                  -                   --").cause == "inside steps"
