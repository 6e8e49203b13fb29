"""Collectives across hand-drawn ranks: who waited for whom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.builders import aligned, draw, draw_run, records
from tracelens import analyze, report
from tracelens.table import Result
from tracelens.trace import make_run

ALLREDUCE = (
    "op record_param_comms collective=allreduce group=0 ranks={ranks} size={size} in=50 out=50 dtype=Half"
)


def comm(kernels: str, *, record: str = "", size: int = 2, gpu: int = 0, more: str = "") -> str:
    """A rank with one collective a letter in `kernels`, asked for at the left."""
    letters = "".join(dict.fromkeys(letter for letter in kernels if letter.isalnum()))
    ranks = str(list(range(size))).replace(" ", "")
    what = record or ALLREDUCE.format(ranks=ranks, size=size)
    calls = "".join(f"{letter} " for letter in letters)
    return aligned(f"""
        {what}      | {"- " * len(letters)}
        launch      | {calls}
        s9 ncclDevKernel_AllReduce device={gpu} | {kernels}
        {more}
    """)


def collectives(ranks: Sequence[str], **options: Any) -> Result:
    return analyze(draw_run(*ranks), "collectives", **options)


def test_the_last_rank_waits_for_nobody() -> None:
    result = collectives(
        [
            comm("     aaaaaaaaaa"),
            comm("         aaaaaa"),
            comm("          aaaa "),
        ]
    )
    columns = ("collective", "ranks", "bytes", "latency_ns", "start_skew_ns", "end_skew_ns", "last_rank")
    assert records(result["collectives"], *columns) == [("allreduce", 3, 100, 4000, 5000, 1000, 2)]
    rows = records(
        result["ranks"], "rank", "kernel_ns", "comm_ns", "wait_ns", "last_arrivals", "others_wait_ns"
    )
    # Rank 2 arrives at 10: rank 0 has waited 5 by then, rank 1 one.
    assert rows == [
        (0, 10_000, 5_000, 5_000, 0, 0),
        (1, 6_000, 5_000, 1_000, 0, 0),
        (2, 4_000, 4_000, 0, 1, 6_000),
    ]


def test_a_wait_is_no_longer_than_the_kernel() -> None:
    """A kernel that ends before the last rank has arrived waited for something else, or its clock is off."""
    result = collectives([comm("    aa"), comm("          aaaa")])
    assert records(result["ranks"], "kernel_ns", "comm_ns", "wait_ns") == [(2000, 0, 2000), (4000, 4000, 0)]


def test_bandwidths() -> None:
    (row,) = records(
        collectives([comm("    aaaa"), comm("    aaaa")])["collectives"],
        "algbw_bytes_per_s",
        "busbw_bytes_per_s",
    )
    # 100 bytes in 4 us; an all-reduce over 2 ranks moves 2 x 1/2 of them.
    assert row == pytest.approx((25e6, 25e6))


@pytest.mark.parametrize(
    ("name", "size", "factor"),
    [
        ("allreduce", 4, 1.5),
        ("_allgather_base", 4, 0.75),
        ("reduce_scatter_tensor_coalesced", 8, 0.875),
        ("all_to_allv", 8, 0.875),
        ("broadcast", 8, 1),
        ("reduce", 8, 1),
        ("send/recv", 2, 1),
        ("allreduce", 1, 1),
    ],
)
def test_bus_bandwidth_by_the_conventions_of_nccl_tests(name: str, size: int, factor: float) -> None:
    from tracelens.devices import bus_factor

    assert bus_factor(name, size) == factor


def test_instances_follow_one_another() -> None:
    result = collectives([comm("      aaaa   bb"), comm("       aaa  bbb")])
    assert records(result["collectives"], "order", "last_rank", "latency_ns") == [(0, 1, 3000), (1, 0, 2000)]
    assert records(result["ranks"], "wait_ns") == [(1000,), (1000,)]


def test_a_recording_that_begins_later_is_shifted() -> None:
    """Rank 1 has not recorded the first collective: its first one is everybody's second."""
    result = collectives([comm("        aaaa   bb    cc"), comm("               bbb   cc")])
    assert records(result["collectives"], "order", "ranks", "latency_ns", "end_skew_ns") == [
        (1, 2, 2000, 1000),
        (2, 2, 2000, 0),
    ]


