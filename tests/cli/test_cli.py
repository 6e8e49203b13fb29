"""The command line as a user meets it: what it prints where, and how it ends."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tracelens.cli import run as run_cli

SAMPLE = Path(__file__).parents[2] / "sample_traces" / "one_gpu/loop/rank0.json.gz"
ANALYZERS = [
    "findings",
    "step_timeline",
    "input",
    "timeline",
    "breakdown",
    "steps",
    "scopes",
    "ops",
    "roofline",
    "kernels",
    "idle",
    "launches",
    "collectives",
    "moe",
    "overlap",
    "stragglers",
    "pipeline",
    "serving",
    "completeness",
]


class Outcome:
    """What one call left behind."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]):
    """Call the command line in this process."""

    def call(*arguments: str) -> Outcome:
        code = run_cli(arguments)
        captured = capfdbinary.readouterr()
        return Outcome(code, captured.out.decode(), captured.err.decode())

    return call


def test_report_writes_every_format_asked_for(run, tmp_path: Path) -> None:
    targets = [tmp_path / name for name in ("r.html", "r.md", "r.json", "r.xlsx", "csv/")]
    outcome = run("report", str(SAMPLE), *(part for path in targets for part in ("-o", str(path))))
    assert outcome.code == 0
    assert outcome.out == ""
    assert [line.startswith("wrote ") for line in outcome.err.splitlines()] == [True] * len(targets)
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")
    assert list(json.loads((tmp_path / "r.json").read_text())["results"]) == ANALYZERS
    assert (tmp_path / "csv" / "timeline.timeline.csv").exists()


def test_report_prints_one_screen_and_everything_when_asked(run) -> None:
    brief, full = run("report", str(SAMPLE)), run("report", str(SAMPLE), "--full")
    assert len(brief.out.splitlines()) <= 25
    assert len(full.out.splitlines()) > 100
    verdict = brief.out.splitlines()[0]
    assert verdict in full.out
    assert "Kernels by name" in full.out


def test_report_of_single_analyzers_is_printed_in_full(run) -> None:
    outcome = run("report", str(SAMPLE), "--only", "timeline", "--only", "idle")
    assert outcome.code == 0
    assert "GPU timeline" in outcome.out
    assert "blocking call" in outcome.out
    assert "Kernels by name" not in outcome.out


def test_analyze_json_follows_the_contract(run) -> None:
    outcome = run("analyze", "timeline", str(SAMPLE), "--json", "--scope", "linked")
    value = json.loads(outcome.out)
    assert list(value) == ["schema_version", "analyzer", "version", "inputs", "tables", "skips", "meta"]
    assert value["analyzer"] == "timeline"
    assert value["inputs"] == [str(SAMPLE)]
    assert value["meta"]["scope"] == "linked"
    row = value["tables"]["timeline"][0]
    assert list(row) == ["rank", "metric", "dur_ns", "fraction_of_total"]
    assert isinstance(row["dur_ns"], int)


def test_a_trace_comes_in_on_stdin() -> None:
    command = [sys.executable, "-m", "tracelens", "analyze", "input", "-", "--json"]
    done = subprocess.run(command, input=SAMPLE.read_bytes(), capture_output=True, check=True)
    assert json.loads(done.stdout)["tables"]["input"][0]["path"] == "-"


@pytest.mark.parametrize(
    ("kind", "name"), [("analyzers", "breakdown"), ("parsers", "kineto"), ("renderers", "xlsx")]
)
def test_list_names_what_is_registered(run, kind: str, name: str) -> None:
    outcome = run("list", kind)
    assert outcome.code == 0
    lines = {line.split()[0]: line for line in outcome.out.splitlines()}
    assert len(lines[name].split()) > 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["report", "nowhere.json"], "tracelens: nowhere.json: no such file or directory"),
        (["report", "EMPTY"], "the file is empty"),
        (["report", "DIRECTORY"], "directory: holds no trace; looked for .json, "),
        (["report", "TEXT"], "not a JSON trace"),
        (["report", "SAMPLE", "-o", "x.docx"], "no format is written as '.docx'"),
        (["report", "SAMPLE", "-o", "EMPTY/r.html"], "cannot write"),
        (["report", "SAMPLE", "COPY"], "is rank 0, and so is"),
        (["report", "SAMPLE", "--only", "tmeline"], "did you mean 'timeline'?"),
        (["analyze", "tmeline", "SAMPLE"], "did you mean 'timeline'?"),
        (["report"], "tracelens report: Missing argument 'PATH...'"),
        (["report", "SAMPLE", "--scope", "some"], "is not one of 'all', 'linked'"),
        (["frobnicate"], "No such command 'frobnicate'"),
        (["list", "planets"], "is not one of"),
    ],
)
def test_errors_are_one_line_and_exit_2(
    refused: Callable[..., str], tmp_path: Path, arguments: list[str], said: str
) -> None:
    (tmp_path / "empty.json").touch()
    (tmp_path / "text.json").write_text("hello\n")
    (tmp_path / "directory").mkdir()
    words = {
        "EMPTY": str(tmp_path / "empty.json"),
        "EMPTY/r.html": str(tmp_path / "empty.json" / "r.html"),
        "TEXT": str(tmp_path / "text.json"),
        "DIRECTORY": str(tmp_path / "directory"),
        "SAMPLE": str(SAMPLE),
        "COPY": str(shutil.copy(SAMPLE, tmp_path / "copy.json.gz")),
    }
    assert said in refused(*(words.get(word, word) for word in arguments))


def test_bad_jobs_setting_is_an_error(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACELENS_JOBS", "many")
    outcome = run("analyze", "input", str(SAMPLE))
    assert (outcome.code, outcome.err) == (
        2,
        "tracelens: TRACELENS_JOBS='many': give a number of processes, 1 to 999\n",
    )


@pytest.mark.parametrize(
    "arguments", [[], ["--help"], ["report", "--help"], ["analyze", "-h"], ["list", "--help"]]
)
def test_help_teaches_by_example(run, arguments: list[str]) -> None:
    outcome = run(*arguments)
    assert outcome.code == 0
    assert "xample" in outcome.out
    assert outcome.out.count("tracelens ") > 1


def test_a_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} -m tracelens report {SAMPLE} | head -n 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False
    )
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


def test_an_option_that_changes_nothing_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    sample = str(Path(__file__).parents[2] / "sample_traces/one_gpu/loop")
    assert run_cli(["analyze", "input", sample, "--device", "mi300x"]) == 0
    assert capfd.readouterr().err == "tracelens: input: --device changes nothing here\n"
    assert run_cli(["analyze", "input", sample, "--device", "mi30x"]) == 2
    assert capfd.readouterr().err == "tracelens: unknown device 'mi30x'; did you mean 'mi350x'?\n"
