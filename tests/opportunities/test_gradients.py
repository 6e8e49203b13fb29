"""Gradients reduced in every micro-batch. A column is 1 us."""

from __future__ import annotations

import pytest

from tests.builders import aligned, draw
from tests.opportunities.test_whatif_communication import reason
from tests.what_if.replays import assert_identity, projected, run_of
from tracelens.opportunities.gradients import NOT_REPEATED, reductions_of

NODE = "op autograd::engine::evaluate_function: "
RECORD = "op record_param_comms collective={kind} group=1 ranks=[0,1] size=2 in=1048576 out={out} dtype=Float"
REDUCE = RECORD.format(kind="allreduce", out=1048576)
SCATTER = RECORD.format(kind="_reduce_scatter_base", out=524288)

# Two micro-batches: forward (a, d), gradient into its bucket (b, e), all-reduce (c, f), copied back (g, h).
DDP = aligned(f"""
    step 0 | -----------------
    op aten::mm |  --      --
    {NODE}torch::autograd::AccumulateGrad tid=2 |    ----    ----
    op aten::mul tid=2 |    -       -
    op c10d::allreduce_ tid=2 |     --      --
    {REDUCE} tid=2 |     --      --
    op aten::copy_ tid=2 |        -       -
    launch |  a       d
    launch tid=2 |    b c g   e f h
    s7 gemm |   aaaa        dddd
    s7 mul |       bb          ee
    s7 ncclDevKernel_AllReduce |         cccc        ffff
    s7 copy |             gg          hh
""")
MARK = "scope FSDP::post_backward_reduce (model.layers.0) tid=2"
FSDP = aligned(f"""
    step 0 | --------------
    op aten::mm |  --    --
    {NODE}RegisterPostBackwardFunctionBackward tid=2 |    ----  ----
    {MARK} |    ----  ----
    {SCATTER} tid=2 |     --    --
    launch |  a     c
    launch tid=2 |     b     d
    s7 gemm |   aaaa      cccc
    s7 ncclDevKernel_ReduceScatter |       bbbbbb    dddddd
""")


def test_only_the_last_micro_batch_reduces_under_ddp() -> None:
    """Scaling, all-reduce and copy of the first, of 2, 4 and 2 columns, go: the GPU decides the step."""
    run = run_of(DDP, DDP)
    assert_identity(run)
    assert projected(run, "identity") - projected(run, "reduce_once") == 2 + 4 + 2


def test_only_the_last_micro_batch_reduces_under_fsdp() -> None:
    """6 columns of the GPU go; the second forward pass is launched as late as before, 2 after the first."""
    run = run_of(FSDP, FSDP)
    assert_identity(run)
    assert projected(run, "identity") - projected(run, "reduce_once") == 6 - 2


@pytest.mark.parametrize(
    "text",
    [
        DDP.replace("dddd", "    "),  # one forward pass, as of a module used twice
        aligned(DDP.replace("torch::autograd::AccumulateGrad", "SummedBackward")),  # tensor parallelism
        "\n".join(line for line in DDP.splitlines() if "step 0" not in line),  # no steps to be repeated in
    ],
)
def test_what_is_no_repeated_reduction(text: str) -> None:
    assert not len(reductions_of(draw(text)).rows)


def test_without_any_it_does_not_apply() -> None:
    once = FSDP.replace(MARK, MARK.replace("post_backward_reduce", "pre_backward"))
    assert reason(run_of(once, once), "reduce_once") == NOT_REPEATED
