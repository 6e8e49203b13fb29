"""One description of the model: its ops in execution order, which all projections read.

An op has shapes, FLOPs, bytes, messages and a parameter, and lists what it allocates and saves. From these
follow parameters, FLOPs and messages (`planner.expected`), step time (`planner.step_time`) and memory
(`planner.memory`).

- `op`: an op, and what recompute runs again.
- `tape`: records the ops of a stretch of the model.
- `replay`: memory of a recorded stretch in forward and backward.
- `sizes`: the sizes on one rank.
- `dense`, `routing`, `experts`: the parts of a layer, embedding, head and loss.
- `layer`: these together.
"""

from tracelens.planner.block.dense import (
    CHUNKS,
    AttentionKernel,
    add,
    attention,
    embed,
    gated,
    gather,
    head,
    linear,
    norm,
    rotate,
    scatter_linear,
    side_by_side,
    swiglu,
    tokens,
)
from tracelens.planner.block.experts import experts
from tracelens.planner.block.layer import (
    attention_section,
    embedding_section,
    head_section,
    layer_ops,
    mlp_section,
    moe_section,
)
from tracelens.planner.block.op import (
    FLOAT32,
    INT64,
    Collective,
    Exchange,
    Kernel,
    Load,
    Messages,
    Op,
    Value,
    Weight,
    both_ways,
    gemm,
    moves,
    one_way,
    recomputed,
)
from tracelens.planner.block.replay import TEMPORARY, Block, Held, Piece, added, replay, total
from tracelens.planner.block.routing import Dispatched, RoutedRows, combine, dispatch, router
from tracelens.planner.block.sizes import RoutedCounts, Sizes, layer_config
from tracelens.planner.block.tape import Section, Tape

__all__ = [
    "CHUNKS",
    "FLOAT32",
    "INT64",
    "TEMPORARY",
    "AttentionKernel",
    "Block",
    "Collective",
    "Dispatched",
    "Exchange",
    "Held",
    "Kernel",
    "Load",
    "Messages",
    "Op",
    "Piece",
    "RoutedCounts",
    "RoutedRows",
    "Section",
    "Sizes",
    "Tape",
    "Value",
    "Weight",
    "add",
    "added",
    "attention",
    "attention_section",
    "both_ways",
    "combine",
    "dispatch",
    "embed",
    "embedding_section",
    "experts",
    "gated",
    "gather",
    "gemm",
    "head",
    "head_section",
    "layer_config",
    "layer_ops",
    "linear",
    "mlp_section",
    "moe_section",
    "moves",
    "norm",
    "one_way",
    "recomputed",
    "replay",
    "rotate",
    "router",
    "scatter_linear",
    "side_by_side",
    "swiglu",
    "tokens",
    "total",
]
