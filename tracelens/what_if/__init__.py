"""What if: the run as a graph, replayed with changes."""

from tracelens.what_if.scenario import SCENARIOS, parse_request
from tracelens.what_if.whatif import whatif

__all__ = ["SCENARIOS", "parse_request", "whatif"]
