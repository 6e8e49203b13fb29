"""What if: the run as a graph, replayed with changes."""

from tracelens.what_if.replay import DOUBTFUL, TABLES, Projector, Replay, doubt, reliability_warning
from tracelens.what_if.scenario import SCENARIOS, ScenarioRequest, parse_request
from tracelens.what_if.whatif import whatif

__all__ = [
    "DOUBTFUL",
    "SCENARIOS",
    "TABLES",
    "Projector",
    "Replay",
    "ScenarioRequest",
    "doubt",
    "parse_request",
    "reliability_warning",
    "whatif",
]
