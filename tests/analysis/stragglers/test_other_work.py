"""More or other work than the peers', told from more tokens and from slower kernels. A column is 10 us."""

from __future__ import annotations

import pytest

from tests.analysis.stragglers.test_stragglers import COLUMN, LATE, ORDINARY, ranks, verdicts
from tracelens import analyze
from tracelens.analysis.stragglers.causes import families
from tracelens.analysis.stragglers.segments import Key
from tracelens.table import Result


def against(text: str, ordinary: str = ORDINARY) -> Result:
    return analyze(ranks(ordinary, ordinary, ordinary, text), "stragglers")


def evidence(result: Result) -> str:
    return str(result["stragglers"]["evidence"][0])


def test_more_rows_without_experts_are_other_work() -> None:
    """A longer sequence, say: no tokens were routed."""
    ordinary, late = (
        text.replace("MM", "PLAIN").replace("LARGER", "LONGER") for text in (ORDINARY, LATE["token_load"])
    )
    sizes = {"PLAIN": 1024, "LONGER": 4096}
    for name, rows in sizes.items():
        op = f'aten::mm shapes=[[{rows},64],[64,64]] types=["float","float"]'
        ordinary, late = ordinary.replace(f"op {name}", f"op {op}"), late.replace(f"op {name}", f"op {op}")
    result = against(late, ordinary)
    assert verdicts(result)[0] == (3, 3 * 8 * COLUMN, 1, "extra_work")
    assert "fp32[4096,64] fp32[64,64]" in evidence(result)


def test_more_calls_of_the_same_are_extra() -> None:
    twice = """
    op REDUCE   | -   -
    op MM       |  -
    op MM       |   -
    op MM       |    -
    launch      | abxyc
    s7 gemm     |       bbbxxxyyy
    s9 nccl_All |    aaa         cccccc
    """
    twice = twice.replace("| -   -", "| -    -").replace("abxyc", "abxy c")
    result = against(twice)
    assert verdicts(result)[0][::3] == (3, "extra_work")
    assert "2 extra aten::_grouped_mm bf16[1024,64] bf16[64,64] per step" in evidence(result)
    assert "which no other rank uses" not in evidence(result)


def test_kernels_that_run_beside_work_of_the_rank_alone_are_slowed_by_it() -> None:
    # The GEMM takes 8 columns longer, 4 of them with work on a stream of its own.
    late = """
    op REDUCE   | -  -
    op EXTRA    |  -
    op MM       |   -
    launch      | axbc
    s11 gemm    |       xxxx
    s7 gemm     |       bbbbbbbbbbb
    s9 nccl_All |    aaa           ccccc
    """
    result = against(late)
    assert verdicts(result)[0][::3] == (3, "extra_work")
    assert "1 extra aten::mm bf16[512,512] bf16[512,512] per step on stream 11" in evidence(result)


def test_what_all_run_as_often_is_no_extra_work() -> None:
    """Rank 3 runs before the second all-reduce what the others run before the first."""
    early = """
    op EXTRA    | -
    op REDUCE   |  - -
    op MM       |   -
    launch      | xabc
    s7 gemm     |   xxxxxxxx  bbb
    s9 nccl_All |           aa   cccccccccccccc
    """
    late = """
    op EXTRA    |   -
    op REDUCE   | -  -
    op MM       |  -
    launch      | abxc
    s7 gemm     |             bbbxxxxxxxx
    s9 nccl_All |   aaaaaaaaaa           cccccc
    """
    result = against(late, early)
    assert "extra_work" not in set(result["causes"]["cause"])


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("bf16[96,64] bf16[64,80]", "bf16[32,64] bf16[64,80]", True),
        # The gradient of a weight: the rows are summed over.
        ("bf16[64,96] bf16[96,80]", "bf16[64,32] bf16[32,80]", True),
        ("bf16[96,64] bf16[64,80]", "bf16[96,64] bf16[64,81]", True),
        ("bf16[96,64] bf16[64,80]", "bf16[32,64] bf16[64,81]", False),
        ("bf16[8192,8192] bf16[8192,8192]", "bf16[4096,4096] bf16[4096,4096]", False),
        ("bf16[96,64] bf16[64,80]", "fp32[32,64] fp32[64,80]", False),
    ],
)
def test_families(one: str, other: str, same: bool) -> None:
    first, second = families([Key("aten::mm", one, ""), Key("aten::mm", other, "")]).tolist()
    assert (first == second) is same


def test_a_key_of_several_families_is_in_the_largest() -> None:
    keys = [Key("aten::mm", f"bf16[{rows},64] bf16[64,80]", "") for rows in (16, 32, 48)]
    keys += [Key("aten::mm", "bf16[16,64] bf16[64,90]", ""), Key("aten::bmm", "bf16[16,64] bf16[64,80]", "")]
    codes = families(keys).tolist()
    assert len(set(codes[:3])) == 1
    assert len({codes[0], codes[3], codes[4]}) == 3


def test_kernels_without_arguments_are_told_by_their_name() -> None:
    keys = [Key("", "", name) for name in ("gemm x 8 blocks", "gemm x 16 blocks", "copy x 8 blocks")]
    first, second, third = families(keys).tolist()
    assert first == second != third
