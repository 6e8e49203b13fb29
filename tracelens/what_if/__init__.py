"""What if: the run as a graph, replayed with changes."""

from tracelens.what_if.graph import Edge, Edit, Node
from tracelens.what_if.projection import whatif
from tracelens.what_if.replay import DOUBTFUL, TABLES, Projector, Replay, doubt, reliability_warning
from tracelens.what_if.scenario import (
    SCENARIOS,
    NotApplicable,
    Scenario,
    ScenarioContext,
    ScenarioRequest,
    parse_request,
    scenario,
)

__all__ = [
    "DOUBTFUL",
    "SCENARIOS",
    "TABLES",
    "Edge",
    "Edit",
    "Node",
    "NotApplicable",
    "Projector",
    "Replay",
    "Scenario",
    "ScenarioContext",
    "ScenarioRequest",
    "doubt",
    "parse_request",
    "reliability_warning",
    "scenario",
    "whatif",
]
