"""Run the notebooks and store them with their outputs: python notebooks/remake.py [NAME ...].

What is stored changes only where results do: there are no times of day, figures are images, and the image
of a figure that shows what it showed before stays, whatever fonts this machine has.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbclient
import nbformat

FOLDER = Path(__file__).parent
LONGEST_S = 180
_METADATA = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}


def run(path: Path, first: str = "") -> Any:
    """The notebook with outputs of a fresh kernel, made in its folder by the environment that runs this.

    Args:
        path: of the notebook.
        first: code that the kernel runs before its cells.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    notebook = nbformat.read(path, as_version=4)
    notebook.metadata = _METADATA
    client = nbclient.NotebookClient(
        notebook,
        timeout=LONGEST_S,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(FOLDER)}},
    )
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PLOTLY_RENDERER": "png",  # figures as images alone
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # a warning of the debugger
        "COLUMNS": "120",  # of the command line's tables
    }
    with TemporaryDirectory() as profile:
        startup = Path(profile, "profile_default", "startup")
        startup.mkdir(parents=True)
        (startup / "first.py").write_text(first)
        client.execute(env={**environment, "IPYTHONDIR": profile})
    notebook.metadata = _METADATA
    return notebook


def outputs(notebook: Any) -> list[Any]:
    """The outputs of all cells, in order."""
    return [output for cell in notebook.cells for output in cell.get("outputs", ())]


def figure_id(output: Any) -> str:
    """What tells figures apart that show different things; "" for other outputs."""
    return str(output.get("metadata", {}).get("tracelens", {}).get("figure", ""))


def keep_images(notebook: Any, stored: Any) -> None:
    """Give figures that show the same as in the stored notebook the image that they have there."""
    images = {
        figure_id(output): output.data["image/png"]
        for output in outputs(stored)
        if figure_id(output) and "image/png" in output.data
    }
    for output in outputs(notebook):
        if (name := figure_id(output)) in images:
            output.data["image/png"] = images[name]


def main(names: list[str]) -> None:
    """Remake the named notebooks, or all."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        if names and path.stem not in names:
            continue
        start = time.monotonic()
        notebook = run(path)
        keep_images(notebook, nbformat.read(path, as_version=4))
        nbformat.validate(notebook)
        nbformat.write(notebook, path)
        print(f"{path.stem:14} {path.stat().st_size / 1e3:4.0f} kB {time.monotonic() - start:4.0f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