def test_ranks_that_disagree_are_told_and_not_paired() -> None:
    other = "op record_param_comms collective=broadcast group=0 ranks=[0,1] size=2 in=50 out=50 dtype=Half"
    result = collectives([comm("    aaa"), comm("    aaa", record=other)])
    assert len(result["collectives"]) == 0
    (skip,) = (skip for skip in result.skips if "disagree" in skip.reason)
    assert "rank 0 allreduce Half 100 bytes; rank 1 broadcast Half 100 bytes" in skip.reason
    # What cannot be compared counts as communication, and is said to.
    assert records(result["ranks"], "comm_ns", "wait_ns", "unmatched_ns") == [(3000, None, 3000)] * 2


def test_one_rank_alone_gives_no_split() -> None:
    result = collectives([comm("    aaa", size=8)])
    assert records(result["ranks"], "kernel_ns", "comm_ns", "wait_ns", "unmatched_ns") == [
        (3000, 3000, None, 3000)
    ]
    assert records(result["ranks"], "wait_fraction", "last_arrivals", "others_wait_ns") == [
        (None, None, None)
    ]
    assert not len(result["clocks"])
    assert any("waiting needs at least two" in skip.reason for skip in result.skips)


def test_ranks_without_communication_are_named() -> None:
    result = collectives([comm("    aaa"), comm("    aaa"), "s7 gemm | ==="])
    assert ("rank 2", "no communication kernel in the trace") in [
        (skip.subject, skip.reason) for skip in result.skips
    ]
    assert records(result["ranks"], "kernel_ns") == [(3000,), (3000,)]


def test_groups_of_which_ranks_are_missing_are_told() -> None:
    result = collectives([comm("    aaa", size=4), comm("     aa", size=4)])
    assert records(result["collectives"], "ranks", "group_size") == [(2, 4)]
    assert any("some ranks of the group are not in the run" in skip.reason for skip in result.skips)


def test_kernels_without_a_record_are_told() -> None:
    bare = "s9 ncclDevKernel_AllReduce | ==="
    result = collectives([bare, bare])
    assert records(result["ranks"], "kernel_ns", "comm_ns", "unmatched_ns") == [(3000, 3000, 3000)] * 2
    assert {skip.reason for skip in result.skips} == {"the trace does not record their group, size and order"}


def test_exposed_communication() -> None:
    result = collectives([comm("    aaaaaa", more="s7 gemm | ======"), comm("    aaaaaa")])
    assert records(result["ranks"], "exposed_ns") == [(4000,), (6000,)]


def test_sends_meet_their_receives() -> None:
    def p2p(what: str, kernels: str) -> str:
        arguments = "group=3 ranks=[0,1] size=2 in=50 out=50 dtype=Half"
        return comm(kernels, record=f"op record_param_comms collective={what} {arguments}")

    result = collectives([p2p("send", "      aa  bbb"), p2p("recv", "  aaaaaa   bb")])
    columns = (
        "collective",
        "order",
        "ranks",
        "latency_ns",
        "start_skew_ns",
        "last_rank",
        "busbw_bytes_per_s",
    )
    rows = records(result["collectives"], *columns)
    assert [row[:-1] for row in rows] == [
        ("send/recv", 0, 2, 2000, 4000, 0),
        ("send/recv", 1, 2, 2000, 1000, 1),
    ]
    assert [row[-1] for row in rows] == pytest.approx([50e6, 50e6])


def test_a_batch_of_sends_and_receives_has_one_kernel() -> None:
    """The kernel of a batch is launched in the region that closes it."""

    def batch(kernel: str) -> str:
        return aligned(f"""
            op record_param_comms collective=send group=3 ranks=[0,1] size=2 in=50 out=50 dtype=Half | -
            op record_param_comms collective=recv group=3 ranks=[0,1] size=2 in=50 out=50 dtype=Half |  -
            scope nccl:coalesced | {"  ---"}
            launch               | {"   a"}
            s9 ncclDevKernel_SendRecv | {kernel}
        """)

    result = collectives([batch("     aaaaaa"), batch("        aaa")])
    assert records(result["collectives"], "collective", "last_rank") == [("send/recv", 1)] * 2
    # One kernel in two pairs counts once.
    assert records(result["ranks"], "kernel_ns", "comm_ns", "wait_ns") == [
        (6000, 3000, 3000),
        (3000, 3000, 0),
    ]
    assert result["ranks"]["others_wait_ns"].tolist() == [0, 3000]


