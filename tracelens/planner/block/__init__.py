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

from tracelens.planner.block.dense import CHUNKS, AttentionKernel, tokens
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
    Load,
    Op,
    Storage,
    Traffic,
    Value,
    Weight,
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
    "Load",
    "Op",
    "Piece",
    "RoutedCounts",
    "Section",
    "Sizes",
    "Storage",
    "Tape",
    "Traffic",
    "Value",
    "Weight",
    "added",
    "attention_section",
    "embedding_section",
    "head_section",
    "layer_config",
    "layer_ops",
    "mlp_section",
    "moe_section",
    "recomputed",
    "tokens",
    "total",
]
