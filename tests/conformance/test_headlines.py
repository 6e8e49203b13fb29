"""On every run, the headline, the first row and the first card say the same."""

from __future__ import annotations

import tracelens
from tests.conformance.corpus import Case, everywhere
from tests.reference.headlines import check_headline


@everywhere
def test_headline_row_and_card_are_one(case: Case) -> None:
    check_headline(tracelens.report(case.run))
