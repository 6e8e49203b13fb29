"""The headline of a report, held against the first row of its findings and the first card."""

from __future__ import annotations

import re

import pytest

from tracelens.rendering import RENDERERS
from tracelens.rendering.tables import finding_cards
from tracelens.table import Report


def check_headline(report: Report) -> None:
    """Headline, card, console and Markdown are of the first row; without a row none promises a saving."""
    assert report.summary is not None
    verdict, table = str(report.summary.verdict), report["findings"]["findings"]
    promised = re.findall(r" (?:would|would probably|might) (?:save|bring it to) about", verdict)
    if not len(table):
        assert not promised
        assert not finding_cards(report)
        return
    row, base_ns = next(table.itertuples()), report["findings"].meta["base_ns"]
    left_ns = base_ns - row.additional_ns
    assert len(promised) == 1
    subject, _, size = verdict.partition(promised[0])
    subject = subject.rpartition("; ")[2]
    assert subject == (row.fix or f"fixing finding 1 ({row.finding.partition(':')[0]})")
    number = re.match(r" <?([\d.]+) ?(%|s|ms|us)", size)
    assert number, verdict
    told = float(number[1]) * {"%": base_ns / 100, "s": 1e9, "ms": 1e6, "us": 1e3}[number[2]]
    # Two digits of a share, or one of less than 0.1%; three of a time.
    assert told == pytest.approx(
        row.additional_ns if number[2] == "%" else left_ns, rel=0.06, abs=base_ns / 500
    )
    assert {"high": "would ", "medium": "would probably ", "low": "might "}[row.confidence] in promised[0]

    card, *_ = finding_cards(report)
    assert (card.number, card.name, card.confidence) == (1, row.finding, row.confidence)
    for name in ("console", "markdown"):
        (text,) = RENDERERS.get(name).files(report).values()
        assert verdict.split(";")[0][:30].encode() in text
        found = [text.find(other[:12].encode()) for other in table["finding"]]
        assert found[0] == min(place for place in found if place >= 0)
