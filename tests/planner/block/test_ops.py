"""Ops of hand-drawn stretches: what recompute runs again, and messages of gradients."""

from __future__ import annotations

from dataclasses import replace

from tracelens.planner.block import (
    Exchange,
    Kernel,
    Load,
    RankSizes,
    Tape,
    Value,
    Weight,
    layer_ops,
    one_way,
    recomputed,
)
from tracelens.planner.config import Config, override, preset

GEMM = (Kernel("gemm", Load(8, 4), Load(16, 8)),)


def linear(t: Tape, x: Value, *, saves_last: bool = False) -> Value:
    return t.op([x], 4, saves=[x], kernels=GEMM, weights=4, saves_last=saves_last)


def test_recompute_stops_before_the_last_product() -> None:
    t = Tape("part")
    x = linear(t, linear(t, t.input(4)))
    t.op([x, x], 4, gradient="same")
    # The second saves its input, which the first yields; the sum saves nothing.
    assert recomputed(t.ops) == 1


def test_recompute_runs_an_op_that_saves_after_it_ran() -> None:
    t = Tape("part")
    t.op([linear(t, t.input(4), saves_last=True)], 4)
    assert recomputed(t.ops) == 1
    activation = Tape("part")
    activation.op([linear(activation, activation.input(4))], 4, keep=True)
    assert recomputed(activation.ops) == 2


def test_recompute_runs_messages_that_what_is_saved_comes_after() -> None:
    t = Tape("part")
    x = t.collective(t.input(4), 8, "tokens", "all_to_all", "ep")
    t.collective(linear(t, x), 4, "results", "all_to_all", "ep")
    again = t.ops[: recomputed(t.ops)]
    assert [message.what for op in again for message in op.messages.forward] == ["tokens"]


def test_the_gradient_of_a_message_travels_back() -> None:
    t = Tape("part", "dispatch")
    y = t.collective(t.input(4), 12, "tokens", "all_gather", "ep")
    (op,) = t.ops
    assert (y.bytes, op.scope, op.waits) == (12, "dispatch", True)
    assert op.messages.forward == (Exchange("tokens", "all_gather", "ep", 4, 12),)
    assert op.messages.backward == (Exchange("tokens", "reduce_scatter", "ep", 12, 4),)
    assert one_way("counts", "all_to_all", "ep", 8, 8).backward == ()


def config(*assignments: str) -> Config:
    return override(preset("small"), ["ranks=8", "ep=4", *assignments])


def test_a_toggle_adds_and_removes_ops() -> None:
    def number(*assignments: str) -> int:
        return len(layer_ops(RankSizes(config(*assignments)), True))

    base = number("permute=plain")
    assert number("permute=fused") < base
    assert number("dispatch=deepep") < number("dispatch=dedup")
    assert number("experts=grouped", "sync_free=3") < number("experts=loop")
    assert number("shared_ffn=0") < base
    assert number("aux_loss=0") == base - 1


def test_every_weight_belongs_to_a_group_of_replicas() -> None:
    s = RankSizes(config())
    weights = {op.weight for op in layer_ops(s, True) if op.weights}
    assert Weight("edp", "experts") in weights
    assert {weight.replicas for weight in weights if weight} == {"stage", "dense", "edp"}
    assert None not in weights


def test_sections_of_equal_sizes_are_built_once() -> None:
    s = RankSizes(config())
    assert layer_ops(s, True)[0] is layer_ops(replace(s), True)[0]
    assert layer_ops(s, True)[0] is not layer_ops(replace(s, imbalance=2.0, cp_rank=0), True)[0]
