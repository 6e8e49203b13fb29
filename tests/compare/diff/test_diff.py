"""The account of a difference: it adds up exactly, whatever the two runs are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import tracelens
from tests.analysis.drawings import Drawing, drawings
from tests.builders import aligned, draw, draw_run, records
from tracelens.compare.diff import diff
from tracelens.compare.diff.breakdown import apportion, main_cause
from tracelens.errors import TracelensError
from tracelens.table import Result
from tracelens.trace import PacePart, Run, make_run

BASE = """
    step 1                                                   | ---------------------
    step 2                                                   |                      ----------
    op aten::linear                                          |  ------                -----
    op aten::mm shapes=[[4,8],[8,2]] types=["float","float"] |   ---                   --
    op aten::relu shapes=[[4,2]] types=["float"]             |         --                  --
    launch                                                   |    a    b               c   d
    s7 gemm_kernel                                           |      aaaa                ccc
    s7 relu_kernel                                           |           bb                 d
"""
# The gemm takes two columns more in the first step, the relu has another kernel.
CAND = """
    step 1                                                   | ---------------------
    step 2                                                   |                      ----------
    op aten::linear                                          |  ------                -----
    op aten::mm shapes=[[4,8],[8,2]] types=["float","float"] |   ---                   --
    op aten::relu shapes=[[4,2]] types=["float"]             |         --                  --
    launch                                                   |    a    b               c   d
    s7 gemm_kernel                                           |      aaaaaa              ccc
    s7 other_relu                                            |            bb                d
"""
US = 1000


def run(text: str, **options: int) -> Run:
    return make_run([draw(text, **options)])


def sums(result: Result) -> set[int]:
    """The sums of all levels of the waterfall."""
    table = result["waterfall"]
    return {int(rows["delta_ns"].sum()) for _, rows in table.groupby("level", observed=True)}


def level(result: Result, name: str) -> dict[str, tuple[int, int]]:
    table = result["waterfall"]
    return {row[0]: row[1:] for row in records(table[table["level"] == name], "name", "base_ns", "cand_ns")}


def test_each_level_by_hand() -> None:
    result = diff(run(BASE), run(CAND))
    # Steps of 21 and 10 columns; both runs the same.
    assert (result.meta["base_ns"], result.meta["cand_ns"], result.meta["delta_ns"]) == (15_500, 15_500, 0)
    # Means of two steps: gemm 4 and 3 columns against 6 and 3, relu 2 and 1.
    assert level(result, "op") == {
        "aten::mm": (3_500, 4_500), "aten::relu": (1_500, 1_500), "(idle)": (10_500, 9_500),
    }  # fmt: skip
    assert level(result, "kernel") == {
        "gemm_kernel": (3_500, 4_500), "relu_kernel": (1_500, 0), "other_relu": (0, 1_500),
        "(idle)": (10_500, 9_500),
    }  # fmt: skip
    causes = level(result, "cause")
    assert causes["same kernels"] == (3_500, 4_500)
    assert causes["other kernels"] == (1_500, 1_500)
    assert records(result["substitutions"], "op", "base_kernel", "cand_kernel", "base_ns", "cand_ns") == [
        ("aten::relu", "relu_kernel", "other_relu", 1_500, 1_500)
    ]
    assert records(result["changes"], "kind", "base", "delta_ns") == [("slower", "aten::mm", 1_000)]


@pytest.mark.parametrize(
    ("old", "new", "cause"),
    [
        ('types=["float","float"]', 'types=["short","short"]', "other types"),
        ("[[4,8],[8,2]]", "[[4,8],[8,3]]", "other shapes"),
    ],
)
def test_other_arguments(old: str, new: str, cause: str) -> None:
    """The same shapes in another element type are not other shapes."""
    result = diff(run(BASE), run(BASE.replace(old, new).replace("aaaa ", "aa   ")))
    causes = level(result, "cause")
    assert (causes[cause], causes["same kernels"]) == ((3_500, 2_500), (1_500, 1_500))
    assert records(result["changes"], "kind", "base", "delta_ns") == [(cause, "aten::mm", -1_000)]


ROOT = """
    op outer             | --------------------
    op aten::first       |  ---
    op aten::second      |      ---
    op aten::third       |          ---
    launch               |   a   b   c
    s7 k                 |   a   b   c
