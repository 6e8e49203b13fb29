"""What tracelens counts in recorded steps against the closed forms that the run wrote beside the traces."""

from __future__ import annotations

import gc
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the workload needs torch")

import torch

import tracelens
from tests.workload.ranks import run_ranks
from tracelens.trace.run import Run
from tracelens.workload.config import Config, override, preset
from tracelens.workload.expected import Routing, flops
from tracelens.workload.launch import Job, measure
from tracelens.workload.parallel import make_groups
from tracelens.workload.train import Trainer

CASES = {
    "baseline": [],
    "grouped": ["experts=grouped", "sync_free=2", "permute=fused", "router=fused"],
    "dedup": ["dispatch=dedup", "sync_free=1", "overlap_shared=on"],
    "allgather": ["dispatch=allgather", "experts=grouped"],
    "static": ["dispatch=dedup", "experts=grouped", "sync_free=3"],
    "1f1b": ["overlap_exchange=1f1b"],
    "gqa": ["attention=gqa", "kv_groups=2", "head_dim=16", "score=sigmoid", "routing=skewed"],
    "latent queries": ["q_lora=16", "routing=balanced"],
    "tensor parallel": ["tp=2"],
    "pipeline": ["pp=2", "pp_layout=2,1", "micro_batches=3"],
    "interleaved": ["pp=2", "vpp=2", "layers=5", "micro_batches=4"],
}
# tracelens' names of collectives, which are NCCL's, to those of the closed forms.
COLLECTIVES = {"all_to_all": "all_to_all", "all_to_allv": "all_to_all"}


DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs 2 GPUs")),
]


def build(name: str, device: str = "cpu") -> Config:
    dtype = "float32" if device == "cpu" else "bfloat16"
    return override(preset("tiny"), ["ranks=2", f"dtype={dtype}", *CASES[name]])


def record(rank: int, folder: Path, device: str) -> None:
    """Run and record every case."""
    for name in CASES:
        config = build(name, device)
        trainer = Trainer(config, make_groups(config.layout, rank), torch.device(device))
        measure(trainer, Job(config, folder / name, device, steps=4, start=2, end=4))


@pytest.fixture(scope="module", params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def recorded(device: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder: Path = tmp_path_factory.mktemp("measured")
    run_ranks(2, record, folder, device, folder=folder, device=device)
    yield folder
    gc.enable()


def closed_forms(folder: Path, rank: int) -> list[dict[str, Any]]:
    """Of each recorded step of a rank, as the run wrote them down."""
    told = json.loads((folder / "run.json").read_text())["facts"]["expected"]
    return [one for one in told if one["rank"] == rank]


def counted(run: Run, rank: int) -> dict[str, tuple[int, int]]:
    """Scope to FLOPs of matrix products and attention in all steps, and in their backward."""
    table = tracelens.analyze(run, "scopes")["scopes"]
    found: dict[str, tuple[int, int]] = {}
    for row in table[table["rank"] == rank].itertuples():
        before = found.get(row.name, (0, 0))
        found[row.name] = before[0] + row.matrix_flops, before[1] + row.backward_matrix_flops
    return found


@pytest.mark.parametrize("name", CASES)
def test_flops_of_every_scope_are_those_of_the_closed_form(name: str, recorded: Path, device: str) -> None:
    run, config = tracelens.load(recorded / name), build(name, device)
    for trace in run.traces:
        rank = trace.meta.rank
        found = counted(run, rank)
        expected: Counter[str] = Counter()
        backward: Counter[str] = Counter()
        for step in closed_forms(recorded / name, rank):
            scopes = step["flops"]
            if config.toggles.sync_free == 3:  # shapes show the whole buffers
                work = flops(config, rank, attention=step["attention"], buffers=True)
                scopes = {scope: one._asdict() for scope, one in work.items()}
            for scope, one in scopes.items():
                expected[scope] += sum(one.values())
                backward[scope] += one["backward"]
        assert {scope: found[scope] for scope in expected} == {
            scope: (expected[scope], backward[scope]) for scope in expected
        }, f"rank {rank}"
        others = {scope for scope, (count, _) in found.items() if count > 0 and scope.startswith("L")}
        assert {scope.removesuffix(".moe") for scope in others} <= {*expected, *(f"L{i}" for i in range(5))}


@pytest.mark.parametrize("name", [name for name in CASES if name != "allgather"])
def test_bytes_of_every_all_to_all_are_those_of_the_closed_form(name: str, recorded: Path) -> None:
    run = tracelens.load(recorded / name)
    total = 0
    for trace in run.traces:
        table = trace.tables["collectives"].frame
        found = Counter(
            (int(row.in_bytes), int(row.out_bytes))
            for row in table.itertuples()
            if str(row.collective) in COLLECTIVES
        )
        expected: Counter[tuple[int, int]] = Counter()
        for step in closed_forms(recorded / name, trace.meta.rank):
            for one in step["messages"]:
                if one["collective"] == "all_to_all":
                    expected[one["sent"], one["received"]] += one["times"]
        assert found == expected, f"rank {trace.meta.rank}"
        total += sum(found.values())
    assert (total > 0) == (build(name).layout.experts_over > 1)


def test_routed_tokens_in_the_file_are_those_that_the_experts_got(recorded: Path, device: str) -> None:
    """The tokens' all-to-all carries hidden numbers for each row that an expert gets."""
    config = build("baseline", device)
    run = tracelens.load(recorded / "baseline")
    rows = tracelens.analyze(run, "moe")["tokens"]
    assert rows["tokens"].sum() > 0
    for step in range(2):
        received = 0
        for rank in range(2):
            of_step = [one for one in closed_forms(recorded / "baseline", rank) if one["step"] == step]
            received += sum(
                one["received"] * one["times"]
                for one in of_step[0]["messages"]
                if one["what"] == "tokens" and one["phase"] == "forward"
            )
        size = 4 if device == "cpu" else 2
        layers, top_k = config.model.moe_layers, config.model.top_k
        assert received == config.global_tokens * top_k * layers * config.model.hidden * size


def test_a_routing_survives_json() -> None:
    assert Routing.from_dict(json.loads(json.dumps(Routing.as_dict(_routing())))) == _routing()


def _routing() -> Routing:
    from tracelens.workload.expected import balanced

    return balanced(override(preset("tiny"), ["ranks=2", "routing=balanced"]), 1)
