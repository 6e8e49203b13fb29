"""The forward pass runs again in the backward pass. A column is 1 us."""

from __future__ import annotations

import pytest

from tests.builders import aligned, draw
from tracelens.findings import DETECTORS, Detection, Outcome, RankContext

recompute = DETECTORS.get("recompute")


def outcome(text: str) -> Outcome:
    return recompute.of_rank(RankContext(draw(aligned(text)), None))


def detect(text: str) -> Detection:
    detection = outcome(text)
    assert isinstance(detection, Detection), detection
    return detection


# The backward thread repeats mm (b) and softmax (c) before the gradient (d). An all-reduce of the main thread
# runs beside the second half of b: 8 to 15 and 18 to 22 are repeated, 11 to 20 is covered.
NAMED = """
    step 1                                                             | ------------------------------
    op aten::mm seq=1                                                  | --
    op autograd::engine::evaluate_function: CheckpointFunctionBackward tid=2 |     --------------
    op CheckpointFunctionBackward seq=1 fwd=1 tid=2                    |     --------------
    op aten::mm tid=2                                                  |      ---
    op aten::softmax tid=2                                             |         --
    op autograd::engine::evaluate_function: MmBackward0 tid=2          |            -----
    op aten::mm tid=2                                                  |             ---
    launch                                                             | a         e
    launch tid=2                                                       |       b  c   d
    s7 gemm                                                            |  aaa    bbbbbbb       ddd
    s7 softmax                                                         |                   cccc
    s9 ncclDevKernel_AllReduce_Sum                                     |            eeeeeeeee
"""


def test_what_checkpointing_costs() -> None:
    detection = detect(NAMED)
    assert (detection.where.start.tolist(), detection.where.end.tolist()) == (
        [8_000, 20_000],
        [11_000, 22_000],
    )
    assert detection.saving_ns == 5_000
    assert detection.confidence == "low"
    assert detection.quantities == (
        ("recompute", 11_000, "ns"),
        ("share of the step", pytest.approx(11 / 30), "fraction"),
        ("recomputing backward nodes per step", 1, "count"),
        ("recomputed kernels per step", 2, "count"),
        ("recomputed: gemm", 7_000, "ns"),
        ("recomputed: softmax", 4_000, "ns"),
    )
    assert detection.evidence.startswith(
        "11.0 µs per step (36.7%) goes to recompute in 1 regions, mostly gemm 7.00 µs, softmax 4.00 µs"
    )


def test_two_steps_halve_it() -> None:
    assert detect(f"{NAMED}step 2 | {' ' * 30}{'-' * 30}").saving_ns == 2_500


def test_the_same_without_checkpointing() -> None:
    twin = NAMED.replace("CheckpointFunctionBackward", "AddBackward0")
    assert outcome(twin) == "the backward pass recomputes nothing"


# Without its frames, checkpointing by hooks (use_reentrant=False) shows as ops with a sequence number inside
# of a node of the backward pass. What the nodes run themselves has none.
NUMBERED = """
    op autograd::engine::evaluate_function: ReluBackward0 tid=2 | ---------
    op ReluBackward0 seq=7 fwd=1 tid=2                          | ---------
    op aten::linear seq=9 tid=2                                 |  ----
    op aten::addmm tid=2                                        |   --
    op aten::threshold_backward tid=2                           |       --
    op autograd::engine::evaluate_function: MmBackward0 tid=2   |           ----
    op MmBackward0 seq=6 fwd=1 tid=2                            |           ----
    op aten::mm tid=2                                           |           ---
    launch tid=2                                                |   a   b   c
    s7 gemm                                                     |     aaaa     ccc
    s7 relu_backward                                            |         bb
"""


def test_recompute_is_told_by_sequence_numbers() -> None:
    detection = detect(NUMBERED)
    assert (detection.where.start.tolist(), detection.where.end.tolist()) == ([4_000], [8_000])
    assert detection.saving_ns == 4_000
    assert ("recomputed kernels per step", 1.0, "count") in detection.quantities


def test_ops_without_numbers_are_the_backward_pass() -> None:
    assert isinstance(outcome(NUMBERED.replace("aten::linear seq=9", "aten::linear")), str)


def test_a_function_that_is_called_in_a_backward_pass_has_a_number_too() -> None:
    assert isinstance(outcome(NUMBERED.replace("aten::linear seq=9", "_AllToAll seq=9")), str)


def test_numbers_of_backward_ops_do_not_count() -> None:
    assert isinstance(outcome(NUMBERED.replace("aten::linear seq=9", "aten::linear seq=9 fwd=1")), str)


def test_a_backward_pass_that_is_differentiated_is_no_recompute() -> None:
    twice = NUMBERED.replace("aten::mm tid=2 ", "aten::mm seq=10 tid=2 ")
    assert isinstance(outcome(twice), str)


def test_without_gpu_work() -> None:
    assert outcome("python recompute_fn | ----") == "no GPU work"


def test_work_without_a_launch_is_nobodys() -> None:
    assert isinstance(outcome("op CheckpointFunctionBackward | ----\ns7 k | =="), str)
