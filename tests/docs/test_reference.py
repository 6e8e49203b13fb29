"""The reference pages name everything there is: from the registries, not from what somebody wrote down."""

from __future__ import annotations

import html
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import tracelens
from tracelens.analysis import in_order
from tracelens.devices import devices
from tracelens.findings import DETECTORS
from tracelens.table import Schema
from tracelens.what_if import SCENARIOS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def modules() -> Any:
    """The generators of the pages, imported as the site does it."""
    sys.path.insert(0, str(ROOT / "docs" / "generate"))
    import interfaces
    import reference_pages

    yield reference_pages, interfaces
    sys.path.remove(str(ROOT / "docs" / "generate"))


@pytest.fixture(scope="module")
def pages(modules: Any) -> dict[str, str]:
    generated: dict[str, str] = modules[0].pages()
    return generated


def plain(text: str) -> str:
    """Text as it is read: without what marks it up, or escapes that."""
    return " ".join(re.sub(r"[*\\]", "", html.unescape(text).replace("<br>", "; ")).split())


def described(page: str, schema: Schema) -> Iterable[str]:
    """The columns of a schema that a page does not describe."""
    text = plain(page)
    for column in schema.columns:
        row = f"| `{column.name}` | {column.dtype} | {column.unit} |"
        if plain(f"{row} {column.doc} |") not in text and plain(column.doc) not in text:
            yield f"{schema.title}: {column.name}"
        if plain(row) not in text:
            yield f"{schema.title}: no row of {column.name}"


def test_every_table_of_an_analyzer_is_on_its_page(pages: dict[str, str]) -> None:
    for item in in_order():
        page = pages[f"reference/analyzers/{item.name}.md"]
        assert item.doc in page
        assert f"tracelens analyze {item.name} " in page
        assert "## How to read it" in page
        assert "## Limits" in page
        assert item.tables
        for name, schema in item.tables.items():
            assert f"{{ #{name} }}" in page
            assert not list(described(page, schema))
        for option in item.options:
            meaning = re.search(rf"^\| `--{option.replace('_', '-')}` \| [^|]* \| (.*) \|$", page, re.M)
            assert meaning, option
            assert meaning[1], option
        assert f"analyzers/{item.name}.md" in pages["reference/analyzers.md"]


def test_every_table_of_other_results_is_on_a_page(modules: Any, pages: dict[str, str]) -> None:
    for item in modules[0].RESULTS:
        page = pages[f"reference/results/{item.name}.md"]
        assert item.tables
        for schema in item.tables.values():
            assert not list(described(page, schema))
        assert f"results/{item.name}.md" in pages["reference/results.md"]


def test_every_detector_has_a_page(pages: dict[str, str]) -> None:
    for name, item in DETECTORS.items():
        page = pages[f"reference/detectors/{name}.md"]
        assert item.doc in page
        for heading in ("Threshold", "Saving", "Limits", "Measures", "Remedies"):
            assert f"## {heading}\n" in page, (name, heading)
        for measure, meaning in item.measures.items():
            assert f"| {measure} | {meaning} |" in page.replace("\\|", "|"), (name, measure)
        assert not re.search(r"\{\w+\}", page.partition("## Remedies")[2]), name
        assert f"detectors/{name}.md" in pages["reference/detectors.md"]


def test_every_scenario_has_a_page(pages: dict[str, str]) -> None:
    for name, item in SCENARIOS.items():
        page = pages[f"reference/scenarios/{name}.md"]
        assert item.doc in page
        assert "## Assumes\n" in page
        assert f"scenarios/{name}.md" in pages["reference/scenarios.md"]


def test_every_figure_of_a_device_has_a_source(pages: dict[str, str]) -> None:
    page = pages["reference/devices.md"]
    for item in devices():
        part = re.split(r"^## ", page.partition(f"## {item.title} {{")[2], flags=re.M)[0]
        rows = re.findall(r"^\| `([\w.]+)` \| ([^|]+) \| (.*) \|$", part, re.M)
        assert {key for key, _, source in rows if source} == set(item.sources), item.name


def test_every_command_and_option_is_described(pages: dict[str, str]) -> None:
    page = pages["reference/commands.md"]
    for command in ("report", "analyze NAME", "diff", "gate", "replay verify", "project whatif", "list"):
        words = command.replace(" NAME", "")
        assert f"## tracelens {words} {{" in page
    options = re.findall(r"^\| (`-.*?) \| (.*) \|$", page, re.M)
    assert len(options) > 100
    assert not [option for option, meaning in options if not meaning.strip()]


def test_every_public_name_is_on_the_python_page(pages: dict[str, str]) -> None:
    page = pages["reference/python.md"]
    for name in tracelens.__all__:
        if not name.startswith("__"):
            assert f'<a id="tracelens.{name}"></a>' in page
            assert re.search(rf"^\| \[`{name}`\]\(#tracelens\.{name}\) \| \S", page, re.M), name


def test_the_keys_of_the_json_are_those_described(modules: Any) -> None:
    interfaces = modules[1]
    report, result = interfaces.documents()
    assert set(report) == set(interfaces.REPORT_KEYS)
    assert set(result) == set(interfaces.RESULT_KEYS)
    for row in result["tables"]["input"]:
        assert row["events_kept"] > 0


def test_the_frames_of_a_run_are_described(modules: Any, pages: dict[str, str]) -> None:
    wide = modules[0].wide
    for schema in (wide.KERNELS, wide.OPS, wide.COLLECTIVES):
        assert not list(described(pages["reference/run.md"], schema))


def test_the_tables_of_a_trace_are_described(modules: Any, pages: dict[str, str]) -> None:
    for schema in (modules[0].EVENTS, modules[0].OPS, modules[0].COLLECTIVES, modules[0].LINKS):
        assert not list(described(pages["reference/trace.md"], schema))
