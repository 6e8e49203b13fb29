"""The picture of the step: its data, its heat map, and what a page holds of it."""

from __future__ import annotations

import re

import numpy as np
import pytest
from msgspec.structs import replace

from tests.rendering import sample, sample_picture
from tests.rendering.sample_picture import STEP_NS
from tests.rendering.test_payload import unpacked
from tracelens.rendering import RENDERERS
from tracelens.rendering.picture import LANES, Picture, picture
from tracelens.table import Report

files = RENDERERS.get("html").files


def pictured(ranks: int) -> Picture:
    drawn = picture(sample_picture.report(ranks, per_rank=10).results)
    assert drawn is not None
    return drawn


def page(report: Report) -> str:
    return files(report)["report.html"].decode()


def test_there_is_none_without_gpu_time() -> None:
    assert picture(sample.report().results) is None
    assert picture((sample_picture.step_timeline(0),)) is None
    assert 'id="picture"' not in page(sample.small())


def test_the_payloads_are_the_tables() -> None:
    result = sample_picture.step_timeline(2, per_rank=10)
    drawn = picture((result,))
    assert drawn is not None
    assert set(drawn.payloads) == {"step-steps", "step-states", "step-kernels", "step-marks"}
    for name, table in result.data.items():
        if name in ("busy", "states", "traces"):
            continue
        columns = unpacked(drawn.payloads[f"step-{name}"])
        assert columns == {column: table.values(column) for column in table.schema.names}


def test_states_are_packed_end_to_end() -> None:
    result = sample_picture.step_timeline(2, steps=3, per_rank=1)
    states = result.data["states"]
    second = states.array("ts_ns") // STEP_NS == 1
    shuffled = states.take(np.flatnonzero(~second)[::-1])
    drawn = picture((replace(result, data={**result.data, "states": shuffled}),))
    assert drawn is not None
    columns = unpacked(drawn.payloads["step-states"])
    assert "ts_ns" not in columns
    spans: list[tuple[int, int, int, str]] = []
    for rank, dur, state in zip(columns["rank"], columns["dur_ns"], columns["state"], strict=True):
        start = spans[-1][2] if spans and spans[-1][0] == rank else 0
        spans.append((rank, start, start + dur, state))
    assert [span for span in spans if not span[3]] == [(rank, STEP_NS, 2 * STEP_NS, "") for rank in range(2)]
    kept = zip(
        *(shuffled.values(name) for name in ("rank", "ts_ns", "dur_ns", "state")),
        strict=True,
    )
    expected = sorted((rank, start, start + dur, state) for rank, start, dur, state in kept)
    assert [span for span in spans if span[3]] == expected


def test_each_row_of_the_heat_map_adds_up_to_the_step_shown() -> None:
    drawn = pictured(4)
    assert drawn.columns[:3] == ("computation", "communication", "waiting for ranks")
    assert drawn.columns[-1] == "longest gap"
    for rank, cells in drawn.rows:
        of_time = [cell for cell in cells if cell.fraction is not None]
        assert sum(cell.ms for cell in of_time) == pytest.approx(STEP_NS / 1e6)
        assert sum(cell.fraction or 0 for cell in of_time) == pytest.approx(1)
        assert cells[2].ms == pytest.approx(10 - 10 * rank / 4)
        assert cells[-1].ms == pytest.approx(20 + 10 * rank / 4)


def test_heat_goes_from_the_least_to_the_most_of_a_column() -> None:
    waiting = [cells[2].heat for _, cells in pictured(5).rows]
    assert waiting == pytest.approx([1, 0.75, 0.5, 0.25, 0])
    same = [cells[0].heat for _, cells in pictured(5).rows]
    assert same == [0] * 5


def test_rare_causes_of_idle_time_share_a_column() -> None:
    result = sample_picture.step_timeline(8, per_rank=1)
    states = result.data["states"]
    causes = [f"cause {rank}" for rank in states.values("rank")]
    detail = sample.coded(causes)
    table = replace(states, columns={**states.columns, "detail": detail})
    drawn = picture((replace(result, data={**result.data, "states": table}),))
    assert drawn is not None
    idle = [name for name in drawn.columns if name.startswith("idle")]
    assert idle == ["idle: cause 7", "idle: cause 6", "idle: cause 5", "idle: cause 4", "idle: other causes"]
    other = drawn.columns.index("idle: other causes")
    assert [cells[other].ms > 0 for _, cells in drawn.rows] == [True] * 4 + [False] * 4


def test_the_slowest_rank_waits_least() -> None:
    assert pictured(9).data["compared"] == {"slowest": 8, "typical": 4, "fastest": 0}
    assert not pictured(LANES).many
    assert pictured(LANES + 1).many


def test_it_opens_with_the_step_that_stands_for_the_run() -> None:
    result = sample_picture.step_timeline(2, steps=3, per_rank=1)
    for step, row in (("ProfilerStep#4", 1), ("ProfilerStep#5", 2), ("none of them", 0)):
        drawn = picture((replace(result, meta={"typical_step": step}),))
        assert drawn is not None
        assert drawn.data["step"] == row
        assert drawn.step == f"ProfilerStep#{3 + row}"


def test_streams_over_time_are_drawn_once() -> None:
    alone, both = Report((sample.timeline(),)), Report((sample.timeline(), sample_picture.step_timeline(2)))
    figures = [len(re.findall("<figure>", page(report))) for report in (alone, both)]
    assert figures == [2, 1]


def test_names_in_the_page_are_text() -> None:
    text = page(sample_picture.report(2))
    assert sample.SCRIPT not in text
    assert sample.IMAGE not in text
    assert "idle: &lt;/script&gt;&lt;img" in text
