"""Outputs are never inputs: refused before the work, in every command, and nothing else is."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

import tracelens
from tests.builders import aligned, events
from tests.builders import write as write_trace
from tracelens.cli import run
from tracelens.errors import TracelensError
from tracelens.outputs import Output, check_outputs, takes
from tracelens.read import TraceFiles

TRACE = aligned(
    """
    step 1     | ----------
    op aten::mm|  --
    launch     |  a
    s7 gemm    |   aaaa
    """
)


def trace_files(paths: Iterable[str]) -> list[str]:
    return TraceFiles(paths).all()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs of two ranks, in a directory that is the current one."""
    monkeypatch.chdir(tmp_path)
    for name in ("traces", "other"):
        (tmp_path / name).mkdir()
        for rank in range(2):
            write_trace(tmp_path / name / f"rank{rank}.json", events(TRACE), rank=rank)
    (tmp_path / "link.json").symlink_to("traces/rank0.json")
    os.link(tmp_path / "traces" / "rank0.json", tmp_path / "hard.json")
    (tmp_path / "linked").symlink_to("traces")
    (tmp_path / "traces" / "sub").mkdir()
    return tmp_path


REFUSED = [
    (["traces/rank0.json"], "traces/rank0.json"),
    (["traces/rank0.json"], "./other/../traces//rank0.json"),
    (["traces/rank0.json"], "link.json"),
    (["traces/rank0.json"], "hard.json"),
    (["link.json"], "traces/rank0.json"),
    (["file://traces/rank0.json"], "traces/rank0.json"),
    (["simplecache::file://traces/rank0.json"], "traces/rank0.json"),
    (["traces/rank0.json!member.json"], "traces/rank0.json"),
    (["traces"], "traces/rank1.json"),
    (["traces"], "hard.json"),
    (["traces"], "traces/report.json"),
    (["traces/"], "linked/report.json"),
    (["linked"], "traces/report.json"),
    (["file://traces"], "traces/report.JSON"),
    (["traces"], "traces/run.json"),
    (["traces/*.json"], "traces/report.json"),
    (["traces/rank*.json"], "traces/rank7.json"),
    (["trac*"], "traces/report.json"),
    (["trac*"], "traces2/report.json"),
    (["**/*.json"], "new/deep/report.json"),
    (["linked/*.json"], "traces/report.json"),
    (["other", "traces"], "traces/report.json"),
]
ALLOWED = [
    (["traces/rank0.json"], "traces/report.json"),
    (["traces"], "traces/report.html"),
    (["traces"], "traces/sub/report.json"),
    (["traces"], "traces/.report.json"),
    (["traces"], "traces.json"),
    (["traces/rank*.json"], "traces/report.json"),
    (["traces/*"], "traces/report.html"),
    (["*/rank0.json"], "new/report.json"),
    (["https://host/traces/rank0.json"], "rank0.json"),
    (["s3://traces/"], "traces/report.json"),
    (["nowhere.json"], "nowhere.json"),
    (["-"], "report.json"),
]


@pytest.mark.parametrize(("inputs", "output"), REFUSED)
@pytest.mark.usefixtures("place")
def test_refused(inputs: list[str], output: str) -> None:
    with pytest.raises(TracelensError, match=r"is the input|would read it as a trace") as caught:
        check_outputs([Output(output)], inputs)
    assert str(caught.value).startswith(output)


@pytest.mark.parametrize(("inputs", "output"), ALLOWED)
@pytest.mark.usefixtures("place")
def test_allowed(inputs: list[str], output: str) -> None:
    check_outputs([Output(output)], inputs)


@pytest.mark.parametrize(("inputs", "output"), [case for case in REFUSED + ALLOWED if "://" not in str(case)])
def test_what_is_told_is_what_a_reader_does(place: Path, inputs: list[str], output: str) -> None:
    """The check agrees with the reader: write the file, and see whether it is read."""
    if (place / output).exists() or "!" in inputs[0] or inputs[0] in ("-", "nowhere.json"):
        return
    before = {os.path.realpath(file) for file in trace_files(inputs)}
    foreseen = any(takes(path, output, trace_files([path])) for path in inputs)
    (place / output).parent.mkdir(parents=True, exist_ok=True)
    (place / output).write_text("{}")
    after = {os.path.realpath(file) for file in trace_files(inputs)}
    # run.json is no trace, but what goes with them.
    assert (after != before) == (foreseen and "run.json" not in output)


