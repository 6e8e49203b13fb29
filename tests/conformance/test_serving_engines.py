"""Real steps of two serving engines that replay graphs: whose they are, and what their captures tell."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import tracelens
from tests.reference.traces import FOLDERS
from tracelens.trace import WHOLE, Run, gpu_work

FOLDER = FOLDERS["foreign"] / "mi300x-serving"
SGLANG = FOLDER / "sglang_decode" / "sglang_Qwen3-8B_decode.json.gz"
VLLM = FOLDER / "vllm_prefilldecode_piecewise" / "graph_execution.json.gz"

pytestmark = pytest.mark.skipif(not FOLDER.exists(), reason="no foreign traces")


@pytest.fixture(scope="module", params=[SGLANG, VLLM], ids=["sglang", "vllm"])
def run(request: pytest.FixtureRequest) -> tuple[Path, Run]:
    return request.param, tracelens.load(request.param)


def test_the_engine_is_not_the_one_whose_labels_it_writes(run: tuple[Path, Run]) -> None:
    path, loaded = run
    result = tracelens.analyze(loaded, "serving")
    assert result["summary"]["engine"].tolist() == ["SGLang" if path == SGLANG else "vLLM"]
    columns = ["kind", "graph", "requests", "tokens"]
    expected = ["decode", True, 32, 32] if path == SGLANG else ["mixed", True, 46, 8192]
    assert result["steps"][columns].values.tolist() == [expected]


@pytest.fixture(scope="module")
def bare(run: tuple[Path, Run], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same trace without its captures."""
    path, _ = run
    return tracelens.load(shutil.copy(path, tmp_path_factory.mktemp("bare") / path.name))


def test_without_its_capture_what_a_graph_launched_is_not_covered(bare: Run) -> None:
    result = tracelens.analyze(bare, "roofline", device="mi300x")
    time = result["coverage"].set_index("status")["dur_ns"]
    counted = time["cost model"] + time["cost model, arguments of a repeat"]
    assert result.meta["coverage"] == pytest.approx(counted / time.sum())
    assert result.meta["coverage"] < 0.05
    assert result.meta["reasons_given"] > 0.95


def test_utilisation_of_an_unknown_graph_is_a_skip_and_no_zero(bare: Run) -> None:
    result = tracelens.analyze(bare, "roofline", device="mi300x")
    table = result["utilisation"]
    steps = table[table["step"].astype(str) == WHOLE]  # not what was in flight at the start
    assert len(steps) == 1
    assert (steps[["flops", "flops_per_s", "mfu", "hfu"]] == -1).all(axis=None)
    reasons = [skip.reason for skip in result.skips if "MFU" in skip.subject]
    assert len(reasons) == 1
    assert "launched by a graph" in reasons[0]


def test_captures_attribute_all_that_a_graph_launched(run: tuple[Path, Run]) -> None:
    _, loaded = run
    (trace,) = loaded.traces
    work = gpu_work(trace)
    graph = trace.arrays.named(lambda name: "GraphLaunch" in name)
    replayed = (work.launch >= 0) & graph[work.launch]
    assert (work.op[replayed] >= 0).all()
    assert trace.arrays.copied[work.op[replayed]].all()
