"""`tracelens fuse` as a user meets it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders import events, write
from tests.merge.reading import load_json, process_names
from tracelens.cli import run as run_cli
from tracelens.errors import TracelensError
from tracelens.merge import read_ranks

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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
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
