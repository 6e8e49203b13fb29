"""The requests of one rank: arriving, waiting, running in a slot of the cache, finished. No torch here.

The same requests arrive in every run with the same seed.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random

from tracelens.workload.serving.settings import Serving
from tracelens.workload.serving.split import Batch, Piece


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


@dataclass
class Running:
    """A request with a slot.

    Attributes:
        request: prompt and length of the output.
        slot: of the cache.
        made: tokens of the output so far.
        ticks: in which each of them was made.
    """

    request: Request
    slot: int
    made: list[int] = field(default_factory=list)
    ticks: list[int] = field(default_factory=list)

    @property
    def cached(self) -> int:
        """Tokens whose keys and values are in the cache: all but the last one made."""
        return len(self.request.prompt) + len(self.made) - 1


class Scheduler:
    """What one rank may run next; prefills go first, a tick runs either them or a decode of all that run."""

    def __init__(self, settings: Serving) -> None:
        self.settings = settings
        self.waiting: deque[Request] = deque()
        self.running: list[Running] = []
        self.finished: list[Running] = []
        self._free = list(range(settings.slots))

    def arrive(self, requests: Sequence[Request]) -> None:
        self.waiting.extend(requests)

    @property
    def used(self) -> int:
        return len(self.running)

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    def next_prefill(self) -> list[Request]:
        """The requests that a prefill would take now: in their order, as slots and tokens allow."""
        prefill: list[Request] = []
        tokens = 0
        for request in self.waiting:
            tokens += len(request.prompt)
            if len(prefill) == len(self._free) or tokens > self.settings.prefill_tokens:
                break
            prefill.append(request)
        return prefill

    def prefill_batch(self) -> Batch:
        """The batch of that prefill, in the slots that it would take."""
        return tuple(
            Piece(slot, 0, request.prompt)
            for slot, request in zip(self._free, self.next_prefill(), strict=False)
        )

    def decode_batch(self) -> Batch:
        """One token of each running request: the last one made."""
        return tuple(Piece(running.slot, running.cached, (running.made[-1],)) for running in self.running)

    def prefilled(self, tokens: Sequence[int], tick: int) -> None:
        """The prefill was run in a tick and made these tokens, one a request."""
        for token, request in zip(tokens, self.next_prefill(), strict=True):
            self.waiting.popleft()
            self.running.append(Running(request, self._free.pop(0), [token], [tick]))
        self._finish()

    def decoded(self, tokens: Sequence[int], tick: int) -> None:
        for token, running in zip(tokens, self.running, strict=True):
            running.made.append(token)
            running.ticks.append(tick)
        self._finish()

    def _finish(self) -> None:
        """Let those go whose output is complete."""
        done = [running for running in self.running if len(running.made) >= running.request.output]
        self.running = [running for running in self.running if len(running.made) < running.request.output]
        self.finished += done
        self._free = sorted(self._free + [running.slot for running in done])
