"""What all ranks run in a tick, as each of them finds out from what all could run. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from tracelens.workload.serving.scheduler import Scheduler
from tracelens.workload.serving.settings import Serving
from tracelens.workload.serving.split import Batch, halves, size

Kind = Literal["prefill", "decode", "dummy_prefill", "dummy_decode"]

DUMMY_TOKENS = (0, 1)
"""Of the two halves of a pass without a request."""


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
        """Whether it has requests to decode."""
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
    def mismatched(self) -> bool:
        """Whether some ranks prefill and others decode."""
        return {"prefill", "decode"} <= set(self.kinds)


def make_plan(proposals: Sequence[Proposal], prefill: bool, settings: Serving) -> Plan | None:
    """What is run, None where no rank has anything.

    Ranks that have no prefill decode meanwhile, eagerly: the others could not replay a graph. Ranks that have
    nothing compute one token for nobody, for all have to meet. Ticks with a prefill are cut in two where
    every rank's prefill can be; a decode is so small that its halves would take longer.

    Args:
        proposals: of all ranks.
        prefill: whether prefills are allowed.
        settings: two-batch overlap and graphs.
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
    """What one rank runs, and its tokens."""
    if prefill and proposal.can_prefill:
        return "prefill", (proposal.prefill_first, proposal.prefill_second)
    if proposal.can_decode:
        return "decode", (proposal.decode_first, proposal.decode_second)
    return "dummy_prefill" if prefill else "dummy_decode", DUMMY_TOKENS
