"""The requests of one rank: waiting, running in a slot of the cache, finished. No torch here."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from tracelens.workload.serving.requests import Request
from tracelens.workload.serving.settings import Serving
from tracelens.workload.serving.split import Batch, Piece


@dataclass
class Running:
    """A request with a slot.

    Attributes:
        request: what was asked.
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
    """What one rank may run next; prefills go first, a tick runs either them or a decode of all that run.

    Args:
        settings: slots, and tokens of a prefill.
    """

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
        """Whether there is nothing to do."""
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
        """The decode was run in a tick and made these tokens, one a running request."""
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
