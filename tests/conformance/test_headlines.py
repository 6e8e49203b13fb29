"""On every run, the headline, the first row and the first card say the same."""

from __future__ import annotations

import tracelens
from tests.conformance.corpus import Case, everywhere_in_time
from tests.reference.headlines import check_headline


@everywhere_in_time
def test_headline_row_and_card_are_one(case: Case) -> None:
    check_headline(tracelens.report(case.run))
