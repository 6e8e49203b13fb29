"""What if: the run as a graph, replayed with changes."""

from tracelens.what_if.graph import Edge, Edit, Node
from tracelens.what_if.projection import whatif
from tracelens.what_if.replay import TABLES, Projector, ReplayedStep, doubt, reliability_warning
from tracelens.what_if.scenario import (
    SCENARIOS,
    NotApplicable,
    Scenario,
    ScenarioContext,
    ScenarioRequest,
    efficiency,
    number,
    parse_request,
    scenario,
    work_costs,
)
from tracelens.what_if.thresholds import DOUBTFUL, USUAL_HOST_SHARE

__all__ = [
    "DOUBTFUL",
    "SCENARIOS",
    "TABLES",
    "USUAL_HOST_SHARE",
    "Edge",
    "Edit",
    "Node",
    "NotApplicable",
    "Projector",
    "ReplayedStep",
    "Scenario",
    "ScenarioContext",
    "ScenarioRequest",
    "doubt",
    "efficiency",
    "number",
    "parse_request",
    "reliability_warning",
    "scenario",
    "whatif",
    "work_costs",
]
