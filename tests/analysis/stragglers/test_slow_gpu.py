"""A rank whose GPU is slow at equal work, as clocks and recorders write it: drawn by rule, not by column.

Four ranks run the same layers: GEMMs, then an all-reduce that all wait for. The host is far ahead.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from tests.builders import read
from tracelens import analyze
from tracelens.trace import Run, make_run

RANKS, LAYERS, GEMMS, GEMM_NS, TRANSFER_NS = 4, 4, 6, 100_000, 20_000
SLOW = 2
ARGUMENTS = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]}
MESSAGE = {
    "Collective name": "allreduce", "In msg nelems": 8, "Out msg nelems": 8, "Group size": RANKS,
    "dtype": "Float", "Process Group Name": "0", "Process Group Ranks": str([*range(RANKS)]),
}  # fmt: skip


def drawn(steps: int, factor: float, tick_ns: int, overlap_ns: int, comm_stream: int) -> Run:
    """The run; `overlap_ns` is how long before a collective's recorded end the next kernel seems to begin."""
    events: list[list[dict[str, Any]]] = [[] for _ in range(RANKS)]
    correlation = 0

    def put(rank: int, start: int, end: int, **event: Any) -> None:
        start, end = (round(time / tick_ns) * tick_ns for time in (start, end))
        events[rank].append({"ph": "X", "ts": start / 1000, "dur": (end - start) / 1000, **event})

    def launch(
        rank: int, name: str, args: dict[str, Any], kernel: str, stream: int, start: int, end: int
    ) -> None:
        nonlocal correlation, host_ns
        correlation += 1
        put(rank, host_ns, host_ns + 900, cat="cpu_op", name=name, pid=1, tid=1, args=args)
        call = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1}
        put(rank, host_ns + 100, host_ns + 800, **call, args={"correlation": correlation})
        work = {"cat": "kernel", "name": kernel, "pid": 0, "tid": stream}
        put(rank, start, end, **work, args={"correlation": correlation, "device": 0, "stream": stream})
        host_ns += 1000

    at_ns = [50_000] * RANKS  # when each GPU is ready for its next kernel
    host_ns = 0
    for step in range(steps):
        begin_ns = host_ns
        of_step: list[int] = []
        for _ in range(LAYERS):
            launched_ns = host_ns
            for rank in range(RANKS):
                host_ns = launched_ns
                for _ in range(GEMMS):
                    dur = round(GEMM_NS * (factor if rank == SLOW else 1))
                    launch(rank, "aten::mm", ARGUMENTS, "gemm", 7, at_ns[rank], at_ns[rank] + dur)
                    at_ns[rank] += dur + 1_000
                of_step.append(host_ns)
            met_ns = max(at_ns)
            gemms_ns = host_ns
            for rank in range(RANKS):
                host_ns = gemms_ns
                end = met_ns + TRANSFER_NS
                launch(rank, "record_param_comms", MESSAGE, "nccl_AllReduce", comm_stream, at_ns[rank], end)
                at_ns[rank] = end - overlap_ns
        for rank in range(RANKS):
            put(rank, begin_ns, host_ns, cat="user_annotation", name=f"ProfilerStep#{step}", pid=1, tid=1)
    return make_run(read(of_rank, rank=rank) for rank, of_rank in enumerate(events))


def causes(run: Run) -> pd.DataFrame:
    return analyze(run, "stragglers")["causes"]


@pytest.mark.parametrize(("factor", "steps"), [(1.5, 5), (2.4, 2)])
@pytest.mark.parametrize("comm_stream", [7, 9])
@pytest.mark.parametrize(("tick_ns", "overlap_ns"), [(1, 0), (1, 1), (1000, 0), (1000, 1000)])
def test_a_slow_gpu_stands_out(
    factor: float, steps: int, comm_stream: int, tick_ns: int, overlap_ns: int
) -> None:
    first = causes(drawn(steps, factor, tick_ns, overlap_ns, comm_stream)).iloc[0]
    assert (first["rank"], first["cause"], first["significance"]) == (SLOW, "slow_kernels", "significant")
    lost = LAYERS * GEMMS * GEMM_NS * (factor - 1)
    assert first["excess_ns"] == pytest.approx(lost, rel=0.02)


@pytest.mark.parametrize("tick_ns", [1, 1000])
def test_equal_gpus_do_not(tick_ns: int) -> None:
    assert "significant" not in set(causes(drawn(5, 1.0, tick_ns, 1, 7))["significance"])


def test_equal_calls_of_all_ranks() -> None:
    table = analyze(drawn(2, 2.4, 1, 0, 9), "stragglers")["equal"]
    assert table["rank"].tolist() == [0, 1, 2, 3]
    assert set(table["gpu_calls"]) == {2 * LAYERS * GEMMS}
    assert table["gpu_ratio"].tolist() == pytest.approx([1, 1, 2.4, 1], rel=0.01)
    assert table["host_ratio"].tolist() == pytest.approx([1, 1, 1, 1])
