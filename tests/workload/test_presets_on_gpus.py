"""Every preset, the large ones with fewer layers, in layouts on 4 GPUs: counts against their closed forms."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the workload needs torch")

import torch

from tests.workload.closed_forms import compare_bytes, compare_flops
from tests.workload.ranks import run_ranks
from tracelens.planner.config import Config, override, preset
from tracelens.workload.launch import Job, measure
from tracelens.workload.parallel import make_groups
from tracelens.workload.train import Trainer

pytestmark = [
    pytest.mark.skipif(torch.cuda.device_count() < 4, reason="needs 4 GPUs of 140 GB"),
    # Of its own deprecations, and of what it cannot record of this GPU.
    pytest.mark.filterwarnings("ignore::FutureWarning:torch.*", "ignore::UserWarning:torch.*"),
]

FAST = "experts=grouped sync_free=2 permute=fused router=fused loss=fused"
PRESETS = {
    "tiny": ["dtype=bfloat16 hidden=256", f"dtype=bfloat16 hidden=256 {FAST}"],
    "small": [
        "",
        FAST,
        f"{FAST} ep=2",
        f"{FAST} tp=2",
        f"{FAST} tp=2 tp_overlap=chunked",
        f"{FAST} cp=2",
        f"{FAST} cp=2 tp=2",
        f"{FAST} pp=2 micro_batches=2",
        f"{FAST} pp=2 vpp=2 micro_batches=2",
        f"{FAST} dispatch=dedup",
        f"{FAST} dispatch=dedup sync_free=3 overlap_shared=on",
        f"{FAST} recompute_layer_ids=1,2",
        f"{FAST} micro_batches=2 overlap_exchange=1f1b",
    ],
    "deepseek_v2_lite": [f"layers=3 {FAST}", f"layers=3 pp=2 micro_batches=2 {FAST}"],
    "deepseek_v2": [f"layers=2 {FAST}", f"layers=2 cp=2 {FAST}"],
    "deepseek_v3": [f"layers=4 {FAST}"],
    "moe_1t": [f"layers=1 {FAST}", f"layers=1 tp=2 {FAST}", f"layers=1 cp=2 {FAST}"],
    "moe_2t": [f"layers=1 main_params=false {FAST}"],
}
# A process keeps the buffers of its communicators, which leave too little memory for a second large run.
LARGE = ("deepseek_v2", "deepseek_v3", "moe_1t", "moe_2t")
RUNS = [
    pytest.param(name, part, id=f"{name}-{number}")
    for name, changes in PRESETS.items()
    for number, part in enumerate([[one] for one in changes] if name in LARGE else [changes])
]


def build(name: str, change: str) -> Config:
    return override(preset(name), f"ranks=4 seq=1024 micro_batch=1 {change}".split())


def record(rank: int, name: str, changes: list[str], folder: Path) -> None:
    """Run and record a preset with each of the changes."""
    for number, change in enumerate(changes):
        config = build(name, change)
        trainer = Trainer(config, make_groups(config.layout, rank), torch.device("cuda", rank))
        measure(trainer, Job(config, folder / str(number), "cuda", steps=3, start=2, end=3))
        trainer.close()
        del trainer
        torch.cuda.empty_cache()


@pytest.mark.parametrize(("name", "changes"), RUNS)
def test_counts_are_those_of_the_closed_forms(name: str, changes: list[str], tmp_path: Path) -> None:
    run_ranks(4, record, name, changes, tmp_path, folder=tmp_path, device="cuda")
    for number, change in enumerate(changes):
        compare_flops(tmp_path / str(number), build(name, change), "cuda")
        compare_bytes(tmp_path / str(number), build(name, change))
