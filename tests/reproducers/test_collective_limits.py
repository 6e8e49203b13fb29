"""How many processes the script of a collective starts by itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.reproducers.test_collectives import script_of


@pytest.mark.torch
@pytest.mark.parametrize(("options", "code"), [([], 2), (["--ranks", "11"], 2), (["--ranks", "12"], 0)])
def test_more_than_8_processes_need_an_option(options: list[str], code: int, tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    # Print the number of processes instead of starting them.
    text = script_of("allreduce", 12, "Half").text
    file.write_text(
        text.replace("mp.start_processes(", "(lambda *args, **_: print(args[2]))("), encoding="utf-8"
    )
    command = [sys.executable, str(file), "--device", "cpu", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, "" if code else "12\n")
    if code:
        assert "12 processes" in done.stderr
        assert "--ranks 12" in done.stderr
