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
    embed,
    gated,
    gather,
    linear,
    norm,
    rotate,
    scatter_linear,
    swiglu,
    tokens,
)
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
    Attention,
    Collective,
    Exchange,
    Gemm,
    Gradient,
    Kernel,
    Load,
    Messages,
    Op,
    Storage,
    Value,
    Weight,
    both_ways,
    gemm,
    moves,
    one_way,
    recomputed,
)
from tracelens.planner.block.replay import TEMPORARY, Block, Held, Piece, added, total
from tracelens.planner.block.sizes import RoutedCounts, Sizes, layer_config
from tracelens.planner.block.tape import Section, Tape

__all__ = [
    "CHUNKS",
    "FLOAT32",
    "INT64",
    "TEMPORARY",
    "Attention",
    "AttentionKernel",
    "Block",
    "Collective",
    "Exchange",
    "Gemm",
    "Gradient",
    "Held",
    "Kernel",
    "Load",
    "Messages",
    "Op",
    "Piece",
    "RoutedCounts",
    "Section",
    "Sizes",
    "Storage",
    "Tape",
    "Value",
    "Weight",
    "add",
    "added",
    "attention_section",
    "both_ways",
    "embed",
    "embedding_section",
    "gated",
    "gather",
    "gemm",
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
    "rotate",
    "scatter_linear",
    "swiglu",
    "tokens",
    "total",
]
