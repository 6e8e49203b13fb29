"""Each rank's share of a collective, and what of its waiting nothing else hides. A column is 1 us."""

from __future__ import annotations

from tests.analysis.comm.test_collectives import comm
from tests.builders import draw, draw_run, records
from tracelens import analyze
from tracelens.trace import make_run

BESIDE = "s7 gemm    |        ===="


def lost(*ranks: str) -> list[tuple[int, ...]]:
    """Rank, whom it waits for, start and length of each piece in us."""
    rows = records(
        analyze(draw_run(*ranks), "stragglers")["lost"], "rank", "late_rank", "local_ts_ns", "dur_ns"
    )
    return [(rank, late, start // 1000, dur // 1000) for rank, late, start, dur in rows]


def test_members() -> None:
    # Rank 0 arrives at 5, rank 1 at 9; the data moves until 15, on rank 0 beside a kernel from 7 to 11.
    result = analyze(draw_run(comm("     aaaaaaaaaa", more=BESIDE), comm("         aaaaaa")), "collectives")
    columns = ("rank", "host", "group", "first_rank", "bytes", "group_size", "kernel")
    assert records(result["participants"], *columns) == [
        (rank, "", "ranks 0-1", 0, 100, 2, "ncclDevKernel_AllReduce") for rank in (0, 1)
    ]
    columns = ("local_ts_ns", "ts_ns", "dur_ns", "wait_ns", "exposed_ns")
    assert records(result["participants"], *columns) == [
        (5_000, 5_000, 10_000, 4_000, 4_000),
        (9_000, 9_000, 6_000, 0, 6_000),
    ]


def test_members_by_the_clock_of_the_trace_and_of_the_first_rank() -> None:
    run = make_run(
        draw(comm(line), rank=rank, start_ns=start, host_name=host)
        for rank, line, start, host in (
            (0, "     aaaaaaaaaa", 0, "a"),
            (1, "         aaaaaa", 7_000_000, "b"),
        )
    )
    table = analyze(run, "collectives")["participants"]
    assert records(table, "host", "local_ts_ns", "ts_ns", "wait_ns") == [
        ("a", 5_000, 5_000, 4_000),
        ("b", 7_009_000, 9_000, 0),
    ]


def test_waiting_is_lost() -> None:
    assert lost(comm("     aaaaaaaaaa"), comm("         aaaaaa")) == [(0, 1, 5, 4)]


def test_waiting_beside_computation_is_not_lost() -> None:
    # Of 5 to 14 the kernel hides 7 to 11.
    ranks = comm("     aaaaaaaaaaaaaa", more=BESIDE), comm("              aaaaa")
    assert lost(*ranks) == [(0, 1, 5, 2), (0, 1, 11, 3)]


def test_waiting_beside_moving_data_is_not_lost() -> None:
    # On another stream a kernel without a record moves data from 7 to 11.
    more = "s5 ncclDevKernel_SendRecv   |        ===="
    ranks = comm("     aaaaaaaaaaaaaa", more=more), comm("              aaaaa")
    assert lost(*ranks) == [(0, 1, 5, 2), (0, 1, 11, 3)]


def test_two_kernels_that_wait_at_once_lose_the_time_once() -> None:
    record = "op record_param_comms collective=allreduce group=5 ranks=[0,1] size=2 in=50 out=50 dtype=Half"

    def rank(first: str, second: str) -> str:
        more = f"""
        {record} |     -
        launch      |     x
        s5 ncclDevKernel_AllReduce | {second}"""
        return comm(first, more=more)

    rows = lost(
        rank("     aaaaaaaaaaaaaa", "       xxxxxxxxxxxxx"),
        rank("              aaaaa", "                 xxx"),
    )
    # The first waits from 5 to 14, the second from 7 to 17; from 14 on data moves, until 19.
    assert rows == [(0, 1, 5, 9)]
