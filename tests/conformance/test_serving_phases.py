"""Steps of two real serving engines by phase, against the plain JSON and another tool's table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tracelens
from tests.conformance.test_serving_engines import FOLDER, SGLANG, VLLM
from tests.reference.raw import text_of
from tracelens import Run
from tracelens.errors import TracelensError

pytestmark = pytest.mark.skipif(not FOLDER.exists(), reason="no foreign traces")


@pytest.fixture(scope="module", params=[SGLANG, VLLM], ids=["sglang", "vllm"])
def run(request: pytest.FixtureRequest) -> tuple[Path, Run]:
    return request.param, tracelens.load(request.param)


def test_a_phase_has_what_its_step_launched(run: tuple[Path, Run]) -> None:
    """By counting in the plain JSON: kernels whose launch call lies in the labeled range.

    Without those that ran before the GPU came back to work from before the recording, for half a second.
    """
    path, loaded = run
    phase = "decode" if path == SGLANG else "mixed"
    table = loaded.kernels(step=phase)
    kernels = table[~table["name"].astype(str).str.startswith("Mem")]
    found = json.loads(text_of(path))["traceEvents"]
    (mark,) = (event for event in found if event["name"].startswith("execute_"))
    calls = {
        event["args"]["correlation"]
        for event in found
        if event.get("cat") == "cuda_runtime" and mark["ts"] <= event["ts"] <= mark["ts"] + mark["dur"]
    }
    events = [
        event for event in found if event.get("cat") == "kernel" and event["args"]["correlation"] in calls
    ]
    events.sort(key=lambda event: event["ts"])
    starts = [event["ts"] for event in events]
    first = max((later for later in range(1, 9) if starts[later] - starts[later - 1] > 1e5), default=0)
    assert first == (1 if path == SGLANG else 0)
    launched = [event["dur"] for event in events[first:]]
    assert len(kernels) == len(launched) > 400
    assert kernels["dur_ns"].sum() == pytest.approx(sum(launched) * 1e3, rel=1e-6)
    with pytest.raises(TracelensError, match=f"has: 1 {phase}"):
        tracelens.analyze(loaded, "kernels", step="prefill")


def test_attention_is_counted_from_the_label() -> None:
    """Another tool's table of the same trace: 65.010180096 GFLOPs and 211.826171875 MiB a call."""
    table = tracelens.analyze(tracelens.load(VLLM), "roofline", device="mi300x", step="mixed")["roofline"]
    (attention,) = table[table["name"] == "vllm::unified_attention_with_output"].to_dict("records")
    assert attention["count"] == 24
    assert attention["flops"] == 65_010_180_096
    assert attention["read_bytes"] + attention["write_bytes"] == 211.826171875 * 2**20
    assert "lengths from the step label" in attention["note"]


def test_one_step_has_no_rate(run: tuple[Path, Run]) -> None:
    result = tracelens.analyze(run[1], "serving")
    assert len(result["throughput"]) == 0
    assert any(skip.subject == "tokens per second of rank 0" for skip in result.skips)
