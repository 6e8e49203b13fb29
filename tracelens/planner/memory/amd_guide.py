"""Memory as in two published charts: AMD, MoE training best practices on AMD GPUs, figures 8 and 9.

They show the first pipeline rank of models with grouped-query attention and no dense layers. Attention counts
only its key and value parameters, the router none; optimizer states are sharded over the ranks with the same
experts; main parameters take 2 bytes. Activations exclude the shared expert and those saved by the experts'
activation function; logits count on the first rank, 6 bytes each.

Other models by the same rules. Latent attention: the parameters from the stream to keys and values count;
activations are queries, keys and values of all heads, and the input of the output projection. A dense layer
is an expert of its own width that every token goes to.
"""

from __future__ import annotations

from tracelens.errors import TracelensError
from tracelens.planner.config import Config
from tracelens.planner.memory.assumptions import Assumptions
from tracelens.planner.memory.stage import StageMemory, warm_up

WEIGHT = GRADIENT = MAIN = ACTIVATION = 2
ADAM = 8
LOGIT = 6
"""Bytes per element."""


def guide_stage(config: Config, assumptions: Assumptions) -> StageMemory:
    """The first pipeline rank by these rules; raises TracelensError for what the charts do not cover."""
    training, defaults = config.training, Assumptions()
    unsupported = {
        "tensor parallelism": config.layout.tp > 1,
        "recomputation": assumptions.recompute not in ("layers", "none")
        or bool(config.toggles.recompute_layer_ids),
        "another precision": training.dtype != "bfloat16" or not training.main_params,
        **{
            f"{name}={getattr(assumptions, name)}": getattr(assumptions, name) != getattr(defaults, name)
            for name in ("optimizer", "sharding", "imbalance")
        },
        "gradients=float32": assumptions.gradients == "float32",
        f"fp8={config.toggles.fp8}": config.toggles.fp8 != "off",
    }
    if present := [name for name, is_set in unsupported.items() if is_set]:
        raise TracelensError(
            f"framework=amd-guide does not support {present[0]}: leave it out, or use framework=megatron"
        )
    model, layout, T, H = config.model, config.layout, config.tokens, config.model.hidden
    chunks = layout.chunks(model.layers)[:: layout.pp]
    in_flight = warm_up(config, 0, assumptions.overlap)

    layers = [layer for chunk in chunks for layer in chunk]
    moe = sum(layer >= model.dense_layers for layer in layers)
    if model.attention == "gqa":
        keys, key_value = model.kv_groups, 2 * H * model.kv_groups * model.head_dim
    else:
        keys, up = model.heads, model.heads * (model.qk_dim + model.v_dim)
        key_value = H * (model.kv_lora + model.rope_dim) + model.kv_lora * up
    experts = 3 * H * model.expert_ffn * model.experts_count // layout.experts_over
    count = (
        len(layers) * key_value
        + moe * (experts + 3 * H * model.shared_ffn)
        + (len(layers) - moe) * 3 * H * model.dense_ffn
        + model.vocab * H
    )
    replicas = layout.stage_ranks // layout.experts_over

    # Activations as if every chunk in flight were the largest.
    largest = max(chunks, key=len)
    moe = sum(layer >= model.dense_layers for layer in largest)
    per_width = in_flight * ACTIVATION * T
    heads = model.heads * model.query_dim + keys * (model.query_dim + model.value_dim)
    activations = {
        "activations.attention": per_width * len(largest) * (heads + H),
        "activations.norms": per_width * len(largest) * 2 * H,
        "activations.router": per_width * moe * H,
        "activations.experts": per_width * moe * model.top_k * (H + 3 * model.expert_ffn),
        "activations.mlp": per_width * (len(largest) - moe) * (H + 3 * model.dense_ffn),
        "activations.embedding": ACTIVATION * T * H,
        "loss": LOGIT * T * model.vocab,
    }
    held = {
        "parameters": WEIGHT * count,
        "gradients": GRADIENT * count,
        "main_parameters": MAIN * count // replicas,
        "optimizer": ADAM * count // replicas,
    } | {name: size for name, size in activations.items() if size}
    return StageMemory(0, held, "all", {"all": sum(held.values())}, in_flight)
