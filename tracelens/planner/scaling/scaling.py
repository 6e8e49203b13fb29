"""Steps of a run with more and more ranks that share the experts, for each way to dispatch tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from tracelens.arrays import Int
from tracelens.devices import Device
from tracelens.errors import TracelensError
from tracelens.planner.config import Config
from tracelens.planner.distinct import check_routing, routed_imbalance
from tracelens.planner.scaling.dispatch import dispatch_row
from tracelens.planner.scaling.published import is_published, published_rows
from tracelens.planner.scaling.tables import BREAKDOWN, EXCHANGE, PARTS, PUBLISHED, SCALING
from tracelens.planner.step_time import (
    Estimate,
    Machine,
    OverlapName,
    Timer,
    assumed,
    timed_step,
)
from tracelens.registry import purpose
from tracelens.table import Result, Skip, Table

DispatchName = Literal["alltoall", "dedup", "deepep"]
DISPATCHES: tuple[DispatchName, ...] = ("alltoall", "dedup", "deepep")
"""Ways to dispatch that can be compared."""

PART_OF = {
    "forward": "compute",
    "backward": "compute",
    "recompute": "compute",
    "experts_exchange": "all_to_all",
    "stage_exchange": "p2p",
    "waiting": "p2p",
    "bubble": "bubble",
}
"""Parts of an `Estimate` to those of figure 11 of AMD's guide; all others are "other"."""


@dataclass(frozen=True)
class Request:
    """The runs to compare.

    Attributes:
        config: the run; its `ep` and `dispatch` are replaced.
        eps: ranks that share the experts.
        dispatches: of DISPATCHES; speedups are over the first one.
        machine: assumptions of the step time.
        overlapped: dispatches whose all-to-alls 1F1B overlaps with computation.
        network: name of the network file, "" for none.
        expert_ids_TK: a recorded routing: the experts of each token; balanced without.

    Raises:
        TracelensError: nothing to compare, or not a routing of the model.
    """

    config: Config
    eps: tuple[int, ...]
    dispatches: tuple[DispatchName, ...] = ("alltoall", "deepep")
    machine: Machine = field(default_factory=Machine)
    overlapped: tuple[DispatchName, ...] = ("deepep",)
    network: str = ""
    expert_ids_TK: Int | None = None

    def __post_init__(self) -> None:
        if not self.eps or not self.dispatches:
            raise TracelensError("nothing to compare: name at least one --ep and one --dispatch")
        if self.expert_ids_TK is not None:
            check_routing(self.expert_ids_TK, self.config.model)

    def run(self, dispatch: DispatchName, ep: int) -> tuple[Config, Machine]:
        """The run with this dispatch and so many ranks; TracelensError if the layout is invalid."""
        toggles = replace(self.config.toggles, dispatch=dispatch)
        overlap: OverlapName = "1f1b" if dispatch in self.overlapped else "off"
        config = replace(self.config, layout=replace(self.config.layout, ep=ep), toggles=toggles)
        machine = replace(self.machine, exchange_overlap=overlap)
        if self.expert_ids_TK is not None:
            machine = replace(machine, imbalance=routed_imbalance(self.expert_ids_TK, config.model, ep))
        return config, machine


class Run(NamedTuple):
    """A layout with its step."""

    dispatch: str
    ep: int
    time: Estimate
    exchange: Mapping[str, Any]

    @property
    def fractions(self) -> dict[str, float]:
        """PARTS as shares of the step."""
        parts = dict.fromkeys(PARTS, 0.0)
        for name, ns in self.time.parts.items():
            parts[PART_OF.get(name, "other")] += ns / self.time.step_ns
        return parts


def scaling(request: Request, device: Device) -> Result:
    """How does throughput change with the ranks that share the experts, and with the way to dispatch?

    Args:
        request: the runs.
        device: that they run on.

    Returns:
        tables `scaling` (tokens/s of each dispatch and number of ranks), `breakdown` (where the time of a
        step goes), `exchange` (bytes of one dispatch), for the configuration of a published measurement
        `published`, and `assumptions`. meta: the sizes of the run.

    Raises:
        TracelensError: no valid layout, or a device file without the rates that are needed.
    """
    runs, skips = [], []
    for dispatch in dict.fromkeys(request.dispatches):
        for ep in sorted(set(request.eps)):
            try:
                config, machine = request.run(dispatch, ep)
            except TracelensError as error:
                skips.append(Skip(f"{dispatch} with EP {ep}", str(error)))
                continue
            timer = Timer(config, device, machine, request.expert_ids_TK)
            runs.append(Run(dispatch, ep, timed_step(timer), dispatch_row(timer)))
    if not runs:
        raise TracelensError(f"no layout is valid: {skips[0].reason}")
    return Result(
        "scaling",
        "Scaling of expert parallelism",
        _tables(request, device, runs),
        doc=purpose(scaling),
        skips=tuple(skips),
        meta=_meta(request, device, runs),
        command="tracelens project scaling",
    )


def _meta(request: Request, device: Device, runs: list[Run]) -> dict[str, Any]:
    layout, training = request.config.layout, request.config.training
    return {
        "device": device.name,
        "gpus": layout.ranks,
        **{name: getattr(layout, name) for name in ("pp", "vpp", "cp", "tp", "dp")},
        "micro_batch": training.micro_batch,
        "micro_batches": training.micro_batches,
        "seq": training.seq,
        "recomputed_layers": len(request.config.toggles.recompute_layer_ids),
        "overlapped": [name for name in request.dispatches if name in request.overlapped],
        "network": request.network,
        "routing": "balanced" if request.expert_ids_TK is None else "recorded",
        "tokens_per_step": runs[0].time.tokens,
        "step_times": request.machine.step_times,
    }


def _tables(request: Request, device: Device, runs: list[Run]) -> dict[str, Table]:
    keys = [{"dispatch": run.dispatch, "ep": run.ep} for run in runs]
    tables = {
        "scaling": SCALING.from_rows(list(_scaling_rows(runs))),
        "breakdown": BREAKDOWN.from_rows(
            [key | {"step_ns": run.time.step_ns} | run.fractions for key, run in zip(keys, runs, strict=True)]
        ),
        "exchange": EXCHANGE.from_rows(
            [key | dict(run.exchange) for key, run in zip(keys, runs, strict=True)]
        ),
    }
    if is_published(request.config, device.name):
        rows = published_rows({(run.dispatch, run.ep): run.fractions for run in runs})
        tables |= {"published": PUBLISHED.from_rows(rows)} if rows else {}
    # Each dispatch has its own overlap, and with a recorded routing each number of ranks its imbalance.
    own = ("exchange_overlap",) if request.expert_ids_TK is None else ("exchange_overlap", "imbalance")
    assumptions = assumed(request.machine, [device], request.config.training.dtype, own)
    return {**tables, "assumptions": assumptions}


def _scaling_rows(runs: list[Run]) -> Iterator[dict[str, Any]]:
    fewest: dict[str, float] = {}
    first: dict[int, float] = {}
    for run in runs:
        rate = run.time.tokens_per_s
        yield {
            "dispatch": run.dispatch,
            "ep": run.ep,
            "step_ns": run.time.step_ns,
            "tokens_per_s": rate,
            "relative": rate / fewest.setdefault(run.dispatch, rate),
            "speedup": rate / first.setdefault(run.ep, rate),
            "mfu": run.time.mfu,
        }
