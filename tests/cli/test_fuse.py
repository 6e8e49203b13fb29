"""`tracelens fuse` as a user meets it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders import events, write
from tests.merge.reading import load_json, process_names, slices
from tracelens.cli import run as run_cli
from tracelens.errors import TracelensError
from tracelens.merge import read_ranks

SAMPLES = Path(__file__).parents[2] / "sample_traces"
GPU_WORK = {"kernel", "gpu_memcpy", "gpu_memset"}
DRAWING = """
    op aten::mm | -----
    launch      |  a
    s7 gemm     |    aaa
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The traces of ranks 0 to 3."""
    traces = tmp_path / "traces"
    traces.mkdir()
    for rank in range(4):
        write(traces / f"{rank}.json", events(DRAWING), rank=rank)
    return traces


def processes(path: Path) -> list[str]:
    return list(process_names(load_json(path)["traceEvents"]).values())


def test_one_file_of_all_ranks(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    merged = tmp_path / "merged.json.gz"
    assert run_cli(["fuse", str(folder), "-o", str(merged)]) == 0
    assert capsys.readouterr() == ("", f"wrote {merged}\n")
    assert processes(merged) == [f"rank {rank}: {part}" for rank in range(4) for part in ("host", "GPU 0")]


def test_some_ranks_without_their_hosts(folder: Path, tmp_path: Path) -> None:
    merged = tmp_path / "merged.json"
    assert run_cli(["fuse", str(folder), "--ranks", "0-1, 3", "--no-cpu", "-o", str(merged)]) == 0
    assert processes(merged) == ["rank 0: GPU 0", "rank 1: GPU 0", "rank 3: GPU 0"]
    assert run_cli(["fuse", str(folder), "--ranks", "3", "-o", str(merged)]) == 0
    assert processes(merged) == ["rank 3: host", "rank 3: GPU 0"]


def test_a_piece_of_the_picture_with_findings_and_causes(tmp_path: Path) -> None:
    """10 ms of one rank."""
    merged, sample = tmp_path / "merged.json", str(SAMPLES / "ladder/ep4/00_baseline")
    words = ("fuse", sample, "--ranks", "2", "--between", "80-90", "--findings", "-o", str(merged))
    assert run_cli(words) == 0
    found = slices(load_json(merged))
    rows = {name for process, name in found if process == "rank 2: overview"}
    assert {"steps", "idle", "finding: Expert loop"} <= rows
    times = [(at, at + dur) for pieces in found.values() for _, at, dur in pieces]
    assert max(end for _, end in times) - min(begin for begin, _ in times) == 10_000_000
    # Idle is where no kernel runs.
    work = {event["name"] for event in load_json(merged)["traceEvents"] if event.get("cat") in GPU_WORK}
    drawn = [piece for (process, _), pieces in found.items() if ": GPU" in process for piece in pieces]
    kernels = [piece for piece in drawn if piece[0] in work]
    assert len(kernels) > 100
    idle = found["rank 2: overview", "idle"]
    assert sum(dur for _, _, dur in idle) > 1_000_000
    assert not [gap for gap in idle for at in kernels if max(gap[1], at[1]) < min(sum(gap[1:]), sum(at[1:]))]


def test_one_step(tmp_path: Path) -> None:
    merged, sample = tmp_path / "merged.json", str(SAMPLES / "one_gpu/loop")
    assert run_cli(["fuse", sample, "--step", "4", "-o", str(merged)]) == 0
    (steps,) = [pieces for (_, name), pieces in slices(load_json(merged)).items() if name == "steps"]
    assert [name for name, _, _ in steps] == ["ProfilerStep#4"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--between", "9-3", "-o", "m.json"], "tracelens: --between '9-3': not a piece of time"),
        (["--between", "soon", "-o", "m.json"], "tracelens: --between 'soon': not a piece of time"),
        (["--between", "7-8", "-o", "m.json"], "tracelens: nothing to draw: no rank of the run has"),
        (["-o", "merged.txt"], "tracelens: merged.txt: a fused trace is written as .json or .json.gz"),
        (["--ranks", "2-5", "-o", "m.json"], "tracelens: --ranks: the run has no rank 4 (it has 0, 1, 2, 3)"),
        (["--ranks", "all", "-o", "m.json"], "tracelens: --ranks 'all': not a list of ranks"),
        ([], "tracelens fuse: Missing option"),
    ],
)
def test_errors_are_one_line(
    arguments: list[str], message: str, folder: Path, refused: Callable[..., str]
) -> None:
    assert refused("fuse", str(folder), *arguments).startswith(message)


def test_a_missing_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["fuse", "no.json", "-o", "merged.json"]) == 2
    assert capsys.readouterr().err == "tracelens: no.json: no such file or directory\n"


def test_lists_of_ranks() -> None:
    assert read_ranks("0-3,7, 9 - 9") == [(0, 3), (7, 7), (9, 9)]


@pytest.mark.parametrize("text", ["", "1,", "3-1", "-1", "1-2-3", "a", "1.5", "99999999999"])
def test_no_lists_of_ranks(text: str) -> None:
    with pytest.raises(TracelensError, match="write it like 0-3,7"):
        read_ranks(text)