def test_peers_in_larger_groups_are_not_known() -> None:
    record = "op record_param_comms collective=send group=3 ranks=[0,1,2] size=3 in=5 out=5 dtype=Half"
    result = collectives([comm("   aa", record=record), comm("   aa", record=record)])
    assert any("the peer rank is not recorded" in skip.reason for skip in result.skips)


def test_clocks_of_other_hosts_are_set_right() -> None:
    """Ranks 2 and 3 stand on a host whose clock is a second ahead."""
    near = [comm("     aaaa    bb"), comm("      aaa    bb")]
    far = [comm("      aaa   bbb"), comm("     aaaa    bb")]
    traces = [draw(text, rank=rank) for rank, text in enumerate(near)]
    traces += [draw(text, rank=rank + 2, start_ns=1_000_000_000) for rank, text in enumerate(far)]
    result = analyze(make_run(traces), "collectives")
    assert records(result["clocks"], "rank", "host", "offset_ns", "residual_ns") == [
        (0, 0, 0, 0),
        (1, 0, 0, 0),
        (2, 1, 1_000_000_000, 0),
        (3, 1, 1_000_000_000, 0),
    ]
    assert records(result["collectives"], "start_skew_ns", "end_skew_ns", "latency_ns") == [
        (1000, 0, 3000),
        (1000, 0, 2000),
    ]
    assert records(result["ranks"], "wait_ns") == [(1000,), (0,), (1000,), (1000,)]


@pytest.mark.parametrize(("gpus", "hosts"), [((0, 1, 2), (0, 0, 0)), ((0, 1, 0), (0, 0, 1))])
def test_a_machine_has_each_gpu_once(gpus: tuple[int, ...], hosts: tuple[int, ...]) -> None:
    """A clock that is off alone is no other machine, unless the rank has a GPU that another one has."""
    texts = [comm("     aaaa    bb", size=3, gpu=gpu) for gpu in gpus]
    traces = [
        draw(text, rank=rank, start_ns=start)
        for rank, (text, start) in enumerate(zip(texts, (0, 0, 40_000), strict=True))
    ]
    result = analyze(make_run(traces), "collectives")
    assert records(result["clocks"], "host", "offset_ns") == [*zip(hosts, (0, 0, 40_000), strict=True)]


def test_offsets_are_exact_since_1970() -> None:
    now = 1_790_000_000_000_000_001
    texts = [comm("     aaaa    bb"), comm("     aaaa    bb")]
    traces = [draw(text, rank=rank, start_ns=now + 77_001 * rank) for rank, text in enumerate(texts)]
    result = analyze(make_run(traces), "collectives")
    assert records(result["clocks"], "offset_ns", "residual_ns") == [(0, 0), (77_001, 0)]
    assert records(result["collectives"], "start_skew_ns", "end_skew_ns") == [(0, 0), (0, 0)]


def test_ranks_of_one_host_keep_their_clock() -> None:
    """Ends that differ by microseconds are no reason to move anything."""
    result = collectives([comm("   aaaa    bb"), comm("   aaaaa   bbb")])
    assert records(result["clocks"], "offset_ns") == [(0,), (0,)]
    assert records(result["collectives"], "end_skew_ns") == [(1000,), (1000,)]


def exchange(rank: int, sent: list[int], received: list[int]) -> str:
    def text(numbers: list[int]) -> str:
        return str(numbers).replace(" ", "")

    record = (
        "op record_param_comms collective=all_to_allv group=7 ranks=[0,1] size=2 dtype=Half "
        f"in={8 * sum(sent)} out={8 * sum(received)} insplit={text(sent)} outsplit={text(received)}"
    )
    return comm("    aaaa" if rank else "   aaaaa", record=record)


