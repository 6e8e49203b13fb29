"""Gate: checks candidate runs against a baseline."""

from tracelens.compare.gate.baseline import KEEP, add_to_baseline, baseline_side, read_baseline
from tracelens.compare.gate.causes import Cause, of_diff, of_metrics
from tracelens.compare.gate.ci import commands, junit
from tracelens.compare.gate.config import Options, Settings, settings
from tracelens.compare.gate.gate import Verdict, gate
from tracelens.compare.gate.outcome import Outcome
from tracelens.compare.gate.rules import read_rule
from tracelens.compare.gate.runs import Side
from tracelens.compare.gate.samples import Samples, from_result, read_saved
from tracelens.compare.gate.verdict import (
    TABLES,
    cause_text,
    headline,
    in_order,
    interval_text,
    knowledge,
    limited,
    report,
)

__all__ = [
    "KEEP",
    "TABLES",
    "Cause",
    "Options",
    "Outcome",
    "Samples",
    "Settings",
    "Side",
    "Verdict",
    "add_to_baseline",
    "baseline_side",
    "cause_text",
    "commands",
    "from_result",
    "gate",
    "headline",
    "in_order",
    "interval_text",
    "junit",
    "knowledge",
    "limited",
    "of_diff",
    "of_metrics",
    "read_baseline",
    "read_rule",
    "read_saved",
    "report",
    "settings",
]
