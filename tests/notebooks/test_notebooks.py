"""The notebooks run from top to bottom on the sample traces, show figures, and are stored without outputs."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="notebooks need the extra `notebook`")
nbclient = pytest.importorskip("nbclient", reason="running notebooks needs nbclient")

FOLDER = Path(__file__).parents[2] / "notebooks"
FILES = sorted(FOLDER.glob("*.ipynb"))
LONGEST_S = 120
FIGURE = "application/vnd.plotly.v1+json"
# What the user is to see of each, beside tables.
FIGURES = {"quickstart": 3, "roofline": 1, "many_ranks": 2, "diff_and_gate": 2, "replay": 0, "projection": 6}


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def code(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Kernels and commands are those of the environment that runs this."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")


def test_all_of_them_are_known() -> None:
    assert {path.stem for path in FILES} == set(FIGURES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_is_stored_without_outputs(path: Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)
    assert notebook.cells[0].source.startswith("# ")
    for cell in code(notebook):
        assert cell.outputs == []
        assert cell.execution_count is None


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_reads_sample_traces_alone(path: Path) -> None:
    named = [name for cell in code(read(path)) for name in re.findall(r"\.{1,2}/[\w./-]+", cell.source)]
    assert named
    for name in named:
        assert name.startswith("../sample_traces/")
        assert (FOLDER / name).exists(), name


@pytest.mark.slow
@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_runs_from_top_to_bottom(path: Path) -> None:
    notebook = read(path)
    client = nbclient.NotebookClient(
        notebook, timeout=LONGEST_S, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}}
    )
    client.execute()  # raises where a cell does
    outputs = [output for cell in code(notebook) for output in cell.outputs]
    figures = [output for output in outputs if FIGURE in output.get("data", {})]
    assert len(figures) >= FIGURES[path.stem]
    for figure in figures:
        assert figure["data"][FIGURE]["data"], "a figure without anything in it"
    said = "".join(output.get("text", "") for output in outputs)
    assert "Traceback" not in said
    assert not re.search(r"^(?:error|tracelens): ", said, re.MULTILINE)
