"""Console, Markdown and HTML: bounded, and inert whatever a kernel is called."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rendering import sample
from tracelens.rendering import RENDERERS
from tracelens.rendering.formats import console_text, escaped, fragment, markdown_text
from tracelens.rendering.formats.html import STATIC_ROWS
from tracelens.table import Column, Report, Result, Schema

html_files = RENDERERS.get("html").files


def page(*results: Result) -> str:
    return html_files(Report(results))["report.html"].decode()


class Tags(HTMLParser):
    """All start tags with their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def tags(text: str) -> list[tuple[str, dict[str, str | None]]]:
    parser = Tags()
    parser.feed(text)
    return parser.found


def one_name(name: str) -> Result:
    columns = (sample.Column("name", "str"), sample.Column("dur_ns", "int64", "ns"))
    data = {"name": [name], "dur_ns": np.ones(1, np.int64)}
    return sample.result("x", name, {"t": sample.table(name, columns, data, doc=name)}, doc=name)


@given(st.text(alphabet="<>&\"'=/`|\\\n\u2028 abcsript!-%{}[]", max_size=60))
def test_a_name_adds_no_tag_and_no_attribute(name: str) -> None:
    expected = [(tag, set(attributes)) for tag, attributes in tags(fragment(one_name("name")))]
    assert [(tag, set(attributes)) for tag, attributes in tags(fragment(one_name(name or "-")))] == expected


def test_the_page_runs_one_script_and_has_no_inline_handler() -> None:
    report = sample.report()
    text = html_files(report)["report.html"].decode()
    found = tags(text)
    scripts = [attributes for tag, attributes in found if tag == "script"]
    assert [script for script in scripts if script.get("type") != "application/octet-stream"] == [
        {"type": "application/json", "id": "figures"},
        {"type": "application/json", "id": "tables"},
        {},
    ]
    payloads = {script["id"] for script in scripts if script.get("type") == "application/octet-stream"}
    assert {"payload-plotly", "payload-kernels-kernels", "payload-breakdown-breakdown"} <= payloads
    assert not [name for _, attributes in found for name in attributes if name.startswith("on")]
    assert not [tag for tag, _ in found if tag in ("img", "iframe", "object", "embed", "form")]
    addresses = [attributes.get(name) or "" for _, attributes in found for name in ("src", "href")]
    assert not [address for address in addresses if not address.startswith(("#", "data:", ""))]
    assert text.lower().count("</script") == len(scripts)


def test_embedded_figures_are_inert() -> None:
    text = html_files(sample.report())["report.html"].decode()
    data = text.partition('id="figures">')[2].partition("</script>")[0]
    assert len(data) > 1000
    assert not re.search("[<>&\u2028\u2029]", data)


def test_a_page_without_figures_is_small() -> None:
    assert len(page(sample.unknown())) < 200_000


def test_a_page_is_bounded() -> None:
    text = page(sample.ranking("kernels", "sum_ns", 20_000), sample.breakdown(400, ranks=4))
    assert len(text) < 8_000_000
    assert text.count("<tr") <= 2 * (STATIC_ROWS + 1)
    assert "100 of 20,000 rows; all of them: tracelens analyze kernels PATH --json or -o DIR for CSV" in text


def test_detail_tables_are_named_but_not_shown() -> None:
    result = sample.timeline(2, 10)
    for text in (page(result), console_text(Report((result,))), markdown_text(Report((result,)))):
        assert "Only in JSON, CSV and XLSX: Strip (80 rows)" in text
        assert "busy fraction" not in text


def test_cells_carry_raw_values_and_columns_their_meaning() -> None:
    text = page(sample.timeline(ranks=1))
    assert "<td data-v=412345678>412.346</td>" in text
    assert 'title="dur_ns - Time in all steps." aria-sort=none><button type=button>time (ms)</button>' in text
    assert '<td class=f data-v=0.62 style="--f:0.620">62.0%</td>' in text


def test_fragment_has_no_script_and_few_rows() -> None:
    text = fragment(sample.ranking("ops", "dur_ns", 500))
    assert text.count("<tr") == 21
    assert "<script" not in text
    assert "<button" not in text
    assert sample.ranking("ops", "dur_ns", 500)._repr_html_() == text


@pytest.mark.parametrize("width", [20, 60, 100, 200])
def test_console_keeps_to_the_width(width: int) -> None:
    from rich.cells import cell_len

    text = console_text(Report((sample.ranking("ops", "dur_ns"), sample.breakdown(5))), width=width)
    assert max(cell_len(line) for line in text.splitlines()) <= width
    assert "15 of 30 rows" in " ".join(text.split())
    assert ("not shown:" in " ".join(text.split())) == (width <= 100)


def test_console_has_colors_only_when_asked() -> None:
    assert "\x1b[" not in console_text(sample.report())
    assert "\x1b[" in console_text(sample.report(), color=True)


@given(st.text(max_size=80))
def test_a_markdown_cell_stays_one_cell(text: str) -> None:
    cell = escaped(text)
    assert len(cell.splitlines()) <= 1
    assert not re.search(r"(?<!\\)(\\\\)*[|]", cell)
    plain = re.sub(r"(?<!\\)`[^`]+`", "", cell)
    assert not re.search(r"(?<!\\)(\\\\)*`", plain)
    assert "<" not in plain


def test_punctuation_behind_code_is_the_sentences() -> None:
    assert escaped("in aten::_grouped_mm: 12%") == "in `aten::_grouped_mm`: 12%"
    assert escaped("(see https://a.org/b).") == "(see `https://a.org/b`)."


def test_markdown_cuts_names_and_rows() -> None:
    text = markdown_text(sample.report())
    assert max(len(line) for line in text.splitlines() if line.startswith("|")) < 400
    assert "20 of 30 rows; all of them: tracelens analyze ops PATH" in text
    assert "…" in text


def test_sentences_are_shown_whole_and_names_are_not() -> None:
    said = "one two three four five six seven eight nine ten " * 6 + "end"
    columns = (Column("name", "str"), Column("evidence", "str", prose=True))
    table = Schema("Told", columns).table({"name": [said], "evidence": [f"{said} <b>"]})
    report = Report((Result("a", "A", {"told": table}),))
    assert f"<td class=p>{said} &lt;b&gt;</td>" in page(*report.results)
    assert f"| {said} &lt;b&gt; |" in markdown_text(report)
    shown = " ".join(console_text(report, width=100, color=False).split())
    assert shown.count("…") == 1
    assert all(shown.count(word) >= 6 for word in ("four", "seven"))
