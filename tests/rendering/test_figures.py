"""Figures: bounded, exact, and none where a table or a column is not there."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from tests.rendering import (
    sample,
    sample_bounds,
    sample_ladder,
    sample_memory,
    sample_projection,
    sample_search,
    sample_whatif,
)
from tracelens.rendering.figures import FIGURES, Figure, figures
from tracelens.table import Result, Table

RESULTS = {
    "timeline": (sample.timeline, 2),
    "breakdown": (sample.breakdown, 1),
    "ops": (lambda: sample.ranking("ops", "dur_ns"), 1),
    "kernels": (lambda: sample.ranking("kernels", "sum_ns"), 1),
    "idle": (sample.idle, 1),
    "launches": (sample.launches, 2),
    "roofline": (sample.roofline, 2),
    "collectives": (sample.collectives, 2),
    "overlap": (sample.overlap, 2),
    "serving": (sample.serving, 2),
    "pipeline": (sample.pipeline, 1),
    "findings": (sample.findings, 1),
    "moe": (sample.moe, 2),
    "diff": (sample.diff, 2),
    "ladder": (sample_ladder.ladder, 3),
    "memory": (sample_memory.memory, 1),
    "bounds": (sample_bounds.bounds, 2),
    "trace_bounds": (sample_bounds.trace_bounds, 2),
    "bubble": (sample_projection.bubble, 1),
    "published": (sample_projection.published, 2),
    "pipeline_schedule": (sample_projection.pipeline_schedule, 5),
    "whatif": (sample_whatif.whatif, 2),
    "scaling": (sample_search.scaling, 2),
    "search": (sample_search.search, 2),
}
NEEDED = {
    "findings": "saving_ns",
    "diff": "base_ns",
    "ladder": "speedup",
    "memory": "component",
    "bounds": "operation",
    "trace_bounds": "group",
    "bubble": "vpp",
    "published": "published_per_s",
    "whatif": "scenario",
    "scaling": "ep",
    "search": "part",
}
"""A column without which nothing is drawn, where it is not the rank."""
EVERY = pytest.mark.parametrize("analyzer", sorted(RESULTS))


def points(figure: Figure) -> int:
    """Number of drawn marks; of a heat map, the cells."""
    return sum(
        sum(map(len, trace["z"])) if "z" in trace else len(trace.get("y", trace.get("ids", ())))
        for trace in figure["data"]
    )


def without(result: Result, column: str) -> Result:
    """The same result where no table has that column."""
    data = {}
    for name, table in result.data.items():
        kept = tuple(item for item in table.schema.columns if item.name != column)
        columns = {item.name: table.columns[item.name] for item in kept}
        data[name] = Table(replace(table.schema, columns=kept), columns)
    return replace(result, data=data)


def appended(result: Result, name: str, **changes: Callable[[NDArray[Any]], NDArray[Any]]) -> Result:
    """The same result with the rows of a table once more, some columns changed."""
    table = result.data[name]
    data: dict[str, Any] = {}
    for column in table.schema.columns:
        cells = table.values(column.name)
        more = changes[column.name](np.array(cells)).tolist() if column.name in changes else cells
        data[column.name] = [*cells, *more]
    return replace(result, data={name: table.schema.table(data)})


def test_every_figure_module_has_a_sample() -> None:
    assert [name for name, _ in FIGURES.items()] == sorted(RESULTS)


@EVERY
def test_draws_compact_json(analyzer: str) -> None:
    make, count = RESULTS[analyzer]
    drawn = figures(make())
    assert len(drawn) == count
    for figure in drawn:
        text = json.dumps(figure, allow_nan=False)
        assert len(text) < 200_000
        assert figure["layout"].pop("title")["text"]  # plain text, which pages escape
        assert figure["layout"]["height"] >= 100
        assert "<script" not in json.dumps(figure)


@EVERY
def test_draws_nothing_where_a_column_or_the_rows_are_missing(analyzer: str) -> None:
    result = RESULTS[analyzer][0]()
    assert figures(without(result, NEEDED.get(analyzer, "rank"))) == []
    assert figures(replace(result, data={})) == []
    empty = {
        name: table.schema.table({column: [] for column in table.schema.names})
        for name, table in result.data.items()
    }
    assert figures(replace(result, data=empty)) == []


def test_an_unknown_analyzer_has_no_figures() -> None:
    assert figures(sample.unknown()) == []


@pytest.mark.parametrize(
    "result",
    [
        sample.timeline(64, 200),
        sample.breakdown(1500),
        sample.ranking("kernels", "sum_ns", 5000),
        sample.idle(500),
        sample.launches(100_000),
        sample.roofline(5000),
        sample.collectives(200),
        sample.overlap(500, 20),
        sample.serving(40, 200),
        sample.pipeline(64, 64, 4),
        sample.findings(500),
        sample.moe(512, 96),
        sample.diff(3000),
        sample_ladder.ladder(500, 50),
        sample_memory.memory(300, 64),
        sample_whatif.whatif(300, 40),
        sample_projection.bubble(200),
        sample_search.search(1000, 20),
        sample_projection.pipeline_schedule(64, 100, 6),
    ],
    ids=lambda result: result.analyzer,
)
def test_figures_are_bounded(result: Result) -> None:
    for figure in figures(result):
        assert 0 < points(figure) <= 5000


def test_a_coarser_strip_keeps_the_busy_time() -> None:
    result = sample.timeline(4, 1000)
    table = result["strip"]
    exact = float((table["dur_ns"] * table["busy_fraction"]).sum()) / 1e6
    bars = figures(result)[0]["data"]
    drawn = sum(x * busy for trace in bars for x, busy in zip(trace["x"], trace["customdata"], strict=True))
    assert drawn == pytest.approx(exact, rel=0.01)


def test_lanes_of_the_strip_do_not_overlap() -> None:
    for trace in figures(sample.timeline(3, 50))[0]["data"]:
        lower = np.array(trace["offset"])
        upper = lower + np.array(trace["width"])
        assert lower.min() >= -0.41
        assert upper.max() <= 0.41


@pytest.mark.parametrize(("kernels", "ranks"), [(3, 1), (3, 2), (900, 1)])
def test_boxes_of_the_icicle_add_up(kernels: int, ranks: int) -> None:
    (figure,) = figures(sample.breakdown(kernels, ranks=ranks))
    (trace,) = figure["data"]
    size = dict(zip(trace["ids"], trace["values"], strict=True))
    assert len(size) == len(trace["ids"]) <= 1500
    inside: dict[str, int] = {}
    for parent, value in zip(trace["parents"], trace["values"], strict=True):
        inside[parent] = inside.get(parent, 0) + value
    assert trace["parents"].count("") == 1
    for parent, total in inside.items():
        if parent:
            assert total == size[parent]
    assert any("more" in label for label in trace["labels"]) == (kernels > 3)
    assert ("rank 0" in figure["layout"]["title"]["text"]) == (ranks > 1)


def test_several_steps_get_one_root() -> None:
    one = sample.breakdown(2)
    both = appended(
        one,
        "breakdown",
        node=lambda node: node + 1000,
        parent=lambda node: np.where(node < 0, -1, node + 1000),
    )
    (figure,) = figures(both)
    assert figure["data"][0]["labels"][0] == "all"
    assert figure["data"][0]["values"][0] == 2 * int(one["breakdown"]["exclusive_ns"].max())


def test_names_in_figures_are_no_markup() -> None:
    text = json.dumps([figures(make()) for make, _ in RESULTS.values()])
    assert "<a " not in text
    assert "<b>" not in text
    assert "&lt;a href" in text


def test_values_are_summed_over_ranks() -> None:
    one = sample.ranking("ops", "dur_ns", 5, names=())
    (single,), (double,) = figures(one), figures(appended(one, "ops", rank=lambda rank: rank + 1))
    assert "summed over 2 ranks" in double["layout"]["title"]["text"]
    assert [x * 2 for x in single["data"][0]["x"]] == pytest.approx(double["data"][0]["x"])


@pytest.mark.parametrize("coverage", [1.0, 0.25, 0.0028])
def test_the_roofs_tell_of_how_much_of_the_gpu_time_they_are(coverage: float) -> None:
    result = replace(sample.roofline(), meta={"coverage": coverage})
    table = result["roofline"]
    drawn = table[(table["flops"] > 0) & (table["bound"] != "host link")]
    share = coverage * drawn["dur_ns"].sum() / table["dur_ns"].sum()
    expected = f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"
    assert f" {expected} of the GPU time" in figures(result)[0]["layout"]["title"]["text"]


def roofline_parts(rows: int = 40) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(lines, bubbles) of the first roofline figure."""
    drawn = figures(sample.roofline(rows))[0]["data"]
    return (
        [trace for trace in drawn if trace["mode"] == "lines"],
        [trace for trace in drawn if trace["mode"] == "markers"],
    )


