"""What autograd keeps of a forward of the workload's model, byte by byte. Needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tracelens.planner.block import total
from tracelens.planner.config import Config
from tracelens.planner.memory import Assumptions, Stages
from tracelens.workload.parallel import Groups, initialise, make_groups
from tracelens.workload.pipeline import MicroBatchSchedule

# Smaller are scalars.
LEAST = 9


def saved(config: Config, groups: Groups | None = None) -> int:
    """Bytes of distinct storages that one forward saves, but for parameters, tables and tokens."""
    groups = groups or Groups(config.layout)
    schedule = MicroBatchSchedule(config, groups, torch.device("cpu"))
    chunk = schedule.chunks[0]
    initialise(chunk, 0, 0.02)
    shards = config.layout.cp * config.layout.tp
    shape = (1, config.training.seq // shards, config.training.micro_batch)
    token = torch.randint(config.model.vocab, shape)
    own = {_place(tensor) for tensor in (*chunk.parameters(), *chunk.buffers(), token)}
    sizes: dict[int, int] = {}
    alive: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        size = tensor.untyped_storage().nbytes()
        if _place(tensor) not in own and size >= LEAST:
            sizes[_place(tensor)] = size
            alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        schedule.parts[0](token, token)
    return sum(sizes.values())


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def norms_on_cpu(config: Config) -> int:
    """On a CPU a norm keeps its normalised input, too, for it is made of several ops."""
    model, layout = config.model, config.layout
    layers = model.layers - len(set(config.toggles.recompute_layer_ids))
    latent = (model.kv_lora + model.q_lora) * layout.tp if model.attention == "mla" else 0
    return 4 * config.tokens * (layers * (2 * model.hidden + latent) + model.hidden)


def projected(config: Config, **assumed: Any) -> int:
    """Bytes that the projection counts as kept of one micro-batch of the whole model."""
    stages = Stages(config, Assumptions(**assumed))
    _, kinds = stages._chunks_of(0)
    return sum(total(cost.kept) for cost in stages._costs(kinds[0]))


def of_rank(rank: int, configs: Sequence[Config]) -> list[int]:
    """What `saved` says of each of these on one of several ranks, without what only a CPU keeps."""
    return [saved(config, make_groups(config.layout, rank)) - norms_on_cpu(config) for config in configs]
