"""A verdict as annotations of GitHub Actions."""

from __future__ import annotations

from collections.abc import Iterator

from tracelens.compare.gate.gate import Verdict
from tracelens.compare.gate.verdict import headline, sentence
from tracelens.printable import printable


def commands(verdict: Verdict) -> Iterator[str]:
    """The verdict as GitHub Actions workflow commands, one line each: errors, warnings, and a notice."""
    for outcome in verdict.outcomes:
        if outcome.status != "pass":
            level = "error" if outcome.status == "fail" else "warning"
            title = _property(f"tracelens gate: {outcome.rule}")
            yield f"::{level} title={title}::{_data(sentence(outcome))}"
    yield f"::notice title=tracelens gate::{_data(headline(verdict))}"


def _data(text: str) -> str:
    """Escaped for workflow commands; the text has no line ends."""
    return printable(text).replace("%", "%25")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
