"""Decode replayed from graphs, on GPUs: the same logits as without, with other ranks as well."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the workload needs torch")

from tests.workload.agree import BFLOAT16  # noqa: E402
from tests.workload.ranks import run_ranks  # noqa: E402
from tracelens import load  # noqa: E402
from tracelens.workload.serving import model_config, serving_preset  # noqa: E402
from tracelens.workload.serving.engine import ServingEngine, eager, make_ranks  # noqa: E402  # noqa: E402
from tracelens.workload.serving.model import BatchTensors, make_rows, numbers  # noqa: E402
from tracelens.workload.serving.plan import BatchPiece  # noqa: E402
from tracelens.workload.serving.serve import ServeJob, run_serving  # noqa: E402

GPUS = torch.cuda.device_count()
GRAPHED = replace(serving_preset("tiny"), graph="on", slots=6, requests=12, rate=1.0)
MODELS = {"mla": [], "gqa": ["attention=gqa", "kv_groups=2", "head_dim=16"]}


def differences(rank: int, ranks: int, fields: list[str]) -> list[float]:
    """Of decodes of several sizes, the largest difference of logits of a graph to those without."""
    config = model_config("tiny", ["dtype=bfloat16", *fields], GRAPHED)
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    engine = ServingEngine(config, GRAPHED, make_ranks(rank, ranks), device)
    graphs = engine.graphs
    assert graphs is not None
    assert sorted(graphs.captured) == [1, 2, 4, 6]
    prompts = tuple(BatchPiece(slot, 0, tuple(range(5 + 7 * slot))) for slot in range(6))
    found = []
    with torch.inference_mode():
        eager(engine.model, make_rows(prompts, True, device), 160)
        for requests, size in ((1, 1), (1, 2), (3, 4), (5, 6), (6, 6), (2, 2)):
            batch = tuple(BatchPiece(slot, 5 + 7 * slot, (slot + 1,)) for slot in range(requests))
            padded = batch + (BatchPiece(GRAPHED.slots, 0, (0,)),) * (size - requests)
            token_B, slot_B, position_B = torch.tensor(numbers(padded)[:3], device=device)
            every_B = torch.arange(size, device=device)
            rows = BatchTensors(token_B, slot_B, position_B, every_B, longest=GRAPHED.context)
            expected = eager(engine.model, rows, size)[:requests].float()
            got = graphs.run(batch, size).float()
            found.append(float((got - expected).abs().max() / expected.abs().max()))
    engine.close()
    return found


def tokens(rank: int, ranks: int, fields: dict[str, Any]) -> tuple[int, int]:
    """Requests of this rank that were served in full, and ticks that were replayed from graphs."""
    serving = replace(GRAPHED, **fields)
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    engine = ServingEngine(
        model_config("tiny", ["dtype=bfloat16"], serving), serving, make_ranks(rank, ranks), device
    )
    plans = [engine.tick() for _ in range(80)]
    engine.close()
    assert engine.scheduler.idle
    assert all(len(one.made) == one.request.output for one in engine.scheduler.finished)
    return len(engine.scheduler.finished), sum(plan is not None and plan.graph > 0 for plan in plans)


@pytest.mark.skipif(GPUS < 1, reason="needs a GPU")
@pytest.mark.parametrize("name", MODELS)
def test_a_graph_makes_the_same_logits(name: str) -> None:
    assert max(differences(0, 1, MODELS[name])) < BFLOAT16


@pytest.mark.skipif(GPUS < 2, reason="needs 2 GPUs")
@pytest.mark.parametrize("name", MODELS)
def test_a_graph_with_other_ranks_makes_the_same_logits(name: str, tmp_path: Path) -> None:
    found = run_ranks(2, differences, 2, MODELS[name], folder=tmp_path, device="cuda")
    assert max(map(max, found)) < BFLOAT16


@pytest.mark.skipif(GPUS < 2, reason="needs 2 GPUs")
@pytest.mark.parametrize("tbo", ["off", "request", "token"])
def test_ranks_serve_all_requests_with_graphs(tbo: str, tmp_path: Path) -> None:
    found = run_ranks(2, tokens, 2, {"prefill_delayer": "on", "tbo": tbo}, folder=tmp_path, device="cuda")
    assert [served for served, _ in found] == [6, 6]
    assert found[0][1] == found[1][1] > 5


@pytest.mark.skipif(GPUS < 1, reason="needs a GPU")
def test_replayed_decodes_are_recorded_with_their_ops(tmp_path: Path) -> None:
    config = model_config("tiny", ["dtype=bfloat16"], GRAPHED)
    run_serving(ServeJob(config, GRAPHED, 1, tmp_path, "cuda", ticks=24, start=16, end=24))
    assert json.loads((tmp_path / "run.json").read_text())["captures"] == 4
    table = load(tmp_path).kernels()
    assert table["op_source"].isin(["capture", "twin"]).any()
    assert table.loc[table["op"] == "", "dur_ns"].sum() < 0.01 * table["dur_ns"].sum()
