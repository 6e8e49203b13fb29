"""Requests as they arrive, the same ones in every run with the same seed. No torch here."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from random import Random

from tracelens.workload.serving.settings import Serving


@dataclass(frozen=True)
class Request:
    """One request.

    Attributes:
        number: among those of all ranks, from 0.
        tick: in which it arrives.
        prompt: its tokens.
        output: tokens to be made.
    """

    number: int
    tick: int
    prompt: tuple[int, ...]
    output: int


class Traffic:
    """What arrives, tick by tick, on one rank: of all requests each rank in turn gets one.

    A request is the same whatever the number of ranks. The time between two arrivals is exponential, as of
    independent users, and counted in ticks, so that a run does not depend on how fast it is.

    Args:
        settings: lengths, rate and seed.
        vocab: of the model.
        rank: whose requests are wanted.
        ranks: that requests are dealt out to.
    """

    def __init__(self, settings: Serving, vocab: int, rank: int = 0, ranks: int = 1) -> None:
        self.settings, self.vocab = settings, vocab
        self.rank, self.ranks = rank, ranks
        self._stream = self._arrivals()
        self._next = next(self._stream, None)

    def arrive(self, tick: int) -> list[Request]:
        """The requests that have arrived by a tick and were not handed out before."""
        arrived = []
        while self._next is not None and self._next[1] <= tick:
            number, when = self._next
            if number % self.ranks == self.rank:
                arrived.append(self.request(number, when))
            self._next = next(self._stream, None)
        return arrived

    @property
    def over(self) -> bool:
        """Whether nothing arrives any more."""
        return self._next is None

    def request(self, number: int, tick: int) -> Request:
        settings = self.settings
        random = Random(f"{settings.seed}.request.{number}")
        prompt = _length(random, settings, settings.prompt_min, settings.prompt_max)
        output = _length(random, settings, settings.output_min, settings.output_max)
        return Request(number, tick, tuple(random.choices(range(self.vocab), k=prompt)), output)

    def _arrivals(self) -> Iterator[tuple[int, int]]:
        """Number and tick of all requests of all ranks."""
        settings = self.settings
        if not settings.rate:
            return
        random, when = Random(f"{settings.seed}.arrivals"), 0.0
        for number in range(settings.requests) if settings.requests else count():
            when += random.expovariate(settings.rate * self.ranks)
            yield number, int(when)


def _length(random: Random, settings: Serving, low: int, high: int) -> int:
    """A length: uniform, or log-normal with the bounds two standard deviations away from the median."""
    if low == high:
        return low
    if settings.lengths == "uniform":
        return random.randint(low, high)
    middle, spread = math.log(low * high) / 2, math.log(high / low) / 4
    return min(max(round(random.lognormvariate(middle, spread)), low), high)
