"""Each file of a command is read once, in whichever process: what was read is passed on."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import tracelens
from tests.builders import aligned, events, write
from tests.read.test_graphs import REPLAY, capture
from tracelens.cli import run as run_cli
from tracelens.read import open_source
from tracelens.workers import Children

DRAWING = aligned("""
    step 1      | ----------
    step 2      |           ----------
    op aten::mm shapes=[[64,64],[64,64]] types=["float","float"] |  --        --
    launch      |  a         b
    s7 gemm     |   aaa       bbb
""")
UNEVEN = """
    step 1      | ----------
    step 2      |           -----------
    op aten::mm |  --        --
    launch      |  a         b
    s7 gemm     |   aaa       bbbb
"""
GRAPHED = aligned(f"    step 1 | ------------\n{REPLAY}")
LOGGED = """
from tracelens.read import source
def logged(path, opened=source.open_source):
    with open({log!r}, "a") as log:
        log.write(path + "\\n")
    return opened(path)
source.open_source = logged
"""
"""What this process and its children run, so that each file they open is a line of the log."""

Reads = Callable[..., Counter[str]]


@pytest.fixture(params=[1, 3], ids=["alone", "with children"])
def reads(request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Reads:
    """How often a command, or a function, reads each file."""
    log, code = folder / "log", LOGGED.format(log=str(folder / "log"))
    monkeypatch.setenv("TRACELENS_JOBS", str(request.param))
    children = sys.modules[Children.__module__]
    monkeypatch.setattr(children, "_WORTH_BYTES", 0)
    in_child = f"exec({code!r}); ".replace("{", "{{").replace("}", "}}")
    monkeypatch.setattr(children, "_CODE", vars(children)["_CODE"].replace("{serve}", in_child + "{serve}"))
    monkeypatch.setattr(
        sys.modules[open_source.__module__], "open_source", open_source
    )  # put back afterwards
    exec(code)

    def count(*command: str | Callable[[], object], code: int = 0) -> Counter[str]:
        log.write_text("")
        for item in command[:1]:
            if callable(item):
                item()
            else:
                assert run_cli(list(map(str, command))) == code
        return Counter(log.read_text().split())

    return count


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs of one rank and of two, slower ones, ones with graphs; what graphs were captured from."""
    monkeypatch.chdir(tmp_path)
    for name, ranks, drawing, ns in (
        ("one", 1, DRAWING, 1000),
        ("one_slow", 1, DRAWING, 1100),
        ("two", 2, DRAWING, 1000),
        ("two_slow", 2, DRAWING, 1100),
        ("one_uneven", 1, UNEVEN, 1000),
        ("two_uneven", 2, UNEVEN, 1000),
        ("graphed", 2, GRAPHED, 1000),
        ("graphed_slow", 2, GRAPHED, 1500),
    ):
        (tmp_path / name).mkdir()
        for rank in range(ranks):
            write(tmp_path / name / f"rank{rank}.json", events(drawing, ns_per_char=ns), rank=rank)
    capture(tmp_path / "captures.json", "captured")
    return tmp_path


def once(*runs: str) -> Counter[str]:
    """Each rank of these runs once."""
    ranks = {run: 1 if run.startswith("one") else 2 for run in runs}
    return Counter(f"{run}/rank{rank}.json" for run in runs for rank in range(ranks[run]))


@pytest.mark.parametrize("ranks", ["one", "two"])
@pytest.mark.parametrize(
    ("kind", "rule", "code"),
    [("slow", "step.time<=1.5", 0), ("slow", "step.time<=1.01", 1), ("uneven", "step.time<=1.05", 3)],
)
def test_a_gate(ranks: str, kind: str, rule: str, code: int, folder: Path, reads: Reads) -> None:
    command = ("gate", ranks, f"{ranks}_{kind}", "--rule", rule, "--report", "gate.md")
    assert reads(*command, code=code) == once(ranks, f"{ranks}_{kind}")


@pytest.mark.parametrize("ranks", ["one", "two"])
def test_a_gate_of_several_runs(ranks: str, folder: Path, reads: Reads) -> None:
    for number in range(3):
        (folder / f"{ranks}_{number}").symlink_to(ranks)
    runs = [f"{ranks}_{number}" for number in range(3)]
    command = ("gate", *runs, "--", f"{ranks}_slow", "--rule", "step.time<=1.01")
    assert reads(*command, code=1) == once(*runs, f"{ranks}_slow")


@pytest.mark.parametrize("ranks", ["one", "two"])
def test_a_gate_with_reports_and_baselines(ranks: str, folder: Path, reads: Reads) -> None:
    assert reads("report", ranks, "-o", "base.json") == once(ranks)
    assert reads("gate", "baseline", "add", ranks, "-o", "kept.json") == once(ranks)
    for base in ("base.json", "kept.json"):
        assert reads("gate", base, f"{ranks}_slow", code=1) == once(f"{ranks}_slow")


@pytest.mark.parametrize("ranks", ["one", "two"])
def test_all_about_one_run(ranks: str, folder: Path, reads: Reads) -> None:
    commands: list[tuple[str, ...]] = [
        ("report", ranks, "-o", "report.md"),
        ("report", ranks, "--step", "2", "-o", "report.md"),
        ("analyze", "roofline", ranks),
        ("project", "whatif", ranks),
        ("replay", ranks, "-o", "scripts"),
        ("fuse", ranks, "-o", "fused.json"),
    ]
    for command in commands:
        assert reads(*command) == once(ranks), command
    both = once(ranks, f"{ranks}_slow")
    assert reads("replay", ranks, "--diff", f"{ranks}_slow", "-o", "changed") == both
    assert reads("diff", ranks, f"{ranks}_slow", "-o", "diff.md") == both


def test_functions(folder: Path, reads: Reads) -> None:
    assert reads(lambda: tracelens.gate("two", "two_slow", ["step.time<=1.01"])) == once("two", "two_slow")
    assert reads(lambda: tracelens.gate("two", tracelens.load("two_slow"))) == once("two", "two_slow")
    assert reads(lambda: tracelens.report_files("two")) == once("two")

    def all_of_one() -> None:
        run = tracelens.load("two")
        run.kernels(), run.ops(), run.collectives()
        tracelens.report(run)
        tracelens.whatif(run, ["no_blocking"])

    assert reads(all_of_one) == once("two")


@pytest.mark.parametrize("option", ["captures", "twin"])
@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("diff", "graphed", "graphed_slow"), 0),
        (("gate", "graphed", "graphed_slow", "--rule", "step.time<=1.01"), 1),
    ],
)
def test_both_sides_share_what_explains_their_graphs(
    command: tuple[str, ...], code: int, option: str, folder: Path, reads: Reads
) -> None:
    path = {"captures": "captures.json", "twin": "one/rank0.json"}[option]
    counted = reads(*command, f"--{option}", path, code=code)
    beside = counted.pop(path)
    assert counted == once("graphed", "graphed_slow")
    # A gate reads ranks in several processes, which share nothing.
    assert beside == 1 or (command[0] == "gate" and beside <= 4)


@pytest.mark.parametrize("option", ["captures", "twin"])
def test_ranks_share_what_explains_their_graphs(option: str, folder: Path, reads: Reads) -> None:
    path = {"captures": "captures.json", "twin": "one/rank0.json"}[option]
    counted = reads("project", "whatif", "graphed", f"--{option}", path)
    assert counted == once("graphed") + Counter([path])
