"""Collectives by levels, overlapped with a GEMM, and at the pace of the other ranks. A column is 1 us."""

from __future__ import annotations

import pytest

from tests.builders import aligned, draw, draw_run
from tests.opportunities.test_hierarchical_all_reduce import HOSTS, rank
from tests.what_if.replays import assert_identity, projected, run_of
from tracelens.errors import TracelensError
from tracelens.trace import Run, make_run
from tracelens.what_if import whatif


def reason(run: Run, scenario: str) -> str:
    """Why a scenario is not applicable."""
    return next(
        skip.reason for skip in whatif(run, [scenario]).skips if skip.subject == f"scenario {scenario}"
    )


def test_an_all_reduce_by_levels() -> None:
    """12 us flat are 10 by levels, see the detector's test; the one inside a host keeps its 2."""
    run = make_run(draw(rank(number), rank=number, host_name=host) for number, host in enumerate(HOSTS))
    assert_identity(run)
    assert projected(run, "identity") - projected(run, "hierarchical_all_reduce") == 2


def test_where_hosts_are_unknown_nothing_is_by_levels() -> None:
    run = make_run(draw(rank(number), rank=number) for number in range(4))
    assert reason(run, "hierarchical_all_reduce") == "the traces do not name their hosts"


RECORD = (
    "op record_param_comms collective=_reduce_scatter_base group=1 ranks=[0,1] size=2 in=524288 out=262144 "
    "dtype=BFloat16 description=TENSOR_MODEL_PARALLEL_GROUP"
)
MM = 'op aten::mm shapes=[[1024,256],[256,512]] types=["c10::BFloat16","c10::BFloat16"]'


def tensor_parallel(gemm: str, scatter: str) -> str:
    return f"""
        step 0 | ----------
        {MM} |  -
        {RECORD} |    -
        launch |  a b
        s7 Cijk_Ailk_Bljk | {gemm}
        s9 ncclDevKernel_ReduceScatter | {scatter}
    """


def test_a_gemm_hides_its_reduce_scatter() -> None:
    """GEMMs of 10 and 6 columns, a reduce-scatter of 8: behind the shorter GEMM 6 of the 8 columns hide."""
    run = run_of(
        tensor_parallel("  aaaaaaaaaa", "            bbbbbbbb"),
        tensor_parallel("  aaaaaa", "        bbbbbbbbbbbb"),
    )
    assert_identity(run)
    assert projected(run, "identity") == 20
    assert projected(run, "gemm_collective_overlap") == 20 - 6


def test_a_reduce_scatter_that_runs_beside_a_gemm_is_overlapped() -> None:
    run = run_of(
        tensor_parallel("  aaaaaaaaaa", "    bbbbbbbbbb"), tensor_parallel("  aaaaaaaaaa", "    bbbbbbbbbb")
    )
    text = "the collectives of all 1 tensor-parallel GEMMs are overlapped"
    assert reason(run, "gemm_collective_overlap") == text


RECORD_3 = "op record_param_comms collective=allreduce group=1 ranks=[0,1,2] size=3 in=8 out=8 dtype=Float"


def three(*kernels: int) -> Run:
    """Kernels of so many columns between two all-reduces, x and y, that all ranks leave at 5 and at 21."""
    return draw_run(
        *(
            aligned(f"""
                step 0 | ----------
                {RECORD_3} |  -   -
                launch |  x k y
                s9 ncclDevKernel_AllReduce |    xx{" " * columns}{"y" * (16 - columns)}
                s9 gemm | {" " * 5}{"k" * columns}
            """)
            for columns in kernels
        )
    )


def test_a_late_rank_at_the_pace_of_the_others() -> None:
    """Kernels of 4, 4 and 12 columns between two all-reduces: with 4 all meet 8 columns earlier."""
    run = three(4, 4, 12)
    assert_identity(run)
    base = projected(run, "identity")
    assert base - projected(run, "median_pace") == 8
    assert base - projected(run, "median_pace=2") == 8


def test_the_median_of_the_others_counts() -> None:
    """4, 8 and 12: the last rank gets the pace of 6, and the second one with 8 is then the last."""
    run = three(4, 8, 12)
    base = projected(run, "identity")
    assert base - projected(run, "median_pace=2") == 4
    assert reason(run, "median_pace=0").startswith("no rank is later")


def test_an_unknown_rank_is_an_error() -> None:
    with pytest.raises(TracelensError, match="no such rank"):
        whatif(three(4, 4, 4), ["median_pace=7"])


MARK = "scope FSDP::all_gather (model.layers.0)"
GATHER = "op record_param_comms collective=_allgather_base group=1 ranks=[0,1] size=2 in=524288 out=1048576"
SHARDED = f"""
    step 0 | ----------
    {MARK} |   --  --
    {GATHER} dtype=BFloat16 |   --  --
    launch |   a b c d
    s7 ncclDevKernel_AllGather |     aaaa      cccc
    s7 gemm |         bbbbbb    dddddd
"""


def test_parameters_that_stay_are_not_gathered_again() -> None:
    """The second all-gather of 4 columns goes; the GPU is the slower one, so all of it is saved."""
    run = run_of(SHARDED, SHARDED)
    assert_identity(run)
    assert projected(run, "identity") == 24
    assert projected(run, "keep_parameters") == 24 - 4


def test_each_micro_batch_gathers_for_its_forward_pass() -> None:
    """Of four gathers of 2 columns in a step the second and the fourth go."""
    text = f"""
        step 0 | ------------------
        {MARK} |   --  --  --  --
        {GATHER} dtype=BFloat16 |   --  --  --  --
        launch |   a b c d e f g h
        s7 ncclDevKernel_AllGather |     aa     cc     ee     gg
        s7 gemm |       bbbbb  ddddd  fffff  hhhhh
    """
    run = run_of(text, text)
    assert projected(run, "identity") - projected(run, "keep_parameters") == 2 * 2


def test_parameters_of_two_modules_are_gathered_once_each() -> None:
    once = SHARDED.replace(f"{MARK} |   --  --", f"{MARK} |   --").replace(
        "launch |", f"{MARK.replace('0', '1')} |       --\n    launch |"
    )
    why = "no module whose parameters are gathered twice in a step by FSDP2"
    assert reason(run_of(once, once), "keep_parameters") == why
