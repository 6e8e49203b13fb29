"""Shell completion, through the protocol of the scripts that `--install-completion` installs."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders import events, write
from tracelens.analysis import in_order
from tracelens.cli import run
from tracelens.findings import DETECTORS
from tracelens.registry import registered
from tracelens.rendering import RENDERERS
from tracelens.what_if import SCENARIOS

ROOT = Path(__file__).parents[2]
LOOP = str(ROOT / "sample_traces/one_gpu/loop")

Complete = Callable[..., list[str]]


@pytest.fixture
def complete(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Complete:
    """What bash offers for the last of the words."""

    def words(*typed: str) -> list[str]:
        monkeypatch.setenv("_TRACELENS_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", " ".join(["tracelens", *typed]))
        monkeypatch.setenv("COMP_CWORD", str(len(typed)))
        assert run([]) == 0
        out, err = capfd.readouterr()
        assert err == ""
        return out.split()

    return words


def test_commands(complete: Complete) -> None:
    assert complete("re") == ["report", "replay"]
    assert complete("g") == ["gate"]
    assert complete("project", "") == [
        "whatif",
        "memory",
        "scaling",
        "pipeline",
        "bubble",
        "bounds",
        "published",
    ]


def test_names_are_those_registered(complete: Complete) -> None:
    analyzers = sorted(plugin.name for plugin in in_order())
    assert complete("analyze", "") == complete("report", "x", "--only", "") == analyzers
    assert complete("replay", "x", "--finding", "") == [name for name, _ in DETECTORS.items()]
    bare = {name for name, item in SCENARIOS.items() if not item.argument or "" in item.usual}
    valued = {name + item.argument[0] for name, item in SCENARIOS.items() if item.argument}
    assert complete("project", "whatif", "x", "--scenario", "") == sorted(bare | valued)


def test_what_the_source_says_is_what_is_registered() -> None:
    scenarios = {item.name: item for item in registered("scenario", "opportunities")}
    for name, item in SCENARIOS.items():
        assert scenarios[name].argument == item.argument
        assert scenarios[name].usual == item.usual
        assert scenarios[name].doc.startswith(item.doc.split(":")[0])
    docs = {
        item.name: item.doc for folder in ("analysis", "findings") for item in registered("analyzer", folder)
    }
    assert docs == {plugin.name: plugin.doc for plugin in in_order()}


def test_scenarios_are_joined_and_take_values(complete: Complete) -> None:
    def scenarios(text: str) -> list[str]:
        return complete("project", "whatif", "x", "--scenario", text)

    assert scenarios("no_blocking+all_to_all_h") == ["no_blocking+all_to_all_hidden"]
    assert scenarios("no_g+dispatch=") == ["no_g+dispatch=dedup", "no_g+dispatch=deepep"]
    assert scenarios("device=mi355") == ["device=mi355x"]
    assert scenarios("scale") == ["scale:"]


def test_devices_models_and_formats(complete: Complete) -> None:
    assert complete("report", "x", "--device", "mi355") == ["mi355x"]
    assert complete("project", "memory", "--model", "deepseek_v2") == ["deepseek_v2", "deepseek_v2_lite"]
    suffixes = sorted(plugin.suffix for _, plugin in RENDERERS.items() if plugin.suffix)
    assert complete("report", "x", "-o", "out/day1") == [f"out/day1{suffix}" for suffix in suffixes]
    assert complete("diff", "a", "b", "-o", "r.h") == ["r.html"]
    assert complete("report", "x", "-o", "out/") == [f"out/report{suffix}" for suffix in suffixes]
    assert complete("workload", "run", "--experts", "g") == ["grouped"]
    assert "zb-v" in complete("project", "pipeline", "--schedule", "")
    assert complete("report", "x", "--limit", "ra") == ["ranks="]


def test_steps_are_those_of_the_trace(complete: Complete, tmp_path: Path) -> None:
    assert complete("report", LOOP, "--step", "") == ["3", "4"]
    trace = write(tmp_path / "rank0.json", events("s7 k | ==")).read_text()
    marked = trace.replace('"traceEvents": [', '"traceEvents": [{"name": "ProfilerStep#12"},', 1)
    (tmp_path / "rank0.json").unlink()
    (tmp_path / "rank0.json.gz").write_bytes(gzip.compress(marked.encode()))
    assert complete("analyze", "idle", str(tmp_path), "--step", "") == ["12"]
    assert complete("diff", str(tmp_path), "after/", "--step", "") == ["12"]
    assert complete("project", "whatif", str(tmp_path), "--step", "") == ["12", "all"]


@pytest.mark.parametrize("path", ["nowhere", "-", "s3://bucket/run/", "BROKEN", "ODD"])
def test_steps_that_cannot_be_read_are_numbered_by_hand(
    path: str, complete: Complete, tmp_path: Path
) -> None:
    (tmp_path / "broken.json.gz").write_bytes(b"\x1f\x8b nothing")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd/run.json").write_text(json.dumps({"window": None}))
    places = {"BROKEN": str(tmp_path / "broken.json.gz"), "ODD": str(tmp_path / "odd")}
    assert complete("report", places.get(path, path), "--step", "") == ["ProfilerStep#"]


def test_of_a_large_trace_only_the_beginning_is_read(
    complete: Complete, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracelens.cli.completion._HEAD_BYTES", 1 << 20)
    padding = '{"name": "op"},' * (1 << 18)
    text = f'{{"traceEvents": [{{"name": "ProfilerStep#1"}}, {padding} {{"name": "ProfilerStep#2"}}]}}'
    (tmp_path / "rank0.json").write_text(text)
    assert complete("report", str(tmp_path / "rank0.json"), "--step", "") == ["1"]


@pytest.mark.parametrize(
    "line",
    ["tracelens analyze b", f"tracelens report {LOOP} --step", "tracelens project whatif x --scenario n"],
)
def test_completion_imports_no_analysis(line: str) -> None:
    code = (
        "import sys\nfrom tracelens.cli import run\nrun([])\n"
        "print(*{'numpy', 'pandas', 'plotly'} & set(sys.modules), file=sys.stderr)"
    )
    done = asked(line, [sys.executable, "-c", code])
    assert done.stdout
    assert done.stderr.strip() == ""


def asked(line: str, command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """The command as bash calls it behind a line and a space."""
    words = {"COMP_WORDS": f"{line} ", "COMP_CWORD": str(line.count(" ") + 1)}
    env = os.environ | environment | words | {"_TRACELENS_COMPLETE": "complete_bash"}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True)


def test_plugins_are_offered_too(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from tracelens.analysis import analyzer\n"
        '@analyzer("mine", title="Mine", order=99)\n'
        'def mine(run):\n    """What is mine?"""\n'
    )
    command = [sys.executable, "-m", "tracelens"]
    done = asked("tracelens analyze", command, TRACELENS_PLUGINS=str(tmp_path))
    assert "mine" in done.stdout.split()
    assert "breakdown" in done.stdout.split()


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash")
@pytest.mark.parametrize(
    ("pieces", "offered"),
    [
        (["project", "whatif", "x", "--scenario", "no_blocking+disp"], ["no_blocking+dispatch="]),
        (["project", "whatif", "x", "--scenario", "dispatch", "=", "de"], ["dedup", "deepep"]),
        (["project", "whatif", "x", "--scenario", "dispatch", "="], ["dedup", "deepep"]),
        (["report", "s3", ":", "//b/", "--device", "=", "mi355"], ["mi355x"]),
        (["list", "dev"], ["devices"]),
        (["report", "nowhere/"], []),
    ],
)
def test_bash_gets_the_rest_of_a_word(pieces: list[str], offered: list[str], tmp_path: Path) -> None:
    command = tmp_path / "tracelens"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m tracelens "$@"\n')
    command.chmod(0o755)
    words = " ".join(f"'{piece}'" for piece in ["tracelens", *pieces])
    script = (
        f'eval "$(_TRACELENS_COMPLETE=source_bash {command})"; COMP_WORDS=({words}); '
        f'COMP_CWORD={len(pieces)}; _tracelens_completion {command}; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    done = subprocess.run(
        ["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True, env=os.environ.copy()
    )
    assert (done.stdout.split(), done.stderr) == (offered, "")
