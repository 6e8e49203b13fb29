"""Commands of findings: what they name, how they are quoted, and where they point."""

from __future__ import annotations

import shlex
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracelens
from tests.builders import draw, events, write
from tracelens.findings import DETECTORS, JOB, Detection
from tracelens.findings.actions import Commands, CommandSource, arguments
from tracelens.trace import Trace, Union, make_run, select_step, union

STEPS = """
                                     | 0         1         2         3
    step 4                           | --------------------
    step 5                           |                     -------------------
    op aten::mm shapes=[[4,4],[4,4]] |  ----                     ----
    launch                           |   a                        b    c
    s7 gemm                          |      aaaaa                  bbb
    s9 own_kernel                    |                                   ccc
"""


def during(*windows: tuple[int, int]) -> Union:
    starts, ends = (np.array([window[side] for window in windows], dtype=np.int64) for side in (0, 1))
    return union(starts, ends)


def lost(*windows: tuple[int, int]) -> Detection:
    return Detection((), 1.0, during(*windows), "seen", "high")


def recording(trace: Trace, **outcomes: Detection) -> CommandSource:
    return CommandSource.of(trace, outcomes)


LAUNCH_BOUND = DETECTORS.get("launch_bound")


def commands(*recordings: CommandSource) -> Commands:
    return Commands(dict(enumerate(recordings)))


def columns(
    trace: Trace, detections: Mapping[int, Detection], scenario: str = "", **options: Any
) -> dict[str, str]:
    return commands(CommandSource.of(trace, {}, **options)).of(
        LAUNCH_BOUND, detections, max(detections), scenario
    )


def test_every_detector_has_an_analyzer_that_shows_its_evidence() -> None:
    shown_by = {detector.evidence for _, detector in DETECTORS.items()}
    assert shown_by <= {name for name, _ in tracelens.analysis.ANALYZERS.items()} - {"findings"}


def test_the_evidence_is_in_the_step_with_the_longest_piece_of_the_time() -> None:
    trace = draw(STEPS)
    found = columns(trace, {0: lost((1000, 2000), (30_000, 33_000))})
    assert shlex.split(found["evidence_command"])[:3] == ["tracelens", "analyze", "idle"]
    assert found["evidence_command"].endswith("--step 5")
    assert columns(trace, {0: lost((6000, 9000))})["evidence_command"].endswith("--step 4")


def test_without_marks_there_is_no_step_to_name() -> None:
    trace = draw("s7 gemm | ----   ---")
    assert "--step" not in columns(trace, {0: lost((5000, 6000))})["evidence_command"]


def test_findings_of_one_step_are_replayed_and_projected_in_that_step() -> None:
    (trace,) = select_step(make_run([draw(STEPS)]), "5").traces
    found = columns(trace, {0: lost((28_000, 29_000))}, "launch_free")
    assert found["replay_command"].endswith("--step 5")
    assert found["whatif_command"].endswith("--scenario launch_free --step 5")
    whole = columns(draw(STEPS), {0: lost((28_000, 29_000))}, "launch_free")
    assert whole["whatif_command"].endswith("--scenario launch_free")


def test_a_replay_is_offered_only_while_calls_run_that_a_script_can_repeat() -> None:
    trace = draw(STEPS)
    # 28 to 31 us: the second GEMM; 34 to 37: a kernel outside any op; 15 to 20: nothing.
    assert columns(trace, {0: lost((30_000, 40_000))})["replay_command"]
    assert not columns(trace, {0: lost((34_000, 37_000))})["replay_command"]
    assert not columns(trace, {0: lost((15_000, 20_000))})["replay_command"]
    assert columns(trace, {JOB: lost((30_000, 40_000))})["replay_command"]


def test_options_of_the_findings_are_kept() -> None:
    trace = draw(STEPS)
    detections = {0: lost((28_000, 29_000))}
    found = columns(trace, detections, "device=b200", device="mi300x")
    assert found["whatif_command"].endswith("--scenario device=b200 --device mi300x")
    assert found["replay_command"].endswith("--device mi300x")
    found = columns(trace, detections, "identity", device_file="my gpu.toml")
    assert found["whatif_command"].endswith("--device-file 'my gpu.toml'")


def test_no_scenario_no_projection() -> None:
    assert columns(draw(STEPS), {0: lost((28_000, 29_000))})["whatif_command"] == ""


def test_missing_ranks_are_accepted_again() -> None:
    trace = draw(STEPS, rank=0, distributedInfo={"backend": "nccl", "rank": 0, "world_size": 8})
    assert " --partial" in columns(trace, {0: lost((6000, 9000))})["evidence_command"]
    assert " --partial" not in columns(draw(STEPS), {0: lost((6000, 9000))})["evidence_command"]


def test_the_place_in_perfetto_is_in_nanoseconds_of_the_file() -> None:
    trace = draw(STEPS, start_ns=4_360_613_540_000_000)
    base = 4_360_613_540_000_000
    detections = {0: lost((base + 28_500, base + 29_000))}
    one = commands(recording(trace, launch_bound=detections[0]))
    place = one.of(LAUNCH_BOUND, detections, 0, "")["location"]
    assert place.endswith("Pan to timestamp, 4360613540028500")
    assert "stream 7, thread 1" in place
    assert "0.029 ms after its first event" in place  # 28.5 us, the first event is at 0
    assert "rank" not in place
    two = commands(recording(trace), recording(trace))
    assert two.of(LAUNCH_BOUND, {1: detections[0]}, 1, "")["location"].startswith("rank 1, drawn.json")


def test_a_finding_without_a_time_has_no_place() -> None:
    assert columns(draw(STEPS), {JOB: lost()})["location"] == ""


# How files are named


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inner = tmp_path / "two ranks"
    inner.mkdir()
    for rank in range(2):
        write(inner / f"rank{rank}.json", events("s7 gemm | ---"), rank=rank)
    (inner / "run.json").write_text("{}")
    (inner / "notes.txt").write_text("")
    return inner


def test_a_directory_stands_for_exactly_its_traces(folder: Path) -> None:
    files = [str(folder / f"rank{rank}.json") for rank in range(2)]
    assert arguments(files) == [str(folder)]
    assert arguments(files[:1]) == files[:1]
    (folder / "rank2.json").write_text("{}")
    assert arguments(files) == files
    assert arguments([trace.meta.path for trace in tracelens.load(*files).traces]) == files


def test_files_of_the_current_directory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert arguments(["rank0.json", "rank1.json"]) == ["."]


def test_an_archive_stands_for_its_members(folder: Path) -> None:
    archive = folder.with_name("all.zip")
    with zipfile.ZipFile(archive, "w") as zipped:
        for rank in range(2):
            zipped.write(folder / f"rank{rank}.json", f"rank{rank}.json")
    paths = [trace.meta.path for trace in tracelens.load(archive).traces]
    assert arguments(paths) == [str(archive)]


def test_addresses_and_what_is_gone_are_named_as_they_were() -> None:
    paths = ["s3://bucket/rank0.json", "s3://bucket/rank1.json"]
    assert arguments(paths) == paths
    assert arguments(["gone/rank0.json", "gone/rank1.json"]) == ["gone/rank0.json", "gone/rank1.json"]


def test_a_path_is_quoted_for_the_shell(tmp_path: Path) -> None:
    path = tmp_path / "it's $HOME & more.json"
    write(path, events(STEPS))
    trace = tracelens.load(path).traces[0]
    line = columns(trace, {0: lost((6000, 9000))})["evidence_command"]
    assert shlex.split(line) == ["tracelens", "analyze", "idle", str(path), "--step", "4"]
