"""What the README shows works as shown."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tracelens.analysis.analyzer import in_order
from tracelens.cli import run
from tracelens.plugins import GROUP
from tracelens.table.result import Result

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
SAMPLE = "sample_traces/one_gpu/loop/rank0.json.gz"


def blocks(language: str) -> list[str]:
    """The code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_the_analyzer_of_the_readme_is_one_file(tmp_path: Path) -> None:
    (code,) = [block for block in blocks("python") if "@analyzer" in block]
    plugin = tmp_path / "kernel_counts.py"
    plugin.write_text(code)
    command = [sys.executable, "-m", "tracelens", "analyze", "kernel_counts", SAMPLE, "--json"]
    done = subprocess.run(
        command, env=os.environ | {"TRACELENS_PLUGINS": str(plugin)}, capture_output=True, check=True
    )
    assert sum(row["calls"] for row in json.loads(done.stdout)["tables"]["counts"]) == 1614


def test_the_detector_of_the_readme_is_one_file(tmp_path: Path) -> None:
    (code,) = [block for block in blocks("python") if "@detector" in block]
    plugin = tmp_path / "memsets.py"
    plugin.write_text(code)
    command = [sys.executable, "-m", "tracelens", "analyze", "findings", SAMPLE, "--json"]
    done = subprocess.run(
        command, env=os.environ | {"TRACELENS_PLUGINS": str(plugin)}, capture_output=True, check=True
    )
    signals = json.loads(done.stdout)["tables"]["measurements"]
    assert [
        row["value"] for row in signals if row["detector"] == "memsets" and row["measure"] == "memsets"
    ] > [0]


def test_the_entry_point_of_the_readme() -> None:
    assert f'[project.entry-points."{GROUP}"]' in README


def test_the_first_screen(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert run(["report", "sample_traces/ladder/ep4/00_baseline"]) == 0
    assert capfd.readouterr().out in blocks("text")


def test_the_python_example() -> None:
    (code,) = [block for block in blocks("python") if "tracelens.load" in block]
    names: dict[str, object] = {}
    exec(compile(code.replace("trace.json.gz", SAMPLE), "README.md", "exec"), names)
    assert isinstance(names["result"], Result)


def test_every_analyzer_is_in_the_table() -> None:
    named = re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE)
    assert named == [item.name for item in in_order()]


@pytest.mark.parametrize(
    "line",
    [
        line
        for line in "\n".join(blocks("sh")).replace("\\\n", " ").splitlines()
        if line.startswith("tracelens ")
    ],
)
def test_commands(line: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    (tmp_path / "traces").mkdir()
    shutil.copy(SAMPLE, tmp_path / "traces" / "rank0.json.gz")
    of_project = {
        "whatif": "sample_traces/ladder/ep4/00_baseline",
        "pipeline": "sample_traces/pipeline/plain",
    }
    real = {
        "trace.json.gz": SAMPLE,
        "before.json.gz": SAMPLE,
        "after.json.gz": "sample_traces/one_gpu/grouped/rank0.json.gz",
        "traces/": of_project.get(line.split()[2], str(tmp_path / "traces")),
        "ladder/": "sample_traces/ladder/ep4" if "--from" in line else str(tmp_path / "ladder"),
        "late/": str(tmp_path / "late"),
        **({"2": "3"} if "--step" in line else {}),
        "all_to_allv": "aten::mm",  # the sample trace is of one rank
        **{
            name: str(tmp_path / name)
            for name in (
                "report.html",
                "diff.html",
                "whatif.html",
                "memory.html",
                "pipeline.html",
                "merged.json.gz",
                "base.json",
                "gate.xml",
                "gate.md",
                "replay/",
                "layer/",
                "comms/",
                "grouped/",
            )
        },
    }
    words = [real.get(word, word) for word in shlex.split(line, comments=True)[1:]]
    if words[:2] == ["replay", "verify"]:
        pytest.importorskip("torch")
        assert run(["replay", SAMPLE, "--top", "3", "--max-elements", "4096", "-o", real["replay/"]]) == 0
        words += ["--device", "cpu", "--iters", "1"]
    if words[0] == "workload" and "--from" not in words:
        torch = pytest.importorskip("torch")
        if "cuda" in words and not torch.cuda.is_available():
            pytest.skip("needs a GPU")
        # In a process of its own: the ranks are started from it, and torch warns of much.
        subprocess.run([sys.executable, "-m", "tracelens", *words], check=True, capture_output=True)
        return
    if words[0] == "gate":
        assert run(["report", real["traces/"], "--only", "steps", "-o", real["base.json"]]) == 0
    # One run of a few noisy steps a side tells nothing about 1%.
    codes = (0, 3) if words[0] == "gate" else (0,)
    assert run(words) in codes, capfdbinary.readouterr().err
