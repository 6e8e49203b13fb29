"""Throughput over the ranks that share the experts, for each way to dispatch tokens; parts of a step.

    scaling(Request(config, eps=(8, 16, 32, 64), dispatches=("alltoall", "deepep")), device("mi300x"))

With the bytes of one dispatch of a micro-batch, and beside published breakdowns of the 2T model on 1,024
MI300X.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from tracelens.arrays import Int
from tracelens.devices import Device
from tracelens.errors import TracelensError
from tracelens.planner.config import Config, override, preset, published_figures
from tracelens.planner.distinct import check_routing, routed_imbalance
from tracelens.planner.expected import layer_messages
from tracelens.planner.step_time import ASSUMED, Estimate, Machine, OverlapName, Timer, assumed, timed_step
from tracelens.registry import purpose
from tracelens.table import Column, Result, Schema, Skip

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

    Raises:
        TracelensError: nothing to compare, or not a routing of the model.
    """

    config: Config  # the run; its `ep` and `dispatch` are replaced
    eps: tuple[int, ...]  # ranks that share the experts
    # of DISPATCHES; speedups are over the first one
    dispatches: tuple[DispatchName, ...] = ("alltoall", "deepep")
    machine: Machine = field(default_factory=Machine)  # assumptions of the step time
    # dispatches whose all-to-alls 1F1B overlaps with computation
    overlapped: tuple[DispatchName, ...] = ("deepep",)
    network: str = ""  # name of the network file, "" for none
    expert_ids_TK: Int | None = None  # a recorded routing: the experts of each token; balanced without

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


class ScalingRun(NamedTuple):
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


_DISPATCH = Column("dispatch", "category", doc="how tokens reach the experts")
_EP = Column("ep", "int64", doc="ranks that share the experts")
_PARTS = (
    Column("compute", "float64", "fraction", "of the step: forward, backward, recomputation"),
    Column("all_to_all", "float64", "fraction", "of the step: exposed dispatch and combine"),
    Column("p2p", "float64", "fraction", "of the step: between stages, waiting for slow ranks"),
    Column("other", "float64", "fraction", "of the step: gradients, optimizer, context, tensor"),
    Column("bubble", "float64", "fraction", "of the step: waiting for other pipeline stages"),
)
PARTS = tuple(column.name for column in _PARTS)
"""Parts of a step, as in figure 11 of AMD's MoE training guide."""
SCALING = Schema(
    "Throughput by expert parallelism",
    (
        _DISPATCH,
        _EP,
        Column("step_ns", "int64", "ns", "step time"),
        Column("tokens_per_s", "float64", doc="per GPU"),
        Column("relative", "float64", "fraction", "tokens/s / those with the fewest ranks, same dispatch"),
        Column("speedup", "float64", doc="tokens/s / those of the first dispatch, same ranks"),
        Column("mfu", "float64", "fraction", "model FLOPs / the data-sheet peak"),
    ),
    doc="Step times follow from FLOPs, bytes, messages and launches; see the assumptions.",
)
BREAKDOWN = Schema(
    "Time of a step",
    (_DISPATCH, _EP, Column("step_ns", "int64", "ns", "step time"), *_PARTS),
    doc="Parts of the slowest stage's step.",
)
EXCHANGE = Schema(
    "One dispatch",
    (
        _DISPATCH,
        _EP,
        Column("nodes", "int64", "count", "nodes that share the experts"),
        Column("ranks_per_token", "float64", doc="distinct ranks with an expert of a token"),
        Column("nodes_per_token", "float64", doc="distinct nodes with an expert of a token"),
        Column("nic_bytes", "int64", "bytes", "that a rank sends to other nodes"),
        Column("link_bytes", "int64", "bytes", "that a rank sends over the links of its node"),
        Column("dur_ns", "int64", "ns", "of the dispatch of a micro-batch in one layer, hidden or not"),
    ),
    doc="A combine sends as much in the other direction, and each has a backward.",
)
PUBLISHED = Schema(
    "Time of a step as published",
    (
        _DISPATCH,
        _EP,
        Column("figures", "category", doc="projected, or published: read from a chart"),
        *_PARTS,
        Column("source", "str", doc="where it was published", folded=True),
    ),
    doc="The published layout is unknown; congestion of the network is not modeled.",
)
TABLES = {
    "scaling": SCALING,
    "breakdown": BREAKDOWN,
    "exchange": EXCHANGE,
    "published": PUBLISHED,
    "assumptions": ASSUMED,
}


