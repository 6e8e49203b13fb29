"""The pipeline bubble in closed form.

With PP stages, GA micro-batches per step, VPP model chunks per stage, equal passes and free messages, each
stage idles for the time of (PP - 1) / VPP micro-batches (arXiv:2104.04473, section 2.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from tracelens.errors import TracelensError
from tracelens.planner.config import at_least_one, published_figures
from tracelens.registry import purpose
from tracelens.table import Column, Result, Schema, Skip

CONVENTIONS = ("of the whole time", "of the ideal time (Megatron-LM)")
"""Idle time as a share of the pipeline's time with the bubble, or without it."""

BUBBLE = Schema(
    "Bubble",
    (
        Column("convention", "category", doc="what the idle time is a share of"),
        Column("numbers", "str", doc="the formula with its numbers"),
        Column("bubble_ratio", "float64", "ratio", "idle time per stage; may exceed 1 of the ideal time"),
    ),
    doc="(PP - 1) / (PP - 1 + GA VPP) of the whole time, (PP - 1) / (GA VPP) of the ideal time, "
    "for equal passes and free messages.",
)
BY_CHUNKS = Schema(
    "Bubble by chunks",
    (
        Column("vpp", "int64", "count", "model chunks per stage; 1: no interleaving"),
        Column("bubble_fraction", "float64", "fraction", "bubble / whole time"),
        Column("bubble_ideal_ratio", "float64", "ratio", "bubble / time without the bubble"),
        Column("in_flight", "int64", "count", "micro-batch chunks whose activations the first stage holds"),
        Column("in_flight_micro_batches", "float64", doc="in_flight / vpp: the same in micro-batches"),
    ),
    doc="More chunks per stage shrink the bubble but cost messages and memory.",
)
PUBLISHED = Schema(
    "Bubble as published",
    (
        Column("vpp", "int64", "count", "model chunks per stage"),
        Column("measured_fraction", "float64", "fraction", "of the whole time, read from a chart"),
        Column("source", "str", doc="where it was published"),
    ),
    doc="A published measurement with the same configuration.",
)

TABLES = {"bubble": BUBBLE, "by_vpp": BY_CHUNKS, "published": PUBLISHED}

_MOST_CHUNKS = 8  # rows of the table `by_vpp`, unless more are asked for
_MOST_VPP = 1000  # far more chunks than a stage has layers; the table has a row for each


@dataclass(frozen=True)
class PipelineSizes:
    """The sizes that determine a bubble.

    Raises:
        TracelensError: sizes that do not divide each other.
    """

    pp: int  # pipeline stages
    global_tokens: int  # per step on all ranks
    seq: int  # tokens per sequence
    nodes: int  # number of nodes
    mbs: int = 1  # sequences per micro-batch
    gpus_per_node: int = 8  # GPUs per node
    cp: int = 1  # ranks that share a sequence
    tp: int = 1  # ranks that share each matrix

    def __post_init__(self) -> None:
        at_least_one(self, ("pp", "global_tokens", "seq", "nodes", "mbs", "gpus_per_node", "cp", "tp"))
        inner = self.pp * self.cp * self.tp
        if self.gpus % inner:
            raise TracelensError(f"{self.gpus} GPUs are not a multiple of pp x cp x tp = {inner}")
        if self.global_tokens % (unit := self.seq * self.mbs * self.dp):
            lower = self.global_tokens // unit * unit
            near = f"{lower} or {lower + unit}" if lower else f"{unit}"
            raise TracelensError(
                f"{self.global_tokens} tokens are not a whole number of micro-batches of "
                f"{self.mbs} x {self.seq} tokens on {self.dp} data-parallel ranks; use {near}"
            )

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def dp(self) -> int:
        return self.gpus // (self.pp * self.cp * self.tp)

    @property
    def micro_batches(self) -> int:
        """GA: micro-batches of a step on each data-parallel rank."""
        return self.global_tokens // (self.seq * self.mbs * self.dp)


