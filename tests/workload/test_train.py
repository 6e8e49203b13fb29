"""Training steps, and the trace recorded of them, with preset `tiny` on the CPU."""

from __future__ import annotations

import gzip
import hashlib
import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the workload needs torch")

from tracelens.workload import record, spans
from tracelens.workload.config import preset
from tracelens.workload.train import Trainer, time_steps

# torch's profiler warns on the CPU build that it will not record a GPU, and of its own deprecations.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch.*", "ignore::FutureWarning:torch.*")

SCOPES = {
    spans.DATA, spans.FORWARD, spans.BACKWARD, spans.OPTIMIZER, spans.LOG, spans.EMBEDDING, spans.ATTENTION,
    spans.DENSE_MLP, spans.LM_HEAD, spans.LOSS, spans.MOE, spans.ROUTER, spans.DISPATCH, spans.EXPERTS,
    spans.COMBINE, spans.SHARED,
}  # fmt: skip


def test_same_seed_same_losses_in_either_variant() -> None:
    losses = {
        name: [trainer.step() for _ in range(3)]
        for name in ("loop", "grouped")
        for trainer in [Trainer(replace(preset("tiny"), experts=name), "cpu")]
    }
    assert losses["grouped"] == pytest.approx(losses["loop"], rel=1e-4)


def test_training_on_one_batch_learns_it() -> None:
    trainer = Trainer(preset("tiny"), "cpu")
    trainer.optimizer.param_groups[0]["lr"] = 1e-2
    batch = next(trainer.batches)
    trainer.batches = iter([batch] * 40)
    losses = [trainer.step() for _ in range(40)]
    assert losses[-1] < 0.9 * losses[0]


def test_time_steps_times_only_what_was_asked_for() -> None:
    milliseconds = time_steps(Trainer(preset("tiny"), "cpu"), steps=3, warmup=1)
    assert len(milliseconds) == 3
    assert min(milliseconds) > 0


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace with Python frames of two steps."""
    path: Path = tmp_path_factory.mktemp("recorded") / "tiny.json.gz"
    record.record(preset("tiny"), path, device="cpu")
    return path


@pytest.fixture(scope="module")
def events(recorded: Path) -> list[dict[str, Any]]:
    return json.loads(gzip.decompress(recorded.read_bytes()))["traceEvents"]  # type: ignore[no-any-return]


def test_trace_has_steps_and_every_scope(events: list[dict[str, Any]]) -> None:
    names = {event["name"] for event in events if event.get("cat") == "user_annotation"}
    assert len([name for name in names if name.startswith("ProfilerStep#")]) == 2
    assert names >= SCOPES


def test_trace_has_module_frames_and_shapes(events: list[dict[str, Any]]) -> None:
    frames = {event["name"] for event in events if event.get("cat") == "python_function"}
    assert {"nn.Module: MoE_0", "nn.Module: Router_0", "nn.Module: LoopExperts_0"} <= frames
    assert any(event.get("args", {}).get("Input Dims") for event in events if event.get("cat") == "cpu_op")


def test_trace_names_rank_and_config_but_not_the_machine(recorded: Path) -> None:
    text = gzip.decompress(recorded.read_bytes()).decode()
    top = json.loads(text)
    assert top["distributedInfo"] == {"backend": "none", "rank": 0, "world_size": 1}
    assert top["workload"]["experts"] == "loop"
    assert top["traceName"] == "tiny.json.gz"
    assert top.get("host_name", "host") == "host"
    assert str(Path(__file__).parents[2]) not in text
    assert "site-packages" not in text


def test_command_records_and_prints_a_manifest_entry(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "t.json.gz"
    arguments = (
        "--preset tiny --experts grouped --set seq=8 --no-stack --device cpu --steps 1 --timed-steps 1"
    )
    assert record.main([*arguments.split(), "--out", str(out)]) == 0
    (entry,) = tomllib.loads(capsys.readouterr().out)["trace"]
    assert entry["file"] == "t.json.gz"
    assert entry["origin"].endswith("--steps 1 --timed-steps 1 --out t.json.gz")
    assert str(tmp_path) not in entry["origin"]
    assert entry["sha256"] == hashlib.sha256(out.read_bytes()).hexdigest()
    assert (entry["config"]["experts"], entry["config"]["seq"], entry["steps"]) == ("grouped", 8, 1)
    assert "python_function" not in entry["events"]
    assert entry["events"]["cpu_op"] > 100


def test_command_reports_a_bad_preset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert record.main(["--preset", "tinny", "--out", str(tmp_path / "t.json.gz")]) == 2
    assert capsys.readouterr().err == "error: unknown preset 'tinny'; did you mean 'tiny'?\n"
