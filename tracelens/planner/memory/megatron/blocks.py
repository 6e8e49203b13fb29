"""Memory of the blocks of a model in Megatron-core, as the reference workload's in `memory.layer`."""

from __future__ import annotations

from functools import lru_cache

from tracelens.planner.block import Block, Sizes, Tape, Value
from tracelens.planner.config import Config
from tracelens.planner.memory.megatron import dense, moe
from tracelens.planner.memory.megatron.program import Program, program
from tracelens.planner.memory.megatron.settings import Settings


def _begun(s: Sizes, component: str) -> tuple[Tape, Value]:
    """A tape of this component, with the residual stream as its input."""
    t = Tape(component)
    with t.part("activations.norms"):
        return t, t.input(s.T * s.row)


def _normed(t: Tape, s: Sizes, x: Value) -> Value:
    with t.part("activations.norms"):
        return dense.norm(t, s, x, s.model.hidden, s.T)


def attention_tape(s: Sizes, settings: Settings) -> tuple[Tape, Value, Value]:
    """Norm and attention, added to the residual stream."""
    t, x = _begun(s, "activations.attention")
    y = dense.attention(t, s, settings, _normed(t, s, x))
    return t, x, t.op([x, y], s.T * s.row, gradient="same")


def mlp_tape(s: Sizes, settings: Settings) -> tuple[Tape, Value, Value]:
    """Norm and MLP, added to the residual stream."""
    t, x = _begun(s, "activations.mlp")
    y = dense.mlp(t, s, settings, _normed(t, s, x), s.model.dense_ffn)
    return t, x, t.op([x, y], s.T * s.row, gradient="same")


def moe_tape(s: Sizes, settings: Settings) -> tuple[Tape, Value, Value]:
    """Norm and MoE layer, added to the residual stream."""
    t, x = _begun(s, "activations.dispatch")
    y = moe.moe(t, s, settings, _normed(t, s, x))
    return t, x, t.op([x, y], s.T * s.row, gradient="same")


def norm_tape(s: Sizes, _: Settings) -> tuple[Tape, Value, Value]:
    """The norm before an MoE layer that is recomputed as a whole."""
    t, x = _begun(s, "activations.norms")
    return t, x, _normed(t, s, x)


def moe_only_tape(s: Sizes, settings: Settings) -> tuple[Tape, Value, Value]:
    """An MoE layer on its normed input, with the residual stream behind it."""
    t, x = _begun(s, "activations.dispatch")
    y = moe.moe(t, s, settings, x)
    return t, x, t.op([y], s.T * s.row, gradient="new")


def embedding_tape(s: Sizes, _: Settings) -> tuple[Tape, Value, Value]:
    """The embedding, which saves nothing."""
    t = Tape("activations.embedding")
    token = t.input(0)
    return t, token, dense.embed(t, s, token)


def head_tape(s: Sizes, settings: Settings) -> tuple[Tape, Value, Value]:
    """Norm, output layer and loss."""
    t, x = _begun(s, "loss")
    return t, x, dense.head(t, s, settings, x)


TAPES = {
    "attention": attention_tape,
    "mlp": mlp_tape,
    "moe": moe_tape,
    "norm": norm_tape,
    "moe_only": moe_only_tape,
    "embedding": embedding_tape,
    "head": head_tape,
}


@lru_cache(maxsize=1024)
def block(name: str, config: Config, settings: Settings, imbalance: float = 1) -> Block:
    """A block of the model by name, see TAPES."""
    tape, x, y = _taped(name, config, settings, imbalance)
    return tape.block(x, y)


@lru_cache(maxsize=256)
def block_program(name: str, config: Config, settings: Settings, imbalance: float = 1) -> Program:
    """Its allocations in order."""
    return program(*_taped(name, config, settings, imbalance))


def _taped(name: str, config: Config, settings: Settings, imbalance: float) -> tuple[Tape, Value, Value]:
    s = Sizes(config, imbalance if name.startswith("moe") else 1)
    return TAPES[name](s, settings)
