"""Real steps of two serving engines that replay graphs: whose they are, and what is known of their FLOPs."""

from __future__ import annotations

from pathlib import Path

import pytest

import tracelens
from tests.reference.traces import FOLDERS
from tracelens.trace.run import Run

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


def test_what_a_graph_launched_is_not_covered(run: tuple[Path, Run]) -> None:
    _, loaded = run
    result = tracelens.analyze(loaded, "roofline", device="mi300x")
    time = result["coverage"].set_index("status")["dur_ns"]
    counted = time["cost model"] + time["cost model, arguments of a repeat"]
    assert result.meta["coverage"] == pytest.approx(counted / time.sum())
    assert result.meta["coverage"] < 0.05
    assert result.meta["reasons_given"] > 0.95


def test_utilisation_of_a_graph_is_a_skip_and_no_zero(run: tuple[Path, Run]) -> None:
    _, loaded = run
    result = tracelens.analyze(loaded, "roofline", device="mi300x")
    assert (result["utilisation"][["flops", "flops_per_s", "mfu", "hfu"]] == -1).all(axis=None)
    reasons = [skip.reason for skip in result.skips if "MFU" in skip.subject]
    assert len(reasons) == 1
    assert "launched by a graph" in reasons[0]
