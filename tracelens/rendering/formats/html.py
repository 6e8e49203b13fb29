"""HTML: one file that works offline, with figures, sortable tables and collapsible trees.

Names come from traces and are never trusted: the template escapes by default, tables are joined from
escaped cells, figures travel as JSON without <, > and &, and the page's own policy (CSP) allows no script
but those that it was written with and no request at all. What is large waits compressed until somebody looks:
the rows of tables and the library for figures.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache

from msgspec import Struct
from msgspec.structs import replace

from tracelens.guard import banner
from tracelens.rendering.figures import Figure, drawn
from tracelens.rendering.formats.json import dumps
from tracelens.rendering.interactive import (
    Derived,
    Interactive,
    all_rows,
    elements,
    page_bytes,
    payloads,
    selectable,
    specification,
    views,
)
from tracelens.rendering.picture import ANALYZER, Picture, picture
from tracelens.rendering.plotly_js import packed_plotly, script_digest
from tracelens.rendering.renderer import renderer
from tracelens.rendering.summary import answer, result_summary
from tracelens.rendering.tables import (
    Grid,
    details,
    fact_lines,
    finding_cards,
    for_people,
    grid,
    heading,
    headline,
    meta_items,
    skipped,
    tile_range,
    tile_value,
)
from tracelens.rendering.templates import ASSETS, environment
from tracelens.table import Report, Result, Skip

STATIC_ROWS = 100
"""Rows of a table that stand in the page as HTML: what is seen at once, in print and without scripts."""

STYLES = ("table.css", "live.css", "page.css")
SCRIPTS = (
    *("payload", "plotly", "figures", "clipboard", "numbers", "filters", "view", "window", "grid", "whole"),
    *("tables", "sections", "findings", "contents"),
)
"""Of the page, in the order in which they run."""
PICTURE_SCRIPTS = ("lanes", "rows", "paint", "card", "gestures", "picture")
"""Behind them, where the page has a picture of the step."""
LAST_SCRIPTS = ("selection",)
"""What all others listen to."""

_FIGURE = re.compile(r"\d(?:[\d.,]*\d)?")
_HEADERS_BYTES = 200_000  # what describes the columns of tables
_LEAST_BYTES = 1_500_000  # of rows, however large the rest of the page is

# Cannot occur in rendered text, where every < of a name is escaped.
_SCRIPTS = "<!--scripts-->"


class PageSection(Struct, frozen=True):
    """One result, ready for the template."""

    id: str
    title: str
    heading: str  # the title, and what the times are of
    headline: str
    answer: str  # the sentence that `tracelens analyze` begins with; "" where the headline has its figures
    doc: str
    meta: list[tuple[str, str]]
    figures: Sequence[tuple[str, str, int]]
    grids: list[Grid]
    details: str
    skips: list[tuple[str, str]]


class PageFigure(Struct, frozen=True):
    """One figure, ready for the script."""

    caption: str
    height: int  # in pixels
    content: bytes  # for plotly, as JSON


class PagePart(Struct, frozen=True):
    """What a page has of one result, made without a look at the others."""

    picture: Picture | None  # that stands on top of the page
    figures: list[PageFigure]
    skips: tuple[Skip, ...]  # figures that cannot be drawn
    tables: dict[str, Derived]
    grids: list[Grid]
    rows: dict[str, bytes]  # of all tables, packed, by payload


def page_parts(results: Sequence[Result]) -> dict[str, PagePart]:
    """What a page has of results, by analyzer."""
    step = picture(results)
    made = {}
    for result in results:
        shown = result
        if step is not None and result.analyzer == "timeline":
            # The picture shows the streams over time.
            without_strip = {name: table for name, table in result.data.items() if name != "strip"}
            shown = replace(result, data=without_strip)
        figures, drawn_result = drawn(shown)
        tables = views(result)
        made[result.analyzer] = PagePart(
            step if result.analyzer == ANALYZER else None,
            list(map(_placed, figures)),
            drawn_result.skips[len(result.skips) :],
            {name: item.derived for name, item in tables.items()},
            grids(result, tables, STATIC_ROWS),
            all_rows(tables.values()),
        )
    return made


def _placed(figure: Figure) -> PageFigure:
    """A figure as the page places it: its title stands below."""
    layout = dict(figure["layout"])
    caption = str(layout.pop("title", {}).get("text", ""))
    content = inert(dumps({"data": figure["data"], "layout": layout})).rstrip()
    return PageFigure(caption, int(layout["height"]), content)


@renderer(
    "html",
    suffix=".html",
    doc="a self-contained page with figures, sortable tables and trees",
    prepare=page_parts,
)
def files(report: Report) -> Mapping[str, bytes]:
    """The page; plotly.js (4.8 MB, compressed) is part of it only when there is a figure."""
    made = {**report.prepared.get("html", {})}
    made |= page_parts([result for result in report.results if result.analyzer not in made])
    step = next((part.picture for part in made.values() if part.picture is not None), None)
    results = (
        replace(result, skips=(*result.skips, *made[result.analyzer].skips)) for result in report.results
    )
    report = replace(report, results=tuple(results))
    incomplete = banner(report.failures)
    report = for_people(report, parts=True)
    placed: list[PageFigure] = []
    tables: list[Interactive] = []
    sections = []
    for result in report.results:
        part = made.get(result.analyzer)  # none of what all results lack
        anchors = []
        for figure in part.figures if part else ():
            anchors.append((f"figure-{len(placed)}", figure.caption, figure.height))
            placed.append(figure)
        if part:
            tables += [item for item in views(result, part.tables).values() if item.is_grid]
        sections.append(section(result, part.grids if part else [], anchors))
    names = (*SCRIPTS, *(PICTURE_SCRIPTS if step else ()), *LAST_SCRIPTS)
    script = "".join(asset(f"js/{name}.js") for name in names).encode()
    plotly, digests = b"", [script_digest(script)]
    if placed:
        plotly, of_plotly = packed_plotly()
        digests.insert(0, of_plotly)
    # A content security policy under which these scripts run, no other, and nothing is fetched.
    hashes = " ".join(f"'sha256-{text}'" for text in digests)
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {hashes}",
            "style-src 'unsafe-inline'",
            "img-src data: blob:",
            "form-action 'none'",
            "base-uri 'none'",
        )
    )
    page = (
        environment()
        .get_template("report.html.j2")
        .render(
            title=report.title,
            policy=policy,
            css="".join(map(asset, STYLES)) + asset("picture.css") * bool(step),
            picture=step,
            meta=meta_items(report.meta),
            incomplete=incomplete,
            summary=report.summary,
            tile_value=tile_value,
            tile_range=tile_range,
            findings=finding_cards(report),
            facts=fact_lines(report),
            sections=sections,
        )
    )
    before, after = page.split(_SCRIPTS)
    figures = b",".join([figure.content for figure in placed])
    head = [before.encode(), *_json("figures", b"[%b]\n" % figures)]
    head += elements({"plotly": plotly}) if plotly else ()
    if step is not None:
        head += [*_json("picture-data", inert(dumps(step.data))), *elements(step.payloads)]
    foot = [b"<script>", script, b"</script>\n", after.encode()]
    # What the script needs of tables: what they are, and their rows, as far as the page has room for them.
    ranks, steps = selectable(tables)
    room = page_bytes(len(ranks)) - sum(map(len, (*head, *foot))) - _HEADERS_BYTES
    whole = {name: rows for part in made.values() for name, rows in part.rows.items()}
    packed, held = payloads(tables, max(room, _LEAST_BYTES), whole)
    of_tables = {item.id: specification(item, held) for item in tables}
    head += _json("tables", inert(dumps({"ranks": ranks, "steps": steps, "tables": of_tables})))
    return {"report.html": b"".join((*head, *elements(packed), *foot))}


def _json(name: str, content: bytes) -> tuple[bytes, ...]:
    return b'<script type="application/json" id="%b">' % name.encode(), content, b"</script>\n"


def grids(
    result: Result, tables: Mapping[str, Interactive], rows: int, *, controls: bool = True
) -> list[Grid]:
    """So many rows of each table as HTML, with the `controls` that the page's script brings to life."""
    return [
        grid(result, name, table.first, rows, buttons=controls, names=table.names if controls else None)
        for name, table in tables.items()
    ]


