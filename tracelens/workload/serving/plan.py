"""What all ranks run in a tick, as each works out from what all could run, and its label in traces."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from tracelens.workload.serving.scheduler import Scheduler
from tracelens.workload.serving.settings import Serving
from tracelens.workload.serving.split import Batch, halves, size

Kind = Literal["prefill", "decode", "dummy_prefill", "dummy_decode"]

DUMMY_TOKENS = (0, 1)
"""Of the two halves of a pass without a request."""

SHOWN = 3
"""Context lengths that a label spells out."""


class Proposal(NamedTuple):
    """What a rank could run in a tick: plain numbers, for they travel.

    Attributes:
        prefill_first: tokens of the first half of its prefill, 0 without one.
        prefill_second: of the second half; without two-batch overlap all of them.
        decode_first: likewise of its decode.
        decode_second: likewise.
        used: slots of its cache in use.
    """

    prefill_first: int
    prefill_second: int
    decode_first: int
    decode_second: int
    used: int

    @property
    def can_prefill(self) -> bool:
        return self.prefill_first + self.prefill_second > 0

    @property
    def can_decode(self) -> bool:
        return self.decode_first + self.decode_second > 0


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


class Plan(NamedTuple):
    """One tick.

    Attributes:
        kinds: what each rank runs.
        tokens: of each rank in each half.
        padded: tokens that each half has on all ranks when they meet: two numbers, or one for both together.
        graph: batch size of the graph that is replayed, 0 for none.
    """

    kinds: tuple[Kind, ...]
    tokens: tuple[tuple[int, int], ...]
    padded: tuple[int, ...]
    graph: int = 0

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


def make_plan(proposals: Sequence[Proposal], prefill: bool, settings: Serving) -> Plan | None:
    """What is run, None where no rank has anything.

    Ranks that have no prefill decode meanwhile, eagerly: the others could not replay a graph. Ranks that have
    nothing compute one token for nobody, for all have to meet. Ticks with a prefill are cut in two where
    every rank's prefill can be; a decode is so small that its halves would take longer.
    """
    prefill = prefill and any(proposal.can_prefill for proposal in proposals)
    if not prefill and not any(proposal.can_decode for proposal in proposals):
        return None
    kinds, tokens = zip(*(_choice(proposal, prefill) for proposal in proposals), strict=True)
    split = (
        prefill
        and settings.tbo != "off"
        and all(min(two) > 0 for kind, two in zip(kinds, tokens, strict=True) if kind == "prefill")
    )
    if split:
        return Plan(kinds, tokens, tuple(map(max, zip(*tokens, strict=True))))
    most = max(map(sum, tokens))
    if prefill or most > max(settings.graph_sizes, default=0):
        return Plan(kinds, tokens, (most,))
    graph = min(number for number in settings.graph_sizes if number >= most)
    return Plan(kinds, tokens, (graph,), graph)


def _choice(proposal: Proposal, prefill: bool) -> tuple[Kind, tuple[int, int]]:
    if prefill and proposal.can_prefill:
        return "prefill", (proposal.prefill_first, proposal.prefill_second)
    if proposal.can_decode:
        return "decode", (proposal.decode_first, proposal.decode_second)
    return "dummy_prefill" if prefill else "dummy_decode", DUMMY_TOKENS


class PrefillDelayer:
    """Holds prefills back until most ranks have one.

    A rank in prefill lets all others wait in every layer. So ranks had better prefill in the same ticks, and
    in the others all decode. Each rank has an object of its own; all see the same proposals, so all decide
    alike.

    Waiting ends when enough ranks have a prefill; when it has lasted for the most ticks; or when a rank that
    could prefill has so little in its cache that it would decode next to nothing meanwhile.

    Attributes:
        waited: ticks in a row in which prefills were held back.
    """

    def __init__(self, settings: Serving) -> None:
        self.settings = settings
        self.waited = 0

    def allow(self, proposals: Sequence[Proposal]) -> bool:
        """Whether prefills run in this tick; to be called once a tick."""
        ready = [proposal for proposal in proposals if proposal.can_prefill]
        if not ready or self._has_quorum(proposals, ready) or self._is_exhausted(ready):
            self.waited = 0
            return bool(ready)
        self.waited += 1
        return False

    def _has_quorum(self, proposals: Sequence[Proposal], ready: Sequence[Proposal]) -> bool:
        """Whether most of the ranks that have requests could prefill; those without wait for nobody."""
        busy = sum(proposal.can_prefill or proposal.can_decode for proposal in proposals)
        return len(ready) >= math.ceil(self.settings.delay_quorum * busy)

    def _is_exhausted(self, ready: Sequence[Proposal]) -> bool:
        least_used = min(proposal.used for proposal in ready) / self.settings.slots
        return self.waited >= self.settings.delay_ticks or least_used < self.settings.delay_watermark


def label(kind: Kind, batch: Batch, plan: Plan) -> str:
    """Label of one rank's forward pass in ATOM's grammar: see serving_labels.toml."""
    tokens, name, requests = size(batch), str(kind), str(len(batch))
    if plan.graph:
        return f"{name}[bs={requests}/{plan.graph} tok={tokens} d={tokens}]"
    if kind.endswith("decode"):
        name = name.replace("decode", "eager_decode")
    lengths = [piece.first + len(piece.tokens) for piece in batch]
    return f"{name}[bs={requests} tok={tokens} ctx={_shown(lengths)}]" + (" tbo=1" if plan.split else "")


def half_label(number: int, batch: Batch) -> str:
    """Label of one half of a pass under two-batch overlap."""
    return f"ub{number}[tok={size(batch)}]"


def _shown(lengths: list[int]) -> str:
    if len(lengths) == 1:
        return str(lengths[0])
    more = len(lengths) - SHOWN
    return f"[{', '.join(map(str, lengths[:SHOWN]))}]" + (f"...+{more}" if more > 0 else "")
