"""Scripts of many hostile traces are their templates with other data: no text is code, or in a comment.

Each trace has one text that wants to be code in one place. Its scripts are read as Python would read them,
from their bytes, and compared with those of the same traces with a plain text in that place.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.effort import effort
from tests.hostile.script_attacks import (
    ATTACKS,
    COLLECTIVES,
    COOKIES,
    OPS,
    PLAIN,
    SEQUENCES,
    Place,
    cookie_and_code,
    traces,
)
from tests.hostile.script_forms import form
from tracelens.errors import TracelensError
from tracelens.reproducers import LIST, replay, replay_layers
from tracelens.reproducers.scripts import UNFAITHFUL
from tracelens.table import Result
from tracelens.trace import Run

COUNTS = {"ops": effort(325, 650), "collectives": effort(125, 250), "sequences": effort(50, 100)}
FIRST = b"# -*- coding: utf-8 -*-\n# Written by tracelens "
PRINTABLE = bytes(range(32, 127)) + b"\n"
Replay = Callable[[Run, Path], Result]


def written(run: Run, folder: Path, make: Replay) -> list[bytes]:
    """The scripts of a run; none where it has nothing that can be made one."""
    try:
        found = make(run, folder)
    except TracelensError as error:
        if UNFAITHFUL in str(error):
            raise
        return []
    assert not [skip for skip in found.skips if UNFAITHFUL in skip.reason]
    files = {path.name: path for path in folder.iterdir()}
    assert set(files) == {LIST, *found.data["scripts"].texts("file")}
    return [files[name].read_bytes() for name in found.data["scripts"].texts("file")]


@pytest.mark.rare
@pytest.mark.parametrize(
    ("kind", "places", "make", "least"),
    [
        ("ops", OPS, replay, 0.4),
        ("collectives", COLLECTIVES, replay, 0.4),
        ("sequences", SEQUENCES, replay_layers, 0.9),
    ],
)
def test_scripts_are_their_template_and_data(
    kind: str, places: dict[str, Place], make: Replay, least: float, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    plain = {name: written(place(PLAIN), folder, make) for name, place in places.items()}
    forms = {form(script) for scripts in plain.values() for script in scripts}
    pairs = traces(places, COUNTS[kind])
    assert len({*pairs}) == COUNTS[kind]
    made = 0
    for place, text in pairs:
        for script in written(places[place](text), folder, make):
            assert script.startswith(FIRST), (place, text)
            assert not script.translate(None, PRINTABLE), (place, text)
            assert form(script) in forms, (place, text)
            made += 1
    # Many are refused, where a name or number would be needed; the others say something.
    assert made > least * len(pairs)


def test_the_traces_use_each_text_and_place() -> None:
    kinds = {"ops": OPS, "collectives": COLLECTIVES, "sequences": SEQUENCES}
    pairs = [(kind, *pair) for kind, places in kinds.items() for pair in traces(places, COUNTS[kind])]
    assert len({*pairs}) == sum(COUNTS.values()) == effort(500, 1000)
    assert {text for _, _, text in pairs} == {*ATTACKS}
    assert {(kind, place) for kind, place, _ in pairs} == {(k, p) for k in kinds for p in kinds[k]}


def test_a_cookie_does_not_make_code_of_a_name(tmp_path: Path) -> None:
    # Line 2 of a script was the shapes of a call, or the description of a process group; behind it stood the
    # names of kernels. Python reads a declared encoding in line 2.
    folder = tmp_path / "out"
    (script,) = written(cookie_and_code(COOKIES[0]), folder, replay)
    assert COOKIES[0].encode() in script
    assert b"touch PWNED" in script
    for file in folder.glob("*.py"):
        command = [sys.executable, str(file), "--help"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
        assert done.returncode == 0 or b"No module named 'torch'" in done.stderr
    assert not (tmp_path / "PWNED").exists()