def scaling(request: Request, device: Device) -> Result:
    """How does throughput change with the ranks that share the experts, and with the way to dispatch?

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
            runs.append(ScalingRun(dispatch, ep, timed_step(timer), dispatch_row(timer)))
    if not runs:
        raise TracelensError(f"no layout is valid: {skips[0].reason}")
    rates: list[dict[str, Any]] = []
    fewest: dict[str, float] = {}
    first: dict[int, float] = {}
    for run in runs:
        rate = run.time.tokens_per_s
        rates.append(
            {
                "dispatch": run.dispatch,
                "ep": run.ep,
                "step_ns": run.time.step_ns,
                "tokens_per_s": rate,
                "relative": rate / fewest.setdefault(run.dispatch, rate),
                "speedup": rate / first.setdefault(run.ep, rate),
                "mfu": run.time.mfu,
            }
        )
    keys = [{"dispatch": run.dispatch, "ep": run.ep} for run in runs]
    tables = {
        "scaling": SCALING.from_rows(rates),
        "breakdown": BREAKDOWN.from_rows(
            [key | {"step_ns": run.time.step_ns} | run.fractions for key, run in zip(keys, runs, strict=True)]
        ),
        "exchange": EXCHANGE.from_rows(
            [key | dict(run.exchange) for key, run in zip(keys, runs, strict=True)]
        ),
    }
    # The figure is of this model, device, number of GPUs and tokens per step.
    figure = published_figures()[11]
    measured = override(preset(figure.run["model"]), figure.run["run"].split())
    if (request.config.model, device.name) == (measured.model, figure.run["device"]) and (
        request.config.layout.ranks, request.config.global_tokens
    ) == (measured.layout.ranks, measured.global_tokens):  # fmt: skip
        projected = {(run.dispatch, run.ep): run.fractions for run in runs}
        rows: list[dict[str, Any]] = []
        for row in figure.rows:
            key = {"dispatch": row["dispatch"], "ep": row["ep"]}
            if fractions := projected.get((row["dispatch"], row["ep"])):
                published = {part: row[part] / 100 for part in PARTS}
                rows.append({**key, "figures": "projected", **fractions, "source": ""})
                rows.append({**key, "figures": "published", **published, "source": figure.source})
        if rows:
            tables["published"] = PUBLISHED.from_rows(rows)
    # Each dispatch has its own overlap, and with a recorded routing each number of ranks its imbalance.
    own = ("exchange_overlap",) if request.expert_ids_TK is None else ("exchange_overlap", "imbalance")
    assumptions = assumed(request.machine, [device], request.config.training.dtype, own)
    tables["assumptions"] = assumptions
    layout, training = request.config.layout, request.config.training
    return Result(
        "scaling",
        "Scaling of expert parallelism",
        tables,
        doc=purpose(scaling),
        skips=tuple(skips),
        meta={
            "device": device.name,
            "gpus": layout.ranks,
            **{name: getattr(layout, name) for name in ("pp", "vpp", "cp", "tp", "dp")},
            "micro_batch": training.micro_batch,
            "micro_batches": training.micro_batches,
            "seq": training.seq,
            "recomputed_layers": len(request.config.toggles.recompute_layer_ids),
            "overlapped": [name for name in request.dispatches if name in request.overlapped],
            "network": request.network or "line rate",
            "routing": "balanced" if request.expert_ids_TK is None else "recorded",
            "tokens_per_step": runs[0].time.tokens,
            "step_times": request.machine.step_times,
        },
        command="tracelens project scaling",
    )


def dispatch_row(timer: Timer) -> dict[str, Any]:
    """Row of the table `exchange`, without dispatch and ranks."""
    layout, spread = timer.config.layout, timer.spread
    ranks = layout.experts_over
    near = timer.network.neighbours("ep", ranks) if ranks > 1 else 1
    match timer.config.toggles.dispatch:
        case "deepep":
            to_nodes, to_ranks = spread.nodes, spread.ranks
            per_node = near
        case "dedup":
            to_nodes = to_ranks = spread.ranks
            per_node = ranks
        case _:
            to_nodes = to_ranks = spread.experts
            per_node = ranks
    size = timer.share.tokens * timer.share.row
    layer = timer.config.model.layers - 1
    messages = layer_messages(timer.share, layer, 0, timer.routed if ranks > 1 else None)
    dispatches = [
        message
        for message in messages
        if (message.phase, message.exchange.what, message.exchange.group) == ("forward", "tokens", "ep")
    ]
    return {
        "nodes": ranks // near,
        "ranks_per_token": spread.ranks,
        "nodes_per_token": spread.nodes,
        # A copy for a rank takes a link unless it is already there: on the sender, or where it came in.
        "nic_bytes": round(size * to_nodes * (ranks - near) / ranks),
        "link_bytes": round(size * to_ranks * (near - 1) / per_node),
        "dur_ns": round(sum(map(timer.message, dispatches))),
    }
