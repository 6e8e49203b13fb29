"""Micro-batches in flight on a pipeline rank over time, by chunk.

A rank runs its warm-up forwards, then forwards and backwards in turn, then the remaining backwards: 1F1B with
one chunk per rank, the interleaved schedule with several (arXiv:2104.04473), whose forwards take a round of
micro-batches through the first chunk, then through the next; backwards likewise from the last chunk on.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens.arrays import Int
from tracelens.planner.bubble import in_flight
from tracelens.planner.config import Config


class Flight(NamedTuple):
    """The moments with most in flight: one row per forward, and one per backward.

    Attributes:
        before: micro-batches in flight per chunk when a forward begins.
        forward: chunk of the rank whose forward that is.
        after: micro-batches in flight per chunk when a backward begins, its own included.
        backward: chunk of the rank whose backward that is.
    """

    before: Int
    forward: Int
    after: Int
    backward: Int

    @property
    def most(self) -> int:
        """Most micro-batch chunks in flight."""
        return int(self.after.sum(axis=1).max())


def warm_up(config: Config, stage: int, overlap: bool = False) -> int:
    """Forwards of a pipeline rank before its first backward; see `bubble.in_flight` for `overlap`."""
    layout, batches = config.layout, config.training.micro_batches
    return in_flight(layout.pp, stage, batches, layout.vpp, round_size(config), overlap)


def round_size(config: Config) -> int:
    """Micro-batches that go through a chunk before it is the next chunk's turn."""
    batches = config.training.micro_batches
    return batches // max(1, batches // config.layout.pp)


def flight(config: Config, stage: int, overlap: bool = False) -> Flight:
    """The moments of one period of a pipeline rank: no other moment has more in flight."""
    chunks, size = config.layout.vpp, round_size(config)
    count, first = config.training.micro_batches * chunks, warm_up(config, stage, overlap)
    period = size * chunks
    # At moment i, i backwards are done, and i forwards beyond those before the first backward.
    steady = np.arange(min(count - first + 1, period))
    started = steady + first - 1
    before = _done(started, chunks, size) - _done(steady, chunks, size)[:, ::-1]
    backwards = np.arange(min(count, period))
    forwards = np.minimum(backwards + first, count)
    after = _done(forwards, chunks, size) - _done(backwards, chunks, size)[:, ::-1]
    return Flight(before, started // size % chunks, after, chunks - 1 - backwards // size % chunks)


def _done(runs: Int, chunks: int, size: int) -> Int:
    """Micro-batches that went through each chunk after this many runs, in order of turns."""
    period, rest = runs // (size * chunks), runs % (size * chunks)
    inside = np.clip(rest[:, None] - np.arange(chunks) * size, 0, size)
    done: Int = period[:, None] * size + inside
    return done
