"""The engine: each path is expanded once, processes start before heavy imports, all doors lead to it."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import tracelens
from tests.builders import aligned, events, write
from tracelens.cli import run as run_cli
from tracelens.devices import device
from tracelens.errors import ParseError, TracelensError
from tracelens.native import PURE
from tracelens.planner import PipelineSizes, bubble
from tracelens.planner.config import MODELS, override, preset
from tracelens.planner.memory import Assumptions, memory
from tracelens.planner.pipeline import Setting, Uniform, pipeline
from tracelens.planner.search import Question, Space, search
from tracelens.read import TraceFiles, files
from tracelens.rendering import RENDERERS
from tracelens.session import Reading, Reporting
from tracelens.table import Report, Result
from tracelens.workers import children

as_json = RENDERERS.get("json").files


ROOT = Path(__file__).parents[1]
RANK = aligned("""
    step 1      | ----------
    step 2      |           ----------
    step 3      |                     ----------
    op aten::mm shapes=[[2,3],[3,4]] types=["float","float"] |  --        --        --
    launch      |  a         b         c
    s7 gemm     |   aaa       bbb       ccc
""")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two ranks before, and after everything became slower."""
    monkeypatch.chdir(tmp_path)
    for name, ns in (("before", 1000), ("after", 1100)):
        (tmp_path / name).mkdir()
        for rank in range(2):
            write(tmp_path / name / f"rank{rank}.json", events(RANK, ns_per_char=ns), rank=rank)
    return tmp_path


@pytest.fixture
def expanded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that are expanded, in order."""
    found: list[str] = []
    expand = files._expand

    def counted(path: str) -> list[str]:
        found.append(path)
        return expand(path)

    monkeypatch.setattr(files, "_expand", counted)
    return found


@pytest.mark.parametrize(
    ("command", "paths"),
    [
        ("report before -o r.html -o r.json", ["before"]),
        ("report before/rank* after/rank0.json --partial --only input -o r.md", None),
        ("analyze timeline before", ["before"]),
        ("diff before after -o d.md -o d.json", ["before", "after"]),
        ("gate before after --junit g.xml --rule kernel.count<=1", ["before", "after"]),
        ("project whatif before -o w.md", ["before"]),
    ],
)
def test_each_path_is_expanded_once(
    folder: Path, expanded: list[str], command: str, paths: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_cli(command.split())
    given = [path for path in expanded if Path(path).is_dir() or "*" in path]
    assert len(given) == len(set(given))
    if paths is not None:
        assert given == paths


def test_files_are_known_after_the_first_question(folder: Path, expanded: list[str]) -> None:
    traces = TraceFiles(["before", "after/rank1.json"])
    assert (
        traces.of("before") == traces.of("before", "./before") == ["before/rank0.json", "before/rank1.json"]
    )
    assert traces.all() == ["before/rank0.json", "before/rank1.json", "after/rank1.json"]
    assert expanded == ["before", "./before", "after/rank1.json"]
    for _ in range(2):
        with pytest.raises(ParseError, match="no file matches"):
            TraceFiles(["no*"]).all()


def test_processes_start_before_numpy_and_end_with_the_reading(folder: Path) -> None:
    code = """
import sys
from tracelens.session import Reading, Reporting
from tracelens.workers import children
children._WORTH_BYTES = 0
for kind, files in ((Reading, sys.argv[1:2]), (Reporting, sys.argv[1:2]), (Reporting, sys.argv[1:])):
    with kind(files) as opened:
        assert "numpy" not in sys.modules and "pandas" not in sys.modules
        started = (opened._reading if kind is Reporting else opened)
        if started is not None:
            processes = started._children.processes
            assert len(processes) == 1
    assert processes[0].poll() is not None
