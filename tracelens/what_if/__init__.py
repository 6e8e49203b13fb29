"""What if: the run as a graph, replayed with something changed."""

from tracelens.what_if.scenario import SCENARIOS, wish
from tracelens.what_if.whatif import whatif

__all__ = ["SCENARIOS", "whatif", "wish"]
