"""Recording on two ranks that train together, and on some of the ranks of a job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="recording needs torch")

import torch
import torch.distributed as dist

import tracelens
from tests.recording.traces import names, read, scopes
from tests.workload.ranks import run_ranks
from tracelens.recording.sidecar import gloo_threads


def record_some_steps(rank: int, folder: str, ranks: Sequence[int] | str) -> tuple[str | None, list[str]]:
    """Path of the trace and notes of one rank."""
    x = torch.ones(4)
    with tracelens.record(folder, wait=1, warmup=1, steps=1, ranks=ranks, mesh={"dp": 2}) as r:  # type: ignore[arg-type]
        for _ in range(4):
            dist.all_reduce(x)
            r.step()
    return (None if r.path is None else r.path.name), r.notes


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*json*"))


def test_each_rank_writes_its_trace_and_the_first_one_the_sidecar(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    results = run_ranks(2, record_some_steps, str(folder), "all", folder=tmp_path)
    assert results == [("rank0.json.gz", []), ("rank1.json.gz", [])]
    assert files(folder) == ["rank0.json.gz", "rank1.json.gz", "run.json"]
    run = tracelens.load(folder)
    assert list(run.ranks) == [0, 1]
    assert [trace.meta.world_size for trace in run.traces] == [2, 2]
    for rank in (0, 1):
        trace = read(folder / f"rank{rank}.json.gz")
        assert trace["distributedInfo"]["rank"] == rank
        assert trace["distributedInfo"]["backend"] == "gloo"
        assert "ProfilerStep#2" in names(scopes(trace))
        assert trace["tracelens"]["mesh"] == {"dp": 2}
    told = json.loads((folder / "run.json").read_text())
    assert (told["world_size"], told["rank_source"]) == (2, "torch.distributed")
    assert told["files"] == {"0": "rank0.json.gz", "1": "rank1.json.gz"}


def record_a_sum_in_the_third_group(rank: int, folder: str) -> None:
    """Of three groups of both ranks, two of which do nothing."""
    made = [dist.new_group([0, 1], group_desc=name) for name in ("idle", "busy", "late")]
    with tracelens.record(folder, wait=0, warmup=1, steps=1) as r:
        for _ in range(2):
            dist.all_reduce(torch.ones(4), group=made[1])
            r.step()


def test_which_of_gloos_groups_was_at_work(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    run_ranks(2, record_a_sum_in_the_third_group, str(folder), folder=tmp_path)
    for rank, trace in enumerate(tracelens.load(folder).traces):
        threads = read(folder / f"rank{rank}.json.gz")["tracelens"]["gloo_threads"]
        assert len(threads) == 2 * 4  # the group of all ranks, and these three
        assert set(trace.collectives["group_description"]) == {"busy"}


def task(folder: Path, number: int, name: str, start: int) -> None:
    """A thread as /proc shows it, begun at this time."""
    (folder / str(number)).mkdir()
    words = ["S", *map(str, range(18)), str(start), "0"]
    (folder / str(number) / "stat").write_text(f"{number} ({name}) {' '.join(words)}\n")


def test_threads_are_listed_as_they_were_made(tmp_path: Path) -> None:
    for number, start in ((7, 40), (3, 60), (9, 50), (5, 45)):
        task(tmp_path, number, "pt_gloo_runloop" if number != 5 else "a (odd) name", start)
    (tmp_path / "11").mkdir()  # has ended
    assert gloo_threads(tmp_path) == [7, 9, 3]
    assert gloo_threads(tmp_path / "no such system") == []


def test_one_rank_of_two(tmp_path: Path) -> None:
    """Rank 0 records nothing, and still says what the run was."""
    folder = tmp_path / "traces"
    results = run_ranks(2, record_some_steps, str(folder), [1], folder=tmp_path)
    assert results == [(None, []), ("rank1.json.gz", [])]
    assert files(folder) == ["rank1.json.gz", "run.json"]
    told = json.loads((folder / "run.json").read_text())
    assert told["files"] == {"1": "rank1.json.gz"}
    assert told["options"]["ranks"] == [1]
    assert told["window"]["recorded"] == [2]


# Ranks one after the other, each in a copy of a process that has torch already.
LOOP = """
import os, sys, torch, tracelens
place = {"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}
for rank in map(int, sys.argv[2:]):
    child = os.fork()
    if not child:
        os.environ |= place | {"RANK": str(rank), "LOCAL_RANK": str(rank % 4)}
        with tracelens.record(f"{sys.argv[1]}/{rank}", wait=0, warmup=1, steps=1, ranks="hosts") as r:
            for _ in range(2):
                r.step()
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0
"""
WRITTEN = {0: ["rank0.json.gz", "run.json"], 1: [], 4: ["rank4.json.gz"]}


def test_a_launcher_without_torch_distributed(tmp_path: Path) -> None:
    """The first of each host's four ranks records, and the trace says which rank of how many it is."""
    command = [sys.executable, "-W", "error::UserWarning", "-c", LOOP, str(tmp_path), *map(str, WRITTEN)]
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2], env=environ, capture_output=True)
    for rank, written in WRITTEN.items():
        folder = tmp_path / str(rank)
        assert (files(folder) if folder.exists() else []) == written
        if written:
            told = read(folder / written[0])["distributedInfo"]
            assert told == {"backend": "none", "rank": rank, "world_size": 8}
    sidecar = json.loads((tmp_path / "0" / "run.json").read_text())
    assert sidecar["files"] == {"0": "rank0.json.gz", "4": "rank4.json.gz"}
    assert sidecar["rank_source"] == "RANK"