def test_roofs_bend_at_their_ridge() -> None:
    lines, _ = roofline_parts()
    assert [line["name"] for line in lines] == ["matrix bf16", "vector fp32", "max-achievable bf16", "Other"]
    for line, (peak, bandwidth) in zip(
        lines, [(1e15, 4e12), (1e14, 4e12), (7e14, 4e12), (2e15, 8e12)], strict=True
    ):
        assert line["x"][1] == pytest.approx(peak / bandwidth)
        assert line["y"][1:] == [peak, peak]
        assert line["y"][0] == pytest.approx(line["x"][0] * bandwidth)


def test_bubbles_are_ops_with_flops_under_the_memory_roof() -> None:
    table = sample.roofline()["roofline"]
    expected = table[(table["flops"] > 0) & (table["bound"] != "host link")]
    _, bubbles = roofline_parts()
    places = sorted((x, y) for trace in bubbles for x, y in zip(trace["x"], trace["y"], strict=True))
    assert len(places) == len(expected)
    assert [x for x, _ in places] == pytest.approx(sorted(expected["intensity"]), abs=1e-4)
    areas = sum(size for trace in bubbles for size in trace["marker"]["size"])
    assert areas == pytest.approx(expected["dur_ns"].sum() / 1e6)
    assert len({trace["marker"]["sizeref"] for trace in bubbles}) == 1


