"""The bubble of a pipeline by its closed forms, before a run.

With PP stages, GA micro-batches a step and VPP chunks of the model on each stage, all passes alike and
messages free, each stage is idle for the time of (PP - 1) / VPP micro-batches (arXiv:2104.04473, section
2.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from tracelens.errors import TracelensError
from tracelens.planner.config import at_least_one
from tracelens.registry import purpose
from tracelens.table import Column, Result, Schema, Skip, Table

CONVENTIONS = ("of the whole time", "of the ideal time (Megatron-LM)")
"""How a bubble is told: as a share of the pipeline's time with it, or without it."""

BUBBLE = Schema(
    "Bubble",
    (
        Column("convention", "category"),
        Column("numbers", "str", doc="its formula with numbers"),
        Column("fraction", "float64", "ratio", "idle time of each stage; of the ideal time it may exceed 1"),
    ),
    doc="(PP - 1) / (PP - 1 + GA VPP) of the whole time, (PP - 1) / (GA VPP) of the ideal time. All passes "
    "of a phase take the same time, and messages none.",
)
BY_CHUNKS = Schema(
    "Bubble by chunks",
    (
        Column("vpp", "int64", "count", "chunks of the model on each stage; one: no interleaving"),
        Column("whole_fraction", "float64", "fraction", "of the whole time"),
        Column("ideal_ratio", "float64", "ratio", "of the ideal time"),
        Column(
            "in_flight", "int64", "count", "chunks of micro-batches whose activations the first stage holds"
        ),
        Column("in_flight_share", "float64", doc="the same in micro-batches, as shares of all its chunks"),
    ),
    doc="More chunks a stage make the bubble shorter, and need more messages and memory.",
)
PUBLISHED = Schema(
    "Bubble as published",
    (
        Column("vpp", "int64", "count"),
        Column("measured_fraction", "float64", "fraction", "of the whole time, read off a chart"),
        Column("source", "str"),
    ),
    doc="Another group's measurement with these very numbers.",
)

_MOST_CHUNKS = 8
_MOST_VPP = 1000
_SOURCE = "AMD, MoE training best practices on AMD GPUs (ROCm blog), figure 10: 64 nodes of MI300X"
_MEASURED = {1: 0.544, 3: 0.244, 6: 0.145}


@dataclass(frozen=True)
class Batch:
    """The numbers that a bubble depends on.

    Attributes:
        pp: stages.
        global_tokens: of a step on all ranks.
        seq: tokens of a sequence.
        nodes: machines.
        mbs: sequences of a micro-batch.
        gpus_per_node: of each machine.
        cp: ranks that share a sequence.
        tp: ranks that share each matrix.
    """

    pp: int
    global_tokens: int
    seq: int
    nodes: int
    mbs: int = 1
    gpus_per_node: int = 8
    cp: int = 1
    tp: int = 1

    def __post_init__(self) -> None:
        """Raise TracelensError for what cannot be."""
        at_least_one(self, ("pp", "global_tokens", "seq", "nodes", "mbs", "gpus_per_node", "cp", "tp"))
        inner = self.pp * self.cp * self.tp
        if self.gpus % inner:
            raise TracelensError(f"{self.gpus} GPUs are no multiple of pp x cp x tp = {inner}")
        if self.global_tokens % (whole := self.seq * self.mbs * self.dp):
            lower = self.global_tokens // whole * whole
            near = f"{lower} or {lower + whole}" if lower else f"{whole}"
            raise TracelensError(
                f"{self.global_tokens} tokens are no whole number of micro-batches of "
                f"{self.mbs} x {self.seq} tokens on {self.dp} data-parallel ranks; give {near}"
            )

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def dp(self) -> int:
        return self.gpus // (self.pp * self.cp * self.tp)

    @property
    def microbatches(self) -> int:
        """GA: micro-batches of a step on each data-parallel rank."""
        return self.global_tokens // (self.seq * self.mbs * self.dp)


