"""Optimizers that run op by op. A column is 10 us."""

from __future__ import annotations

import pytest

from tests.builders import aligned, draw
from tests.what_if.replays import assert_identity, projected, run_of
from tracelens.findings import DETECTORS, Detection, Outcome, RankContext
from tracelens.what_if import whatif

optimizer_unfused = DETECTORS.get("optimizer_unfused")
COLUMN = 10_000
SLOWER = 1.44  # a byte in fused kernels than in those of one parameter
ADAM_SHARE = 7 / 20 * SLOWER

OPS = {
    "AdamW": ("mul_", "lerp_", "mul_", "addcmul_", "sqrt", "div", "add_", "addcdiv_"),
    "SGD": ("mul_", "add_", "add_", "mul_", "add_", "add_", "neg", "neg"),
}


def drawn(kind: str, pause: int = 0) -> str:
    """A GEMM, then AdamW over one parameter, or SGD over two: ops that launch a kernel of their length.

    The optimizer begins at column 3; `pause`: columns of the host in front of each op but the first.
    """
    ops = OPS[kind]
    at = [3 + number * (pause + 1) for number in range(len(ops))]
    marks = [" "] * (at[-1] + 1)
    for place, mark in zip(at, "wlvqsdar", strict=True):
        marks[place] = mark
    end = at[-1] + 1
    rows = [
        f"step 1 | {'-' * (end + 1)}",
        "op aten::mm | -",
        f"scope Optimizer.step#{kind}.step |    {'-' * (end - 3)}",
        *(f"op aten::{op} | {' ' * place}-" for op, place in zip(ops, at, strict=True)),
        f"launch | g{''.join(marks)[1:]}",
        "s7 gemm |  gg",
        f"s7 k |  {''.join(marks)}",
    ]
    return "\n".join(rows)


ADAM = drawn("AdamW")


def outcome(text: str) -> Outcome:
    return optimizer_unfused.of_rank(RankContext(draw(aligned(text), ns_per_char=COLUMN), None))


def detect(text: str) -> Detection:
    detection = outcome(text)
    assert isinstance(detection, Detection), detection
    return detection


def quantities(detection: Detection) -> dict[str, float]:
    return {name: value for name, value, _ in detection.quantities}


def test_a_parameter_at_a_time() -> None:
    detection = detect(ADAM)
    assert quantities(detection) == {
        "optimizer on the host": 8 * COLUMN,
        "kernels of the optimizer": 8,
        "time of these kernels": 8 * COLUMN,
        "fused kernels": pytest.approx(8 * COLUMN * ADAM_SHARE),
    }
    assert detection.saving_ns == pytest.approx(8 * COLUMN * (1 - ADAM_SHARE))
    assert "AdamW runs parameter by parameter" in detection.evidence


def test_over_lists_of_parameters() -> None:
    text = ADAM
    for op in ("mul_", "lerp_", "addcmul_", "sqrt", "div", "add_", "addcdiv_"):
        text = text.replace(f"aten::{op} ", f"aten::_foreach_{op} ")
    assert "op by op over lists of parameters" in detect(text).evidence
    assert quantities(detect(text))["fused kernels"] == pytest.approx(8 * COLUMN * 7 / 20 * 1.18)


def test_sgd_moves_less() -> None:
    """Of momentum (2 and 3 passes), weights (3) and a negative gradient (2), five are left."""
    fused = quantities(detect(drawn("SGD")))["fused kernels"]
    assert fused == pytest.approx(8 * COLUMN * 5 / (2 + 3 + 3 + 2) * SLOWER)


@pytest.mark.parametrize(
    "text",
    [
        ADAM.replace("aten::addcdiv_", "aten::_fused_adamw_"),
        ADAM.replace("AdamW", "Muon"),
        ADAM.replace("Optimizer.step#AdamW.step", "optimizer"),
        ADAM.replace("scope Optimizer.step#AdamW.step", "op aten::zeros"),
        # Four kernels are a fused optimizer's with a loss scale, or those of a few parameters.
        ADAM.replace("wlvqsdar", "wlvq    "),
        ADAM.replace("aten::", "triton_"),
    ],
)
def test_what_is_no_optimizer_op_by_op(text: str) -> None:
    assert outcome(text) == "no step of Adam, AdamW or SGD of torch.optim that runs op by op"


def test_a_fused_step_takes_a_share_of_the_kernels_and_one_launch() -> None:
    """The first kernel, which stands for all, begins at column 4 and takes its share of eight columns."""
    run = run_of(ADAM)
    assert_identity(run)
    assert projected(run, "identity") == 12
    assert projected(run, "fused_optimizer") == pytest.approx(4 + 8 * ADAM_SHARE, abs=0.1)
    (text,) = whatif(run, ["fused_optimizer"])["assumptions"]["assumption"]
    assert text.startswith("1 chains of kernels become one kernel each")
    assert "7 launches" in text


def test_ops_that_go_through_python_are_no_pauses() -> None:
    """With a hundred columns of the host in front of each op, the step ends as if they were none."""
    run = run_of(drawn("AdamW", pause=100))
    assert projected(run, "identity") > 700
    assert projected(run, "fused_optimizer") == pytest.approx(4 + 8 * ADAM_SHARE, abs=0.1)
