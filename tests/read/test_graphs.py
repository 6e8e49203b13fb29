"""Captures and twins of a trace: which files they are, and that every way of reading uses them."""

from pathlib import Path

import pytest

import tracelens
from tests.builders import aligned, events, kernel_names, write
from tracelens.errors import ParseError
from tracelens.read import GraphSources, parse, parser
from tracelens.read.parser import capture_files

CAPTURE = """
    launch hipStreamBeginCapture   | b
    op aten::{op}                  |  --------
    launch hipLaunchKernel kernel=norm |   c
    launch hipLaunchKernel kernel=gemm |     d
    launch hipLaunchKernel kernel=add |       e
    launch hipStreamEndCapture     |            g
"""
REPLAY = aligned("""
    launch hipGraphLaunch | a
    s7 norm               |   a
    s7 gemm               |     a
    s7 add                |       a
""")
TWIN = aligned("""
    op aten::twin | --------
    launch        |  a b c
    s7 norm       |   a
    s7 gemm       |     b
    s7 add        |       c
""")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "rank0.json", events(REPLAY), rank=0)
    return tmp_path


def capture(path: Path, op: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    return write(path, events(aligned(CAPTURE.replace("{op}", op))))


def ops(path: Path, sources: GraphSources | None = None) -> set[str]:
    (trace,) = parse(str(path), graphs=sources or GraphSources())
    return set(kernel_names(trace, "op_id"))


def test_captures_lie_next_to_the_trace(folder: Path) -> None:
    assert ops(folder / "rank0.json") == {""}
    capture(folder / "capture_traces" / "bs_32_rank0.json", "mine")
    assert ops(folder / "rank0.json") == {"aten::mine"}


def test_captures_of_other_ranks_are_not_read(folder: Path) -> None:
    capture(folder / "capture_traces" / "bs_32_rank1.json", "theirs")
    (folder / "capture_traces" / "execution_details.json").write_text("[]")
    assert ops(folder / "rank0.json") == {""}
    shared = capture(folder / "capture_traces" / "bs_32.json", "all")
    assert capture_files(str(folder / "rank0.json"), 0) == [str(shared)]
    assert ops(folder / "rank0.json") == {"aten::all"}


@pytest.mark.parametrize("named", ["file", "folder"])
def test_named_captures_go_first(folder: Path, named: str) -> None:
    capture(folder / "capture_traces" / "bs_32.json", "near")
    path = capture(folder / "elsewhere" / "bs_32.json", "named")
    captures = str(path if named == "file" else path.parent)
    assert ops(folder / "rank0.json", GraphSources(captures=captures)) == {"aten::named"}


def test_a_twin(folder: Path) -> None:
    twin = write(folder / "twin.json", events(TWIN))
    assert ops(folder / "rank0.json", GraphSources(twin=str(twin))) == {"aten::twin"}


def test_twins_of_several_ranks(folder: Path) -> None:
    for name in ("eager", "eager_unnumbered"):
        (folder / name).mkdir()
    for rank in (0, 1):
        mine = TWIN.replace("aten::twin", f"aten::twi{rank}")
        write(folder / "eager" / f"rank{rank}.json", events(mine), rank=rank)
        write(folder / "eager_unnumbered" / f"{'ab'[rank]}.json", events(mine), rank=rank)
    write(folder / "rank1.json", events(REPLAY), rank=1)
    for twin in ("eager", "eager_unnumbered"):
        for rank in (0, 1):
            sources = GraphSources(twin=str(folder / twin))
            assert ops(folder / f"rank{rank}.json", sources) == {f"aten::twi{rank}"}
    write(folder / "rank2.json", events(REPLAY), rank=2)
    with pytest.raises(ParseError, match="no trace of rank 2 among the 2"):
        parse(str(folder / "rank2.json"), graphs=GraphSources(twin=str(folder / "eager")))


def test_named_sources_of_another_program_are_a_problem(folder: Path) -> None:
    other = write(
        folder / "other.json", events(TWIN.replace("s7 norm", "s7 sort").replace("s7 gemm", "s7 scan"))
    )
    (trace,) = parse(str(folder / "rank0.json"), graphs=GraphSources(twin=str(other)))
    assert set(kernel_names(trace, "op_id")) == {""}
    assert any("other.json not used" in problem for problem in trace.meta.problems)


def test_a_broken_capture_is_a_problem_of_the_trace_and_an_error_where_it_is_named(folder: Path) -> None:
    broken = folder / "capture_traces" / "bs_32.json"
    broken.parent.mkdir()
    broken.write_text("no trace")
    (trace,) = parse(str(folder / "rank0.json"))
    assert any("capture trace not used" in problem for problem in trace.meta.problems)
    with pytest.raises(ParseError):
        parse(str(folder / "rank0.json"), graphs=GraphSources(captures=str(broken)))


@pytest.mark.parametrize("path", ["nowhere", "empty"])
def test_captures_that_are_not_there(folder: Path, path: str) -> None:
    (folder / "empty").mkdir()
    with pytest.raises(ParseError, match="capture trace"):
        parse(str(folder / "rank0.json"), graphs=GraphSources(captures=str(folder / path)))


def test_load_takes_captures_and_a_twin(folder: Path) -> None:
    path = capture(folder / "elsewhere" / "bs_32.json", "named")
    twin = write(folder / "elsewhere" / "twin.json", events(TWIN))
    table = tracelens.load(folder, captures=path).kernels()
    assert set(table["op"]) == {"aten::named"}
    assert set(table["op_source"]) == {"capture"}
    assert set(tracelens.load(folder, twin=twin).kernels()["op_source"]) == {"twin"}


def test_reading_in_several_processes_uses_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder / "rank1.json", events(REPLAY), rank=1)
    capture(folder / "capture_traces" / "bs_32_rank0.json", "zero")
    named = capture(folder / "elsewhere" / "bs_32.json", "named")
    for jobs in ("1", "2"):
        monkeypatch.setenv("TRACELENS_JOBS", jobs)
        near = tracelens.report_files(folder, names=["ops"])["ops"]["ops"]
        both = tracelens.report_files(folder, names=["ops"], captures=named)["ops"]["ops"]
        assert set(near.loc[near["rank"] == 0, "name"]) == {"aten::zero"}
        assert "aten::zero" not in set(near.loc[near["rank"] == 1, "name"])
        assert set(both["name"]) == {"aten::named"}


