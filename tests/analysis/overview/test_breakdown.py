"""The step's wall time taken apart: each nanosecond once, and every level adds up."""

from __future__ import annotations

from typing import Any

import pandas as pd

from tests.builders import draw, draw_run, records
from tracelens import analyze
from tracelens.trace import make_run

Path = tuple[str, ...]


def breakdown(text: str, **options: Any) -> pd.DataFrame:
    return analyze(make_run([draw(text)]), "breakdown", **options)["breakdown"]


def tree(table: pd.DataFrame, column: str = "exclusive_ns", unit: int = 1000) -> dict[Path, int]:
    """Path of names to a column, in columns of the drawing; the step's own name is left out of the path."""
    paths: dict[int, Path] = {}
    nodes = {}
    for node, parent, name, value in records(table, "node", "parent", "name", column):
        paths[node] = (*paths.get(parent, ()), name)
        assert paths[node] not in nodes, "one path, two rows"
        nodes[paths[node]] = value // unit if unit > 1 else value
    whole = {path[0] for path in nodes}
    return {path[1:] if len(whole) == 1 else path: value for path, value in nodes.items()}


def at(nodes: dict[Path, int], depth: int) -> dict[Path, int]:
    return {path: value for path, value in nodes.items() if len(path) == depth}


def test_computation_before_communication_before_copies_before_fills() -> None:
    nodes = tree(breakdown("""
                         | 0    5    10   15
        launch           | abcdg
        s7 gemm          |      aaaa
        s8 ncclAllReduce |    bbbbbbbb
        s9 copy          |        cccccccc
        s9 fill          |   dd             gg
    """))  # fmt: skip
    # gemm 5-9; communication 3-11 less the gemm; copy 7-15 less what is before 11; fill 2-4 less 3-4, and
    # 17-19; idle 15-17: 4 + 4 + 4 + 3 + 2 are the 17 from 2 to 19
    assert at(nodes, 0) == {(): 17}
    assert at(nodes, 1) == {("gemm",): 4, ("communication",): 4, ("copy",): 4, ("fill",): 3, ("idle",): 2}


def test_among_equals_the_one_that_started_first() -> None:
    nodes = tree(breakdown("""
        op aten::mm     | ---
        op aten::matmul |    ---
        launch          |  a  b
        s7 gemm_one     |      aaaaaa
        s8 gemm_two     |         bbbbbb
    """))  # fmt: skip
    assert {path[1]: value for path, value in at(nodes, 2).items()} == {"aten::mm": 6, "aten::matmul": 3}


def test_five_levels_with_counts_and_sums() -> None:
    table = breakdown("""
        op aten::mm shapes=[[2,3],[3,4]] types=["float","float"] | ---
        op aten::mm shapes=[[8,3],[3,4]] types=["float","float"] |    ---
        op aten::add shapes=[] types=[]                          |       ----
        launch                                                   |  a  b  c d
        s7 gemm_one                                              |      aa
        s7 gemm_two                                              |        bbbb
        s7 vectorized_elementwise_kernel                         |            ccc d
    """)
    nodes = tree(table)
    mm, add = ("gemm", "aten::mm"), ("elementwise", "aten::add")
    kernel = "vectorized_elementwise_kernel"
    assert at(nodes, 1) == {("gemm",): 6, ("elementwise",): 4, ("idle",): 1}
    assert at(nodes, 2) == {mm: 6, add: 4}
    assert at(nodes, 3) == {
        (*mm, "fp32[2,3] fp32[3,4]"): 2,
        (*mm, "fp32[8,3] fp32[3,4]"): 4,
        (*add, "()"): 4,
    }
    assert at(nodes, 4) == {
        (*mm, "fp32[2,3] fp32[3,4]", "gemm_one"): 2,
        (*mm, "fp32[8,3] fp32[3,4]", "gemm_two"): 4,
        (*add, "()", kernel): 4,
    }
    statistics = records(
        table[table["name"] == kernel], "count", "sum_ns", "mean_ns", "median_ns", "min_ns", "max_ns"
    )
    assert statistics == [(2, 4000, 2000.0, 2000.0, 1000, 3000)]
    assert records(table[table["name"] == "aten::mm"], "level", "fraction_of_step") == [("op", 6 / 11)]


def test_heaviest_first_and_parents_before_children() -> None:
    table = breakdown("""
        s7 copy | ====
        s7 fill |      ======
    """)
    assert table["name"].tolist()[:2] == ["(whole trace)", "unlinked"]
    assert (table["parent"] < table["node"]).all()
    assert table["node"].tolist() == list(range(len(table)))


