"""Gate: checks candidate runs against a baseline."""

from tracelens.compare.gate.gate import (
    MUST_AGREE,
    Cause,
    RuleOutcome,
    Verdict,
    check_alike,
    gate,
    of_diff,
    of_metrics,
    step_noise,
)
from tracelens.compare.gate.rules import GateSettings, Options, default_rules, read_rule, settings
from tracelens.compare.gate.runs import (
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
from tracelens.compare.gate.verdict import TABLES, commands, comment, headline, junit, report
