"""How many micro-batches of each of its chunks a pipeline rank has in flight, moment by moment.

A rank runs some forwards, then a forward and a backward in turn, then backwards. With one chunk a rank that
is 1F1B, with several the interleaved schedule (arXiv:2104.04473): forwards take `round` micro-batches through
the first chunk, as many through the next, and so on; backwards likewise from the last chunk on.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens.arrays import Int
from tracelens.planner.bubble import in_flight
from tracelens.planner.config import Config


class Flight(NamedTuple):
    """The moments in which most is in flight; one row a forward, or a backward.

    Attributes:
        before: micro-batches of each chunk whose forward is done and whose backward is not.
        forward: number of the chunk, among those of the rank, whose forward runs now.
        after: the same when a backward begins, its own micro-batch included.
        backward: number of the chunk whose backward that is.
    """

    before: Int
    forward: Int
    after: Int
    backward: Int

    @property
    def most(self) -> int:
        """Chunks of micro-batches in flight at most."""
        return int(self.after.sum(axis=1).max())


def warm_up(config: Config, stage: int, overlap: bool = False) -> int:
    """Forwards of a rank before its first backward.

    Args:
        config: layout and micro-batches.
        stage: the pipeline rank.
        overlap: see `bubble.in_flight`.
    """
    layout, batches = config.layout, config.training.micro_batches
    return in_flight(layout.pp, stage, batches, layout.vpp, _round(config), overlap)


def _round(config: Config) -> int:
    """Micro-batches that go through a chunk before the next chunk's turn."""
    batches = config.training.micro_batches
    return batches // max(1, batches // config.layout.pp)


def flight(config: Config, stage: int, overlap: bool = False) -> Flight:
    """The moments of one period: the others have no more in flight.

    Args:
        config: layout and micro-batches.
        stage: the pipeline rank.
        overlap: see `warm_up`.
    """
    chunks, size = config.layout.vpp, _round(config)
    count, first = config.training.micro_batches * chunks, warm_up(config, stage, overlap)
    period = size * chunks
    # At moment i that many backwards are done, and one forward more than before the first of them runs.
    steady = np.arange(min(count - first + 1, period))
    started = steady + first - 1
    before = _done(started, chunks, size) - _done(steady, chunks, size)[:, ::-1]
    backwards = np.arange(min(count, period))
    made = np.minimum(backwards + first, count)
    after = _done(made, chunks, size) - _done(backwards, chunks, size)[:, ::-1]
    return Flight(before, started // size % chunks, after, chunks - 1 - backwards // size % chunks)


def _done(runs: Int, chunks: int, size: int) -> Int:
    """Micro-batches of each chunk among so many runs, in order of turns."""
    period, rest = runs // (size * chunks), runs % (size * chunks)
    inside = np.clip(rest[:, None] - np.arange(chunks) * size, 0, size)
    done: Int = period[:, None] * size + inside
    return done