def test_a_copy_across_a_step_border_is_split_but_counted_once() -> None:
    table = breakdown("""
                | 0    5    10   15
        step 1  | ----------
        step 2  |           ----------
        op mm   |  ---
        launch  |   a
        s9 copy |        aaaaaaaaa
        s7 gemm | =          =
    """)
    first = ("ProfilerStep#1", "copy", "mm", "(shapes not recorded)", "Memcpy HtoD (Pinned -> Device)")
    second = ("ProfilerStep#2", *first[1:])
    for length in range(2, 6):
        assert tree(table)[first[:length]] == 3
        assert tree(table)[second[:length]] == 5
        assert tree(table, "count", 1)[first[:length]] == 1
        assert tree(table, "count", 1)[second[:length]] == 0
        # Its whole duration stands where it starts, so that sums over the steps are right.
        assert tree(table, "sum_ns")[first[:length]] == 9
        assert tree(table, "sum_ns")[second[:length]] == 0
        assert tree(table, "subtree_ns")[first[:length]] == 9
        assert tree(table, "subtree_ns")[second[:length]] == 0
    idle = {path: value for path, value in tree(table).items() if path[-1] == "idle"}
    assert idle == {("ProfilerStep#1", "idle"): 6, ("ProfilerStep#2", "idle"): 4}


def test_a_step_without_gpu_work_is_all_idle() -> None:
    table = breakdown("""
        step 1  | -----
        step 2  |      -----
        step 3  |           -----
        s7 gemm | ====       ==
    """)
    steps = tree(table[table["level"] == "step"])
    assert steps == {("ProfilerStep#1",): 5, ("ProfilerStep#2",): 5, ("ProfilerStep#3",): 5}
    assert tree(table)["ProfilerStep#2", "idle"] == 5


def test_unlinked_work_is_a_category_of_its_own() -> None:
    table = breakdown("""
        op aten::mm ext=4 | ---
        launch            |  a
        s7 gemm           |     aa
        s7 stray          |       ===
        s7 known ext=4    |          ==
    """)
    # The last one has no launch call, but its External id names its op.
    nodes = tree(table)
    assert {path: value for path, value in at(nodes, 2).items() if path[0] == "unlinked"} == {
        ("unlinked", "(no op)"): 3
    }
    assert sum(value for path, value in at(nodes, 2).items() if path[1] == "aten::mm") == 4


def test_linked_scope_counts_the_rest_as_idle() -> None:
    nodes = tree(breakdown("""
        launch  | a        b
        s7 gemm |   aa        bb
        s7 x    |     ===
    """, scope="linked"))  # fmt: skip
    assert at(nodes, 1) == {("idle",): 8, ("gemm",): 4}


def test_backward_ops_name_their_forward_op() -> None:
    table = breakdown("""
        op aten::linear seq=3               | ---
        launch                              |  a
        op AddmmBackward0 seq=3 fwd=1 tid=2 |      ----
        op aten::mm tid=2                   |       --
        launch tid=2                        |       b
        op aten::mm                         |             --
        launch                              |             c
        s7 gemm                             |    aa   bbb    c
    """)
    ops = records(table[table["level"] == "op"], "name", "forward_op", "exclusive_ns")
    assert ops == [
        ("aten::mm", "aten::linear", 3000),
        ("aten::linear", "", 2000),
        ("aten::mm", "", 1000),
    ]


def test_subtree_of_an_op_includes_what_it_calls() -> None:
    table = breakdown("""
        op outer | ----------
        op inner |    ---
        launch   |  a  b   c
        s7 gemm  |       a  bbb cc
    """)
    ops = table[table["level"] == "op"]
    assert sorted(records(ops, "name", "sum_ns", "subtree_ns")) == [
        ("inner", 3000, 3000),
        ("outer", 3000, 6000),
    ]


def test_a_recursive_op_does_not_count_its_inner_call_twice() -> None:
    table = breakdown("""
        op f    | ----------
        op f    |    ---
        launch  |  a  b
        s7 gemm |       a  bbb
    """)
    assert records(table[table["level"] == "op"], "sum_ns", "subtree_ns") == [(4000, 4000)]


def test_missing_shapes_are_said_once() -> None:
    result = analyze(make_run([draw("s7 gemm | ==")]), "breakdown")
    assert [skip.subject for skip in result.skips] == ["rank 0: shapes"]
    assert "(shapes not recorded)" in result["breakdown"]["name"].tolist()


def test_work_without_extent_is_counted_wherever_it_is() -> None:
    for drawing in ("s7 gemm | !  ==", "s7 gemm | ==  !", "s7 gemm | == !="):
        table = breakdown(drawing)
        assert tree(table, "count", 1)[()] == 1 + drawing.count("=") // 2 + ("!=" in drawing), drawing


def test_each_rank_has_its_tree() -> None:
    table = analyze(draw_run("s7 gemm | ==  =", "s7 gemm | === ="), "breakdown")["breakdown"]
    steps = table[table["level"] == "step"]
    assert records(steps, "rank", "node", "parent", "exclusive_ns") == [
        (0, 0, None, 5000),
        (1, 0, None, 5000),
    ]
    idle = table[table["name"] == "idle"]
    assert records(idle, "rank", "exclusive_ns") == [(0, 2000), (1, 1000)]
