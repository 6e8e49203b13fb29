"""Gate: checks candidate runs against a baseline."""

from tracelens.compare.gate.gate import Cause, RuleOutcome, Verdict, gate, of_diff, of_metrics
from tracelens.compare.gate.rules import GateSettings, Options, read_rule, settings
from tracelens.compare.gate.runs import (
    KEEP,
    Samples,
    Side,
    add_to_baseline,
    baseline_side,
    from_result,
    read_baseline,
    read_saved,
)
from tracelens.compare.gate.verdict import (
    TABLES,
    cause_text,
    commands,
    headline,
    in_order,
    interval_text,
    junit,
    knowledge,
    limited,
    report,
)

__all__ = [
    "KEEP",
    "TABLES",
    "Cause",
    "GateSettings",
    "Options",
    "RuleOutcome",
    "Samples",
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
