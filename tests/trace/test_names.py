"""Names that fit a pattern."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from tracelens.trace import matching

PATTERNS = [re.compile(text) for text in (r"^a", r"b$", r"[0-9]", r"A")]


@given(st.lists(st.text("aAb0 ", max_size=4), max_size=8), st.sampled_from(PATTERNS))
def test_answers_are_those_of_the_pattern(names: list[str], pattern: re.Pattern[str]) -> None:
    for _ in range(2):  # asked for the second time, answers are known
        assert matching(names, pattern).tolist() == [pattern.search(name) is not None for name in names]
