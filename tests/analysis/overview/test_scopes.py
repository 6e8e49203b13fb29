"""GPU time by nn.Module and by record_function scope."""

from __future__ import annotations

from typing import Any

import pandas as pd

from tests.builders import aligned, draw, draw_run, records
from tracelens import analyze
from tracelens.table import Result
from tracelens.trace import make_run

Path = tuple[str, ...]


def scopes(text: str, **options: Any) -> Result:
    return analyze(make_run([draw(text)]), "scopes", **options)


def tree(table: pd.DataFrame, *columns: str) -> dict[Path, tuple[int, ...]]:
    """Path of names to columns, in columns of the drawing (counts as they are)."""
    paths: dict[int, Path] = {}
    nodes = {}
    for node, parent, name, *values in records(table, "node", "parent", "name", *columns):
        paths[node] = (*paths.get(parent, ()), name)
        assert paths[node] not in nodes
        nodes[paths[node]] = tuple(
            value // 1000 if column.endswith("_ns") else value
            for column, value in zip(columns, values, strict=True)
        )
    return nodes


def test_modules() -> None:
    table = scopes("""
                                            | 0    5    10   15   20   25
        python nn.Module: Model_0           | --------------
        python nn.Module: Linear_0          |  ----
        python model.py(3): gate            |       -----
        python nn.Module: Linear_1          |        ---
        op aten::linear seq=1               |   --
        op aten::linear seq=2               |        ---
        op aten::add                        |             -
        op AddmmBackward0 seq=2 fwd=1 tid=2 |                --
        op AddmmBackward0 seq=1 fwd=1 tid=2 |                  --
        launch                              |   a     b   c
        launch tid=2                        |                d e
        s7 gemm                             |     aa    bbb     dddd e
        s7 add                              |                c         =
    """)["modules"]
    # Linear_0 has a (2) and, by way of its forward op, e (1); Linear_1 has b (3) and d (4), across the frame
    # that is no module. c (1) is launched in Model_0 itself; the last one is launched by nobody.
    columns = ("exclusive_ns", "direct_ns", "forward_ns", "backward_ns", "sum_ns", "count")
    assert tree(table, *columns) == {
        ("Model_0",): (11, 1, 6, 5, 11, 5),
        ("Model_0", "Linear_1"): (7, 7, 3, 4, 7, 2),
        ("Model_0", "Linear_0"): (3, 3, 2, 1, 3, 2),
        ("(outside)",): (1, 1, 1, 0, 1, 1),
    }
    assert dict(records(table, "name", "fraction_of_busy_time"))["Linear_1"] == 7 / 12


def test_one_path_is_one_row_over_all_steps() -> None:
    table = scopes("""
        step 1                    | ---------
        step 2                    |           ---------
        python nn.Module: Model_0 | -----      -----
        python nn.Module: Norm_0  | --  --      --
        op aten::norm             | -   -       -
        launch                    | a   b       c
        s7 norm                   |  a   bbb      ccc
    """)["modules"]
    assert tree(table, "exclusive_ns", "count") == {("Model_0",): (7, 3), ("Model_0", "Norm_0"): (7, 3)}


def test_a_module_inside_itself_is_a_path_of_its_own() -> None:
    table = scopes("""
        python nn.Module: Block_0 | ---------
        python nn.Module: Block_0 |   ---
        launch                    |  a b
        s7 k                      |    a bbb
    """)["modules"]
    assert tree(table, "exclusive_ns", "direct_ns") == {
        ("Block_0",): (4, 1),
        ("Block_0", "Block_0"): (3, 3),
    }


def test_record_function_scopes_without_steps_and_library_marks() -> None:
    result = scopes("""
        step 1                | -------------
        scope forward         |  -----
        scope nccl:all_reduce |   ---
        scope router          |   ---
        scope optimizer       |         ---
        launch                |    ab   c d
        s7 k                  |     a
        s8 ncclAllReduce      |      bb
        s7 adam               |          ccc
        s7 other              |             dd
    """)
    # nccl:all_reduce and router have the same extent; the library's own mark is passed over.
    assert tree(result["scopes"], "exclusive_ns", "direct_ns") == {
        ("forward",): (3, 0),
        ("forward", "router"): (3, 3),
        ("optimizer",): (5, 5),
    }
    assert [skip.subject for skip in result.skips] == ["rank 0: modules"]


