"""The sections of the model on one rank: ops from the residual stream to the residual stream."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tracelens.planner.block import dense
from tracelens.planner.block.dense import AttentionKernel
from tracelens.planner.block.experts import experts
from tracelens.planner.block.op import Op, Value
from tracelens.planner.block.routing import combine, dispatch, router
from tracelens.planner.block.sizes import Sizes
from tracelens.planner.block.tape import Section, Tape


@lru_cache(maxsize=512)
def attention_section(s: Sizes, kernel: AttentionKernel) -> Section:
    """Norm and attention, added to the residual stream."""
    t, x = _begun(s, "activations.attention", "attention")
    return Section(t.ops, x, dense.add(t, x, dense.attention(t, s, x, kernel)))


@lru_cache(maxsize=512)
def mlp_section(s: Sizes) -> Section:
    """Norm and MLP, added to the residual stream."""
    t, x = _begun(s, "activations.mlp", "mlp")
    return Section(t.ops, x, dense.add(t, x, dense.gated(t, s, dense.norm(t, s, x), s.model.dense_ffn)))


@lru_cache(maxsize=512)
def moe_section(s: Sizes) -> Section:
    """Norm, router, routed and shared experts, added to the residual stream."""
    t, x = _begun(s, "activations.dispatch", "router")
    normed = dense.norm(t, s, x)
    with t.part("activations.router"):
        weight, expert = router(t, s, normed)
    with t.part("activations.dispatch", "dispatch"):
        routed = dispatch(t, s, normed, weight, expert)
    shared = _shared_expert(t, s, normed) if s.config.toggles.overlap_shared else None
    with t.part("activations.experts", "experts"):
        y_R = experts(t, s, routed.x, routed.rows.size)
    with t.part("activations.dispatch", "combine"):
        y = combine(t, s, y_R, routed)
    # The forward of the module refers to these until it returns.
    t.touch(y_R, routed.x, weight, expert)
    shared = shared or _shared_expert(t, s, normed)
    if shared is not None:
        y = dense.add(t, y, shared)
    padding = 1 - s.rows / s.buffer_rows if s.static and s.P > 1 else 0.0
    return Section(t.ops, x, dense.add(t, x, y), padding)


@lru_cache(maxsize=512)
def embedding_section(s: Sizes) -> Section:
    """The embedding, which saves nothing."""
    t = Tape("activations.embedding", "embedding")
    token = t.input(0)
    return Section(t.ops, token, dense.embed(t, s, token))


@lru_cache(maxsize=512)
def head_section(s: Sizes) -> Section:
    """Norm, head and loss."""
    t, x = _begun(s, "loss", "head")
    return Section(t.ops, x, dense.head(t, s, x))


def layer_ops(s: Sizes, is_moe: bool, kernel: AttentionKernel = "flash") -> Sequence[Op]:
    """The ops of a layer in execution order."""
    ffn = moe_section(s) if is_moe else mlp_section(s)
    return [*attention_section(s, kernel).ops, *ffn.ops]


def _begun(s: Sizes, component: str, scope: str) -> tuple[Tape, Value]:
    """A tape with the residual stream as its input."""
    t = Tape(component, scope)
    with t.part("activations.norms"):
        return t, t.input(s.T * s.row)


def _shared_expert(t: Tape, s: Sizes, x: Value) -> Value | None:
    if not s.model.shared_ffn:
        return None
    with t.part("activations.shared", "shared"):
        return dense.gated(t, s, x, s.model.shared_ffn)
