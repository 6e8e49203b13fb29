"""What a notebook is asked to display."""

from __future__ import annotations

import base64
import re
import warnings
from itertools import pairwise
from typing import Any

import pytest

display = pytest.importorskip("IPython.display", reason="notebooks need the extra `notebook`")

import plotly.io  # noqa: E402
from IPython.core.formatters import IPythonDisplayFormatter  # noqa: E402

from tests.rendering import sample  # noqa: E402
from tracelens.rendering.figures import figures  # noqa: E402
from tracelens.rendering.formats import fragment, notebook  # noqa: E402
from tracelens.rendering.formats.notebook import FIRST_ROWS, choices  # noqa: E402
from tracelens.rendering.image import NoImages  # noqa: E402
from tracelens.rendering.tables import readable  # noqa: E402
from tracelens.table import Report, Result  # noqa: E402

PLOTLY = "application/vnd.plotly.v1+json"
IMAGE = b"\x89PNG of a figure"


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was displayed: HTML, Markdown, or for a figure its (forms, metadata)."""
    calls: list[Any] = []

    def record(content: Any, *, raw: bool = False, metadata: dict[str, Any] | None = None) -> None:
        calls.append((content, metadata) if raw else content.data)

    monkeypatch.setattr(display, "display", record)
    monkeypatch.setattr(plotly.io.renderers, "default", "plotly_mimetype")
    monkeypatch.setattr("tracelens.rendering.image.png", lambda figure: IMAGE)
    monkeypatch.setattr(notebook, "_WARNED", [])
    return calls


def of_figures(shown: list[Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    return [output for output in shown if isinstance(output, tuple)]


def test_figures_stand_below_their_titles_and_above_their_tables(shown: list[Any]) -> None:
    result = sample.timeline()
    result._ipython_display_()
    titles = [figure["layout"]["title"]["text"] for figure in figures(result)]
    assert len(of_figures(shown)) == len(titles) > 1
    heading, *_ = shown
    assert heading.index(f"<h3>{result.title}</h3>") < heading.index(f"<h4>{titles[0]}</h4>")
    for before, output in pairwise(shown):
        if isinstance(output, tuple):
            assert before.rstrip().removesuffix("</div>").rstrip().endswith("</h4>")
    assert "<table>" in shown[-1]


def test_figures_stand_in_front_of_their_tables_or_behind_each_other() -> None:
    result = sample.ranking("ops", "dur_ns")
    (figure,) = figures(result)
    assert figure["table"] == "ops"
    second = {"other": next(iter(result.data.values())), **result.data}
    order = list(notebook._in_order([figure], list(second)))
    assert [(names, bool(figure)) for names, figure in order] == [(["other"], True), (["ops"], False)]
    first = {key: value for key, value in figure.items() if key != "table"}
    behind = list(notebook._in_order([first, figure], ["other"]))
    assert behind == [([], first), ([], figure), (["other"], None)]
    assert list(notebook._in_order([figure], [])) == [([], figure), ([], None)]


def test_a_figure_has_an_interactive_form_and_an_image(shown: list[Any]) -> None:
    sample.timeline()._ipython_display_()
    for forms, metadata in of_figures(shown):
        assert set(forms) == {PLOTLY, "image/png", "text/plain"}
        assert base64.b64decode(forms["image/png"]) == IMAGE
        assert forms[PLOTLY]["data"]
        assert not forms[PLOTLY]["layout"].get("title")
        assert metadata["image/png"]["height"] == forms[PLOTLY]["layout"]["height"]


def test_buttons_stand_above_the_legend(shown: list[Any]) -> None:
    plain = figures(sample.diff())[0]["layout"]
    sample.diff()._ipython_display_()
    moved = of_figures(shown)[0][0][PLOTLY]["layout"]
    assert (moved["updatemenus"][0]["x"], moved["updatemenus"][0]["yanchor"]) == (0, "bottom")
    assert moved["height"] - plain["height"] == moved["margin"]["t"] - plain["margin"]["t"] > 30
    assert "x" not in plain["updatemenus"][0]


def test_metadata_tell_figures_apart(shown: list[Any]) -> None:
    sample.timeline()._ipython_display_()
    sample.timeline()._ipython_display_()
    digests = [metadata["tracelens"]["figure"] for _, metadata in of_figures(shown)]
    assert digests[: len(digests) // 2] == digests[len(digests) // 2 :]
    assert len(set(digests)) == len(digests) // 2 > 1


def test_a_renderer_of_images_leaves_scripts_out(shown: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plotly.io.renderers, "default", "png")
    sample.timeline()._ipython_display_()
    sample.ranking("ops", "dur_ns", 500)._ipython_display_()
    assert {tuple(sorted(forms)) for forms, _ in of_figures(shown)} == {("image/png", "text/plain")}
    assert "<script" not in "".join(output for output in shown if isinstance(output, str))


@pytest.mark.parametrize("renderer", ["plotly_mimetype", "png"])
def test_without_images_figures_are_interactive_and_one_warning_says_why(
    shown: list[Any], monkeypatch: pytest.MonkeyPatch, renderer: str
) -> None:
    def missing(_: Any) -> bytes:
        raise NoImages("no Chrome")

    monkeypatch.setattr("tracelens.rendering.image.png", missing)
    monkeypatch.setattr("plotly.graph_objects.Figure._repr_mimebundle_", lambda _: {PLOTLY: {}})
    monkeypatch.setattr(plotly.io.renderers, "default", renderer)
    with pytest.warns(UserWarning, match="no Chrome"):
        sample.timeline()._ipython_display_()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sample.timeline()._ipython_display_()
    assert {tuple(sorted(forms)) for forms, _ in of_figures(shown)} == {(PLOTLY, "text/plain")}


def test_a_report_shows_its_first_result_and_names_the_others(shown: list[Any]) -> None:
    Report((sample.ranking("ops", "dur_ns"), sample.timeline(), sample.idle()))._ipython_display_()
    assert "`timeline`, `idle`" in shown[-1]
    assert len(of_figures(shown)) == 1
    assert "<h3>" in shown[0]


def test_a_report_of_one_result_names_no_others(shown: list[Any]) -> None:
    Report((sample.timeline(),))._ipython_display_()
    assert "<table>" in shown[-1]


def test_outputs_together_say_what_the_fragment_says(
    shown: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plotly.io.renderers, "default", "png")
    result = sample.idle()
    result._ipython_display_()

    def rows(text: str) -> list[str]:
        return re.findall(r"<tr>.*</tr>|<p class=\"note\">.*</p>|<li>.*</li>", text)

    together = "".join(output for output in shown if isinstance(output, str))
    assert rows(together) == rows(fragment(result))
    assert rows(together)


def row_counts(result: Result, name: str) -> dict[str, int]:
    return {choice["label"]: choice["html"].count("<tr>") - 1 for choice in choices(result)[name]}


def test_long_tables_hold_more_rows_to_turn_to() -> None:
    assert row_counts(sample.ranking("ops", "dur_ns", 15), "ops") == {}
    counts = row_counts(sample.ranking("ops", "dur_ns", 500), "ops")
    assert counts["all ranks"] == 200 > FIRST_ROWS


def test_readers_choose_a_rank() -> None:
    result = sample.timeline(ranks=3)
    table = readable(result)["timeline"]
    counts = row_counts(result, "timeline")
    assert list(counts) == ["all ranks", "rank 0", "rank 1", "rank 2"]
    for rank in range(3):
        assert counts[f"rank {rank}"] == (table.array("rank") == rank).sum()


def test_a_terminal_shows_text(shown: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "_in_terminal", lambda: True)
    for content in (sample.timeline(), Report((sample.timeline(),))):
        assert IPythonDisplayFormatter()(content) is None  # others follow, that of text is the repr
    assert shown == []
