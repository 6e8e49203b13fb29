"""Gate: checks a candidate run against a baseline."""

from tracelens.compare.gate.ci import commands, junit
from tracelens.compare.gate.config import Settings, settings
from tracelens.compare.gate.gate import CONFIDENCE, Verdict, gate
from tracelens.compare.gate.rules import read_rule
from tracelens.compare.gate.samples import Samples, from_result, read_saved
from tracelens.compare.gate.verdict import report

__all__ = [
    "CONFIDENCE",
    "Samples",
    "Settings",
    "Verdict",
    "commands",
    "from_result",
    "gate",
    "junit",
    "read_rule",
    "read_saved",
    "report",
    "settings",
]
