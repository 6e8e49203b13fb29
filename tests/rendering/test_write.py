"""Choosing a format by path, writing files whole or not at all, and what that imports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rendering import sample
from tracelens.errors import TracelensError
from tracelens.rendering import by_path, write

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"pandas", "jinja2", "rich", "xlsxwriter", "plotly"}


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("report.html", "html"),
        ("a/b/REPORT.HTML", "html"),
        ("report.md", "markdown"),
        ("report.json", "json"),
        ("report.xlsx", "xlsx"),
        ("report.txt", "console"),
        ("report", "csv"),
        ("report.v2/", "csv"),
    ],
)
def test_by_path(path: str, name: str) -> None:
    assert by_path(path).name == name


def test_an_existing_directory_is_filled_with_csv(tmp_path: Path) -> None:
    folder = tmp_path / "run.1"
    folder.mkdir()
    write(sample.small(), folder)
    assert {"timeline.timeline.csv", "skips.csv", "meta.json"} <= {path.name for path in folder.iterdir()}


def test_an_unknown_suffix_names_the_known_ones() -> None:
    with pytest.raises(TracelensError, match=r"report\.pdf: .*'\.pdf'; known: \.html, .*\.xlsx.*CSV"):
        by_path("report.pdf")


def test_write_makes_parents_and_leaves_no_other_file(tmp_path: Path) -> None:
    write(sample.small(), tmp_path / "a" / "b" / "report.json")
    write(sample.small(), tmp_path / "a" / "b" / "report.json")
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["report.json"]


def test_a_failed_write_is_one_line_and_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "report.json"
    target.write_text("old")

    def full(source: str, target: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(TracelensError, match=r"^cannot write .*report\.json: No space left on device$"):
        write(sample.small(), target)
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
    assert target.read_text() == "old"


def test_a_file_in_the_way_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TracelensError, match="cannot write"):
        write(sample.small(), tmp_path / "file" / "report.json")


def loaded(statements: str) -> set[str]:
    """Modules of HEAVY that are loaded after the statements in a fresh interpreter."""
    code = f"{statements}\nimport sys\nprint(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return set(run.stdout.split()) & HEAVY


def test_choosing_a_format_imports_no_heavy_library() -> None:
    assert loaded("from tracelens.rendering import by_path; by_path('x.html')") == set()


def test_writing_html_imports_only_what_it_needs(tmp_path: Path) -> None:
    code = (
        "from tests.rendering import sample; from tracelens.rendering import write; "
        f"write(sample.report(), {str(tmp_path / 'x.html')!r})"
    )
    assert loaded(code) == {"jinja2"}