def bubble(batch: PipelineSizes, vpp: int = 1) -> Result:
    """What share of its time does a pipeline idle, in closed form?

    Args:
        batch: stages and micro-batches.
        vpp: model chunks per stage.

    Returns:
        tables `bubble` (one row per convention), `by_vpp` and, for the configuration of a published
        measurement, `published`. meta: the numbers, GA among them.

    Raises:
        TracelensError: `vpp` is below 1, above 1 without a pipeline, or too large.
    """
    most = _MOST_VPP if batch.pp > 1 else 1
    if not 1 <= vpp <= most:
        raise TracelensError(f"vpp must be 1 to {_MOST_VPP}, and 1 without a pipeline (pp=1), not {vpp}")
    count = batch.micro_batches
    shares = [float(fraction) for fraction in fractions(batch.pp, count, vpp)]
    conventions = BUBBLE.table(
        {
            "convention": list(CONVENTIONS),
            "numbers": [
                f"{batch.pp - 1} / ({batch.pp - 1} + {count} x {vpp}) = {shares[0]:.2%}",
                f"{batch.pp - 1} / ({count} x {vpp}) = {shares[1]:.2%}",
            ],
            "bubble_ratio": shares,
        }
    )
    # Up to _MOST_CHUNKS, or up to `vpp` if that is more.
    chunks = range(1, max(_MOST_CHUNKS, vpp) + 1 if batch.pp > 1 else 2)
    series = np.array(
        [[float(fraction) for fraction in fractions(batch.pp, count, number)] for number in chunks]
    )
    chunks_held = np.array([in_flight(batch.pp, 0, count, number) for number in chunks])
    by_chunks = BY_CHUNKS.table(
        {
            "vpp": list(chunks),
            "bubble_fraction": series[:, 0],
            "bubble_ideal_ratio": series[:, 1],
            "in_flight": chunks_held,
            "in_flight_micro_batches": chunks_held / np.array(chunks),
        }
    )
    tables = {"bubble": conventions, "by_vpp": by_chunks}
    if (batch.pp, count, batch.seq, batch.mbs, batch.gpus) == (16, 16, 4096, 1, 512):
        figure = published_figures()[10]
        tables["published"] = PUBLISHED.from_rows(
            [(row["vpp"], row["bubble_percent"] / 100, figure.source) for row in figure.rows]
        )
    partial_turn = Skip(
        f"VPP {vpp} with {count} micro-batches",
        f"the interleaved schedule needs a multiple of pp={batch.pp}; the closed form assumes one",
    )
    return Result(
        "bubble",
        "Pipeline bubble",
        tables,
        doc=purpose(bubble),
        skips=(partial_turn,) if vpp > 1 and count % batch.pp else (),
        meta={
            "pp": batch.pp,
            "vpp": vpp,
            "gpus": batch.gpus,
            "data_parallel": batch.dp,
            "micro_batches": count,
            "global_tokens": batch.global_tokens,
        },
        command="tracelens project bubble",
    )


def fractions(stages: int, micro_batches: int, chunks: int) -> tuple[Fraction, Fraction]:
    """The bubble of PP, GA and VPP by both CONVENTIONS, exactly."""
    work = micro_batches * chunks
    return Fraction(stages - 1, stages - 1 + work), Fraction(stages - 1, work)


def in_flight(
    stages: int, stage: int, micro_batches: int, chunks: int, turn: int = 0, overlap: bool = False
) -> int:
    """Most micro-batch chunks in flight on a stage of 1F1B or interleaved 1F1B.

    These are the forwards before its first backward.

    Args:
        stages: PP.
        stage: from 0.
        micro_batches: GA.
        chunks: VPP.
        turn: micro-batches per turn through a chunk; 0 for `stages`.
        overlap: each backward overlaps with a forward of another micro-batch. That takes one more forward,
            and even with one chunk per stage as many as the interleaved schedule, or stages would wait for
            each other in every pair.
    """
    ahead = stages - stage
    if chunks > 1 or overlap:
        ahead = 2 * (stages - stage - 1) + (chunks - 1) * (turn or stages) + 1 + overlap
    return min(ahead, micro_batches * chunks)
