"""Analyzer `kernel_lengths`: GPU time in short and in long kernels."""

import numpy as np

from tracelens.analysis import analyzer
from tracelens.rendering.figures import Figure, figure, needs, rank_bars
from tracelens.table import Column, Result, Schema, Skip, Table, result
from tracelens.trace import Run, Scope, gpu_work

LENGTHS = Schema(
    "Kernels by length",
    (
        Column("rank", "int64", doc="rank in the job"),
        Column("length", "str", doc="which kernels"),
        Column("kernels", "int64", "count", "kernels that ran"),
        Column("dur_ns", "int64", "ns", "sum of durations; streams may overlap"),
        Column("fraction_of_kernel_time", "float64", "fraction", "of the rank's"),
    ),
)


@analyzer(
    "kernel_lengths",
    title="Short and long kernels",
    order=55,
    tables={"lengths": LENGTHS},
)
def kernel_lengths(run: Run, *, scope: Scope = "all", limit_us: int = 10) -> Result:
    """How much GPU time is in kernels so short that launching them matters?"""
    rows, skips = [], []
    for trace in run.traces:
        rank, work = trace.meta.rank, gpu_work(trace, scope)
        dur_ns = work.dur[work.is_kernel]
        if not len(dur_ns):
            skips.append(Skip(f"rank {rank}", "no kernels in the trace"))
            continue
        short = dur_ns <= limit_us * 1000
        for length, mask in ((f"up to {limit_us} µs", short), ("longer", ~short)):
            part_ns = int(dur_ns[mask].sum())
            fraction = part_ns / max(int(dur_ns.sum()), 1)
            rows.append((rank, length, np.count_nonzero(mask), part_ns, fraction))
    tables = {"lengths": LENGTHS.from_rows(rows)} if rows else {}
    return result(tables, skips, scope=scope, limit_us=limit_us)


@figure("kernel_lengths")
@needs("lengths", "rank", "length", "dur_ns", "fraction_of_kernel_time")
def bars(lengths: Table) -> list[Figure]:
    """Table `lengths`: the kernel time of each rank."""
    return [rank_bars("Kernel time by length of the kernel", lengths, "length")]
