"""Eight ranks of a Megatron run against another tool's tables, and analyzed apart against together.

The other tool subtracts float microseconds of some 4e12, so its times are off by up to a nanosecond; its
"GB/s" are GiB/s.
"""

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import zstandard

import tracelens
from tests.conformance.corpus import Case, collective_params
from tracelens.table import Report
from tracelens.trace import WORK_KINDS

NOISE_NS = 2
EP4 = Path(__file__).parents[2] / "sample_traces/ladder/ep4/00_baseline"


tabulated = pytest.mark.parametrize("case", collective_params(), indirect=True)
"""Runs with the tables of another tool beside them."""


def reference(case: Case, name: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A table of the other tool, and our instances in the same order: matched by group, name and time."""
    theirs = pd.read_csv(case.path.with_name(case.path.name + "_collectives") / f"{name}.csv")
    first = theirs[[column for column in theirs.columns if column.endswith("_ts")]].min(axis=1)
    ours = case.result("collectives")["collectives"].set_index("ts_ns")
    place = [int(np.abs(ours.index - round(ts * 1000)).argmin()) for ts in first]
    assert len(set(place)) == len(place)
    found = ours.iloc[place].reset_index()
    assert (abs(found["ts_ns"] - (first * 1000).round()) <= NOISE_NS).all()
    assert found["collective"].astype(str).tolist() == theirs["Collective name"].tolist()
    assert found["group_name"].astype(str).tolist() == theirs["Process Group Name"].astype(str).tolist()
    return theirs, found


@tabulated
@pytest.mark.parametrize(
    ("name", "latency"),
    [("nccl_implicit_sync", "comm_latency"), ("nccl_all2allv", "min_rank_dur (us)")],
)
def test_latencies_and_skews(case: Case, name: str, latency: str) -> None:
    theirs, ours = reference(case, name)
    for column, other in (
        ("latency_ns", latency),
        ("start_skew_ns", "skew in start time"),
        ("end_skew_ns", "skew in end time"),
    ):
        assert abs(ours[column] - theirs[other] * 1000).max() <= NOISE_NS, column


@tabulated
def test_every_instance_is_in_one_of_their_tables(case: Case) -> None:
    counted = sum(len(reference(case, name)[0]) for name in ("nccl_implicit_sync", "nccl_all2allv"))
    assert counted == len(case.table("collectives", "collectives"))


@tabulated
def test_bandwidths(case: Case) -> None:
    """The same but for 2**30 against 10**9, and a nanosecond of latency."""
    theirs, ours = reference(case, "nccl_implicit_sync")
    for column, other in (("algbw_bytes_per_s", "algo bw (GB/s)"), ("busbw_bytes_per_s", "bus bw (GB/s)")):
        expected = theirs[other] * 2**30
        allowed = expected * NOISE_NS / (theirs["comm_latency"] * 1000)
        assert (abs(ours[column] - expected) <= allowed).all(), column


@tabulated
def test_throughput_of_exchanges(case: Case) -> None:
    theirs, ours = reference(case, "nccl_all2allv")
    table = case.table("collectives", "all_to_all")
    table = table.assign(group=table["group"].astype(str)).set_index(["group", "order"])
    found = table.loc[list(zip(ours["group"].astype(str), ours["order"], strict=True))]
    expected = theirs["throughput (GB/s)"].to_numpy() * 2**30
    allowed = expected * NOISE_NS / (theirs["wall_time (us)"].to_numpy() * 1000)
    assert (abs(found["throughput_bytes_per_s"].to_numpy() - expected) <= allowed).all()


def test_exchanges_are_consistent(case: Case) -> None:
    """What rank i says it sends to j is what j says it receives from i, in every exchange."""
    result = case.result("collectives")
    assert not [skip for skip in result.skips if skip.subject.startswith("traffic")]
    table = result["traffic"]
    assert table["sent_bytes"].tolist() == table["received_bytes"].tolist()


def test_waiting_and_communication_add_up(case: Case) -> None:
    """kernel = comm + sync, and kernel is the time of all communication kernels, to the nanosecond."""
    table = case.result("collectives")["ranks"].set_index("rank")
    matched = table[table["wait_ns"].notna()]
    assert (matched["kernel_ns"] == matched["comm_ns"] + matched["wait_ns"]).all()
    unknown = table[table["wait_ns"].isna()]
    assert (unknown["unmatched_ns"] == unknown["kernel_ns"]).all()
    assert (table[["comm_ns", "unmatched_ns"]] >= 0).all(axis=None)
    for rank, _, work in case.each():
        comm = work.kind == WORK_KINDS.index("comm")
        assert table["kernel_ns"].get(rank, 0) == int(work.dur[comm].sum())


def test_batched_sends_and_receives_have_their_kernels(corpus: Path) -> None:
    """Every kernel of a pipeline's messages is that of a batch, and none is left without a record."""
    for rank in (0, 4):
        run = tracelens.load(corpus / "nvidia-h200-megatron" / "pp2ep4" / f"rank{rank}.json.gz")
        table = run.traces[0].collectives
        between = table[table["collective"].isin(["send", "recv"])]
        assert len(between) == 16
        assert (between["kernel_id"] >= 0).all()
        # The first batch has a send or a receive alone, all others have one of each.
        assert between["kernel_id"].nunique() == 9


def test_what_is_waited_for_is_caused(case: Case) -> None:
    """The waiting of all instances is that of their last ranks' causing."""
    result = case.result("collectives")
    instances, ranks = result["collectives"], result["ranks"]
    assert ranks["last_arrivals"].clip(lower=0).sum() == len(instances)
    counted = instances.groupby("last_rank").size()
    for rank, count in counted.items():
        assert ranks.set_index("rank").loc[rank, "last_arrivals"] == count


def same(one: Report, other: Report) -> None:
    assert one.meta == other.meta
    for left, right in zip(one.results, other.results, strict=True):
        assert (left.analyzer, left.skips, left.meta) == (right.analyzer, right.skips, right.meta)
        assert list(left.data) == list(right.data)
        for name, table in left.data.items():
            for column in table.schema.columns:
                assert table.values(column.name) == right.data[name].values(column.name), (
                    f"{name}.{column.name}"
                )


def test_ranks_analyzed_apart_and_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACELENS_JOBS", "2")
    same(tracelens.report_files(EP4), tracelens.report(tracelens.load(EP4)))


HOSTS = 4
APART_NS = 3_000_017_000


def repeated(folder: Path) -> Path:
    """The four ranks of a run on each of four hosts, whose clocks are seconds apart."""
    for rank in range(4):
        text = (
            zstandard.ZstdDecompressor()
            .decompressobj()
            .decompress((EP4 / f"rank{rank}.json.zst").read_bytes())
        )
        found = re.search(rb'"baseTimeNanoseconds": (\d+)', text)
        assert found
        for host in range(HOSTS):
            here = [str(4 * host + other) for other in range(4)]
            changed = text.replace(b"[0, 1, 2, 3]", f"[{', '.join(here)}]".encode())
            changed = re.sub(
                rb'("distributedInfo": \{[^}]*"rank": )\d+', rb"\g<1>%d" % (4 * host + rank), changed
            )
            changed = re.sub(rb'("world_size": )\d+', rb"\g<1>%d" % (4 * HOSTS), changed)
            base = int(found[1]) + host * APART_NS
            changed = changed.replace(found[0], b'"baseTimeNanoseconds": %d' % base)
            (folder / f"rank{4 * host + rank}.json").write_bytes(changed)
    return folder


@pytest.mark.rare
def test_ranks_of_several_hosts_on_a_cluster(tmp_path: Path) -> None:
    """The same tables as without the cluster, and on each host those of its ranks."""
    distributed = pytest.importorskip("distributed", reason="the extra dask is not installed")
    folder = repeated(tmp_path)
    names = ["timeline", "kernels", "collectives", "stragglers"]
    cluster = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, memory_limit=0
    )
    with cluster:
        on_workers = tracelens.report_files(folder, names=names, dask=cluster.scheduler_address)
    here = tracelens.report_files(folder, names=names)
    same(on_workers, here)
    assert here.meta["ranks"] == list(range(4 * HOSTS))
    found = next(result for result in here.results if result.analyzer == "collectives")
    of_one_host = tracelens.analyze(tracelens.load(EP4), "collectives")["collectives"]
    expected = Counter(HOSTS * of_one_host["latency_ns"].tolist())
    assert Counter(found["collectives"]["latency_ns"].tolist()) == expected