@pytest.mark.parametrize(
    ("inputs", "folder"),
    [
        (["traces"], "traces"),
        (["traces"], "."),
        (["traces/rank0.json"], "traces"),
        (["*/*.json"], "csv"),
        (["link.json"], "linked"),
    ],
)
@pytest.mark.usefixtures("place")
def test_folders_that_take_an_input_in(inputs: list[str], folder: str) -> None:
    with pytest.raises(TracelensError, match=r"is the input|holds the input|would read it"):
        check_outputs([Output(folder, "meta.json")], inputs)


@pytest.mark.parametrize(
    "outputs",
    [
        [Output("a.html"), Output("./a.html")],
        [Output("out", "meta.json"), Output("out/a.html")],
        [Output("out/a.html"), Output("out", "meta.json")],
        [Output("out", "meta.json"), Output("out/more", "meta.json")],
    ],
)
@pytest.mark.usefixtures("place")
def test_outputs_that_collide(outputs: list[Output]) -> None:
    with pytest.raises(TracelensError, match=r"same output|replaced entirely"):
        check_outputs(outputs, [])


@pytest.mark.parametrize(
    "path", ["-", "", "s3://bucket/x.html", "file:///tmp/x.html", "traces", "link.json/x.html"]
)
@pytest.mark.usefixtures("place")
def test_no_place_for_a_file(path: str) -> None:
    with pytest.raises(TracelensError):
        check_outputs([Output(path)], [])


def test_streams_may_be_given_twice() -> None:
    check_outputs([Output("/dev/null"), Output("/dev/null"), Output("/dev/stdout")], ["-"])


COMMANDS = [
    ["report", "traces", "-o", "traces/report.json"],
    ["report", "traces", "-o", "traces/"],
    ["report", "traces/rank0.json", "-o", "traces/rank0.json"],
    ["report", "traces", "-o", "a.html", "-o", "a.html"],
    ["diff", "traces", "other", "-o", "other/x.json"],
    ["diff", "traces", "other", "-o", "traces/"],
    ["gate", "traces", "other", "--rule", "step.time<=9", "--junit", "other/rank0.json"],
    ["gate", "traces", "other", "--rule", "step.time<=9", "--junit", "a", "--markdown", "a"],
    ["fuse", "traces", "-o", "traces/merged.json"],
    ["fuse", "traces/rank0.json", "-o", "hard.json"],
    ["replay", "traces", "-o", "traces"],
    ["replay", "traces", "-o", "."],
    ["project", "whatif", "traces", "-o", "traces/w.json"],
    ["project", "pipeline", "--from", "traces", "-o", "traces/w.json"],
    ["workload", "ladder", "--from", "traces", "-o", "traces/ladder.json"],
]


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_every_command_refuses(place: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    (place / "traces" / "ladder.json").write_text("{}")
    before = snapshot(place)
    assert run(arguments) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert any(word in said.err for word in ("input", "same output")), said.err
    assert snapshot(place) == before


def test_python_refuses_too(place: Path) -> None:
    loaded = tracelens.load("traces")
    before = snapshot(place)
    report = tracelens.report(loaded, ["kernels"])
    for path in ("traces/rank1.json", "hard.json", "traces"):
        with pytest.raises(TracelensError, match=r"is the input|holds"):
            tracelens.render(report, path)
    assert snapshot(place) == before


def test_a_directory_of_csv_is_replaced_and_nothing_else(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["report", "traces", "--only", "kernels", "-o", "csv/"]) == 0
    (place / "csv" / "notes.txt").write_text("mine")
    assert run(["report", "traces", "-o", "csv"]) == 2
    assert "csv: holds notes.txt, which is not a table of a report" in capsys.readouterr().err
    (place / "csv" / "notes.txt").unlink()
    assert run(["report", "traces", "--only", "steps", "-o", "csv"]) == 0
    names = {path.name for path in (place / "csv").iterdir()}
    assert "kernels.kernels.csv" not in names
    assert {"meta.json", "skips.csv"} < names


def test_standard_output_is_no_file_to_be_replaced(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "traces", "--only", "kernels", "-o", "/dev/stdout"]) == 0
    assert "gemm" in capfd.readouterr().out
    assert run(["report", "traces", "-o", "-"]) == 2
