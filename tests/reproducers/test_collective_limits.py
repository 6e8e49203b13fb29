"""How many processes the script of a collective starts by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reproducers.test_collectives import script_of
from tests.reproducers.torch_process import run_script


@pytest.mark.torch
@pytest.mark.parametrize(("options", "code"), [([], 2), (["--ranks", "11"], 2), (["--ranks", "12"], 0)])
def test_more_than_8_processes_need_an_option(options: list[str], code: int, tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text(script_of("allreduce", 12, "Half").text, encoding="utf-8")
    done = run_script(file, "--device", "cpu", "--iters", "1", *options)
    told = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert (done.returncode, told.get("ranks")) == (code, None if code else "12")
    if code:
        assert "12 processes" in done.stderr
        assert "--ranks 12" in done.stderr