def test_overlap_is_given_to_one_scope_as_in_the_breakdown() -> None:
    table = scopes("""
        scope experts    | --
        scope dispatch   |    --
        launch           | a  b
        s7 gemm          |       aaaa
        s8 ncclSendRecv  |     bbbbbbbbb
    """)["scopes"]
    # dispatch 4-13 less 6-10 of the experts, which compute
    assert tree(table, "exclusive_ns", "sum_ns") == {("dispatch",): (5, 9), ("experts",): (4, 4)}


def test_work_without_extent_is_counted() -> None:
    table = scopes("""
        scope a     | --
        launch      | x
        s7 k        |   x
        s7 k corr=x |      !
    """)["scopes"]
    assert tree(table, "count") == {("a",): (2,)}


def test_what_is_computed_again_counts_in_its_own_scopes() -> None:
    """A checkpoint's node has its last forward op; where the backward opens no scopes, that one counts."""
    nodes = "op autograd::engine::evaluate_function:"
    text = f"""
                                             | 0    5    10   15   20   25
        scope layer                          | --------
        scope first                          |  --
        op aten::mm seq=1                    |  --
        scope second                         |     --
        op aten::mm seq=2                    |     --
        scope pass                           |          ------------------
        {nodes} MmBackward0 seq=2 fwd=1      |           ------------
        scope first                          |            --
        op aten::mm seq=5                    |            --
        op aten::mm seq=6                    |               --
        op MmBackward0 seq=2 fwd=1           |                  ----
        op aten::mm                          |                  --
        {nodes} AddBackward0 seq=9 fwd=1     |                         -
        {nodes} MulBackward0 seq=8 fwd=1     |                          -
    """
    table = scopes(aligned(text))["scopes"]
    assert tree(table, "forward_ns", "backward_ns") == {
        ("layer",): (4, 4),
        ("layer", "second"): (2, 4),
        ("layer", "first"): (2, 0),
        ("pass",): (2, 0),
        ("pass", "first"): (2, 0),
    }


def test_neither_modules_nor_scopes() -> None:
    result = scopes("s7 k | ==")
    assert not result.tables
    assert [skip.subject for skip in result.skips] == ["rank 0: modules", "rank 0: scopes"]


def test_each_rank_has_its_tree_or_a_reason() -> None:
    marked = """
        scope f | --
        launch  | a
        s7 k    |   aa
    """
    result = analyze(draw_run(marked, "s7 k | ==", marked), "scopes")
    assert records(result["scopes"], "rank", "node", "name") == [(0, 0, "f"), (2, 0, "f")]
    assert "rank 1: scopes" in [skip.subject for skip in result.skips]


PRODUCT = 'shapes=[[4,8],[8,2]] types=["float","float"]'
GRADIENT = 'shapes=[[8,4],[4,2]] types=["float","float"]'


def flops(text: str) -> dict[str, tuple[int, int]]:
    """Scope to its FLOPs of products and those of gradients."""
    table = scopes(aligned(text))["scopes"]
    rows = records(table, "name", "matrix_flops", "backward_matrix_flops")
    return {name: (every, backward) for name, every, backward in rows}


def test_flops_of_products() -> None:
    by_scope = flops(f"""
                                             | 0    5    10   15   20
        scope layer                          | ------------------
        scope experts                        |  ----------
        scope norm                           |             -----
        op aten::mm seq=1 {PRODUCT}          |  ---
        op aten::mm seq=2 {PRODUCT}          |      ---
        op aten::sum {PRODUCT}               |             --
        op MmBackward0 seq=1 fwd=1 tid=2     |                ---
        op aten::mm tid=2 {GRADIENT}         |                ---
        launch                               |  aa  b      c
        launch tid=2                         |                 d
        s7 gemm                              |   aa  bb          dd
        s7 reduce                            |             cc
    """)
    # 2 x 4 x 8 x 2 each; the two launches of the first call are one product.
    assert by_scope == {"layer": (384, 128), "experts": (384, 128), "norm": (0, 0)}


def test_flops_that_cannot_be_counted() -> None:
    text = f"""
        scope counted                        | -----
        scope half                           |       -------
        scope not                            |               -----
        op aten::mm {PRODUCT}                | ---    --
        op aten::mm                          |           --  ---
        launch                               | a      b  c   d
        s7 gemm                              |  a      b  c   d
    """
    assert flops(text) == {"counted": (128, 0), "half": (128, 0), "not": (None, 0)}
    skip = next(skip for skip in scopes(aligned(text)).skips if "FLOPs" in skip.subject)
    assert skip.subject == "rank 0: FLOPs of 2 GEMM kernel(s)"
