"""Tables of a memory projection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracelens.devices import Device
from tracelens.planner.config import Config
from tracelens.planner.memory.assumptions import ConventionName
from tracelens.planner.memory.fits import room
from tracelens.planner.memory.stage import Stage
from tracelens.table import Column, Schema, Table

COMPONENTS = {
    "parameters": "weights, padded to equal shards",
    "gradients": "of all parameters",
    "main_parameters": "copies for the optimizer, this rank's shard",
    "optimizer": "states, this rank's shard",
    "activations.embedding": "saved for the backward, as all activations",
    "activations.norms": "inputs of norms, and the residual stream between layers",
    "activations.attention": "from the projections to the output",
    "activations.mlp": "of dense layers",
    "activations.router": "scores, weights and experts of each token",
    "activations.dispatch": "tokens sorted by expert, dispatched and combined",
    "activations.experts": "of routed experts",
    "activations.shared": "of the shared expert",
    "activations.recomputed": "inputs of recomputed layers",
    "loss": "logits and what the loss saves",
    "buffers.worst_case": "padding rows of buffers sized for the worst routing",
    "buffers.pipeline": "received from other stages, and sent there until the backward",
    "buffers.tokens": "of the step",
    "temporary": "gradients in transit, and scratch of the op at the peak",
    "libraries": "workspaces",
}
"""Component to its content, in display order."""

MEMORY = Schema(
    "Memory by component",
    (
        Column("layout", "category"),
        Column("pp_rank", "int64", doc="pipeline rank"),
        Column("component", "category"),
        Column("bytes", "int64", "bytes", "at the peak of a step, on the worst GPU of the stage"),
        Column("share", "float64", "fraction", "of the rank's bytes"),
        Column("holds", "category", doc="content"),
    ),
    doc="Worst pipeline rank of each layout first; the rows of a rank add up to its peak.",
)
RANKS = Schema(
    "Pipeline ranks",
    (
        Column("layout", "category"),
        Column("pp_rank", "int64", doc="pipeline rank"),
        Column("layers", "str", doc="layers of the stage; + for embedding or head"),
        Column("in_flight", "int64", "count", "most micro-batch chunks in flight"),
        Column("peak_bytes", "int64", "bytes"),
        Column("moment", "category", doc="phase of the step with the peak"),
        Column("forward_bytes", "int64", "bytes", "peak of a forward"),
        Column("backward_bytes", "int64", "bytes", "peak of a backward"),
        Column("optimizer_bytes", "int64", "bytes", "peak of the optimizer step"),
        Column("between_bytes", "int64", "bytes", "held between steps"),
    ),
    doc="-1: the convention does not distinguish it.",
)
FITS = Schema(
    "Does it fit",
    (
        Column("layout", "category"),
        Column("device", "category"),
        Column("fits", "category", doc="yes or no"),
        Column("needed_bytes", "int64", "bytes", "of the worst pipeline rank"),
        Column("free_bytes", "int64", "bytes", "left after the reserve; negative: missing"),
        Column("memory_bytes", "int64", "bytes", "of the device, as its driver reports"),
        Column("reserve_bytes", "int64", "bytes", "of it, not for training"),
        Column("nameplate_bytes", "int64", "bytes", "nominal memory of the device"),
    ),
    doc="Leave headroom for fragmentation.",
)


def memory_table(stages_of: Mapping[str, Mapping[int, Stage]]) -> Table:
    """Rows of MEMORY."""
    rows = [
        (layout, pp_rank, name, stage.held[name], stage.held[name] / stage.total, COMPONENTS[name])
        for layout, ranks in stages_of.items()
        for pp_rank, stage in ranks.items()
        for name in sorted(stage.held, key=list(COMPONENTS).index)
    ]
    return MEMORY.from_rows(rows)


def ranks_table(configs: Mapping[str, Config], stages_of: Mapping[str, Mapping[int, Stage]]) -> Table:
    """Rows of RANKS."""
    rows = [
        (
            layout,
            pp_rank,
            _layers(configs[layout], pp_rank),
            stage.in_flight,
            stage.total,
            stage.moment,
            *(stage.moments.get(name, -1) for name in ("forward", "backward", "optimizer", "between")),
        )
        for layout, ranks in stages_of.items()
        for pp_rank, stage in ranks.items()
    ]
    return RANKS.from_rows(rows)


def fits_table(
    stages_of: Mapping[str, Mapping[int, Stage]],
    devices: Sequence[Device],
    convention: ConventionName,
    reserve: int | None,
) -> Table:
    """Rows of FITS."""
    rows = []
    for layout, ranks in stages_of.items():
        needed = next(iter(ranks.values())).total
        for device in devices:
            device_room = room(device, convention, reserve)
            free = device_room.usable - needed
            rows.append(
                (
                    layout, device.name, "yes" if free >= 0 else "no", needed, free,
                    device_room.bytes, device_room.reserve, device.hbm_bytes,
                )
            )  # fmt: skip
    return FITS.from_rows(rows)


def _layers(config: Config, pp_rank: int) -> str:
    """Layers of a stage, chunk by chunk, as in 0-3, 12-15."""
    chunks = config.layout.chunks(config.model.layers)
    chunks_of_rank = [
        (number, layers) for number, layers in enumerate(chunks) if number % config.layout.pp == pp_rank
    ]
    texts = []
    for number, layers in chunks_of_rank:
        text = f"{layers.start}-{layers.stop - 1}" if len(layers) > 1 else "".join(map(str, layers))
        first, last = "+" if number == 0 else "", "+" if number == len(chunks) - 1 else ""
        texts.append(first + text + last)
    return ", ".join(texts)
