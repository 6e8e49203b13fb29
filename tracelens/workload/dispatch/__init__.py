"""From tokens to the experts that they chose, on whichever rank these are, and back: one seam, four ways.

    sent = dispatcher.send(x_TD, weight_TK, expert_TK)     # tokens on their way
    routed = dispatcher.receive(sent)                      # rows of this rank's experts, sorted by expert
    returned = dispatcher.send_back(y_RD, routed)          # what the experts made of them, on its way back
    y_TD = dispatcher.combine(returned)                    # weighted sum for each token

N is the number of tokens, or of copies of tokens, that reach this rank. See `rows` for the other letters.
"""

from tracelens.planner.config import Config, DispatchName
from tracelens.workload.dispatch.base import Dispatcher, enter
from tracelens.workload.dispatch.collectives import AllGatherDispatch, AllToAllDispatch, DedupDispatch
from tracelens.workload.dispatch.deepep import DeepEPDispatch
from tracelens.workload.parallel import Groups

DISPATCHERS: dict[DispatchName, type[Dispatcher]] = {
    "alltoall": AllToAllDispatch,
    "allgather": AllGatherDispatch,
    "dedup": DedupDispatch,
    "deepep": DeepEPDispatch,
}


def make_dispatcher(config: Config, groups: Groups, layer: str) -> Dispatcher:
    """The dispatcher that the toggles select, for the layer of this name."""
    return DISPATCHERS[config.toggles.dispatch](config, groups, layer)
