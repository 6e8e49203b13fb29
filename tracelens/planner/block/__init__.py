"""One description of the model: its ops in execution order, which all projections read.

An op has shapes, FLOPs, bytes, messages and a parameter, and lists what it allocates and saves. From these
follow parameters, FLOPs and messages (`planner.expected`), step time (`planner.step_time`) and memory
(`planner.memory`).

- `tape`: an op, the recorder of ops, and the walk over them that memory follows from.
- `dense`: the sizes on one rank; attention, MLPs, embedding, head and loss.
- `moe`: router, dispatch, experts and combine; the sections of a layer.
"""

from tracelens.planner.block.dense import (
    CHUNKS,
    AttentionKernel,
    RankSizes,
    RoutedCounts,
    layer_config,
    tokens,
)
from tracelens.planner.block.moe import (
    attention_section,
    embedding_section,
    expert_gemm,
    head_section,
    layer_ops,
    mlp_section,
    moe_section,
    quantized,
)
from tracelens.planner.block.tape import (
    FLOAT32,
    INT32,
    INT64,
    TEMPORARY,
    AttentionPass,
    Collective,
    Exchange,
    Gemm,
    GradientStorage,
    Held,
    Kernel,
    Load,
    Op,
    Piece,
    Section,
    SectionMemory,
    Storage,
    Tape,
    Traffic,
    Value,
    Weight,
    added,
    one_way,
    recomputed,
    total,
    walk_backward,
    walk_forward,
)
