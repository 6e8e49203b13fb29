"""What the commands of `tracelens project` share: where a result goes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracelens.cli.common import deliver, say

if TYPE_CHECKING:
    from tracelens.table import Result

Output = Annotated[
    list[str] | None,
    typer.Option(
        "-o",
        "--output",
        help="Output: .html, .md, .json, .xlsx, or a directory for CSV. Repeatable. Without it the result is "
        "printed.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object with every table in full.")]


def files_of(*names: str | None) -> list[str]:
    """The files among names, which may also be those of bundled models and devices."""
    return [name for name in names if name and Path(name).is_file()]


def tell_notes(model: str) -> None:
    """Print what the model leaves out of a model file."""
    from tracelens.planner.config import read_file

    for note in read_file(model).notes:
        say(f"{model}: {note}")


def tell(
    result: Result,
    title: str,
    output: Sequence[str] | None,
    json_output: bool,
    inputs: Sequence[str] = (),
) -> None:
    """Write a result to files, print it as JSON, or show it.

    Args:
        result: what was found.
        title: heading, from the command's name on.
        output: files and directories to write.
        json_output: whether it is printed as JSON.
        inputs: what was read.
    """
    from tracelens.table import Report
    from tracelens.version import __version__

    meta = {"version": __version__, "inputs": list(inputs)}
    report = Report((result,), title=f"tracelens project {title}", meta=meta)
    deliver(report, output or (), json_output)
