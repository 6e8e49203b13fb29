"""Roofline of what a graph replays: counted where its capture is known, a reason where it is not."""

import pytest

import tracelens
from tests.builders import aligned, draw, records
from tracelens.trace import make_run
from tracelens.trace.graphs import attributed

CAPTURE = """
    launch hipStreamBeginCapture                                 | x
    op aten::mm shapes=[[64,64],[64,64]] types=["float","float"] |  -- -- -- -- -- --
    launch hipLaunchKernel kernel=gemm_a                         |   a
    launch hipLaunchKernel kernel=gemm_b                         |      b
    launch hipLaunchKernel kernel=gemm_c                         |         c
    launch hipLaunchKernel kernel=gemm_d                         |            d
    launch hipLaunchKernel kernel=gemm_e                         |               e
    launch hipLaunchKernel kernel=gemm_f                         |                  f
    launch hipStreamEndCapture                                   |                    y
"""


def test_a_node_that_does_not_align_has_a_reason_of_its_own() -> None:
    """Neither do its neighbours, which may be others by as many edits."""
    captured = draw(aligned(CAPTURE))
    replayed = draw("""
    launch hipGraphLaunch | a
    s7 gemm_a             |   aa
    s7 gemm_b             |      aa
    s7 gemm_c             |         aa
    s7 foreign            |            aa
    s7 gemm_d             |               aa
    s7 gemm_e             |                  aa
    s7 gemm_f             |                     aa
    """)
    run = make_run([attributed(replayed, [captured])])
    result = tracelens.analyze(run, "roofline", device="mi300x")
    reason = "launched by a graph, and not aligned with its capture"
    uncovered = records(result["uncovered"], "name", "reason", "count")
    assert ("foreign", reason, 1) in uncovered
    assert {row[1:] for row in uncovered} == {(reason, 1)}
    (row,) = records(result["roofline"], "name", "count", "dur_ns")
    count = 7 - len(uncovered)
    assert row == ("aten::mm", count, 2000 * count)
    assert count >= 4
    assert result.meta["coverage"] == pytest.approx(count / 7)


def label(requests: int, keys: int) -> str:
    sums = f"sq{requests}sk{keys}sqsq{requests}sqsk{keys}"
    return f"execute_{requests}_context_0(sq0sk0sqsq0sqsk0)_generation_{requests}({sums})"


@pytest.mark.parametrize("has_label", [True, False])
def test_attention_in_a_graph_has_the_lengths_of_the_replaying_step(has_label: bool) -> None:
    """The capture ran with lengths of its own, and for 8 requests; 5 are served."""
    shapes = "shapes=[[8,16,64],[8,2,64],[8,2,64],[8,16,64]]"
    types = 'types=["c10::BFloat16","c10::BFloat16","c10::BFloat16","c10::BFloat16"]'
    captured = draw(
        aligned(f"""
        scope {label(8, 8)}                                          | ------
        launch hipStreamBeginCapture                                 | x
        op vllm::unified_attention_with_output {shapes} {types}      |  ---
        launch hipLaunchKernel kernel=kernel_unified_attention_3d    |   a
        launch hipStreamEndCapture                                   |      y
        """)
    )
    around = label(5, 5000) if has_label else "step"
    replayed = draw(
        aligned(f"""
        scope {around}                 | ---
        launch hipGraphLaunch          |  a
        s7 kernel_unified_attention_3d |   aa
        """)
    )
    result = tracelens.analyze(make_run([attributed(replayed, [captured])]), "roofline", device="mi300x")
    if has_label:
        assert records(result["roofline"], "count", "flops") == [(1, 4 * 16 * 64 * 5000)]
    else:
        ((name, reason),) = records(result["uncovered"], "name", "reason")
        assert name == "vllm::unified_attention_with_output"
        assert "the arguments are those of the capture" in reason
