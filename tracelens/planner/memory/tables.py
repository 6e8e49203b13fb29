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
    "parameters": "weights, filled up to equal shares",
    "gradients": "of all parameters",
    "main_parameters": "copies for the optimizer, this rank's share",
    "optimizer": "its numbers, this rank's share",
    "activations.embedding": "kept for the backward, as all activations",
    "activations.norms": "inputs of norms, and the stream between layers",
    "activations.attention": "from the projections to the output",
    "activations.mlp": "of dense layers",
    "activations.router": "scores, weights and experts of each token",
    "activations.dispatch": "tokens sorted by expert, on their way there and back",
    "activations.experts": "of routed experts",
    "activations.shared": "of the shared expert",
    "activations.recomputed": "inputs of what is computed again",
    "loss": "logits and what the loss keeps",
    "buffers.worst_case": "rows that hold no token, since buffers are for the worst routing",
    "buffers.pipeline": "what comes from other stages, and what went there until its backward",
    "buffers.tokens": "of the step",
    "temporary": "gradients on their way, and what the op at the peak needs",
    "libraries": "workspaces",
}
"""Component to what is in it, in the order in which they are shown."""

MEMORY = Schema(
    "Memory by component",
    (
        Column("layout", "category"),
        Column("pp_rank", "int64", doc="pipeline rank"),
        Column("component", "category"),
        Column("bytes", "int64", "bytes", "at the peak of a step, on the GPU of the stage with most"),
        Column("share", "float64", "fraction", "of the rank's bytes"),
        Column("holds", "category", doc="what it is"),
    ),
    doc="Of each layout the pipeline rank with most comes first; its rows add up to its peak.",
)
RANKS = Schema(
    "Pipeline ranks",
    (
        Column("layout", "category"),
        Column("pp_rank", "int64", doc="pipeline rank"),
        Column("layers", "str", doc="that it holds; + for the embedding or the head"),
        Column("in_flight", "int64", "count", "chunks of micro-batches that it keeps at most"),
        Column("peak_bytes", "int64", "bytes"),
        Column("moment", "category", doc="of the step, at which it is reached"),
        Column("forward_bytes", "int64", "bytes", "most in a forward"),
        Column("backward_bytes", "int64", "bytes", "most in a backward"),
        Column("optimizer_bytes", "int64", "bytes", "most in the optimizer's step"),
        Column("between_bytes", "int64", "bytes", "held between steps"),
    ),
    doc="What a convention does not tell apart is -1.",
)
FITS = Schema(
    "Does it fit",
    (
        Column("layout", "category"),
        Column("device", "category"),
        Column("fits", "category", doc="yes or no"),
        Column("needed_bytes", "int64", "bytes", "of the pipeline rank with most"),
        Column("free_bytes", "int64", "bytes", "left beside the reserve; below 0, so much is missing"),
        Column("memory_bytes", "int64", "bytes", "of the device in real bytes, as its driver reports it"),
        Column("reserve_bytes", "int64", "bytes", "of it, not for training"),
        Column("nameplate_bytes", "int64", "bytes", "what the device is said to have, in decimal bytes"),
    ),
    doc="An allocator takes more from the device than it gives out: leave room beside what is needed.",
)


def memory_table(found: Mapping[str, Mapping[int, Stage]]) -> Table:
    """Rows of MEMORY."""
    rows = [
        (layout, place, name, one.held[name], one.held[name] / one.total, COMPONENTS[name])
        for layout, ranks in found.items()
        for place, one in ranks.items()
        for name in sorted(one.held, key=list(COMPONENTS).index)
    ]
    return _table(MEMORY, rows)


def ranks_table(configs: Mapping[str, Config], found: Mapping[str, Mapping[int, Stage]]) -> Table:
    """Rows of RANKS."""
    rows = [
        (
            layout,
            place,
            _layers(configs[layout], place),
            one.in_flight,
            one.total,
            one.moment,
            *(one.moments.get(name, -1) for name in ("forward", "backward", "optimizer", "between")),
        )
        for layout, ranks in found.items()
        for place, one in ranks.items()
    ]
    return _table(RANKS, rows)


def fits_table(
    found: Mapping[str, Mapping[int, Stage]],
    devices: Sequence[Device],
    convention: ConventionName,
    reserve: int | None,
) -> Table:
    """Rows of FITS."""
    rows = []
    for layout, ranks in found.items():
        needed = next(iter(ranks.values())).total
        for device in devices:
            has = room(device, convention, reserve)
            free = has.usable - needed
            rows.append(
                (
                    layout, device.name, "yes" if free >= 0 else "no", needed, free, has.bytes, has.reserve,
                    device.hbm_bytes,
                )
            )  # fmt: skip
    return _table(FITS, rows)


def _table(schema: Schema, rows: Sequence[tuple[object, ...]]) -> Table:
    return schema.table(dict(zip(schema.names, map(list, zip(*rows, strict=True)), strict=True)))


def _layers(config: Config, place: int) -> str:
    """Layers of a stage, chunk by chunk, as in 0-3, 12-15."""
    chunks = config.layout.chunks(config.model.layers)
    mine = [(number, layers) for number, layers in enumerate(chunks) if number % config.layout.pp == place]
    texts = []
    for number, layers in mine:
        text = f"{layers.start}-{layers.stop - 1}" if len(layers) > 1 else "".join(map(str, layers))
        first, last = "+" if number == 0 else "", "+" if number == len(chunks) - 1 else ""
        texts.append(first + text + last)
    return ", ".join(texts)