def bubble(batch: Batch, vpp: int = 1) -> Result:
    """How much of its time does a pipeline stand idle, by the closed forms?

    Args:
        batch: stages and micro-batches.
        vpp: chunks of the model on each stage.

    Returns:
        tables `bubble` (one row a convention), `by_vpp` and, for the numbers of a published measurement,
        `published`. meta: the numbers, GA among them.

    Raises:
        TracelensError: `vpp` is below 1, above 1 without a pipeline, or more than any model has layers for.
    """
    most = _MOST_VPP if batch.pp > 1 else 1
    if not 1 <= vpp <= most:
        raise TracelensError(f"vpp must be 1 to {_MOST_VPP}, and 1 without a pipeline (pp=1), not {vpp}")
    count = batch.microbatches
    tables = {"bubble": _conventions(batch.pp, count, vpp), "by_vpp": _by_chunks(batch.pp, count, vpp)}
    if (batch.pp, count, batch.seq, batch.mbs, batch.gpus) == (16, 16, 4096, 1, 512):
        tables["published"] = PUBLISHED.table(
            {
                "vpp": list(_MEASURED),
                "measured_fraction": list(_MEASURED.values()),
                "source": [_SOURCE] * len(_MEASURED),
            }
        )
    skips = []
    if vpp > 1 and count % batch.pp:
        skips.append(
            Skip(
                f"VPP {vpp} with {count} micro-batches",
                f"the interleaved schedule in turns of {batch.pp} needs a multiple of pp; the closed form is "
                "that of turns that fit",
            )
        )
    return Result(
        "bubble",
        "Pipeline bubble",
        tables,
        doc=purpose(bubble),
        skips=tuple(skips),
        meta={
            "pp": batch.pp,
            "vpp": vpp,
            "gpus": batch.gpus,
            "data_parallel": batch.dp,
            "microbatches": count,
            "global_tokens": batch.global_tokens,
        },
        command="tracelens project bubble",
    )


def _conventions(stages: int, count: int, vpp: int) -> Table:
    both = [float(one) for one in fractions(stages, count, vpp)]
    more = stages - 1
    return BUBBLE.table(
        {
            "convention": list(CONVENTIONS),
            "numbers": [
                f"{more} / ({more} + {count} x {vpp}) = {both[0]:.2%}",
                f"{more} / ({count} x {vpp}) = {both[1]:.2%}",
            ],
            "fraction": both,
        }
    )


def _by_chunks(stages: int, count: int, vpp: int) -> Table:
    """BY_CHUNKS up to this number of chunks and beyond."""
    chunks = range(1, max(_MOST_CHUNKS, vpp) + 1 if stages > 1 else 2)
    series = np.array([[float(one) for one in fractions(stages, count, some)] for some in chunks])
    held = np.array([in_flight(stages, 0, count, some) for some in chunks])
    return BY_CHUNKS.table(
        {
            "vpp": list(chunks),
            "whole_fraction": series[:, 0],
            "ideal_ratio": series[:, 1],
            "in_flight": held,
            "in_flight_share": held / np.array(chunks),
        }
    )


def fractions(stages: int, microbatches: int, chunks: int) -> tuple[Fraction, Fraction]:
    """The bubble by both of CONVENTIONS, exactly.

    Args:
        stages: PP.
        microbatches: GA.
        chunks: VPP.
    """
    work = microbatches * chunks
    return Fraction(stages - 1, stages - 1 + work), Fraction(stages - 1, work)


def in_flight(
    stages: int, stage: int, microbatches: int, chunks: int, turn: int = 0, overlap: bool = False
) -> int:
    """Chunks of micro-batches whose activations a stage holds at most, in 1F1B or interleaved 1F1B.

    They are the forwards before its first backward.

    Args:
        stages: PP.
        stage: which.
        microbatches: GA.
        chunks: VPP.
        turn: micro-batches that go through a chunk before the next one's turn, `stages` where it is 0.
        overlap: a forward and a backward of other micro-batches run together: one more is needed, and with
            one chunk a stage they begin as early as in the interleaved schedule, or stages would wait for
            each other every time.
    """
    ahead = stages - stage
    if chunks > 1 or overlap:
        ahead = 2 * (stages - stage - 1) + (chunks - 1) * (turn or stages) + 1 + overlap
    return min(ahead, microbatches * chunks)
