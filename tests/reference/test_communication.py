"""Waiting and transfer from the JSON: by hand, by another tool's table, and by tracelens."""

import csv
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.effort import effort
from tests.reference.communication import Communication, communication
from tests.reference.compared import results
from tests.reference.raw import files, read
from tests.reference.traces import EP8, INTERLEAVED, PLAIN, PP2EP4, PP2VPP2EP4, path_of

MS = 1_000_000
# The largest run has the collectives of the one and the messages of the other.
RUNS = [PP2VPP2EP4, PLAIN, INTERLEAVED, *effort((), (EP8, PP2EP4))]


@cache
def reference(path: Path) -> Communication:
    return communication([read(file) for file in files(path)])


def test_stages_of_an_interleaved_pipeline_wait_for_each_other() -> None:
    split = reference(path_of(PP2VPP2EP4)).split
    assert round(split[0].sync_ns / MS, 1) == 280.1
    assert round(split[0].transfer_ns / MS, 1) == 14.1
    caused = [split[rank].caused_ns / MS for rank in range(4, 8)]
    assert (round(min(caused)), round(max(caused))) == (258, 287)


@pytest.mark.parametrize("name", RUNS)
def test_every_message_has_its_counterpart(name: str) -> None:
    """Also those of a group of eight ranks, through which Megatron sends one of the two ways."""
    for instance in reference(path_of(name)).instances:
        if instance.is_message:
            assert len(instance.parts) == 2
            assert {part.record["Collective name"] for part in instance.parts} == {"send", "recv"}
    for split in reference(path_of(name)).split.values():
        assert split.sync_ns + split.transfer_ns == split.kernel_ns
        assert 0 <= split.unmatched_ns <= split.transfer_ns


@pytest.mark.parametrize("name", RUNS)
def test_ranks_of_one_host_share_a_clock(name: str) -> None:
    assert set(reference(path_of(name)).offsets.values()) == {0}


@pytest.mark.parametrize("name", RUNS)
def test_tracelens_splits_alike(name: str) -> None:
    table = results(path_of(name))["collectives"]["ranks"]
    columns = ["kernel_ns", "comm_ns", "wait_ns", "unmatched_ns", "last_arrivals", "others_wait_ns"]
    found = dict(zip(table["rank"].tolist(), table[columns].to_numpy().tolist(), strict=True))
    assert found == {
        rank: [
            split.kernel_ns,
            split.transfer_ns,
            split.sync_ns,
            split.unmatched_ns,
            split.last_arrivals,
            split.caused_ns,
        ]
        for rank, split in reference(path_of(name)).split.items()
    }


def another_tools_rows(path: Path) -> Iterator[tuple[dict[int, int], dict[str, str]]]:
    """(start by rank in ns, row) of every collective in the table beside the traces."""
    with (path / "another_tool_nccl_implicit_sync.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            ranks = json.loads(row["Process Group Ranks"])
            yield {rank: round(float(row[f"rank_{rank}_ts"]) * 1000) for rank in ranks}, row


def test_latency_and_skew_by_another_tool() -> None:
    path = path_of(PP2VPP2EP4)
    instances = reference(path).instances
    by_start = {
        (part.rank, part.start): number for number, item in enumerate(instances) for part in item.parts
    }
    rows = list(another_tools_rows(path))
    assert rows
    for starts, row in rows:
        # The tool reads times as doubles, a quarter of a microsecond apart.
        numbers = {nearest(by_start, rank, start) for rank, start in starts.items()}
        assert len(numbers) == 1
        instance = instances[numbers.pop()]
        assert abs(instance.latency - float(row["comm_latency"]) * 1000) < 1
        assert abs(instance.start_skew - float(row["skew in start time"]) * 1000) < 2_000
        assert abs(instance.end_skew - float(row["skew in end time"]) * 1000) < 2_000


def nearest(by_start: dict[tuple[int, int], int], rank: int, start: int) -> int:
    return next(by_start[rank, time] for time in range(start - 500, start + 501) if (rank, time) in by_start)
