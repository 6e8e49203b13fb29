"""What if: the run as a graph, replayed with changes."""

from tracelens.what_if.replay import Projection, Projector
from tracelens.what_if.scenario import SCENARIOS, NotApplicable, parse_request
from tracelens.what_if.whatif import whatif

__all__ = ["SCENARIOS", "NotApplicable", "Projection", "Projector", "parse_request", "whatif"]
