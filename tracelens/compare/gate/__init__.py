"""Gate: checks candidate runs against a baseline."""

from tracelens.compare.gate.gate import Cause, RuleOutcome, Verdict, gate, of_diff, of_metrics
from tracelens.compare.gate.rules import GateSettings, Options, read_rule, settings
from tracelens.compare.gate.runs import (
    KEEP,
    GatedRun,
    GateSide,
    Samples,
    Side,
    add_to_baseline,
    baseline_side,
    from_result,
    read_baseline,
    read_saved,
    read_side,
)
from tracelens.compare.gate.verdict import (
    TABLES,
    commands,
    comment,
    headline,
    junit,
    report,
)

__all__ = [
    "KEEP",
    "TABLES",
    "Cause",
    "GateSettings",
    "GateSide",
    "GatedRun",
    "Options",
    "RuleOutcome",
    "Samples",
    "Side",
    "Verdict",
    "add_to_baseline",
    "baseline_side",
    "commands",
    "comment",
    "from_result",
    "gate",
    "headline",
    "junit",
    "of_diff",
    "of_metrics",
    "read_baseline",
    "read_rule",
    "read_saved",
    "read_side",
    "report",
    "settings",
]
