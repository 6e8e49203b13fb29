"""Runs of the workload with a toggle off and on, recorded on ranks of this machine, and what analyzers say.

A process takes longer to start than a tiny run takes, so all runs of one number of ranks share theirs, and
are recorded when the first of them is asked for.
"""

from __future__ import annotations

import gc
from functools import cache
from pathlib import Path

import pytest
import torch

from tests.once import made_once
from tests.workload.ranks import run_ranks
from tracelens import analyze, load
from tracelens.planner.config import Config, override, preset
from tracelens.table import Result
from tracelens.trace import Run
from tracelens.workload.launch import Job, measure
from tracelens.workload.parallel import make_groups
from tracelens.workload.train import Trainer

# Messages that take longer than a thread takes to wake up.
_LARGE = "seq=256 micro_batches=3"
_PIPELINE = "pp=2 layers=4 micro_batches=4"

RUNS = {
    "base": "ranks=2",
    "grouped": "ranks=2 experts=grouped",
    "sync_free_1": "ranks=2 experts=grouped sync_free=1",
    "sync_free_2": "ranks=2 experts=grouped sync_free=2",
    "sync_free_3": "ranks=2 experts=grouped sync_free=3",
    "allgather": "ranks=2 dispatch=allgather",
    "dedup": "ranks=2 dispatch=dedup",
    "balanced": "ranks=2 routing=balanced",
    "balanced_dedup": "ranks=2 routing=balanced dispatch=dedup",
    "recompute_1": "ranks=2 recompute_layer_ids=1",
    "recompute_0_2": "ranks=2 recompute_layer_ids=0,2",
    "gc_auto": "ranks=2",
    "gc_manual": "ranks=2 gc=manual",
    "large": f"ranks=2 {_LARGE}",
    "overlap_exchange": f"ranks=2 {_LARGE} overlap_exchange=1f1b",
    "overlap_shared": f"ranks=2 {_LARGE} overlap_shared=on",
    "tp": "ranks=2 tp=2 seq=256",
    "tp_chunked": "ranks=2 tp=2 seq=256 tp_overlap=chunked",
    "pp": f"ranks=2 {_PIPELINE}",
    "vpp": f"ranks=2 {_PIPELINE} vpp=2",
    "pp_ep": "ranks=4 pp=2 ep=2",
    "reduce_scatter": "ranks=4 ep=2 node=2",
    "all_reduce": "ranks=4 ep=2 node=2 grad_reduce=all_reduce",
    "hierarchical": "ranks=4 ep=2 node=2 grad_reduce=hierarchical",
}
"""Name of a run to how it differs from the preset tiny."""

# The second step; the first one makes buffers and connections.
_STEPS, _FIRST = 2, 1
# In the runs for it, garbage is collected whenever so many more objects were made than freed.
_GARBAGE = 100


def config_of(name: str) -> Config:
    """The configuration of a run."""
    return override(preset("tiny"), RUNS[name].split())


class Recorded:
    """What analyzers say of runs.

    Args:
        factory: of folders for traces.
    """

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self.factory = factory
        self._folders: dict[int, Path] = {}

    def folder(self, name: str) -> Path:
        """With the traces of a run."""
        ranks = config_of(name).layout.ranks
        if ranks not in self._folders:

            def record(folder: Path) -> None:
                run_ranks(ranks, _record, ranks, folder, folder=folder)

            self._folders[ranks] = made_once(self.factory, f"runs_of_{ranks}", record)
        return self._folders[ranks] / name

    def __call__(self, name: str, analyzer: str) -> Result:
        """What an analyzer says of a run."""
        return _analyzed(self.folder(name), analyzer)

    def run(self, name: str) -> Run:
        """The traces of a run."""
        return _run(self.folder(name))

    def signals(self, name: str, detector: str) -> list[dict[str, float]]:
        """What a detector measured, by rank; nothing where it found no signature."""
        return signals(self(name, "findings"), detector)

    def verdict(self, name: str, detector: str) -> str:
        """What a detector says of a run."""
        return verdict(self(name, "findings"), detector)


@cache
def _analyzed(folder: Path, analyzer: str) -> Result:
    return analyze(_run(folder), analyzer)


@cache
def _run(folder: Path) -> Run:
    return load(folder)


def signals(found: Result, detector: str) -> list[dict[str, float]]:
    """What a detector measured, by rank."""
    table = found["measurements"]
    table = table[table["detector"].eq(detector)]
    return [
        dict(zip(rows["measure"].astype(str), rows["value"], strict=True))
        for _, rows in table.groupby("rank")
    ]


def verdict(found: Result, detector: str) -> str:
    """What a detector says."""
    table = found["checks"]
    (text,) = table[table["detector"].eq(detector)]["verdict"]
    return str(text)


def _record(rank: int, ranks: int, folder: Path) -> None:
    """Record all runs of so many ranks on one of them."""
    for name in RUNS:
        config = config_of(name)
        if config.layout.ranks != ranks:
            continue
        before = gc.get_threshold()
        if name.startswith("gc"):
            gc.set_threshold(_GARBAGE)
        trainer = Trainer(config, make_groups(config.layout, rank), torch.device("cpu"))
        measure(trainer, Job(config, folder / name, "cpu", steps=_STEPS, start=_FIRST, end=_STEPS))
        gc.set_threshold(*before)
        gc.unfreeze()