def test_traffic_of_uneven_exchanges() -> None:
    """Rows of 8 elements of 2 bytes: rank 0 keeps 1 and sends 2, rank 1 sends 3 and keeps 4."""
    result = collectives([exchange(0, [1, 2], [1, 3]), exchange(1, [3, 4], [2, 4])])
    assert records(result["traffic"], "from_rank", "to_rank", "sent_bytes", "received_bytes") == [
        (0, 0, 16, 16),
        (0, 1, 32, 32),
        (1, 0, 48, 48),
        (1, 1, 64, 64),
    ]
    (row,) = records(result["all_to_all"], "bytes", "wall_ns", "largest_rank", "imbalance")
    assert row == (160, 5000, 1, pytest.approx(96 / 80))
    assert not any("traffic" in skip.subject for skip in result.skips)


def test_traffic_on_which_ranks_disagree_is_told() -> None:
    result = collectives([exchange(0, [1, 2], [1, 3]), exchange(1, [3, 4], [5, 4])])
    assert any("sent and received bytes disagree" in skip.reason for skip in result.skips)


def test_latency_and_bandwidth_are_fitted() -> None:
    """10 us + 1 ns a byte."""

    def rank() -> str:
        parts = []
        for letter, size, start in (("a", 1000, 10), ("b", 2000, 40), ("c", 5000, 70)):
            call = f"{' ' * (start - 8)}{letter}"
            arguments = f"group=0 ranks=[0,1] size=2 in={size} out={size} dtype=Byte"
            parts.append(f"""
                op record_param_comms collective=allreduce {arguments} | {" " * (start - 8)}-
                launch                     | {call}
                s9 ncclDevKernel_AllReduce | {" " * start}{letter * (10 + size // 1000)}
            """)
        return aligned("".join(parts))

    (row,) = records(collectives([rank(), rank()])["fit"], "alpha_ns", "beta_bytes_per_s", "residual_ns")
    assert row[:2] == pytest.approx((10_000, 1e9))
    assert row[2] == pytest.approx(0, abs=1e-6)


def test_one_step_only() -> None:
    steps = "step 1 | --\n        step 2 |   ---"
    run = draw_run(comm("      aaaa   bb", more=steps), comm("       aaa  bbb", more=steps))
    whole = analyze(run, "collectives")
    assert records(whole["collectives"], "step") == [("ProfilerStep#1",), ("ProfilerStep#2",)]
    (second,) = report(run, ["collectives"], step="2").results
    assert records(second["collectives"], "latency_ns") == [(2000,)]
    assert records(second["ranks"], "kernel_ns") == [(2000,), (3000,)]


CUSTOM = """
    op _C_custom_ar::all_reduce shapes=[[],[50],[50]] types=["Scalar","c10::Half","c10::Half"] \
values=["7","",""] | ---   ---
    launch      |  a     b
    s9 vllm::cross_device_reduce_2stage<__hip_bfloat16,{ranks}> | {kernels}
"""


def custom(*kernels: str, ranks: int = 2, world: int = 2) -> Result:
    """A run whose all-reduces are vLLM's own, which the profiler does not record."""
    drawings = [aligned(CUSTOM.format(ranks=ranks, kernels=row).replace("\\\n", "")) for row in kernels]
    traces = [
        draw(text, distributedInfo={"backend": "nccl", "rank": rank, "world_size": world})
        for rank, text in enumerate(drawings)
    ]
    return analyze(make_run(traces), "collectives")


def test_all_reduces_of_a_library_are_split_like_others() -> None:
    result = custom("   aaaaaaa     bbb", "       aaa   bbbbb")
    columns = ("collective", "group_name", "order", "bytes", "group_size", "last_rank", "latency_ns")
    assert records(result["collectives"], *columns) == [
        ("allreduce", "_C_custom_ar", 0, 100, 2, 1, 3000),
        ("allreduce", "_C_custom_ar", 1, 100, 2, 0, 3000),
    ]
    rows = records(result["ranks"], "kernel_ns", "comm_ns", "wait_ns", "unmatched_ns")
    assert rows == [(10_000, 6_000, 4_000, 0), (8_000, 6_000, 2_000, 0)]
    assert not [skip for skip in result.skips if "does not record" in skip.reason]


def test_a_library_group_that_is_not_all_of_the_job_is_left_alone() -> None:
    """Which of 4 ranks reduce in pairs stands nowhere in the trace."""
    for ranks, world in ((2, 4), (4, 2)):
        result = custom("   aaaaaaa     bbb", "       aaa   bbbbb", ranks=ranks, world=world)
        assert len(result["collectives"]) == 0
        assert [skip for skip in result.skips if "does not record their group" in skip.reason]
