"""What a notebook is asked to display."""

from __future__ import annotations

from html import escape
from typing import Any

import pytest

display = pytest.importorskip("IPython.display", reason="notebooks need the extra `notebook`")

from tests.rendering import sample  # noqa: E402
from tracelens.rendering.figures.figure import figures  # noqa: E402
from tracelens.rendering.formats.html import fragment  # noqa: E402
from tracelens.table.result import Report  # noqa: E402


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    monkeypatch.setattr(display, "display", found.append)
    return found


def test_a_result_shows_its_figures_and_then_its_tables(shown: list[Any]) -> None:
    result = sample.timeline()
    result._ipython_display_()
    *drawn, text = shown
    titles = [one["layout"]["title"]["text"] for one in figures(result)]
    assert [title.data for title in drawn[::2]] == [f"<h4>{escape(title)}</h4>" for title in titles]
    assert len(drawn[1::2]) == len(titles) > 0
    assert all(figure.layout.title.text is None for figure in drawn[1::2])
    assert text.data == fragment(result)


def test_a_report_shows_its_first_result_and_names_the_others(shown: list[Any]) -> None:
    Report((sample.ranking("ops", "dur_ns"), sample.timeline(), sample.idle()))._ipython_display_()
    tables, names = shown[-2:]
    assert tables.data == fragment(sample.ranking("ops", "dur_ns"))
    assert "`timeline`, `idle`" in names.data


def test_a_report_of_one_result_names_no_others(shown: list[Any]) -> None:
    Report((sample.timeline(),))._ipython_display_()
    assert shown[-1].data == fragment(sample.timeline())
