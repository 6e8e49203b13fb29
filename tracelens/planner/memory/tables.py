"""The tables of a memory projection."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tracelens.devices import Device
from tracelens.planner.config import Config
from tracelens.planner.memory.fits import Room
from tracelens.planner.memory.stage import Stage
from tracelens.table import Column, Schema, Table

COMPONENTS = {
    "parameters": "weights, padded to equal shards",
    "gradients": "gradients of all parameters",
    "main_parameters": "copies for the optimizer, this rank's shard",
    "optimizer": "optimizer states, this rank's shard",
    "activations.embedding": "embedding output",
    "activations.norms": "inputs of norms, including the residual stream",
    "activations.attention": "attention, from QKV projection to output projection",
    "activations.mlp": "MLPs of dense layers",
    "activations.router": "scores, weights and experts of each token",
    "activations.dispatch": "tokens sorted by expert, dispatched and combined",
    "activations.experts": "routed experts",
    "activations.shared": "shared expert",
    "activations.recomputed": "inputs of recomputed layers",
    "loss": "logits and what the loss saves",
    "buffers.worst_case": "padding rows of buffers sized for the worst routing",
    "buffers.pipeline": "activations and gradients exchanged with other stages",
    "buffers.tokens": "token ids of a step",
    "temporary": "gradients in flight, and scratch of the op at the peak",
    "libraries": "library workspaces",
    "allocator": "reserved by the allocator, in no tensor",
}
"""Component to its content, in display order."""

_LAYOUT = Column("layout", "category", doc="GPUs and parallel sizes, such as 64 GPUs ep=8")

MEMORY = Schema(
    "Memory by component",
    (
        _LAYOUT,
        Column("pp_rank", "int64", doc="pipeline rank"),
        Column("component", "category", doc="what holds the memory"),
        Column("bytes", "int64", "bytes", "at the peak of a step, on the fullest GPU of the stage"),
        Column("share", "float64", "fraction", "share of the rank's bytes"),
        Column("contents", "category", doc="what the component consists of"),
    ),
    doc="Worst pipeline rank of each layout first; the rows of a rank add up to its peak.",
)
RANKS = Schema(
    "Pipeline ranks",
    (
        _LAYOUT,
        Column("pp_rank", "int64", doc="pipeline rank"),
        Column("layers", "str", doc="layers of the stage; + for embedding or head"),
        Column("in_flight", "int64", "count", "most micro-batch chunks in flight"),
        Column("peak_bytes", "int64", "bytes", "most bytes in use at once during a step"),
        Column("peak_phase", "category", doc="phase of the step with the peak"),
        Column("forward_bytes", "int64", "bytes", "peak of a forward"),
        Column("backward_bytes", "int64", "bytes", "peak of a backward"),
        Column("optimizer_bytes", "int64", "bytes", "peak of the optimizer step"),
        Column("between_bytes", "int64", "bytes", "held between steps"),
    ),
    doc="-1: the framework's rules do not distinguish it.",
)
FITS = Schema(
    "Does it fit",
    (
        _LAYOUT,
        Column("device", "category", doc="device to fit on"),
        Column("fits", "category", doc="yes or no"),
        Column("needed_bytes", "int64", "bytes", "of the worst pipeline rank"),
        Column("free_bytes", "int64", "bytes", "left after the reserve; negative: missing"),
        Column("memory_bytes", "int64", "bytes", "of the device, as its driver reports"),
        Column("reserve_bytes", "int64", "bytes", "part of the memory not for training"),
        Column("nameplate_bytes", "int64", "bytes", "nominal memory of the device"),
    ),
    doc="What the allocator reserves counts with framework=megatron; otherwise leave headroom for it.",
)

TABLES = {"fits": FITS, "memory": MEMORY, "ranks": RANKS}


def memory_table(stages_of: Mapping[str, Mapping[int, Stage]]) -> Table:
    """MEMORY of all layouts."""
    return MEMORY.from_rows(
        [
            {
                "layout": layout,
                "pp_rank": pp_rank,
                "component": name,
                "bytes": stage.held[name],
                "share": stage.held[name] / stage.total,
                "contents": COMPONENTS[name],
            }
            for layout, ranks in stages_of.items()
            for pp_rank, stage in ranks.items()
            for name in sorted(stage.held, key=list(COMPONENTS).index)
        ]
    )


def ranks_table(configs: Mapping[str, Config], stages_of: Mapping[str, Mapping[int, Stage]]) -> Table:
    """RANKS of all layouts."""
    moments = ("forward", "backward", "optimizer", "between")
    return RANKS.from_rows(
        [
            {
                "layout": layout,
                "pp_rank": pp_rank,
                "layers": _layers(configs[layout], pp_rank),
                "in_flight": stage.in_flight,
                "peak_bytes": stage.total,
                "peak_phase": stage.moment,
                **{f"{moment}_bytes": stage.moments.get(moment, -1) for moment in moments},
            }
            for layout, ranks in stages_of.items()
            for pp_rank, stage in ranks.items()
        ]
    )


def fits_table(
    stages_of: Mapping[str, Mapping[int, Stage]],
    rooms: Sequence[tuple[Device, Room]],
    needed_of: Callable[[str, int], int],
) -> Table:
    """FITS of all layouts on all devices; `needed_of`: bytes of a layout where so many are usable."""
    rows = []
    for layout in stages_of:
        for device, room in rooms:
            needed = needed_of(layout, room.usable)
            rows.append(
                {
                    "layout": layout,
                    "device": device.name,
                    "fits": "yes" if needed <= room.usable else "no",
                    "needed_bytes": needed,
                    "free_bytes": room.usable - needed,
                    "memory_bytes": room.bytes,
                    "reserve_bytes": room.reserve,
                    "nameplate_bytes": device.hbm_bytes,
                }
            )
    return FITS.from_rows(rows)


def _layers(config: Config, pp_rank: int) -> str:
    """Layers of a stage by chunk, as in +0-3, 12-15."""
    chunks = config.layout.chunks(config.model.layers)
    texts = []
    for number in range(pp_rank, len(chunks), config.layout.pp):
        layers = chunks[number]
        text = f"{layers.start}-{layers.stop - 1}" if len(layers) > 1 else "".join(map(str, layers))
        first, last = "+" if number == 0 else "", "+" if number == len(chunks) - 1 else ""
        texts.append(first + text + last)
    return ", ".join(texts)
