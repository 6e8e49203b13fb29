"""Cores near a GPU, on a machine that the test describes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the workload needs torch")

import torch

from tracelens.errors import TracelensError
from tracelens.workload import launch


@pytest.mark.parametrize(
    ("text", "cores"), [("0-3,8\n", {0, 1, 2, 3, 8}), ("5", {5}), ("", set()), ("0,2-2", {0, 2})]
)
def test_lists_of_cores(text: str, cores: set[int]) -> None:
    assert launch.parse_cores(text) == cores


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two nodes: this process's cores, and cores that it may not use."""
    monkeypatch.setattr(launch, "SYSTEM", tmp_path)
    mine = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    for node, cores in enumerate((mine, "100000")):
        folder = tmp_path / "devices" / "system" / "node" / f"node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cores + "\n")
    return tmp_path


def test_ranks_without_a_gpu_take_the_nodes_in_turn(machine: Path) -> None:
    before = os.sched_getaffinity(0)
    assert set(launch.bind(0, torch.device("cpu"))) == before
    assert set(launch.bind(2, torch.device("cpu"))) == before
    with pytest.raises(TracelensError, match="may use none of the cores"):
        launch.bind(1, torch.device("cpu"))
    assert os.sched_getaffinity(0) == before


def test_a_machine_that_names_no_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "SYSTEM", tmp_path)
    with pytest.raises(TracelensError, match="reports no NUMA nodes"):
        launch.bind(0, torch.device("cpu"))
