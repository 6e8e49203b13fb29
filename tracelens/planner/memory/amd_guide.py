"""Memory as in two published charts: AMD, MoE training best practices on AMD GPUs, figures 8 and 9.

They show the first pipeline rank of models with grouped-query attention and no dense layers. Attention counts
only its key and value parameters, the router none; optimizer states are sharded over the ranks with the same
experts; main parameters take 2 bytes. Activations exclude the shared expert and those saved by the experts'
activation function; logits count on the first rank, 6 bytes each.
"""

from __future__ import annotations

from tracelens.errors import TracelensError
from tracelens.planner.config import Config
from tracelens.planner.memory.assumptions import Assumptions
from tracelens.planner.memory.flight import warm_up
from tracelens.planner.memory.stage import Stage
from tracelens.planner.memory.tape import Held

WEIGHT = GRADIENT = MAIN = ACTIVATION = 2
ADAM = 8
LOGIT = 6
"""Bytes per element."""


def guide_stage(config: Config, assumptions: Assumptions) -> Stage:
    """The first pipeline rank by this convention; raises TracelensError for what the charts do not cover."""
    _check(config, assumptions)
    layout = config.layout
    chunks = layout.chunks(config.model.layers)[:: layout.pp]
    in_flight = warm_up(config, 0, assumptions.overlap)
    held = _static(config, sum(map(len, chunks))) | _activations(config, in_flight, max(map(len, chunks)))
    total_bytes = sum(held.values())
    return Stage(0, held, "all", {"all": total_bytes}, in_flight)


def _check(config: Config, assumptions: Assumptions) -> None:
    model, training, defaults = config.model, config.training, Assumptions()
    if model.attention != "gqa" or model.dense_layers:
        raise TracelensError(
            "framework=amd-guide supports only models with grouped-query attention and without dense layers: "
            "use framework=workload"
        )
    unsupported = {
        "tensor parallelism": config.layout.tp > 1,
        "recomputation": assumptions.recompute not in ("layers", "none")
        or bool(config.toggles.recompute_layer_ids),
        "another precision": training.dtype != "bfloat16" or not training.main_params,
        **{
            f"{name}={getattr(assumptions, name)}": getattr(assumptions, name) != getattr(defaults, name)
            for name in ("optimizer", "gradients", "sharding", "imbalance")
        },
    }
    if present := [name for name, is_set in unsupported.items() if is_set]:
        raise TracelensError(
            f"framework=amd-guide does not support {present[0]}: leave it out, or use framework=workload"
        )


def _static(config: Config, layers: int) -> Held:
    model, layout = config.model, config.layout
    H, ranks = model.hidden, layout.experts_over
    attention = 2 * H * model.kv_groups * model.head_dim
    experts = 3 * H * model.expert_ffn * model.experts_count // ranks
    count = layers * (attention + experts + 3 * H * model.shared_ffn) + model.vocab * H
    replicas = layout.stage_ranks // ranks
    return {
        "parameters": WEIGHT * count,
        "gradients": GRADIENT * count,
        "main_parameters": MAIN * count // replicas,
        "optimizer": ADAM * count // replicas,
    }


def _activations(config: Config, in_flight: int, layers: int) -> Held:
    model, T, H = config.model, config.tokens, config.model.hidden
    per_width = in_flight * layers * ACTIVATION * T
    heads = (model.heads + 2 * model.kv_groups) * model.head_dim
    return {
        "activations.attention": per_width * (heads + H),
        "activations.norms": per_width * 2 * H,
        "activations.router": per_width * H,
        "activations.experts": per_width * model.top_k * (H + 3 * model.expert_ffn),
        "activations.embedding": ACTIVATION * T * H,
        "loss": LOGIT * T * model.vocab,
    }
