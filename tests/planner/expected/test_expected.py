"""Closed forms against numbers worked out by hand, torch's own counts, and the published sizes of models."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from tracelens.errors import TracelensError
from tracelens.planner.block import Exchange, attention_section
from tracelens.planner.config import MODELS, Config, Layout, Model, Training, override, preset
from tracelens.planner.expected import (
    RankRouting,
    RankShare,
    Routing,
    ScopeFlops,
    StepMessage,
    attention_kernel,
    balanced,
    buffer_bytes,
    flops,
    messages,
    parameters,
    summary,
    totals,
)

torch = pytest.importorskip("torch", reason="the workload needs torch")

from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from tracelens.workload.model import (  # noqa: E402
    Router,
    Transformer,
)
from tracelens.workload.parallel import Groups, initialise  # noqa: E402
from tracelens.workload.routing_log import RoutingLog  # noqa: E402

# Small enough to do in one's head: 1 dense layer, 1 with experts.
BY_HAND = Model(
    layers=2, dense_layers=1, hidden=8, dense_ffn=16, heads=2, attention="gqa", kv_groups=1, head_dim=4,
    experts_count=4, top_k=2, expert_ffn=8, shared_ffn=4, vocab=10, aux_loss=0.0,
)  # fmt: skip


def by_hand(layout: Layout | None = None, *assignments: str) -> Config:
    training = Training(seq=6, micro_batch=1, micro_batches=2, dtype="float32", routing="balanced")
    return override(Config(BY_HAND, layout or Layout(), training=training), assignments)


def test_parameters_by_hand() -> None:
    assert parameters(by_hand(), 0) == {
        "stage": {"embedding": 80, "norms": 5 * 8, "router": 32, "head": 80},
        # Queries 8 x 8, keys 4 x 8, values 4 x 8, output 8 x 8: 192 a layer.
        "dense": {"attention": 2 * 192, "mlp": 3 * 8 * 16, "shared": 3 * 8 * 4},
        "edp": {"experts": 4 * 3 * 8 * 8},
    }
    # Two of the four experts are idle.
    assert totals(BY_HAND) == (80 + 40 + 32 + 80 + 384 + 384 + 96 + 768, 1864 - 2 * 192)


def test_parameters_of_latent_attention_by_hand() -> None:
    model = replace(BY_HAND, attention="mla", q_lora=6, kv_lora=4, qk_dim=2, rope_dim=2, v_dim=3)
    counts = parameters(Config(model, training=by_hand().training), 0)
    # Down 6 x 8 and (4 + 2) x 8, norms of 6 and 4; up 2 heads x (4 x 6 + 5 x 4), output 8 x 2 x 3.
    assert counts["stage"]["attention"] == 2 * (48 + 48 + 10)
    assert counts["dense"]["attention"] == 2 * (2 * 24 + 2 * 20 + 48)


def test_parameters_of_one_rank_by_hand() -> None:
    config = by_hand(Layout(ranks=4, pp=2, ep=2))
    first = {"stage": {"embedding": 80, "norms": 16}, "dense": {"attention": 192, "mlp": 384}}
    assert parameters(config, 0) == parameters(config, 1) == first
    assert parameters(config, 2)["edp"] == {"experts": 2 * 192}
    assert parameters(config, 3)["stage"] == {"norms": 24, "router": 32, "head": 80}


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("deepseek_v2_lite", 15.7, 2.66),
        ("deepseek_v2", 235.7, 21.4),
        ("deepseek_v3", 671.0, 37.6),
        ("moe_1t", 1035.6, 57.1),
        ("moe_2t", 2050, 93.5),
    ],
)
def test_published_sizes(name: str, total: float, active: float) -> None:
    for count, published in zip(totals(MODELS[name]), (total, active), strict=True):
        digits = len(str(published).partition(".")[2])
        assert round(count / 1e9, digits) == published


@st.composite
def configs(draw: st.DrawFn) -> Config:
    """Any preset in any layout that it allows."""
    name = draw(st.sampled_from(sorted(MODELS)))
    model = MODELS[name]
    pp, vpp = draw(st.sampled_from([(1, 1), (2, 1), (3, 1), (2, 2)])) if model.layers > 3 else (1, 1)
    cp, tp, dp = (draw(st.sampled_from([1, 2, 4])) for _ in range(3))
    stage = cp * tp * dp
    ep = draw(st.sampled_from([size for size in (1, 2, 4, 8) if stage % size == 0]))
    layout = Layout(ranks=pp * stage, pp=pp, vpp=vpp, cp=cp, tp=tp, ep=ep)
    micro_batches = max(pp, 2)
    return Config(model, layout, training=replace(preset(name).training, micro_batches=micro_batches))


@given(configs(), st.data())
# Few: test_expected_models.py counts every kind of layout.
@settings(deadline=None, max_examples=effort(12, 300))
def test_parameters_are_those_that_torch_counts(config: Config, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, config.layout.ranks - 1))
    counted: dict[str, int] = {}
    chunks = config.layout.chunks(config.model.layers)
    coordinates = config.layout.coordinates(rank)
    for number, layers in enumerate(chunks):
        if number % config.layout.pp == coordinates["pp"]:
            ends = (number == 0, number == len(chunks) - 1)
            with torch.device("meta"):
                chunk = Transformer(config, Groups(config.layout, rank), layers, ends)
            for parameter in chunk.parameters():
                counted[parameter.replicas] = counted.get(parameter.replicas, 0) + parameter.numel()
    by_group = parameters(config, rank)
    assert {replicas: sum(counts.values()) for replicas, counts in by_group.items()} == counted


@given(configs())
@settings(deadline=None, max_examples=20)
def test_ranks_hold_the_model_as_often_as_they_replicate_it(config: Config) -> None:
    layout, whole = config.layout, 0
    copies = {"stage": layout.stage_ranks, "dense": layout.dp * layout.cp}
    copies["edp"] = layout.stage_ranks // layout.experts_over
    held = dict.fromkeys(copies, 0)
    for rank in range(layout.ranks):
        for replicas, counts in parameters(config, rank).items():
            held[replicas] += sum(counts.values())
    whole = sum(held[replicas] // times for replicas, times in copies.items())
    assert whole == totals(config.model).total


def test_flops_by_hand() -> None:
    by_scope = flops(by_hand(), 0)
    # 6 tokens: queries, keys, values, output are 192 numbers, 2 * 6 * 192 = 2304; half of 6 x 6 scores in
    # 2 heads, of width 4 and again 4: 2 * 2 * 18 * 8 = 576. Backward: twice the products, and of scores
    # 3 * 4 + 2 * 4 = 20 for 8. Two micro-batches.
    assert by_scope["L0.attention"] == (2 * (2304 + 576), 2 * (2 * 2304 + 1440), 0)
    assert by_scope["L0.mlp"] == (2 * 2 * 6 * 384, 2 * 4 * 6 * 384, 0)
    assert by_scope["L1.router"] == (2 * 2 * 6 * 32, 2 * 4 * 6 * 32, 0)
    # 6 tokens choose 2 experts each.
    assert by_scope["L1.experts"] == (2 * 2 * 12 * 192, 2 * 4 * 12 * 192, 0)
    assert by_scope["L1.shared"] == (2 * 2 * 6 * 96, 2 * 4 * 6 * 96, 0)
    assert by_scope["head"] == (2 * 2 * 6 * 80, 2 * 4 * 6 * 80, 0)
    assert set(by_scope) == {
        "L0.attention", "L0.mlp", "L1.attention", "L1.router", "L1.experts", "L1.shared", "head",
    }  # fmt: skip


def test_recomputation_ends_before_the_last_product() -> None:
    by_scope = flops(by_hand(None, "recompute_layer_ids=0,1"), 0)
    assert by_scope["L0.attention"].recomputed == by_scope["L0.attention"].forward
    assert by_scope["L0.mlp"].recomputed == 2 * 2 * 6 * 8 * 32
    assert by_scope["L1.experts"].recomputed == by_scope["L1.experts"].forward
    assert by_scope["L1.shared"].recomputed == 2 * 2 * 6 * 8 * 8
    early = flops(by_hand(None, "recompute_layer_ids=1", "overlap_shared=on"), 0)
    assert early["L1.shared"].recomputed == early["L1.shared"].forward
    assert early["L0.mlp"].recomputed == early["head"].recomputed == 0
    shown = flops(by_hand(None, "recompute_layer_ids=0,1"), 0, broken_off=True)
    assert all(shown[scope].recomputed == shown[scope].forward for scope in by_scope if scope != "head")


def test_experts_take_the_rows_that_were_routed_or_all_of_the_buffers() -> None:
    config = by_hand(Layout(ranks=2), "experts=grouped", "sync_free=3", "routing=learned")
    routed = RankRouting(rows=(7, 2), rows_to=(5, 7), rows_from=(4, 5), copies_to=(4, 5), copies_from=(3, 4))
    routing = Routing({1: (routed, replace(routed, rows=(0, 1)))})
    assert flops(config, 1, routing)["L1.experts"].forward == 2 * (9 + 1) * 192
    # Both ranks' 6 tokens may all choose both experts of this rank, in each of two micro-batches.
    assert flops(config, 1, buffers=True)["L1.experts"].forward == 2 * 2 * (2 * 6 * 2) * 192
    with pytest.raises(TracelensError, match="routing=learned depends on the weights"):
        flops(config, 1)
    with pytest.raises(TracelensError, match=r"layer 1 .*micro-batch 1"):
        flops(config, 1, Routing({1: (routed,)}))
    assert "L1.experts" not in flops(by_hand(Layout(ranks=2, pp=2), "routing=learned"), 0)


@given(st.integers(1, 9), st.sampled_from([1, 2, 4]), st.booleans())
def test_scores_are_those_that_the_mask_leaves(queries: int, cp: int, flash: bool) -> None:
    config = by_hand(None, f"ranks={cp}", f"cp={cp}", f"seq={queries * cp}")
    for rank in range(cp):
        ops = attention_section(RankShare(config, rank).sizes, "flash" if flash else "math").ops
        (work,) = (kernel for op in ops for kernel in op.kernels if kernel.kind == "attention")
        first, keys = rank * queries, (rank + 1) * queries
        seen = sum(key <= first + query for query in range(queries) for key in range(keys))
        if rank == 0:
            seen -= queries / 2  # by convention the diagonal counts half
        heads, width = 2, 4 + 4
        assert work.forward.flops == 2 * heads * width * (seen if flash else queries * keys)
        assert work.backward.flops == work.forward.flops * (2.5 if flash else 2)


COUNTED = [
    ["experts=loop"],
    ["experts=grouped", "sync_free=3", "permute=fused", "router=fused"],
    ["recompute_layer_ids=0,2", "dispatch=dedup"],
    ["recompute_layer_ids=0,1", "overlap_shared=on", "dispatch=allgather"],
    ["recompute_layer_ids=0,1,2", "shared_ffn=0", "routing=balanced"],
    ["recompute_layer_ids=0,1,2", "shared_ffn=0", "dispatch=dedup", "permute=fused"],
    ["q_lora=16", "v_dim=16", "routing=skewed"],
    ["attention=gqa", "kv_groups=2", "head_dim=16", "score=sigmoid"],
]


@pytest.mark.parametrize("assignments", COUNTED, ids=" ".join)
def test_flops_are_those_that_torch_counts(assignments: list[str]) -> None:
    config = override(preset("tiny"), ["micro_batches=1", *assignments])
    groups = Groups(config.layout)
    model = Transformer(config, groups)
    initialise(model, seed=1, std=0.02)
    token_SB = torch.randint(config.model.vocab, (config.training.seq, config.training.micro_batch))
    # Its table has no grouped products, which run as one op.
    mapping: dict[Any, Any] = {torch.ops.aten._grouped_mm: _grouped_flops}
    with sdpa_kernel(SDPBackend.MATH), RoutingLog(model, config, groups) as log:
        with FlopCounterMode(display=False, custom_mapping=mapping) as forward:
            loss = model(token_SB).float().pow(2).sum()
        with FlopCounterMode(display=False, custom_mapping=mapping) as backward:
            loss.backward()
    (routing,) = log.read()
    by_scope = flops(config, 0, routing, attention="math")
    assert sum(work.forward for work in by_scope.values()) == forward.get_total_flops()
    assert sum(work.backward + work.recomputed for work in by_scope.values()) == backward.get_total_flops()
    assert flops(config, 0, attention="math", buffers=True) == by_scope  # one rank gets all that it sends


def _grouped_flops(a: Any, b: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    return 2 * a[-2] * a[-1] * b[-1]


@pytest.mark.parametrize("attention", ["gqa", "mla"])
@pytest.mark.parametrize("v_dim", [24, 16])
@pytest.mark.parametrize("rank", [0, 1])
def test_the_kernel_of_attention_is_torchs_choice(attention: str, v_dim: int, rank: int) -> None:
    assignments = [
        f"attention={attention}",
        f"v_dim={v_dim}",
        "kv_groups=2",
        "head_dim=16",
        "ranks=2",
        "cp=2",
    ]
    config = override(preset("tiny"), assignments)
    s = RankShare(config, rank).sizes
    groups = Groups(config.layout, rank)
    with torch.device("cpu"):
        layer = Transformer(config, groups).layers["0"].attention
    heads, keys = s.kv_groups if attention == "gqa" else s.heads, s.keys // config.training.micro_batch
    q = torch.randn(s.queries, 2, s.heads, config.model.query_dim)
    k = torch.randn(keys, 2, heads, config.model.query_dim)
    v = torch.randn(keys, 2, heads, config.model.value_dim)
    with torch.profiler.profile(record_shapes=True) as profiler:
        layer.attend(q, k, v)
    shapes = {event.name: event.input_shapes for event in profiler.events()}
    flash = shapes.get("aten::_scaled_dot_product_flash_attention_for_cpu")
    expected = attention_kernel(config, rank, "cpu")
    assert (expected == "math") == (flash is None) == ("aten::bmm" in shapes)
    # The mask is the sixth argument.
    assert (expected == "masked") == (flash is not None and bool(flash[5]))


def test_kernels_of_gpus() -> None:
    grouped = override(preset("moe_1t"), ["layers=1"])
    assert attention_kernel(grouped, 0, "cuda") == "flash"
    assert attention_kernel(override(grouped, ["dtype=float32"]), 0, "cuda") == "math"
    assert attention_kernel(override(preset("deepseek_v2"), ["dtype=float32"]), 0, "cuda") == "flash"


@given(st.integers(1, 12), st.integers(1, 4), st.sampled_from([4, 8, 12]), st.sampled_from([1, 2, 4]))
def test_balanced_routing_is_what_the_router_does(tokens: int, top_k: int, experts: int, ranks: int) -> None:
    model = replace(BY_HAND, experts_count=experts, top_k=top_k)
    training = replace(by_hand().training, seq=tokens, micro_batches=1)
    config = Config(model, Layout(ranks=ranks), training=training)
    _, expert_TK = Router(config, Groups(config.layout))(torch.zeros(tokens, 1, model.hidden))
    chosen = [set(row) for row in expert_TK.tolist()]
    assert all(len(row) == top_k for row in chosen)
    each = experts // ranks
    for rank in range(ranks):
        routed = balanced(config, rank).at(1, 0)
        mine = range(rank * each, (rank + 1) * each)
        assert routed.rows == tuple(ranks * sum(expert in row for row in chosen) for expert in mine)
        assert routed.rows_from == (sum(routed.rows) // ranks,) * ranks
        assert routed.copies_from == (sum(not row.isdisjoint(mine) for row in chosen),) * ranks
        assert routed.rows_to[rank] == routed.rows_from[0]
        assert routed.copies_to[rank] == routed.copies_from[0]
        assert sum(routed.rows_to) == tokens * top_k


def test_messages_by_hand() -> None:
    config = by_hand(Layout(ranks=2), "micro_batches=1")
    # Of 6 tokens' 12 choices each expert gets 3, so each rank 6, from each rank.
    row = 8 * 4
    sent = messages(config, 1)
    assert sent[:3] == [
        StepMessage("L1.dispatch", "forward", 0, 2, Exchange("counts", "all_to_all", "ep", 4 * 8, 4 * 8)),
        StepMessage(
            "L1.dispatch", "forward", 0, 2, Exchange("tokens", "all_to_all", "ep", 12 * row, 12 * row)
        ),
        StepMessage(
            "L1.combine", "forward", 0, 2, Exchange("results", "all_to_all", "ep", 12 * row, 12 * row)
        ),
    ]
    assert [one[:2] for one in sent[3:5]] == [("L1.combine.B", "backward"), ("L1.dispatch.B", "backward")]
    # 32 numbers are a cache line: norms of 8 take one, 80 numbers of embedding and head three each. Both
    # ranks have as many lines: of dense parameters there are 27, so one is added.
    sizes = {"stage": 128 * (3 + 5 + 1 + 3), "dense": 128 * (2 * (2 + 1 + 1 + 2) + 3 * (4 + 1) + 1)}
    assert [(message.ranks, *message.exchange) for message in sent[5:9]] == [
        (2, "gradients", "reduce_scatter", "dp_cp_tp", sizes["stage"], sizes["stage"] // 2),
        (2, "gradients", "reduce_scatter", "dp_cp", sizes["dense"], sizes["dense"] // 2),
        (2, "parameters", "all_gather", "dp_cp_tp", sizes["stage"] // 2, sizes["stage"]),
        (2, "parameters", "all_gather", "dp_cp", sizes["dense"] // 2, sizes["dense"]),
    ]
    assert buffer_bytes(RankShare(config, 0)) == {**sizes, "edp": 128 * (8 + 4)}


def test_messages_of_unevenly_routed_tokens() -> None:
    routed = RankRouting(rows=(7, 2), rows_to=(5, 7), rows_from=(4, 5), copies_to=(4, 5), copies_from=(3, 4))
    routing, row = Routing({1: (routed,)}), 8 * 4
    for dispatch, sent, received in (("alltoall", 12, 9), ("dedup", 9, 7), ("deepep", 9, 7)):
        config = by_hand(Layout(ranks=2), "micro_batches=1", "routing=learned", f"dispatch={dispatch}")
        exchanges = [message.exchange for message in messages(config, 1, routing)]
        sizes = [exchange[-2:] for exchange in exchanges if exchange.what in ("tokens", "results")]
        there, back = (sent * row, received * row), (received * row, sent * row)
        assert sizes == [there, back, there, back]
        with pytest.raises(TracelensError, match="routing=learned depends on the weights"):
            messages(config, 1)


def test_static_buffers_need_no_routing() -> None:
    layout, row = Layout(ranks=2), 8 * 4
    options = ["experts=grouped", "sync_free=3", "routing=learned"]
    tokens = {}
    for dispatch in ("alltoall", "dedup"):
        sent = messages(by_hand(layout, f"dispatch={dispatch}", *options), 0)
        tokens[dispatch] = {message.exchange.sent for message in sent if message.exchange.what == "tokens"}
    assert tokens == {"alltoall": {2 * 6 * 2 * row}, "dedup": {2 * 6 * row}}


def test_a_pipeline_passes_on_the_stream() -> None:
    config = by_hand(Layout(ranks=2, pp=2))
    size = 6 * 8 * 4
    sent = [message for message in messages(config, 0) if message.exchange.collective in ("send", "recv")]
    assert [(*message[:4], *message.exchange[1:]) for message in sent] == [
        (f"mb{batch}.chunk0.{phase[0].upper()}", phase, batch, 2, *way)
        for batch in range(2)
        for phase, way in (
            ("forward", ("send", "pp", size, 0)),
            ("backward", ("recv", "pp", 0, size)),
        )
    ]
    assert [message.exchange.collective for message in messages(config, 1)][:2] == ["recv", "send"]


def test_one_rank_sends_nothing() -> None:
    assert messages(by_hand(), 0) == []


def test_hierarchical_reduction_by_hand() -> None:
    layout = Layout(ranks=4, node=2)
    config = by_hand(layout, "grad_reduce=hierarchical", "micro_batches=1")
    size = buffer_bytes(RankShare(config, 0))["dense"]
    reductions = [message for message in messages(config, 3) if message.scope == "grad_reduce"][-3:]
    assert [(message.ranks, *message.exchange[1:]) for message in reductions] == [
        (2, "reduce_scatter", "dp_node", size, size // 2),
        (2, "all_reduce", "dp_across", size // 2, size // 2),
        (2, "all_gather", "dp_node", size // 2, size),
    ]
    uneven = by_hand(Layout(ranks=6, ep=2, node=3), "grad_reduce=hierarchical")
    with pytest.raises(TracelensError, match=r"grad_reduce=hierarchical.*nodes of 3 ranks"):
        messages(uneven, 0)


def test_what_cannot_be_is_refused() -> None:
    for ask in (parameters, flops, messages, balanced):
        with pytest.raises(TracelensError, match=r"no rank 2: .* 2 ranks"):
            ask(by_hand(Layout(ranks=2)), 2)


def test_a_summary_is_plain_and_holds_everything() -> None:
    config = by_hand(Layout(ranks=2))
    document = summary(config, 1, "cpu")
    assert json.loads(json.dumps(document)) == document
    assert document["parameters"] == parameters(config, 1)
    assert document["flops"]["head"] == {"forward": 1920, "backward": 3840, "recomputed": 0}
    assert sum(message["times"] for message in document["messages"]) == len(messages(config, 1))
    assert sum(message["sent"] * message["times"] for message in document["messages"]) == sum(
        message.exchange.sent for message in messages(config, 1)
    )


def test_a_log_of_half_a_step_is_refused() -> None:
    config = override(preset("tiny"), ["seq=4"])
    model = Transformer(config, Groups(config.layout))
    initialise(model, seed=1, std=0.02)
    log = RoutingLog(model, config, Groups(config.layout))
    token_SB = torch.zeros(4, 2, dtype=torch.int64)
    with log:
        model(token_SB)
    model(token_SB)  # no longer logged
    with pytest.raises(TracelensError, match="holds 1 micro-batches of its layers, and a step has 2"):
        log.read()


def test_a_log_tells_what_each_token_chose() -> None:
    config = override(preset("tiny"), ["seq=4", "routing=skewed", "recompute_layer_ids=1,2"])
    model = Transformer(config, Groups(config.layout))
    initialise(model, seed=1, std=0.02)
    chosen: list[Any] = []
    model.layers["1"].ffn.router.register_forward_hook(lambda *args: chosen.append(args[2][1]))
    log = RoutingLog(model, config, Groups(config.layout))
    with log:
        for _ in range(4):
            model(torch.randint(256, (4, 2))).sum().backward()
    steps = log.read()
    assert len(steps) == 2
    # The hook of this test also sees each layer computed again.
    rows = [routed.rows for step in steps for routed in step.layers[1]]
    assert rows == [tuple(routed.flatten().bincount(minlength=8).tolist()) for routed in chosen[::2]]
    assert all(routed.copies_to == (8,) for step in steps for routed in step.layers[2])


def test_a_router_outside_of_numbered_layers_cannot_be_logged() -> None:
    config = override(preset("tiny"), [])
    lone = torch.nn.ModuleDict({"router": Router(config, Groups(config.layout))})
    with pytest.raises(TracelensError, match="the router router is in no numbered layer"):
        RoutingLog(lone, config, Groups(config.layout))


def test_work_adds_up() -> None:
    assert ScopeFlops(1, 2, 3).total == 6
