"""How the ranks of a run on one machine find each other."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

pytest.importorskip("torch", reason="the extra workload is not installed")

from tracelens.workload.launch import joined, on_ranks, own_device, rendezvous


class Quiet(NamedTuple):
    """A job that trains nothing."""

    device: str = "cpu"


def listening(rank: int, local_rank: int, job: Quiet) -> set[str]:
    """The addresses at which a rank that has joined the others listens."""
    import torch
    import torch.distributed as dist

    with joined(rank, 2, own_device(local_rank, job.device)):
        dist.all_reduce(torch.ones(1))
        connections = psutil.Process().net_connections("tcp")
    return {each.laddr.ip for each in connections if each.status == psutil.CONN_LISTEN}


def test_ranks_listen_on_this_machine_only() -> None:
    addresses = on_ranks(2, listening, Quiet())
    assert len(addresses) == 2
    assert set.union(*addresses) == {"127.0.0.1"}  # gloo's; a TCPStore would add 0.0.0.0


def test_the_place_where_they_meet_is_this_users_alone() -> None:
    with rendezvous() as first, rendezvous() as second:
        folder = Path(first.removeprefix("file://")).parent
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert first != second
    assert not folder.exists()
