"""Requests of a rank, and what all ranks run in a tick, as each works out from what all could run.

No torch here.

Requests arrive, wait, run in a slot of the cache, and finish; the same ones in every run with the same seed.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count
from random import Random
from typing import Literal, NamedTuple

from tracelens.workload.serving.settings import Serving, SplitName

Kind = Literal["prefill", "decode", "dummy_prefill", "dummy_decode"]
DUMMY_TOKENS = (0, 1)
"""Of the two halves of a pass without a request."""
SHOWN = 3
"""Context lengths that a label spells out."""


class Proposal(NamedTuple):
    """What a rank could run in a tick: plain numbers, for they travel."""

    prefill_first: int  # tokens of the first half of its prefill, 0 without one
    prefill_second: int  # of the second half; without two-batch overlap all of them
    decode_first: int  # likewise of its decode
    decode_second: int  # likewise
    used: int  # slots of its cache in use

    @property
    def can_prefill(self) -> bool:
        return self.prefill_first + self.prefill_second > 0

    @property
    def can_decode(self) -> bool:
        return self.decode_first + self.decode_second > 0


class Plan(NamedTuple):
    """One tick."""

    kinds: tuple[Kind, ...]  # what each rank runs
    tokens: tuple[tuple[int, int], ...]  # of each rank in each half
    # tokens that each half has on all ranks when they meet: two numbers, or one for both together
    padded: tuple[int, ...]
    graph: int = 0  # batch size of the graph that is replayed, 0 for none

    @property
    def split(self) -> bool:
        """Whether it runs as two overlapped batches."""
        return len(self.padded) == 2

    @property
    def prefills(self) -> bool:
        return "prefill" in self.kinds

    @property
    def request_tokens(self) -> int:
        """Tokens of all requests."""
        pairs = zip(self.kinds, self.tokens, strict=True)
        return sum(sum(tokens) for kind, tokens in pairs if "dummy" not in kind)

    @property
    def padded_tokens(self) -> int:
        """Tokens of the rank with most of them, times ranks."""
        return len(self.kinds) * max(map(sum, self.tokens))

    @property
    def mismatched(self) -> bool:
        """Whether some ranks prefill and others decode."""
        return {"prefill", "decode"} <= set(self.kinds)


class PrefillDelayer:
    """Holds prefills back until most ranks have one.

    A rank in prefill lets all others wait in every layer. So ranks had better prefill in the same ticks, and
    in the others all decode. Each rank has an object of its own; all see the same proposals, so all decide
    alike.

    Waiting ends when enough ranks have a prefill; when it has lasted for the most ticks; or when a rank that
    could prefill has so little in its cache that it would decode next to nothing meanwhile.
    """

    def __init__(self, settings: Serving) -> None:
        self.settings = settings
        self.waited = 0  # ticks in a row in which prefills were held back

    def allow(self, proposals: Sequence[Proposal]) -> bool:
        """Whether prefills run in this tick; to be called once a tick."""
        settings, ready = self.settings, [proposal for proposal in proposals if proposal.can_prefill]
        # Most of the ranks that have requests must be ready; those without wait for nobody.
        busy = sum(proposal.can_prefill or proposal.can_decode for proposal in proposals)
        has_quorum = len(ready) >= math.ceil(settings.delay_quorum * busy)
        least_used = min((proposal.used for proposal in ready), default=0) / settings.slots
        is_exhausted = self.waited >= settings.delay_ticks or least_used < settings.delay_watermark
        if not ready or has_quorum or is_exhausted:
            self.waited = 0
            return bool(ready)
        self.waited += 1
        return False


@dataclass(frozen=True)
class ServedRequest:
    """One request."""

    number: int  # among those of all ranks, from 0
    tick: int  # in which it arrives
    prompt: tuple[int, ...]  # its tokens
    output: int  # tokens to be made


class RequestTraffic:
    """What arrives, tick by tick, on one rank: of all requests each rank in turn gets one.

    A request is the same whatever the number of ranks. The time between two arrivals is exponential, as of
    independent users, and counted in ticks, so that a run does not depend on how fast it is.
    """

    def __init__(self, settings: Serving, vocab: int, rank: int = 0, ranks: int = 1) -> None:
        self.settings, self.vocab = settings, vocab
        self.rank, self.ranks = rank, ranks
        random = Random(f"{settings.seed}.arrivals")
        numbers = range(settings.requests) if settings.requests or not settings.rate else count()
        times = accumulate(random.expovariate(settings.rate * ranks) for _ in numbers if settings.rate)
        self._stream = enumerate(map(int, times))  # number and tick of all requests of all ranks
        self._next = next(self._stream, None)

    def arrive(self, tick: int) -> list[ServedRequest]:
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

    def request(self, number: int, tick: int) -> ServedRequest:
        settings = self.settings
        random = Random(f"{settings.seed}.request.{number}")
        prompt = _length(random, settings, settings.prompt_min, settings.prompt_max)
        output = _length(random, settings, settings.output_min, settings.output_max)
        return ServedRequest(number, tick, tuple(random.choices(range(self.vocab), k=prompt)), output)


@dataclass
class Running:
    """A request with a slot."""

    request: ServedRequest  # prompt and length of the output
    slot: int  # of the cache
    made: list[int] = field(default_factory=list)  # tokens of the output so far
    ticks: list[int] = field(default_factory=list)  # in which each of them was made

    @property
    def cached(self) -> int:
        """Tokens whose keys and values are in the cache: all but the last one made."""
        return len(self.request.prompt) + len(self.made) - 1


class Scheduler:
    """What one rank may run next; prefills go first, a tick runs either them or a decode of all that run."""

    def __init__(self, settings: Serving) -> None:
        self.settings = settings
        self.waiting: deque[ServedRequest] = deque()
        self.running: list[Running] = []
        self.finished: list[Running] = []
        self._free = list(range(settings.slots))

    def arrive(self, requests: Sequence[ServedRequest]) -> None:
        self.waiting.extend(requests)

    @property
    def used(self) -> int:
        return len(self.running)

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    def next_prefill(self) -> list[ServedRequest]:
        """The requests that a prefill would take now: in their order, as slots and tokens allow."""
        prefill: list[ServedRequest] = []
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
            BatchPiece(slot, 0, request.prompt)
            for slot, request in zip(self._free, self.next_prefill(), strict=False)
        )

    def decode_batch(self) -> Batch:
        """One token of each running request: the last one made."""
        return tuple(
            BatchPiece(running.slot, running.cached, (running.made[-1],)) for running in self.running
        )

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


class BatchPiece(NamedTuple):
    """Tokens of one request that go through the model together."""

    slot: int  # of the cache
    first: int  # position of the first of them: so many are in the cache already
    tokens: tuple[int, ...]  # one after the other
    answers: bool = True  # whether it yields a token; the front part of a prompt that was cut does not


Batch = tuple[BatchPiece, ...]


def propose(scheduler: Scheduler) -> Proposal:
    """What a rank could run."""
    prefill, decode = (
        tuple(map(size, parts(batch, scheduler.settings)))
        for batch in (scheduler.prefill_batch(), scheduler.decode_batch())
    )
    return Proposal(prefill[0], prefill[1], decode[0], decode[1], scheduler.used)


def parts(batch: Batch, settings: Serving) -> tuple[Batch, Batch]:
    """The halves of a batch; without two-batch overlap all of it is the second one."""
    return ((), batch) if settings.tbo == "off" else halves(batch, settings.tbo)


def make_plan(proposals: Sequence[Proposal], prefill: bool, settings: Serving) -> Plan | None:
    """What is run, None where no rank has anything.

    Ranks that have no prefill decode meanwhile, eagerly: the others could not replay a graph. Ranks that have
    nothing compute one token for nobody, for all have to meet. Ticks with a prefill are cut in two where
    every rank's prefill can be; a decode is so small that its halves would take longer.
    """
    prefill = prefill and any(proposal.can_prefill for proposal in proposals)
    if not prefill and not any(proposal.can_decode for proposal in proposals):
        return None
    kinds: list[Kind] = []
    tokens: list[tuple[int, int]] = []
    for proposal in proposals:
        if prefill and proposal.can_prefill:
            kinds.append("prefill")
            tokens.append((proposal.prefill_first, proposal.prefill_second))
        elif proposal.can_decode:
            kinds.append("decode")
            tokens.append((proposal.decode_first, proposal.decode_second))
        else:
            kinds.append("dummy_prefill" if prefill else "dummy_decode")
            tokens.append(DUMMY_TOKENS)
    split = (
        prefill
        and settings.tbo != "off"
        and all(min(two) > 0 for kind, two in zip(kinds, tokens, strict=True) if kind == "prefill")
    )
    plan = Plan(tuple(kinds), tuple(tokens), padded=(max(map(sum, tokens)),))
    if split:
        return plan._replace(padded=tuple(map(max, zip(*tokens, strict=True))))
    sizes = [number for number in settings.graph_sizes if number >= plan.padded[0]]
    if prefill or not sizes:
        return plan
    return plan._replace(padded=(min(sizes),), graph=min(sizes))


def label(kind: Kind, batch: Batch, plan: Plan) -> str:
    """Label of one rank's forward pass in ATOM's grammar: see serving_labels.toml."""
    tokens, name, requests = size(batch), str(kind), str(len(batch))
    if plan.graph:
        return f"{name}[bs={requests}/{plan.graph} tok={tokens} d={tokens}]"
    if kind.endswith("decode"):
        name = name.replace("decode", "eager_decode")
    lengths = [str(piece.first + len(piece.tokens)) for piece in batch]
    more = f"...+{len(lengths) - SHOWN}" if len(lengths) > SHOWN else ""
    shown = lengths[0] if len(lengths) == 1 else f"[{', '.join(lengths[:SHOWN])}]{more}"
    return f"{name}[bs={requests} tok={tokens} ctx={shown}]" + (" tbo=1" if plan.split else "")


def half_label(number: int, batch: Batch) -> str:
    """Label of one half of a pass under two-batch overlap."""
    return f"ub{number}[tok={size(batch)}]"


def _length(random: Random, settings: Serving, low: int, high: int) -> int:
    """A length: uniform, or log-normal with the bounds two standard deviations away from the median."""
    if low == high:
        return low
    if settings.lengths == "uniform":
        return random.randint(low, high)
    middle, spread = math.log(low * high) / 2, math.log(high / low) / 4
    return min(max(round(random.lognormvariate(middle, spread)), low), high)


def size(batch: Sequence[BatchPiece]) -> int:
    """Tokens of a batch."""
    return sum(len(piece.tokens) for piece in batch)


def halves(batch: Batch, how: SplitName) -> tuple[Batch, Batch]:
    """A batch in two.

    "token" cuts at half of the tokens, through a request if need be: to what lies behind the cut, the front
    counts as cached. "request" leaves requests whole and deals them out, the longest first, to the half with
    fewer tokens.
    """
    if how == "token":
        remaining = size(batch) // 2
        front: list[BatchPiece] = []
        back: list[BatchPiece] = []
        for piece in batch:
            cut = min(remaining, len(piece.tokens))
            remaining -= cut
            if cut == len(piece.tokens):
                front.append(piece)
            elif cut == 0:
                back.append(piece)
            else:
                front.append(piece._replace(tokens=piece.tokens[:cut], answers=False))
                back.append(piece._replace(first=piece.first + cut, tokens=piece.tokens[cut:]))
        return tuple(front), tuple(back)
    order = sorted(range(len(batch)), key=lambda index: (-len(batch[index].tokens), index))
    parts: tuple[list[int], list[int]] = ([], [])
    filled = [0, 0]
    for index in order:
        smaller = int(filled[1] <= filled[0])
        parts[smaller].append(index)
        filled[smaller] += len(batch[index].tokens)
    first, second = (tuple(batch[index] for index in sorted(part)) for part in parts)
    return first, second