def test_savings_add_up_over_rows_of_one_op_and_shape() -> None:
    result = appended(sample.roofline(5), "roofline", rank=lambda rank: rank + 1)
    table = result["roofline"]
    bars = figures(result)[-1]["data"]
    (saved,) = (trace for trace in bars if trace["name"] == "recoverable")
    assert sum(saved["x"]) == pytest.approx(table["recoverable_ns"].clip(lower=0).sum() / 1e6)


@pytest.mark.parametrize(("ranks", "rows"), [(1, 12), (8, 32), (16, 32)])
def test_communication_bars_show_the_largest_of_each_rank(ranks: int, rows: int) -> None:
    result = sample.overlap(ranks)
    table = result["overlap"]
    drawn = figures(result)[0]
    hidden, exposed = drawn["data"]
    assert (len(hidden["x"]), len(exposed["x"])) == (rows, rows)
    each = max(rows // ranks, 1)
    best = table[table["rank"] == 0].nlargest(each, "comm_ns")
    assert hidden["x"][:each] == pytest.approx(best["hidden_ns"] / 1e6)
    assert exposed["x"][:each] == pytest.approx(best["exposed_ns"] / 1e6)
    assert ("of each rank the largest" in drawn["layout"]["title"]["text"]) == (ranks > 1)
    assert all(label.startswith("rank ") == (ranks > 1) for label in drawn["layout"]["yaxis"]["ticktext"])


def test_exposed_communication_of_many_ranks_is_a_map_of_collectives_by_ranks() -> None:
    result = sample.overlap(64)
    table = result["overlap"]
    (trace,) = figures(result)[0]["data"]
    assert trace["x"] == [str(rank) for rank in range(64)]
    largest = table.groupby(["collective", "group"])["comm_ns"].sum().nlargest(len(trace["y"])).index
    for row, (collective, group) in enumerate(largest):
        of_row = table[(table["collective"] == collective) & (table["group"] == group)]
        exposed = of_row.groupby("rank")["exposed_ns"].sum()
        assert trace["z"][row] == pytest.approx((exposed / max(exposed.max(), 1)).tolist(), abs=1e-4)


def test_communication_bars_name_the_group_where_the_collective_does_not_tell() -> None:
    result = sample.overlap(1, 3)
    table = result.data["overlap"]
    names = {"collective": ["all_to_allv", "allreduce", "allreduce"], "group": ["ep", "dp", "tp"]}
    drawn = figures(replace(result, data={"overlap": table.schema.table({**table.columns, **names})}))[0]
    assert drawn["layout"]["yaxis"]["ticktext"] == ["all_to_allv", "allreduce dp", "allreduce tp"]


def test_extra_time_is_summed_over_ranks_and_drawn_where_there_is_some() -> None:
    one = sample.overlap()
    table = one["slowdown"]
    slower = table[(table["name"] != "(all)") & (table["extra_ns"] > 0)]
    (drawn,) = figures(appended(one, "slowdown", rank=lambda rank: rank + 1))
    alone, extra = drawn["data"]
    assert extra["x"] == pytest.approx(2 * slower["extra_ns"] / 1e6)
    assert alone["x"] == pytest.approx(2 * slower["alone_mean_ns"] * slower["overlapped_count"] / 1e6)
    ratio = 1 + slower["extra_ns"] / (slower["alone_mean_ns"] * slower["overlapped_count"])
    assert [about[2] for about in extra["customdata"]] == pytest.approx(ratio.tolist(), abs=1e-4)
    faster = appended(one, "slowdown")
    without_extra = faster.data["slowdown"].columns | {"extra_ns": -np.arange(len(faster["slowdown"]))}
    none = Table(faster.data["slowdown"].schema, without_extra)
    assert figures(replace(one, data={"slowdown": none})) == []


def test_the_matrix_of_traffic_has_senders_in_rows() -> None:
    bars, matrix = figures(sample.collectives(3))
    assert [trace["name"] for trace in bars["data"]] == ["communication", "waiting"]
    (trace,) = matrix["data"]
    assert trace["z"] == [[1, 1, 1], [2, 2, 2], [3, 3, 3]]


def test_the_gantt_chart_lays_all_ranks_on_one_clock() -> None:
    (drawn,) = figures(sample.pipeline(2, 4, 2))
    bars = {trace["name"]: trace for trace in drawn["data"]}
    assert list(bars) == ["forward", "backward", "ramp", "p2p wait", "imbalance", "other idle"]
    forward = bars["forward"]
    assert forward["y"] == [0] * 8 + [1] * 8
    assert forward["base"][:2] == [0, 2]
    assert forward["base"][8] == pytest.approx(0.4)
    assert forward["x"] == [0.7] * 16
    assert forward["customdata"][:3] == [[0, 0], [0, 1], [1, 0]]
    assert forward["text"][:3] == ["0", "0", "1"]
    assert forward["marker"]["opacity"][:2] == [1, 0.75]
    assert bars["ramp"]["base"][0] == pytest.approx(0.7)
    assert drawn["layout"]["yaxis"]["ticktext"] == ["rank 0 stage 0", "rank 1 stage 1"]
    assert "ranks)" not in drawn["layout"]["title"]["text"]


def test_a_large_gantt_chart_shows_some_ranks_and_the_longest_waits() -> None:
    (drawn,) = figures(sample.pipeline(64, 16, 2))
    assert "(48 of 64 ranks)" in drawn["layout"]["title"]["text"]
    result = sample.pipeline(40, 32, 1)
    (drawn,) = figures(result)
    waits = [x for trace in drawn["data"][2:] for x in trace["x"]]
    spans = sum(len(trace["x"]) for trace in drawn["data"][:2])
    assert spans == len(result["spans"])
    assert len(waits) == 4000 - spans
    assert min(waits) >= result["waits"]["dur_ns"].nlargest(len(waits)).min() / 1e6


def test_serving_steps_stand_where_they_run() -> None:
    lanes, kinds = figures(sample.serving(2, 3))
    drawn = {trace["name"]: trace for trace in lanes["data"]}
    # Rank 0 prefills in step 0 and rank 1 in step 1; all else decodes.
    assert list(zip(drawn["prefill"]["y"], drawn["prefill"]["base"], strict=True)) == [(0, 0.0), (1, 2.0)]
    assert list(zip(drawn["decode"]["y"], drawn["decode"]["base"], strict=True)) == [
        (1, 0.0),
        (0, 2.0),
        (0, 4.0),
    ]
    assert drawn["decode"]["x"] == [1.5] * 3
    assert [text for _, _, text in drawn["decode"]["customdata"]] == [
        "16 tokens",
        "tokens unknown",
        "16 tokens",
    ]
    assert [trace["x"] for trace in kinds["data"]] == [[1.0, 1.0], [3.0, 0]]


def test_serving_steps_without_a_request_have_their_own_colour() -> None:
    lanes, _ = figures(sample.serving(5, 1))
    empty = next(trace for trace in lanes["data"] if trace["name"] == "without a request")
    assert empty["y"] == [4]
    assert empty["marker"]["color"] == "#98a1ad"


def test_bars_of_findings_are_what_is_additional_and_the_rest() -> None:
    result = sample.findings(3)
    (drawn,) = figures(result)
    added, rest = drawn["data"]
    table = result["findings"]
    assert added["x"] == pytest.approx(table["additional_ns"] / 1e6)
    assert np.add(added["x"], rest["x"]) == pytest.approx(table["saving_ns"] / 1e6)
    assert added["customdata"] == pytest.approx(table["fraction_of_step"], abs=1e-4)
    assert np.add(added["customdata"], rest["customdata"]) == pytest.approx(
        table["saving_ns"] / 1e8, abs=1e-4
    )
    assert "first" not in drawn["layout"]["title"]["text"]
    (many,) = figures(sample.findings(30))
    assert "(the first 20 of 30)" in many["layout"]["title"]["text"]
    assert len(many["data"][0]["x"]) == 20


def test_one_finding_is_one_bar() -> None:
    (drawn,) = figures(sample.findings(1))
    assert [trace["x"] for trace in drawn["data"]] == [[30.0], [0.0]]


def test_the_map_of_tokens_has_layers_in_rows_and_its_middle_at_the_mean() -> None:
    tokens, _ = figures(sample.moe(3, 2))
    (trace,) = tokens["data"]
    assert (trace["x"], trace["y"]) == (["0", "1", "2"], ["0", "1"])
    assert trace["z"] == [[1.0, None, 1.0], [2.0, None, 1.001]]
    assert trace["customdata"] == [[512.0, None, 512.0], [1024.0, None, 512.5]]
    assert (trace["zmin"], trace["zmid"], trace["zmax"]) == (0, 1, 2)


def test_little_imbalance_gets_little_colour() -> None:
    result = sample.moe(3, 1)
    trace = figures(result)[0]["data"][0]
    assert (trace["zmin"], trace["zmax"]) == pytest.approx((0.9, 1.1))


def test_tokens_of_one_rank_are_no_map() -> None:
    (stages,) = figures(sample.moe(1, 3))
    assert stages["data"][0]["orientation"] == "h"


def test_a_large_map_shows_the_most_uneven_ranks_and_layers() -> None:
    result = sample.moe(200, 90)
    tokens, stages = figures(result)
    (trace,) = tokens["data"]
    assert (len(trace["x"]), len(trace["y"])) == (64, 62)
    assert "most uneven 64 of 200 ranks, 62 of 90 layers" in tokens["layout"]["title"]["text"]
    assert trace["z"][trace["y"].index("1")][trace["x"].index("0")] == 2.0
    assert trace["y"][-1] == "89"
    (many,) = stages["data"]
    assert (len(many["x"]), len(many["y"])) == (200, 2)


def test_stages_are_the_sum_of_their_phases() -> None:
    _, stages = figures(sample.moe(2))
    experts, other = stages["data"]
    assert experts["name"] == "experts"
    assert experts["x"] == other["x"] == [3.5, 4.5]
    assert experts["customdata"] == [[0.1, 1.0, 2.0, 0.5], [0.1, 2.0, 2.0, 0.5]]


def waterfall(result: Result, view: int = 0) -> list[tuple[str, float, float]]:
    """(name, start, end) of every bar of one view, in ms."""
    figure = figures(result)[0]
    trace, layout = figure["data"][view], figure["layout"]
    labels = layout["updatemenus"][0]["buttons"][view]["args"][1]["yaxis.ticktext"]
    ends = np.add(trace["base"], trace["x"]).tolist()
    return list(zip(labels, trace["base"], ends, strict=True))


@pytest.mark.parametrize("rows", [2, 5, 60])
def test_the_waterfall_leads_from_one_step_time_to_the_other(rows: int) -> None:
    result = sample.diff(rows, names=("a", "b", "c"))
    base, *between, cand = waterfall(result)
    assert base[:2] == ("base", 0)
    assert cand[:2] == ("candidate", 0)
    assert base[2] == pytest.approx(result.meta["base_ns"] / 1e6)
    at = base[2]
    for _, start, end in between:
        assert start == pytest.approx(at)
        at = end
    assert at == pytest.approx(cand[2]) == pytest.approx(result.meta["cand_ns"] / 1e6)
    assert (between[-1][0] == "rest") == (rows > 14)
    assert len(between) == min(rows, 15)


def test_what_became_slower_has_another_colour_than_what_became_faster() -> None:
    trace = figures(sample.diff(3, names=("a", "b", "c")))[0]["data"][0]
    base, first, second, slower, cand = trace["marker"]["color"]
    assert base == cand
    assert len({base, first, slower}) == 3
    assert first == second
    assert trace["text"][1:4] == ["-8.000", "-4.000", "+2.000"]
    assert "80.0% of the difference<br>beyond the noise" in trace["customdata"][1][0]


def test_buttons_choose_the_level() -> None:
    result = sample.diff(5)
    drawn = figures(result)[0]
    (menu,) = drawn["layout"]["updatemenus"]
    assert [button["label"] for button in menu["buttons"]] == ["by cause", "by stage"]
    assert [trace["visible"] for trace in drawn["data"]] == [True, False]
    assert menu["buttons"][1]["args"][0] == {"visible": [False, True]}
    assert [name for name, _, _ in waterfall(result, 1)] == ["base", "experts", "outside", "candidate"]


def test_small_differences_get_an_axis_of_their_own() -> None:
    large, small = (figures(sample.diff(5, kept=ns))[0] for ns in (100_000, 20_000_000))
    assert large["layout"]["xaxis"]["range"][0] == 0
    assert small["layout"]["xaxis"]["range"][0] > 40
    assert "not from 0" in small["layout"]["xaxis"]["title"]["text"]
    trace = small["data"][0]
    assert min(trace["base"]) == small["layout"]["xaxis"]["range"][0]
    assert trace["base"][0] + trace["x"][0] == pytest.approx(float(trace["text"][0]), abs=1e-3)


@pytest.mark.parametrize("rows", [5, 2000])
def test_both_icicles_have_one_scale_and_the_same_colours(rows: int) -> None:
    result = sample.diff(rows)
    _, drawn = figures(result)
    color: dict[str, set[str]] = {}
    heights = []
    for trace, whole in zip(drawn["data"], ("base_ns", "cand_ns"), strict=True):
        size = dict(zip(trace["ids"], trace["values"], strict=True))
        assert size["all"] == result.meta[whole]
        inside = dict.fromkeys(trace["parents"], 0)
        for parent, value in zip(trace["parents"], trace["values"], strict=True):
            inside[parent] += value
        assert all(total == size[parent] for parent, total in inside.items() if parent)
        for label, value in zip(trace["labels"], trace["marker"]["colors"], strict=True):
            color.setdefault(label, set()).add(value)
        low, high = trace["domain"]["y"]
        heights.append((high - low) / result.meta[whole])
    assert heights[0] == pytest.approx(heights[1], rel=1e-3)
    names = {label for trace in drawn["data"] for label in trace["labels"]} - {"base", "candidate"}
    assert {"gone", "new"} <= names
    assert all(len(color[name]) == 1 for name in ("gone", "new", "aten::gone"))
    notes = [about[2] for trace in drawn["data"] for about in trace["customdata"]]
    assert "<br>not in the base" in notes
    assert "<br>not in the candidate" in notes