def section(result: Result, shown: list[Grid], figures: Sequence[tuple[str, str, int]] = ()) -> PageSection:
    """One result with the tables `shown`, ready for a template; `figures` are anchor, caption and height."""
    return PageSection(
        id=result.analyzer,
        title=result.title,
        heading=heading(result),
        headline=headline(result),
        answer=_answer(result),
        doc=result.doc,
        meta=meta_items(result.meta),
        figures=figures,
        grids=shown,
        details=details(result),
        skips=skipped(result),
    )


def _answer(result: Result) -> str:
    """The answer to a section's question, unless the headline or the page's verdict has all figures of it."""
    if result_summary(result):
        return ""
    sentence = answer(result)
    return sentence if {*_FIGURE.findall(sentence)} - {*_FIGURE.findall(headline(result))} else ""


@cache
def asset(name: str) -> str:
    """A style or script."""
    return ASSETS.joinpath(name).read_text(encoding="utf-8")


def inert(text: bytes) -> bytes:
    """JSON that cannot end a script element nor, being old JavaScript's line breaks, a line."""
    for raw, escaped in (
        (b"<", b"\\u003c"),
        (b">", b"\\u003e"),
        (b"&", b"\\u0026"),
        ("\u2028".encode(), b"\\u2028"),
        ("\u2029".encode(), b"\\u2029"),
    ):
        text = text.replace(raw, escaped)
    return text
