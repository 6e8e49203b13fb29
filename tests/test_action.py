"""action.yml: what it declares, and what its scripts do."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[1]
ACTION = (ROOT / "action.yml").read_text()
EXAMPLE = (ROOT / "examples" / "gate.yml").read_text()
SAMPLES = ROOT / "sample_traces"


VARIABLES = ("BASELINE", "RULES", "CONFIG", "CONFIDENCE", "INCONCLUSIVE", "MIN_EFFECT", "ALLOW")


def section(name: str) -> list[str]:
    """The keys below a key of the first level."""
    (text,) = re.findall(rf"^{name}:\n((?:(?:  .*)?\n)+)", ACTION, re.MULTILINE)
    return re.findall(r"^  (\w+):", text, re.MULTILINE)


def scripts() -> list[str]:
    """The scripts of its steps."""
    found = re.findall(r"^      run: \|\n((?:        .*\n|\n)+)", ACTION, re.MULTILINE)
    return [textwrap.dedent(text) for text in found]


def test_inputs_and_outputs() -> None:
    assert section("inputs") == [
        "base",
        "candidate",
        "baseline",
        "update_baseline",
        "keep",
        "rules",
        "config",
        "confidence",
        "inconclusive",
        "min_effect",
        "allow",
        "version",
        "output",
    ]
    assert section("outputs") == ["verdict", "markdown", "junit", "report", "json"]
    assert re.search(r"^  using: composite$", ACTION, re.MULTILINE)
    for name in section("inputs"):
        assert re.search(rf"\$\{{\{{[^}}]* ?inputs\.{name}\b", ACTION)


def test_no_input_is_text_of_a_script() -> None:
    assert len(scripts()) == ACTION.count("shell: bash") == 3
    assert not any("${{" in script for script in scripts())


@pytest.mark.parametrize("path", ["action.yml", "examples/gate.yml"])
def test_it_is_yaml(path: str) -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    document = yaml.safe_load((ROOT / path).read_text())
    for step in document.get("runs", {}).get("steps", []):
        assert {"name", "shell", "run"} <= set(step) or {"name", "uses", "with"} <= set(step)
    for job in document.get("jobs", {}).values():
        for step in job["steps"]:
            if step.get("id") == "gate":
                assert set(step["with"]) <= set(section("inputs"))


@pytest.fixture
def gate(tmp_path: Path):
    """Run the second script as GitHub does, with the tracelens of this checkout."""
    files = {name: tmp_path / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}

    def run(**inputs: str) -> tuple[subprocess.CompletedProcess[str], dict[str, str], str]:
        given = dict.fromkeys(VARIABLES, "") | inputs
        names = {name: str(path) for name, path in files.items()}
        given |= {
            "OUTPUT": str(tmp_path / "out"),
            "PYTHON": sys.executable,
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


class Runner:
    """Runs the steps of the action as GitHub does: expressions, conditions, outputs and the cache."""

    def __init__(self, folder: Path, steps: list[dict[str, Any]]) -> None:
        self.folder, self.steps = folder, steps
        self.cache: dict[str, bytes] = {}  # by key, oldest first

    def run(self, run_id: str, **inputs: str) -> tuple[int, dict[str, str]]:
        """Exit code of the job and outputs of the action."""
        yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
        declared = yaml.safe_load(ACTION)["inputs"]
        context = {
            f"inputs.{name}": inputs.get(name, entry.get("default", "")) for name, entry in declared.items()
        }
        context |= {
            "runner.temp": str(self.folder),
            "github.workspace": str(self.folder),
            "github.action_path": str(ROOT),
            "github.sha": f"c{run_id}",
        }
        context |= {"github.run_id": run_id, "github.run_attempt": "1"}
        failed, outputs = 0, {}
        for step in self.steps:
            condition = step.get("if", "${{ success() }}")
            if not self.holds(condition, context, failed):
                continue
            if "uses" in step:
                self.use(step["uses"], {key: self.fill(text, context) for key, text in step["with"].items()})
                continue
            if step["name"] == "Install tracelens":
                continue  # the tracelens of this checkout
            output = self.folder / "output"
            output.write_text("")
            env = {key: self.fill(text, context) for key, text in step["env"].items()}
            env |= {"GITHUB_OUTPUT": str(output), "GITHUB_STEP_SUMMARY": str(self.folder / "summary")}
            command = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step["run"]]
            done = subprocess.run(command, env=os.environ | env, cwd=self.folder, check=False)
            outputs |= dict(line.split("=", 1) for line in output.read_text().splitlines())
            failed = failed or done.returncode
        return failed, outputs

    def fill(self, text: str, context: dict[str, str]) -> str:
        return re.sub(r"\$\{\{ ([\w.]+) \}\}", lambda found: context[found[1]], text)

    def holds(self, condition: str, context: dict[str, str], failed: int) -> bool:
        terms = condition.removeprefix("${{ ").removesuffix(" }}").split(" && ")
        compared = [re.fullmatch(r"([\w.]+) (==|!=) '(.*)'", term) for term in terms]
        values = [(context[found[1]] == found[3]) == (found[2] == "==") for found in compared if found]
        return all(values) and not failed

    def use(self, action: str, options: dict[str, str]) -> None:
        path = self.folder / options["path"]
        if action.startswith("actions/cache/restore@"):
            prefix = options["restore-keys"]
            if keys := [key for key in self.cache if key == options["key"] or key.startswith(prefix)]:
                path.write_bytes(self.cache[keys[-1]])
        else:
            assert action.startswith("actions/cache/save@")
            self.cache[options["key"]] = path.read_bytes()
            path.unlink()


def test_a_baseline_grows_in_the_cache(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    program = tmp_path / "tracelens" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    program.chmod(0o755)
    runner = Runner(tmp_path, yaml.safe_load(ACTION)["runs"]["steps"])
    loop, grouped = (str(SAMPLES / "one_gpu" / name) for name in ("loop", "grouped"))
    common = {"baseline": "base.json", "rules": "kernel.count<=1.0\nstep.time<=9"}
    push = runner.run("1", candidate=grouped, update_baseline="true", **common)
    assert (push[0], push[1]["verdict"]) == (0, "none")
    slower = runner.run("2", candidate=loop, **common)
    assert (slower[0], slower[1]["verdict"]) == (1, "fail")
    assert "gate.html" in slower[1]["report"]
    same = runner.run("3", candidate=f"{grouped}\n{grouped}\n", update_baseline="true", **common)
    assert (same[0], same[1]["verdict"]) == (0, "pass")
    assert len(json.loads(list(runner.cache.values())[-1])["runs"]) == 3
    assert len(runner.cache) == 2
    other = runner.run("4", candidate=str(SAMPLES / "cpu" / "tiny"), **common)
    assert (other[0], other[1]["verdict"]) == (2, "error")
    regressed = runner.run("5", candidate=loop, update_baseline="true", **common)
    assert (regressed[0], len(runner.cache)) == (1, 2), "what has failed is not the baseline of the next"


def test_used_actions_are_pinned() -> None:
    used = [*re.findall(r"uses: (\S+)", ACTION), *re.findall(r"uses: (actions/\S+)", EXAMPLE)]
    assert len(used) == 4
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", name) for name in used)


HOSTILE = """
import os, sys
open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "imported"), "a").write(__name__)
print("pass")
open(os.environ.get("GITHUB_OUTPUT", os.devnull), "a").write("verdict=pass\\n")
os._exit(0)
"""


def test_nothing_of_the_workspace_runs(gate, tmp_path: Path) -> None:
    for name in ("json", "venv", "pip", "sitecustomize", "usercustomize", "tracelens", "numpy", "typer"):
        (tmp_path / f"{name}.py").write_text(HOSTILE)
    base, candidate = (str(SAMPLES / "one_gpu" / name) for name in ("loop", "grouped"))
    hostile = {"PYTHONPATH": str(tmp_path), "PYTHONSTARTUP": str(tmp_path / "json.py")}
    done, outputs, _ = gate(BASE=candidate, CANDIDATE=base, RULES="kernel.count<=1.0", **hostile)
    assert (done.returncode, outputs["verdict"]) == (1, "fail"), done.stderr
    assert not (tmp_path / "imported").exists()
    # The install step in the same workspace: every Python that it starts is isolated.
    install = scripts()[0]
    environment = tmp_path / "runner" / "tracelens"
    marked = install.replace('"${pip[@]}" install', "echo install")  # needs the network
    marked = marked.replace('"${pip[@]}" check', '"${pip[@]}" --version')
    env = {"VERSION": "", "SOURCE": str(ROOT), "WORKSPACE": str(tmp_path), "ENVIRONMENT": str(environment)}
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", marked],
        env=os.environ | env | hostile, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (environment / "bin" / "python").exists()
    assert not (tmp_path / "imported").exists()
