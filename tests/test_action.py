"""action.yml: what it declares, and what its scripts do."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[1]
ACTION = (ROOT / "action.yml").read_text()
SAMPLES = ROOT / "sample_traces"


def section(name: str) -> list[str]:
    """The keys below a key of the first level."""
    (text,) = re.findall(rf"^{name}:\n((?:(?:  .*)?\n)+)", ACTION, re.MULTILINE)
    return re.findall(r"^  (\w+):", text, re.MULTILINE)


def scripts() -> list[str]:
    """The scripts of its steps."""
    found = re.findall(r"^      run: \|\n((?:        .*\n|\n)+)", ACTION, re.MULTILINE)
    return [textwrap.dedent(text) for text in found]


def test_inputs_and_outputs() -> None:
    assert section("inputs") == ["base", "candidate", "rules", "config", "confidence", "version", "output"]
    assert section("outputs") == ["verdict", "markdown", "junit", "json"]
    assert re.search(r"^  using: composite$", ACTION, re.MULTILINE)
    for name in section("inputs"):
        assert f"${{{{ inputs.{name} }}}}" in ACTION


def test_no_input_is_text_of_a_script() -> None:
    assert len(scripts()) == ACTION.count("shell: bash") == 2
    assert not any("${{" in script for script in scripts())


@pytest.mark.parametrize("path", ["action.yml", "examples/gate.yml"])
def test_it_is_yaml(path: str) -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    document = yaml.safe_load((ROOT / path).read_text())
    for step in document.get("runs", {}).get("steps", []):
        assert {"name", "shell", "run"} <= set(step)
    for job in document.get("jobs", {}).values():
        for step in job["steps"]:
            if step.get("id") == "gate":
                assert set(step["with"]) <= set(section("inputs"))


@pytest.fixture
def gate(tmp_path: Path):
    """Run the second script as GitHub does, with the tracelens of this checkout."""
    program = tmp_path / "tracelens"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tracelens "$@"\n')
    program.chmod(0o755)
    files = {name: tmp_path / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}

    def run(**inputs: str) -> tuple[subprocess.CompletedProcess[str], dict[str, str], str]:
        given = dict.fromkeys(("RULES", "CONFIG", "CONFIDENCE"), "") | inputs
        names = {name: str(path) for name, path in files.items()}
        given |= {
            "OUTPUT": str(tmp_path / "out"),
            "TRACELENS": str(program),
            "PYTHONPATH": str(ROOT),
            **names,
        }
        for path in files.values():
            path.write_text("")
        script = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", scripts()[1]]
        done = subprocess.run(
            script, env=os.environ | given, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        lines = files["GITHUB_OUTPUT"].read_text().splitlines()
        return done, dict(line.split("=", 1) for line in lines), files["GITHUB_STEP_SUMMARY"].read_text()

    return run


@pytest.mark.parametrize(
    ("rules", "code", "verdict"),
    [
        ("", 0, "pass"),
        ("step.time<=1.0\n\n  kernel.count<=1.0\r\n", 0, "pass"),
        ("kernel.count<=400 abs\nop[aten::mm].time<=1.05", 1, "fail"),
        ("$(touch harm); `touch harm`<=1", 2, "error"),
    ],
)
def test_the_script(gate, tmp_path: Path, rules: str, code: int, verdict: str) -> None:
    base, candidate = (str(SAMPLES / "one_gpu" / name) for name in ("loop", "grouped"))
    done, outputs, summary = gate(BASE=base, CANDIDATE=candidate, RULES=rules)
    assert done.returncode == code, done.stderr
    assert outputs["verdict"] == verdict
    assert not (tmp_path / "harm").exists()
    if verdict == "error":
        assert "is not a metric name" in done.stderr
        assert summary == ""
    else:
        assert json.loads(Path(outputs["json"]).read_text())["meta"]["verdict"] == verdict
        assert ElementTree.parse(outputs["junit"]).getroot().tag == "testsuites"
        assert summary == Path(outputs["markdown"]).read_text()
        assert "::notice title=tracelens gate::" in done.stderr
        assert ("::error " in done.stderr) == (verdict == "fail")