@pytest.mark.parametrize(
    ("label", "files"),
    [
        ("step[DECODE bs=5]", ["bs_8.json", "other.json"]),
        ("step[DECODE bs=8]", ["bs_8.json", "other.json"]),
        ("no label of a step", ["bs_16.json", "bs_4.json", "bs_8.json", "other.json"]),
        # Larger than all that was captured.
        ("step[DECODE bs=99]", ["other.json", "bs_16.json", "bs_4.json", "bs_8.json"]),
    ],
)
def test_captures_of_other_sizes_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, label: str, files: list[str]
) -> None:
    write(tmp_path / "rank0.json", events(aligned(f"scope {label} | --------\n{REPLAY}")), rank=0)
    for name in ("bs_4", "bs_8", "bs_16", "other"):
        capture(tmp_path / "capture_traces" / f"{name}.json", name)
    # What the other file captures is not replayed, so that all others are tried.
    unlike = CAPTURE.replace("norm", "sort").replace("gemm", "scan").replace("add", "sum")
    write(tmp_path / "capture_traces" / "other.json", events(aligned(unlike)))
    opened: list[str] = []
    opened_file = parser._read
    monkeypatch.setattr(
        parser, "_read", lambda path, *helpers: opened.append(path) or opened_file(path, *helpers)
    )
    (trace,) = parse(str(tmp_path / "rank0.json"))
    assert [Path(path).name for path in opened[1:]] == files
    assert len(set(kernel_names(trace, "op_id"))) == 1