"""
    paths = [str(folder / "before" / f"rank{rank}.json") for rank in range(2)]
    command = [sys.executable, "-c", code, *paths]
    env = {PURE: "1", "TRACELENS_JOBS": "2", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_error_while_processes_start_ends_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACELENS_JOBS", "3")
    monkeypatch.setenv(PURE, "1")
    monkeypatch.setattr(children, "_WORTH_BYTES", 0)
    reading = Reading(["before/rank0.json"])
    with pytest.raises(TracelensError, match="wrong"), reading:
        raise TracelensError("wrong")
    assert len(reading._children.processes) == 2
    assert all(process.poll() is not None for process in reading._children.processes)


def test_a_wrong_question_is_told_before_the_files_are_read(folder: Path) -> None:
    (folder / "broken.json").write_text("{")
    with Reporting(["broken.json"]) as reporting, pytest.raises(TracelensError, match="unknown analyzer"):
        reporting.report(["timelin"])


def test_nothing_is_called_back() -> None:
    for function in (tracelens.load, tracelens.report_files, tracelens.report, tracelens.diff):
        callables = [
            p for p in inspect.signature(function).parameters.values() if "Callable" in str(p.annotation)
        ]
        assert callables == []
        assert "meanwhile" not in inspect.signature(function).parameters


def test_one_engine_for_a_run_and_for_files(folder: Path) -> None:
    run = tracelens.load("before")
    of_run = tracelens.report(run, scope="linked", device="mi300x")
    of_files = tracelens.report_files("before", scope="linked", device="mi300x")
    assert as_json(of_run) == as_json(of_files)
    one = tracelens.analyze(run, "kernels", scope="linked")
    assert one["kernels"].equals(of_files["kernels"]["kernels"])


def test_two_runs_by_path_and_by_run(folder: Path) -> None:
    by_path = tracelens.diff("before", folder / "after", step=2)
    by_run = tracelens.diff(tracelens.load("before"), tracelens.load("after"), step="2")
    assert by_path.meta["options"] == {"step": "2"}
    assert by_path["diff"]["waterfall"].equals(by_run["diff"]["waterfall"])


def test_the_gate_takes_runs_reports_and_paths(folder: Path) -> None:
    before, after = tracelens.load("before"), tracelens.load("after")
    report = tracelens.report(before)
    tracelens.render(report, "base.json")
    for base in ("before", Path("base.json"), before, report):
        for candidate in ("after", after):
            verdict = tracelens.gate(base, candidate, ["step.time<=1.05", "kernel.count<=1"])
            assert [outcome.metric for outcome in verdict.failed] == ["step.time"]
    assert not tracelens.gate("before", after, "step.time<=1.2").failed
    Path("rules.toml").write_text('[gate]\nrules = ["kernel.count<=1"]\n')
    assert len(tracelens.gate("before", "after", config="rules.toml").outcomes) == 1
    with pytest.raises(TracelensError, match="no result of 'steps'"):
        tracelens.gate(tracelens.report(before, ["kernels"]), after)
    tracelens.render(verdict, "verdict.md")
    assert "Regression" in Path("verdict.md").read_text()


def test_fuse_and_replay_take_paths(folder: Path) -> None:
    tracelens.fuse("before", "both.json")
    tracelens.fuse(tracelens.load("before"), "one.json", ranks=[1], cpu=False)
    assert json.loads(Path("both.json").read_text())["fusedRanks"] == [0, 1]
    assert json.loads(Path("one.json").read_text())["fusedRanks"] == [1]
    with pytest.raises(TracelensError, match="no rank 7"):
        tracelens.fuse("before", "none.json", ranks="7")
    by_text = tracelens.replay("before", "scripts", op="aten::mm", shapes="2,3", step=2, top=1)
    by_sizes = tracelens.replay(tracelens.load("before"), "scripts", shapes=[(2, 3), "3x4"], rank=1)
    for result in (by_text, by_sizes):
        assert result.data["scripts"].texts("subject") == ["aten::mm"]
    with pytest.raises(TracelensError, match="no rank 5 in the trace; it has 0, 1"):
        tracelens.replay("before", "scripts", rank=5)


def test_a_result_can_be_rendered(folder: Path) -> None:
    result = tracelens.analyze(tracelens.load("before"), "kernels")
    tracelens.render(result, "kernels.json")
    assert list(json.loads(Path("kernels.json").read_text())["results"]) == ["kernels"]


def same(one: Result, other: Result) -> bool:
    """Whether two results say the same."""
    return as_json(Report((one,))) == as_json(Report((other,)))


def test_memory_in_words() -> None:
    common = ["ranks=768", "micro_batches=96"]
    layouts = ("pp=24 ep=8 vpp=4", "pp=48 ep=8 vpp=2")
    wanted = memory(
        {text: override(preset("moe_1t"), [*common, *text.split()]) for text in layouts},
        Assumptions(framework="amd-guide"),
        [device("mi300x")],
        8 << 30,
    )
    found = tracelens.project_memory(
        "moe_1t",
        gpus=768,
        micro_batches=96,
        layouts=layouts,
        framework="amd-guide",
        devices="mi300x",
        reserve_gib=8,
    )
    assert same(found, wanted)
    small = override(
        preset("deepseek_v2_lite"), ["ranks=8", "ep=8", "micro_batch=2", "recompute_layer_ids=0,1"]
    )
    words = tracelens.project_memory("deepseek_v2_lite", gpus=8, ep=8, mbs=2, recompute="0,1")
    assert same(words, memory(small, Assumptions(framework="megatron")))
    assert same(
        tracelens.project_memory(small, framework="workload", devices=device("h200")),
        memory(small, devices=[device("h200")]),
    )
    with pytest.raises(TracelensError, match="unknown device 'mi30x'"):
        tracelens.project_memory("moe_1t", devices="mi30x")


def test_layouts_in_words() -> None:
    space = Space(pp=(1, 2), ep=(8,), cp=(1,), tp=(1,), vpp=(1,), recompute=("none",))
    question = Question(MODELS["deepseek_v2_lite"], 16, preset("deepseek_v2_lite") and 64)
    axes = {"ep": 8, "cp": 1, "tp": "1", "vpp": 1, "recompute": "none"}
    found = tracelens.search_layouts("deepseek_v2_lite", 16, "mi300x", pp=(1, 2), global_batch=64, **axes)
    assert found.meta["tried"] == search(question, [device("mi300x")], [space]).meta["tried"]
    text = tracelens.search_layouts(
        "deepseek_v2_lite",
        16,
        ["mi300x"],
        layouts="pp=1,2 ep=8 cp=1 tp=1 vpp=1 recompute=none",
        global_batch=64,
    )
    assert same(found, text)
    with pytest.raises(TracelensError, match="--pp must be numbers"):
        tracelens.search_layouts("deepseek_v2_lite", 16, "mi300x", pp="two")


def test_pipelines_in_words() -> None:
    batch = PipelineSizes(pp=16, global_tokens=2**21, seq=4096, nodes=64)
    assert same(tracelens.project_bubble(16, 2**21, 64, vpp=6), bubble(batch, 6))
    found = tracelens.project_pipeline(schedules=["gpipe", "1f1b"], pp=4, micro_batches=8, forward_ms=2)
    assert same(found, pipeline(Setting(["gpipe", "1f1b"], 4, 8), Uniform(2_000_000, 4_000_000)))
    measured = tracelens.project_pipeline(ROOT / "sample_traces/pipeline/plain", vpp=2)
    assert measured.meta["stages"] == 2
    for wrong in ({}, {"forward_ms": 1.0, "model": "moe_1t"}):
        with pytest.raises(TracelensError, match="give one source of times"):
            tracelens.project_pipeline(pp=4, micro_batches=8, **wrong)
    with pytest.raises(TracelensError, match="--ep goes with --model"):
        tracelens.project_pipeline(pp=4, micro_batches=8, forward_ms=1, ep=8)
