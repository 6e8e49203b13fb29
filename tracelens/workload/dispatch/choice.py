"""Which dispatcher the toggles ask for."""

from __future__ import annotations

from tracelens.planner.config import Config, DispatchName
from tracelens.workload.dispatch.allgather import AllGatherDispatch
from tracelens.workload.dispatch.alltoall import AllToAllDispatch
from tracelens.workload.dispatch.base import Dispatcher
from tracelens.workload.dispatch.dedup import DedupDispatch
from tracelens.workload.dispatch.deepep import DeepEPDispatch
from tracelens.workload.parallel import Groups

DISPATCHERS: dict[DispatchName, type[Dispatcher]] = {
    "alltoall": AllToAllDispatch,
    "allgather": AllGatherDispatch,
    "dedup": DedupDispatch,
    "deepep": DeepEPDispatch,
}


def make_dispatcher(config: Config, groups: Groups, name: str) -> Dispatcher:
    """The dispatcher that the toggles ask for, of a layer of this name."""
    return DISPATCHERS[config.toggles.dispatch](config, groups, name)
