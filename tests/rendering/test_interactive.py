"""Tables of the page: all rows are in it, cut equally for each rank where they do not fit, and said so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracelens
from tests.rendering import sample
from tests.rendering.test_payload import unpacked
from tracelens.rendering import RENDERERS
from tracelens.rendering.interactive import (
    ACROSS,
    ROWS,
    Interactive,
    all_rows,
    page_bytes,
    payloads,
    selectable,
    specification,
    views,
)
from tracelens.table import Column, Report, Result, Schema, Table

files = RENDERERS.get("html").files


def grids(result: Result) -> list[Interactive]:
    return [table for table in views(result).values() if table.is_grid]


def kernels(rows: int, ranks: int, width: int = 4) -> Result:
    """Times that do not compress, rank by rank."""
    random = np.random.default_rng(rows)
    columns = [sample.RANK, *(Column(f"x{number}_ns", "int64", "ns") for number in range(width))]
    data: dict[str, Any] = {f"x{number}_ns": random.integers(0, 2**31, rows) for number in range(width)}
    data["rank"] = np.arange(rows) * ranks // rows
    table = Schema("Kernels", tuple(columns), key=()).table(data)
    return sample.result(f"kernels{rows}", "Kernels", {"kernels": table})


def tree(ranks: int, nodes: int) -> Table:
    """A chain in each rank, whose deepest nodes are the largest."""
    columns = (sample.RANK, *(Column(name, "int64") for name in ("node", "parent")), Column("name", "str"))
    schema = Schema("Tree", (*columns, Column("dur_ns", "int64", "ns")), kind="tree")
    node = np.tile(np.arange(nodes), ranks)
    random = np.random.default_rng(3)
    data = {
        "rank": np.repeat(np.arange(ranks), nodes),
        "node": node,
        "parent": np.where(node % 10 == 0, -1, node - 1),
        "name": [f"node {random.integers(2**60)}" for _ in node],
        "dur_ns": node,
    }
    return schema.table(data)


def test_all_rows_of_every_readable_table_are_in_the_page() -> None:
    result = sample.ranking("ops", "dur_ns", 500)
    (item,) = grids(result)
    packed, held = payloads([item], 10**9, all_rows([item]))
    columns = unpacked(packed["ops-ops"])
    assert held == {"ops-ops": 500}
    assert columns["dur_ns"] == result.data["ops"].values("dur_ns")
    assert len(columns["name"]) == 500


def test_what_is_too_large_is_cut_equally_for_each_rank_and_small_tables_stay_whole() -> None:
    items = [*grids(kernels(40_000, 8)), *grids(kernels(30_000, 8)), *grids(kernels(300, 8))]
    whole, _ = payloads(items, 10**9, all_rows(items))
    assert sum(map(len, whole.values())) > 1_000_000
    packed, held = payloads(items, 400_000, all_rows(items))
    assert sum(map(len, packed.values())) <= 400_000
    assert held["kernels300-kernels"] == 300
    for name in ("kernels40000-kernels", "kernels30000-kernels"):
        counts = np.bincount(unpacked(packed[name])["rank"])
        assert len(counts) == 8
        assert len(set(counts.tolist())) == 1
        assert counts.sum() == held[name] > 4_000
    # The two large ones are alike in size; the first rows of each rank stay.
    assert len(packed["kernels40000-kernels"]) == pytest.approx(len(packed["kernels30000-kernels"]), rel=0.1)
    source = items[0].views[ROWS]
    first = np.flatnonzero(source.array("rank") == 5)[0]
    cut = unpacked(packed["kernels40000-kernels"])
    assert cut["x0_ns"][cut["rank"].index(5)] == source.array("x0_ns")[first]


def test_a_tree_is_cut_to_its_largest_nodes_with_their_ancestors() -> None:
    table = tree(4, 3000)
    item = Interactive("t-t", sample.result("t", "T", {"t": table}), {ROWS: table})
    packed, held = payloads([item], 60_000, all_rows([item]))
    cut = unpacked(packed["t-t"])
    assert 400 < held["t-t"] < len(table)
    for rank in range(4):
        nodes = {node for node, of in zip(cut["node"], cut["rank"], strict=True) if of == rank}
        assert 2999 in nodes
        assert all(node % 10 == 0 or node - 1 in nodes for node in nodes)
        assert len(nodes) * 4 == held["t-t"]


def test_ranks_and_steps_that_can_be_selected() -> None:
    columns = (sample.RANK, Column("step", "category"))
    steps = Schema("Steps", columns).table({"rank": np.array([2, 0, -1]), "step": ["b", "", "a"]})
    numbered = Schema("Search", (Column("step", "int64"),)).table({"step": np.array([7])})
    result = sample.result("x", "X", {"steps": steps, "numbered": numbered})
    assert selectable(grids(result)) == ([0, 2], ["b", "a"])


def test_columns_are_described_as_they_are_written() -> None:
    (item,) = grids(sample.ranking("ops", "dur_ns", 500))
    spec = specification(item, {"ops-ops": 500})["views"][ROWS]
    by_name = {column["name"]: column for column in spec["columns"]}
    dur = by_name["dur_ns"]
    assert dur["kind"] == "number"
    assert dur["scales"]["ms"] == 1e6
    assert dur["header"].endswith(f"({dur['unit']})")
    assert dur["divisor"] == dur["scales"][dur["unit"]]


def test_a_table_of_several_ranks_has_a_view_across_them() -> None:
    items = {item.id: item for result in sample.report().results for item in grids(result)}
    both = items["timeline-timeline"]
    assert both.first is both.views[ACROSS]
    assert "worst_rank" in both.first.columns
    assert len(both.views[ROWS]) > len(both.first)


@pytest.mark.parametrize(("ranks", "most"), [(1, 6e6), (8, 6e6), (64, 16e6), (512, 16e6)])
def test_a_page_has_a_limit(ranks: int, most: float) -> None:
    assert page_bytes(ranks) == most


@pytest.mark.slow
def test_the_page_of_a_real_run_keeps_to_its_limit(corpus: Path, tmp_path: Path) -> None:
    tracelens.render(tracelens.report_files(corpus / "nvidia-h200-megatron/ep8"), tmp_path / "ep8.html")
    assert (tmp_path / "ep8.html").stat().st_size <= page_bytes(8)


def test_the_whole_page_keeps_to_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracelens.rendering.formats.html.page_bytes", lambda ranks: 6_000_000)
    page = files(Report((sample.timeline(), kernels(900_000, 8))))["report.html"]
    assert 5_000_000 < len(page) < 6_000_000


def test_the_page_says_what_it_is_made_of() -> None:
    page = files(Report((sample.ranking("ops", "dur_ns", 500), sample.breakdown(40, ranks=2))))["report.html"]
    text = page.decode().partition('id="tables">')[2].partition("</script>")[0]
    content = json.loads(text)
    assert set(content["tables"]) == {"ops-ops", "breakdown-breakdown"}
    assert content["ranks"] == [0, 1]
    for table in content["tables"].values():
        for view in table["views"].values():
            assert f'id="payload-{view["payload"]}"'.encode() in page
            assert view["held"] == view["rows"]
