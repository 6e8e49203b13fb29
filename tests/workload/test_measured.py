"""What tracelens counts in recorded steps against the closed forms that the run wrote beside the traces."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the workload needs torch")

import torch

import tracelens
from tests.workload.closed_forms import closed_forms, compare_bytes, compare_flops
from tests.workload.ranks import run_ranks
from tracelens.planner.config import Config, override, preset
from tracelens.workload.launch import Job, measure
from tracelens.workload.parallel import make_groups
from tracelens.workload.train import Trainer

CASES = {
    "baseline": [],
    "grouped": ["experts=grouped", "sync_free=2", "permute=fused", "router=fused"],
    "dedup": ["dispatch=dedup", "sync_free=1", "overlap_shared=on"],
    "allgather": ["dispatch=allgather", "experts=grouped"],
    "static": ["dispatch=dedup", "experts=grouped", "sync_free=3"],
    "recomputed": ["recompute_layer_ids=0,2", "experts=grouped", "sync_free=2"],
    "1f1b": ["overlap_exchange=1f1b"],
    "gqa": ["attention=gqa", "kv_groups=2", "head_dim=16", "score=sigmoid", "routing=skewed"],
    "latent queries": ["q_lora=16", "routing=balanced"],
    "tensor parallel": ["tp=2"],
    "pipeline": ["pp=2", "pp_layout=2,1", "micro_batches=3"],
    "interleaved": ["pp=2", "vpp=2", "layers=5", "micro_batches=4"],
}
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
        measure(trainer, Job(config, folder / name, device, steps=3, start=1, end=3))


@pytest.fixture(scope="module", params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def recorded(device: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder: Path = tmp_path_factory.mktemp("measured")
    run_ranks(2, record, folder, device, folder=folder, device=device)
    yield folder
    gc.enable()


@pytest.mark.parametrize("name", CASES)
def test_flops_of_every_scope_are_those_of_the_closed_form(name: str, recorded: Path, device: str) -> None:
    compare_flops(recorded / name, build(name, device), device)


@pytest.mark.parametrize("name", [name for name in CASES if name != "allgather"])
def test_bytes_of_every_all_to_all_are_those_of_the_closed_form(name: str, recorded: Path) -> None:
    compare_bytes(recorded / name, build(name))


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
