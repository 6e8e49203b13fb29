"""What is read from the ops of a block against closed forms, for any model, layout and toggles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.effort import effort
from tests.planner.expected import closed_forms
from tracelens.errors import TracelensError
from tracelens.planner.config import CHOICES, Config, Layout, Model, Toggles, Training
from tracelens.planner.expected import RankShare, balanced, flops, is_routed, layer_messages, parameters

MODEL = Model(
    layers=3, dense_layers=1, hidden=64, dense_ffn=64, heads=8, attention="gqa", kv_groups=4, head_dim=16,
    kv_lora=16, qk_dim=16, rope_dim=8, v_dim=12, experts_count=16, top_k=2, expert_ffn=32, vocab=96,
)  # fmt: skip


@st.composite
def configs(draw: st.DrawFn) -> Config:
    """Models of both kinds of attention, with and without what is optional."""

    def either(*values: Any) -> Any:
        return draw(st.sampled_from(values))

    model = replace(
        MODEL,
        attention=either("gqa", "mla"),
        q_lora=either(0, 24),
        top_k=either(1, 2, 6),
        shared_ffn=either(0, 32),
        aux_loss=either(0.0, 0.001),
    )
    pp, cp, tp, dp = either(1, 2), either(1, 2), either(1, 2, 4), either(1, 2)
    layout = Layout(ranks=pp * cp * tp * dp, pp=pp, cp=cp, tp=tp, ep=either(0, 1, cp * tp))
    names = ("experts", "dispatch", "sync_free", "permute", "tp_overlap")
    recompute = tuple(layer for layer in range(model.layers) if draw(st.booleans()))
    training = Training(seq=48, micro_batch=either(1, 3), micro_batches=2 * pp, routing="balanced")
    try:
        toggles = Toggles(
            **{name: either(*CHOICES[name]) for name in names},
            overlap_shared=draw(st.booleans()),
            recompute_layer_ids=recompute,
        )
        return Config(model, layout, toggles, training)
    except TracelensError:
        assume(False)
        raise


@given(configs(), st.data())
@settings(deadline=None, max_examples=effort(60, 150))
def test_the_ops_have_the_parameters_of_the_closed_form(config: Config, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, config.layout.ranks - 1))
    counts = parameters(config, rank)
    by_component = {(group, name): count for group, held in counts.items() for name, count in held.items()}
    assert by_component == closed_forms.parameters(config, rank)


@given(configs(), st.sampled_from(["flash", "masked", "math"]), st.booleans(), st.data())
@settings(deadline=None, max_examples=effort(60, 150))
def test_the_ops_have_the_flops_of_the_closed_form(
    config: Config, kernel: Any, to_the_end: bool, data: st.DataObject
) -> None:
    rank = data.draw(st.integers(0, config.layout.ranks - 1))
    expected = closed_forms.flops(config, rank, balanced(config, rank), kernel, to_the_end)
    assert flops(config, rank, None, kernel, broken_off=to_the_end) == expected
    in_buffers = closed_forms.flops(config, rank, None, kernel, to_the_end)
    assert flops(config, rank, None, kernel, buffers=True, broken_off=to_the_end) == in_buffers


@given(configs(), st.data())
@settings(deadline=None, max_examples=effort(60, 150))
def test_the_ops_have_the_messages_of_the_closed_form(config: Config, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, config.layout.ranks - 1))
    share, routing = RankShare(config, rank), balanced(config, rank)
    for layer in share.layers:
        routed = routing.at(layer, 0) if is_routed(share) and share.is_moe(layer) else None
        sent = [
            (message.phase, closed_forms.LayerMessage(message.scope, *message.exchange))
            for message in layer_messages(share, layer, 0, routed)
        ]
        assert sent == closed_forms.sent(closed_forms.RankShare(config, rank), layer, routed)
