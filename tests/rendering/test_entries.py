"""Tables with much prose, as entries in console, Markdown and HTML."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.cells import cell_len

from tests.rendering import sample
from tests.rendering.test_human_formats import page, tags
from tracelens.rendering.formats import code, console_text, fragment, markdown_text
from tracelens.rendering.tables import ProseRow, cut, entries
from tracelens.table import Column, Report, Result, Schema

PLAIN = ("Expert loop", "Blocking calls", "Small kernels", "A rest")


def told(result: Result, limit: int = 100) -> list[ProseRow]:
    """The entries of its table."""
    return entries(cut(result.data["findings"], limit))


def plain(rows: int = 4) -> Result:
    """Findings with harmless names."""
    return sample.findings(rows, PLAIN)


def words(text: str) -> str:
    return " ".join(text.split())


def test_facts_are_the_short_cells_that_are_known() -> None:
    first, second, third, _ = told(plain())
    assert [(entry.number, entry.name) for entry in (first, second)] == [
        ("1", "Expert loop"),
        ("2", "Blocking calls"),
    ]
    assert list(map(str, first.facts)) == [
        "saving 30.000 ms",
        "30.0% of the step",
        "additional 30.000 ms",
        "at 20.000 ms",
    ]
    assert list(map(str, second.facts))[3:] == ["confidence high", "worst rank 1", "at 21.000 ms"]
    assert [fact.label for fact in third.facts][-1] == "worst rank"
    assert first.share == pytest.approx(0.3)
    assert first.facts[first.share_at].text == "30.0% of the step"
    assert [label for label, _ in first.prose] == ["evidence", "remedy"]
    assert [label for label, _ in second.prose] == ["evidence"]
    assert second.folded == [("show command", f"show 'Blocking calls' {'x' * 90}")]
    assert third.folded == []


def test_lines_to_copy_stay_whole_in_every_format() -> None:
    line = f"show 'Expert loop' {'x' * 90}"
    report = Report((plain(),))
    for width in (20, 80, 200):
        assert f"show command  {line}\n" in console_text(report, width=width)
    assert f"   *show command*: `{line}`\n" in markdown_text(report)
    text = page(plain())
    assert '<details class="folded"><summary>show</summary>' in text
    assert f"<code>{line.replace(chr(39), '&#39;')}</code>" in text
    assert text.count('<details class="folded">') == 3  # the third row has none


@pytest.mark.parametrize(
    ("line", "shown"),
    [("a b", "`a b`"), ("a `b` c", "``a `b` c``"), ("`a``b", "``` `a``b ```"), ("<b>@x", "`<b>@x`")],
)
def test_code_in_markdown_is_what_is_to_be_copied(line: str, shown: str) -> None:
    assert code(line) == shown


def test_a_first_column_that_is_no_place_is_a_fact() -> None:
    columns = (
        Column("rank", "int64"),
        Column("why", "str", prose=True),
        Column("what", "str", prose=True),
    )
    table = Schema("T", columns, kind="entries").table({"rank": [1, 2], "why": ["a", "b"], "what": ["c", ""]})
    first, second = entries(cut(table, 9))
    assert (first.number, first.name, first.share) == ("", "–", None)
    assert list(map(str, first.facts)) == ["rank 1"]
    assert second.prose == [("why", "b")]
    report = Report((Result("a", "A", {"t": table}),))
    assert "- **–**: rank 1\n\n  *why*: a\n\n  *what*: c\n\n- **–**: rank 2" in markdown_text(report)
    assert '<li class="plain">' in page(*report.results)
    assert "–\nrank 1\nwhy   a\nwhat  c\n" in console_text(report, width=80)


@pytest.mark.parametrize("width", [20, 40, 80, 200])
@pytest.mark.parametrize("names", [PLAIN, sample.NASTY], ids=["plain", "nasty"])
def test_console_entries_keep_to_the_width_and_lose_nothing(width: int, names: tuple[str, ...]) -> None:
    result = sample.findings(4, names)
    text = console_text(Report((result,)), width=width)
    wrapped = [line for line in text.splitlines() if not line.lstrip().startswith("show command  ")]
    assert max(map(cell_len, wrapped)) <= width
    squeezed = re.sub(r"\s", "", text)
    for entry in told(result):
        for part in (entry.name, *map(str, entry.facts), *(said for _, said in entry.prose)):
            beside = width > 60 and cell_len(part) > width - 20
            assert beside or re.sub(r"\s", "", part) in squeezed


def test_console_facts_break_between_facts_only() -> None:
    text = console_text(Report((plain(),)), width=40)
    assert "   saving 30.000 ms · 30.0% of the step\n   additional 30.000 ms · at 20.000 ms\n" in text
    assert "too narrow" not in text


def test_color_adds_nothing_but_color() -> None:
    report = Report((plain(),))
    colored = console_text(report, width=80, color=True)
    assert "\x1b[" in colored
    assert words(re.sub(r"\x1b\[[\d;]*m", "", colored)) == words(console_text(report, width=80))


def test_entries_are_not_cut_in_the_middle_but_counted() -> None:
    result = plain(30)
    for text, most in ((console_text(Report((result,))), 15), (markdown_text(Report((result,))), 20)):
        assert f"{most} of 30 rows; all of them: tracelens analyze findings" in words(text)
    assert page(result).count("<h4>") == 30
    assert fragment(result).count("<h4><span>") == 20


def test_zero_rows_say_so() -> None:
    result = plain(0)
    assert "no rows" in console_text(Report((result,)))
    assert "No rows." in markdown_text(Report((result,)))
    for text in (page(result), fragment(result)):
        assert "No rows." in text
        assert 'class="entries"' not in text


def test_one_entry() -> None:
    result = plain(1)
    assert "\n1  Expert loop\n   saving 30.000 ms · 30.0% of the step" in console_text(Report((result,)))
    assert "\n1. **Expert loop**: saving 30.000 ms · 30.0% of the step" in markdown_text(Report((result,)))
    text = words(page(result))
    assert "<h4><span>1</span> Expert loop</h4>" in text
    assert '<b>30.0%</b> <span>of the step</span> <i style="--f:0.3000" aria-hidden="true"></i>' in text
    assert "<dt>remedy</dt><dd>Do without Expert loop.</dd>" in text


def test_a_title_is_not_said_twice() -> None:
    result = plain()
    for text in (console_text(Report((result,))), markdown_text(Report((result,)))):
        assert text.count("What to fix") == 1
    assert '<h3 class="unseen">What to fix</h3>' in page(result)
    other = console_text(Report((replace(result, title="Other"),)))
    assert other.count("What to fix") == 1


@given(st.text(alphabet="<>&\"'=/`|\\\n\u2028 abcsript!-%{}[]", max_size=60))
def test_an_entry_adds_no_tag_and_no_attribute(name: str) -> None:
    def shape(names: tuple[str, ...]) -> list[tuple[str, set[str]]]:
        found = tags(fragment(sample.findings(1, names)))
        return [(tag, set(attributes)) for tag, attributes in found]

    assert shape((name,)) == shape(("name",))


@given(st.text(max_size=60))
def test_a_markdown_entry_stays_in_its_list(name: str) -> None:
    lines = markdown_text(Report((sample.findings(2, (name,)),))).partition("\n\n1. ")[2].splitlines()
    outside = [line for line in lines[1:] if line and not line.startswith("   ")]
    assert len(outside) == 1
    assert outside[0].startswith("2. **")
    # A span of code ends at as many backticks as it begins with.
    outside = [re.sub(r"(?<![\\`])(`+)(?!`).+?(?<!`)\1(?!`)", "", line) for line in lines]
    assert not [line for line in outside if "<" in line]


def test_endless_sentences_are_cut() -> None:
    result = sample.findings(1, ("x" * 100_000,))
    (entry,) = told(result)
    assert len(entry.name) == 160
    assert max(len(text) for _, text in entry.prose) == 1200
    assert entry.folded == [("show command", "100,098 characters, which only JSON and CSV hold")]
    assert len(fragment(result)) < 20_000


def test_machine_formats_keep_the_table() -> None:
    assert len(plain().tables["findings"].columns) == 11
    assert np.array_equal(plain()["findings"]["place"], [1, 2, 3, 4])
