"""Prefills of several ranks in the same tick: the agreement to wait for one another. No torch here."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tracelens.workload.serving.plan import Proposal
from tracelens.workload.serving.settings import Serving


class PrefillDelayer:
    """Holds prefills back until most ranks have one.

    A rank in prefill lets all others wait in every layer. So ranks had better prefill in the same ticks, and
    in the others all decode. Each rank asks an object of its own; since all of them are told the same, all
    answer the same.

    Waiting ends when enough ranks have a prefill; when it has lasted for the most ticks; or when a rank that
    could prefill has so little in its cache that it would decode next to nothing meanwhile.

    Args:
        settings: quorum, most ticks and watermark.

    Attributes:
        waited: ticks in a row in which prefills were held back.
    """

    def __init__(self, settings: Serving) -> None:
        self.settings = settings
        self.waited = 0

    def allow(self, proposals: Sequence[Proposal]) -> bool:
        """Whether prefills run in this tick; to be asked once a tick.

        Args:
            proposals: of all ranks.
        """
        wanting = [proposal for proposal in proposals if proposal.can_prefill]
        if not wanting or self._enough(proposals, wanting) or self._exhausted(wanting):
            self.waited = 0
            return bool(wanting)
        self.waited += 1
        return False

    def _enough(self, proposals: Sequence[Proposal], wanting: Sequence[Proposal]) -> bool:
        """Whether most of the ranks that have requests could prefill; those without wait for nobody."""
        busy = sum(proposal.can_prefill or proposal.can_decode for proposal in proposals)
        return len(wanting) >= math.ceil(self.settings.delay_quorum * busy)

    def _exhausted(self, wanting: Sequence[Proposal]) -> bool:
        least = min(proposal.used for proposal in wanting) / self.settings.slots
        return self.waited >= self.settings.delay_ticks or least < self.settings.delay_watermark
