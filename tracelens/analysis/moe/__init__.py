"""MoE layers: their passes and stages, expert balance, host synchronisation inside them."""

from tracelens.analysis.moe.host_syncs import Blocking, blocking
from tracelens.analysis.moe.passes import exchange_group, exchanges
from tracelens.analysis.moe.regions import BACKWARD, FORWARD, PHASES, LayerPass, Regions, regions
from tracelens.analysis.moe.stages import COMBINE, DISPATCH, EXPERTS, PERMUTATION, ROUTER, STAGES

__all__ = [
    "BACKWARD",
    "COMBINE",
    "DISPATCH",
    "EXPERTS",
    "FORWARD",
    "PERMUTATION",
    "PHASES",
    "ROUTER",
    "STAGES",
    "Blocking",
    "LayerPass",
    "Regions",
    "blocking",
    "exchange_group",
    "exchanges",
    "regions",
]
