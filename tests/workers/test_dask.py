"""A real Dask cluster, workers in processes of their own: the same tables as without it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tracelens
from tests.builders import events, write
from tests.workers.test_local import RANK, contents
from tracelens.errors import MissingExtra, TracelensError
from tracelens.workers import tasks


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The scheduler of a cluster of two workers."""
    distributed = pytest.importorskip("distributed", reason="the extra dask is not installed")
    # A worker that dies is started again, which takes seconds: usually a task may end three of them.
    with (
        pytest.importorskip("dask").config.set({"distributed.scheduler.allowed-failures": 1}),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, memory_limit=0
        ) as cluster,
    ):
        yield cluster.scheduler_address


@pytest.fixture
def ranks(tmp_path: Path) -> Path:
    """Five ranks, each a column later than the one before."""
    for rank in range(5):
        write(tmp_path / f"rank{rank}.json", events(RANK, start_ns=1000 * rank), rank=rank)
    return tmp_path


def test_the_same_as_without_a_cluster(address: str, ranks: Path) -> None:
    assert contents(tracelens.report_files(ranks, dask=address)) == contents(tracelens.report_files(ranks))


def test_one_file_goes_to_the_cluster_too(address: str, ranks: Path) -> None:
    report = tracelens.report_files(ranks / "rank3.json", names=["ops"], dask=address)
    assert report.meta["ranks"] == [3]


def test_errors_come_back_as_one_line(address: str, ranks: Path) -> None:
    (ranks / "rank1.json").write_text("{}")
    with pytest.raises(TracelensError, match=r"rank1\.json"):
        tracelens.report_files(ranks, dask=address)


def test_nobody_at_that_address(ranks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_CONNECT_S", 0.2)
    with pytest.raises(TracelensError, match=r"tcp://127\.0\.0\.1:1: no Dask scheduler answers"):
        tracelens.report_files(ranks, dask="tcp://127.0.0.1:1")


def test_a_cluster_without_workers(ranks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = pytest.importorskip("distributed", reason="the extra dask is not installed")
    monkeypatch.setattr(tasks, "_WORKERS_S", 0.5)
    with (
        distributed.LocalCluster(n_workers=0, dashboard_address=":0") as empty,
        pytest.raises(TracelensError, match=r"has had no worker for 0\.5 s"),
    ):
        tracelens.report_files(ranks, dask=empty.scheduler_address)


def test_a_file_that_kills_its_workers(
    address: str, ranks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "_answer", _die)
    with pytest.raises(TracelensError, match=r"rank\d\.json: every Dask worker that read this file died"):
        tracelens.report_files(ranks, dask=address)


def _die(task: object) -> bytes:
    """What the kernel does to a worker without memory left."""
    os._exit(1)


def test_without_the_library(ranks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingExtra, match=r"pip install 'tracelens-moe\[dask\]'"):
        tracelens.report_files(ranks, dask="tcp://127.0.0.1:1")