"""


def edited(old: str, new: str) -> str:
    assert old in ROOT
    return ROOT.replace(old, new)


@pytest.mark.parametrize(
    ("cand", "expected"),
    [
        (edited("aten::second", "aten::fourth"), ("renamed", "aten::second", "aten::fourth")),
        (
            edited("    op aten::second      |      ---\n", "").replace("b", " "),
            ("removed", "aten::second", ""),
        ),
        (ROOT + "    op aten::new         |               ---\n", ("added", "", "aten::new")),
        (ROOT + "    op wrapper           |  --------\n", ("wrapper added", "", "wrapper")),
        (ROOT + "    op aten::third       |              ---\n", ("duplicated", "", "aten::third")),
    ],
    ids=("renamed", "removed", "added", "wrapper", "duplicated"),
)
def test_edits_by_hand(cand: str, expected: tuple[str, str, str]) -> None:
    result = diff(run(ROOT), run(cand))
    assert records(result["changes"], "kind", "base", "cand") == [expected]
    (around,) = set(result["changes"]["location"])
    assert around == "outer"
    back = diff(run(cand), run(ROOT))
    other = {
        "removed": "added",
        "added": "removed",
        "wrapper added": "wrapper removed",
        "duplicated": "removed",
    }
    kind, base, name = expected
    assert records(back["changes"], "kind", "base", "cand") == [(other.get(kind, kind), name, base)]


def test_a_call_that_moved_is_no_removal() -> None:
    moved = """
    op outer             | --------------------
    op aten::second      |  ---
    op aten::third       |      ---
    op aten::first       |          ---
    launch               |   b   c   a
    s7 k                 |   b   c   a
    """
    assert records(diff(run(ROOT), run(moved))["changes"], "kind", "base", "cand") == [
        ("moved", "aten::first", "aten::first")
    ]


def test_several_calls_for_others_are_an_exchange() -> None:
    fused = """
    op outer             | --------------------
    op aten::first       |  ---
    op fused_a           |      --
    op fused_b           |         --
    op fused_c           |            --
    launch               |   a   b  c  d
    s7 k                 |   a   b  c  d
    """
    assert records(diff(run(ROOT), run(fused))["changes"], "kind", "base", "cand") == [
        ("exchanged", "aten::second, aten::third", "fused_a, fused_b, fused_c")
    ]


def test_runs_of_other_numbers_of_steps_and_ranks() -> None:
    one_step = "\n".join(line for line in CAND.splitlines() if "step 2" not in line)
    result = diff(draw_run(BASE, BASE), run(one_step))
    assert len(sums(result)) == 1
    assert sums(result) == {result.meta["delta_ns"]}
    assert any(skip.subject == "noise" for skip in result.skips)
    assert set(result["waterfall"]["noise"].astype(str)) == {"unknown"}


def test_the_rank_that_became_slower_is_told_from_those_that_wait_for_it() -> None:
    comm = "op record_param_comms collective=allreduce group=0 ranks=[0,1,2] size=3 in=8 out=8 dtype=Half"

    def rank(length: int, gemm: str, reduction: str) -> str:
        return aligned(f"""
            step 1                        | {"-" * length}
            op aten::mm                   |  --
            {comm}                        |     --
            launch                        |  a  b
            s7 gemm                       | {gemm}
            s9 ncclDevKernel_AllReduce    | {reduction}
        """)

    even, waiting = (rank(20 + more, "  aaaaaa", " " * 9 + "b" * (4 + more)) for more in (0, 10))
    slow = rank(30, "  " + "a" * 16, " " * 19 + "bbbb")
    base, cand = draw_run(even, even, even), draw_run(waiting, slow, waiting)
    table = diff(base, cand)["ranks"]
    columns = ("base_ns", "cand_ns", "base_work_ns", "cand_work_ns", "work_delta_ns", "idle_delta_ns")
    assert records(table, "rank", *columns) == [
        (1, 20_000, 30_000, 10_000, 20_000, 10_000, 0),
        (0, 20_000, 30_000, 10_000, 10_000, 0, 0),
        (2, 20_000, 30_000, 10_000, 10_000, 0, 0),
    ]
    assert table["cause"].astype(str).tolist() == ["same kernels", "", ""]
    assert "ranks" not in diff(run(BASE), run(CAND)).data
    assert "ranks" not in diff(base, run(CAND)).data


def test_the_cause_of_a_row_changes_in_its_direction() -> None:
    # Of a row that grows by 2, what shrinks most is no cause; of one that stays, the largest change is.
    assert main_cause(np.array([[-9.0, 6.0, 5.0], [9.0, -6.0, -5.0], [-3.0, 1.0, 2.0]])).tolist() == [1, 1, 0]


def test_noise_between_steps_is_told() -> None:
    steps = "\n".join(f"step {number} | {' ' * 10 * number}----------" for number in range(4))

    def noisy(*lengths: int) -> Run:
        line = "".join(" " + "=" * length + " " * (9 - length) for length in lengths)
        return run(f"{steps}\ns7 k   | {line}")

    quiet = diff(noisy(2, 2, 2, 2), noisy(5, 5, 5, 5))
    loud = diff(noisy(1, 5, 2, 6), noisy(6, 1, 5, 3))
    for result, expected in ((quiet, "beyond"), (loud, "within")):
        table = result["waterfall"]
        assert set(table[(table["level"] == "kernel") & (table["name"] == "k")]["noise"].astype(str)) == {
            expected
        }


def test_a_run_without_gpu_work_is_an_error() -> None:
    with pytest.raises(TracelensError, match="no GPU work"):
        diff(run(BASE), run("launch | ---"))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(drawings, drawings)
def test_any_two_traces_add_up(first: Drawing, second: Drawing) -> None:
    runs = [make_run([draw(drawing.text)]) for drawing in (first, second)]
    try:
        result = diff(*runs)
    except TracelensError:
        return  # one has no GPU work
    # Steps without duration have no rows.
    lasts = result.meta["base_ns"] or result.meta["cand_ns"]
    assert sums(result) == ({result.meta["delta_ns"]} if lasts else set())
    table = result["waterfall"]
    for side in ("base_ns", "cand_ns"):
        totals = {int(rows[side].sum()) for _, rows in table.groupby("level", observed=True)}
        assert totals <= {result.meta[side]}


@given(st.lists(st.floats(0, 1e12), max_size=40))
def test_apportioned_parts_add_up(values: list[float]) -> None:
    parts = apportion(np.array(values))
    assert parts.sum() == round(float(np.array(values).sum())) or abs(parts.sum() - sum(values)) <= 1
    assert (np.abs(parts - np.array(values)) <= 1).all() or not values


def paced(text: str, step_ns: int) -> Run:
    trace, part = draw(text), PacePart("after", 9, 2, 2 * step_ns, 60)
    return make_run([replace(trace, meta=replace(trace.meta, pace=(part,)))])


def test_steps_without_the_profiler_are_compared_where_both_sides_have_them() -> None:
    result = diff(paced(BASE, 10_000), paced(CAND, 12_000))
    assert records(result["pace"], "side", "step_ns", "profiled_ns", "tokens_per_s", "steps") == [
        ("base", 10_000, 15_500, 3e6, 2),
        ("cand", 12_000, 15_500, 2.5e6, 2),
    ]
    assert result["pace"]["profiler_cost"].tolist() == pytest.approx([0.55, 15.5 / 12 - 1])
    one_sided = diff(run(BASE), paced(CAND, 12_000))
    assert records(one_sided["pace"], "side") == [("cand",)]
    assert "base: step without the profiler" in {skip.subject for skip in one_sided.skips}
    assert "pace" not in diff(run(BASE), run(CAND)).data


def test_the_title_tells_the_change_without_the_profiler() -> None:
    title = tracelens.diff(paced(BASE, 10_000), paced(CAND, 12_000)).title
    assert title.endswith(", without the profiler 0.010 ms to 0.012 ms (+20.0%)")
    assert "without" not in tracelens.diff(run(BASE), paced(CAND, 12_000)).title
