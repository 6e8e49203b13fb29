"""The notebooks: stored with what they show, short, legible without scripts, and what a fresh run shows."""

from __future__ import annotations

import base64
import copy
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="notebooks need the extra `notebook`")
pytest.importorskip("nbclient", reason="running notebooks needs nbclient")

from notebooks import remake  # noqa: E402
from tests.browser.chromium import chromium, errors  # noqa: E402
from tests.effort import THOROUGH  # noqa: E402

FILES = sorted(remake.FOLDER.glob("*.ipynb"))
MOST_BYTES = 300_000
# What the reader sees of each, beside tables.
FIGURES = {"quickstart": 5, "roofline": 2, "many_ranks": 3, "diff_and_gate": 2, "replay": 0, "projection": 4}

of_each = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def code(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def figures(notebook: Any) -> list[Any]:
    return [output for output in remake.outputs(notebook) if remake.figure_id(output)]


def texts(notebook: Any) -> list[Any]:
    """Outputs but for the bytes of images, which depend on the machine's fonts."""
    shown = copy.deepcopy(remake.outputs(notebook))
    for output in shown:
        output.get("data", {}).pop("image/png", None)
    return shown


def test_all_of_them_are_known() -> None:
    assert {path.stem for path in FILES} == set(FIGURES)


@of_each
def test_it_is_stored_with_its_outputs(path: Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)
    assert notebook.cells[0].source.startswith("# ")
    assert [cell.execution_count for cell in code(notebook)] == list(range(1, len(code(notebook)) + 1))
    assert all(cell.outputs for cell in code(notebook))
    assert {output.output_type for output in remake.outputs(notebook)} <= {
        "display_data",
        "execute_result",
        "stream",
    }
    assert not [output for output in remake.outputs(notebook) if output.get("name") == "stderr"]
    assert path.stat().st_size < MOST_BYTES


@of_each
def test_what_it_shows_needs_no_script(path: Path) -> None:
    notebook = read(path)
    assert len(figures(notebook)) == FIGURES[path.stem]
    for figure in figures(notebook):
        assert set(figure.data) == {"image/png", "text/plain"}
        width, height = struct.unpack(">II", base64.b64decode(figure.data["image/png"])[16:24])
        shown = figure.metadata["image/png"]
        assert (width, height) == (shown["width"] * 1.5, shown["height"] * 1.5)
    html = "".join(output.get("data", {}).get("text/html", "") for output in remake.outputs(notebook))
    assert "<script" not in html


@of_each
def test_it_names_no_folder_of_one_machine(path: Path) -> None:
    notebook = read(path)
    for cell in code(notebook):
        cell.source = ""
    assert not re.findall(r"/(?:tmp|home|root|work|var)/\S*", nbformat.writes(notebook))


@of_each
def test_it_reads_sample_traces_alone(path: Path) -> None:
    named = [name for cell in code(read(path)) for name in re.findall(r"\.{1,2}/[\w./-]+", cell.source)]
    assert named
    for name in named:
        assert name.startswith("../sample_traces/")
        assert (remake.FOLDER / name).exists(), name


@of_each
def test_its_links_lead_to_files(path: Path) -> None:
    prose = "".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")
    for target in re.findall(r"\]\(([^)#]+)\)", prose):
        assert target.startswith("https://") or (remake.FOLDER / target).exists(), target


OFTEN = ("quickstart", "replay")
"""The first one, and one that writes files, run in every build."""
# Each kernel would start a browser for its images, whose bytes are not compared.
NO_IMAGES = "import tracelens.rendering.image\ntracelens.rendering.image.png = lambda figure: b''\n"


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=[pytest.mark.rare] * (path.stem not in OFTEN)) for path in FILES],
)
def test_a_fresh_run_shows_what_is_stored(path: Path) -> None:
    first = "" if THOROUGH or path.stem == "roofline" else NO_IMAGES
    assert texts(remake.run(path, first)) == texts(read(path))  # raises where a cell does


def test_the_image_of_a_figure_that_shows_the_same_stays() -> None:
    stored = read(next(path for path in FILES if path.stem == "roofline"))
    fresh = copy.deepcopy(stored)
    same, other = figures(fresh)
    same.data["image/png"] = other.data["image/png"] = "new"
    other.metadata["tracelens"]["figure"] = "other"
    remake.keep_images(fresh, stored)
    assert same.data == figures(stored)[0].data
    assert other.data["image/png"] == "new"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("chromium")) as driver:
        yield driver


@of_each
def test_nbconvert_shows_each_figure(browser: Any, tmp_path: Path, path: Path) -> None:
    exporters = pytest.importorskip("nbconvert.exporters", reason="nbconvert is not installed")
    notebook = read(path)
    exporter = exporters.HTMLExporter(mathjax_url="", require_js_url="", jquery_url="", mermaid_js_url="")
    page, _ = exporter.from_notebook_node(notebook)
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    browser.get((tmp_path / "page.html").as_uri())
    shown = browser.execute_script(
        """
        return [...document.images].map(image => {
          const headings = [...document.querySelectorAll("h4")].filter(
            heading => heading.compareDocumentPosition(image) & Node.DOCUMENT_POSITION_FOLLOWING);
          return [image.complete && image.naturalWidth > 0 && image.checkVisibility(),
                  image.getBoundingClientRect().width, headings.at(-1).innerText];
        });
        """
    )
    titles = [figure.data["text/plain"].removeprefix("Figure: ") for figure in figures(notebook)]
    assert [title for *_, title in shown] == titles
    assert all(visible and width > 300 for visible, width, _ in shown)
    tables = sum(
        output.get("data", {}).get("text/html", "").count("<table") for output in remake.outputs(notebook)
    )
    markdown_tables = len(browser.find_elements("css selector", ".jp-RenderedMarkdown table"))
    assert len(browser.find_elements("css selector", "table")) == tables + markdown_tables > 0
    assert [error for error in errors(browser) if "ERR_NAME_NOT_RESOLVED" not in error] == []
