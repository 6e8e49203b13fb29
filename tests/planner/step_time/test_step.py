"""A step's time: closed forms, the schedule simulator, what hides what, and measured steps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tracelens.devices import device
from tracelens.errors import TracelensError
from tracelens.planner.config import MODELS, Config, Layout, Toggles, Training, override, preset
from tracelens.planner.config import PARTS as CONFIG_PARTS
from tracelens.planner.expected import RankShare, buffer_bytes, parameters, totals
from tracelens.planner.pipeline import Layers, make_schedule, make_times, simulate
from tracelens.planner.step_time import PARTS, ROOFLINE, Estimate, Machine, estimate, layer_times

SAMPLES = Path(__file__).parents[3] / "sample_traces"
H200, MI300X, MI355X = device("h200"), device("mi300x"), device("mi355x")
LONE = replace(ROOFLINE, hide_p2p=True, hide_gradients=True)


def run(name: str, batches: int, **layout: int) -> Config:
    sizes = Layout(**layout)  # type: ignore[arg-type]
    return Config(MODELS[name], sizes, training=Training(micro_batches=batches))


def phase(estimated: Estimate) -> float:
    """The pipeline: all but launches, and what is done once a step."""
    return estimated.step_ns - sum(estimated.parts[name] for name in ("launch", "gradients", "optimizer"))


def test_without_a_pipeline_a_step_is_its_layers() -> None:
    config = run("deepseek_v2_lite", 3, ranks=8, ep=8)
    times, estimated = layer_times(config, H200), estimate(config, H200)
    micro_batch_ns = times.forward.sum() + times.backward.sum() + sum(times.embedding) + sum(times.head)
    assert estimated.parts["bubble"] == estimated.parts["stage_exchange"] == 0
    assert phase(estimated) == pytest.approx(3 * micro_batch_ns, rel=1e-6)
    exchanges = times.forward_comm.sum() + times.backward_comm.sum()
    assert estimated.parts["experts_exchange"] == pytest.approx(3 * exchanges, rel=1e-6)
    assert (times.forward > times.forward_comm).all()
    # One layer is dense, and exchanges nothing.
    assert (times.forward_comm[0], times.forward_comm[1] > 0) == (0, True)
    assert list(estimated.parts) == list(PARTS)


def test_any_number_of_micro_batches_is_worked_out_at_once() -> None:
    few, many = (estimate(run("small", batches, ranks=8), H200) for batches in (2, 2 * 10**12))
    assert phase(many) == pytest.approx(10**12 * phase(few), rel=1e-6)


def test_the_bubble_of_equal_stages_is_the_closed_form() -> None:
    # Hardly any vocabulary, or the last stage would have more to do.
    model = replace(MODELS["moe_1t"], vocab=8)
    for pp, vpp, batches in ((24, 4, 48), (24, 1, 24), (48, 2, 96), (8, 3, 16)):
        config = Config(model, Layout(ranks=pp * 8, pp=pp, vpp=vpp), training=Training(micro_batches=batches))
        estimated = estimate(config, MI300X, LONE)
        share = estimated.parts["bubble"] / phase(estimated)
        assert share == pytest.approx((pp - 1) / (pp - 1 + batches * vpp), rel=2e-3)


@pytest.mark.parametrize(
    ("name", "vpp", "schedule"),
    [("moe_1t", 1, "1f1b"), ("moe_1t", 4, "interleaved"), ("deepseek_v2", 1, "1f1b")],
)
def test_unequal_stages_take_about_what_their_schedule_takes(name: str, vpp: int, schedule: str) -> None:
    config = run(name, 32, ranks=32, pp=4, vpp=vpp)
    parts = config.layout.chunks(config.model.layers)
    chunks = Layers(layer_times(config, MI300X, LONE)).chunks(4, len(parts), [len(part) for part in parts])
    played = simulate(make_schedule(schedule, 4, 32, vpp), make_times(chunks, 4, 32))
    assert phase(estimate(config, MI300X, LONE)) == pytest.approx(played.makespan, rel=0.02)


def test_recomputation_takes_the_forward_again_and_its_exchanges() -> None:
    config = run("moe_1t", 1, ranks=8, ep=8)
    again = override(config, ["recompute_layer_ids=" + ",".join(map(str, range(96)))])
    plain, estimated = (estimate(each, MI300X, ROOFLINE) for each in (config, again))
    times = layer_times(config, MI300X, ROOFLINE)
    layers = plain.parts["forward"] - times.head[0] - times.embedding[0]
    # Without the last product of the shared expert and the two sums after it: the backward needs neither.
    sums = 2 * 3 * 4096 * 8192 * 2
    left_out = 96 * (2 * 4096 * 1920 * 8192 / 708e12 + sums / 5.325e12) * 1e9
    assert estimated.parts["recompute"] == pytest.approx(layers - left_out, rel=1e-6)
    assert plain.parts["recompute"] == 0
    # Forward and backward have two exchanges a layer each, what is computed again has both of the forward's.
    ratio = estimated.parts["experts_exchange"] / plain.parts["experts_exchange"]
    assert ratio == pytest.approx(1.5, rel=1e-3)
    assert estimated.mfu < plain.mfu


def test_what_lies_under_other_work_is_not_counted() -> None:
    base = override(run("deepseek_v2", 2, ranks=8, ep=8, tp=2), [])
    estimated = {
        name: estimate(override(base, [text]), MI300X).parts
        for name, text in {
            "plain": "seed=0", "shared": "overlap_shared=on", "chunked": "tp_overlap=chunked",
            "1f1b": "overlap_exchange=1f1b", "dedup": "dispatch=dedup",
        }.items()
    }  # fmt: skip
    exchanges = {name: parts["experts_exchange"] for name, parts in estimated.items()}
    # One of two micro-batches overlaps with the other: half of all is hidden.
    assert exchanges["1f1b"] == pytest.approx(exchanges["plain"] / 2)
    assert exchanges["shared"] < exchanges["plain"]
    # Of six experts a token has some on one rank.
    assert exchanges["dedup"] < exchanges["plain"]
    assert estimated["chunked"]["tensor_exchange"] == pytest.approx(
        estimated["plain"]["tensor_exchange"] / 4, rel=0.3
    )
    hidden = estimate(base, MI300X, Machine(hide_gradients=True))
    assert hidden.parts["gradients"] == 0 < estimated["plain"]["gradients"]


def test_1f1b_leaves_what_is_longer_than_the_computation() -> None:
    config = override(run("moe_2t", 3, ranks=64, ep=64), ["overlap_exchange=1f1b"])
    plain = override(config, ["overlap_exchange=off"])
    slow = Machine(nic_bytes_per_s=5e9)
    hidden, whole = estimate(config, MI355X, slow).parts, estimate(plain, MI355X, slow).parts
    layers = sum(whole[name] for name in ("forward", "backward"))
    ends = 3 * (sum(layer_times(plain, MI355X).head) + sum(layer_times(plain, MI355X).embedding))
    # Two of three micro-batches run beside another.
    left = whole["experts_exchange"] - 2 / 3 * (layers - ends)
    assert hidden["experts_exchange"] == pytest.approx(left, rel=1e-6)
    forced = replace(slow, exchange_overlap="1f1b")
    assert estimate(plain, MI355X, forced).parts == pytest.approx(hidden)
    assert estimate(config, MI355X, replace(slow, exchange_overlap="off")).parts == pytest.approx(whole)


@pytest.mark.parametrize(("pp", "vpp", "batches"), [(4, 1, 16), (4, 2, 16), (4, 3, 8), (4, 3, 4), (8, 1, 4)])
@pytest.mark.parametrize("nic", [10e9, 50e9])
def test_overlap_takes_what_its_schedule_takes(pp: int, vpp: int, batches: int, nic: float) -> None:
    model = replace(MODELS["moe_2t"], vocab=8, layers=24)
    batches = max(batches, pp)
    config = Config(
        model,
        Layout(ranks=pp * 16, pp=pp, vpp=vpp),
        Toggles(dispatch="deepep"),
        Training(micro_batches=batches),
    )
    machine = replace(LONE, exchange_overlap="1f1b", nic_bytes_per_s=nic)
    parts = config.layout.chunks(model.layers)
    alone = layer_times(config, MI300X, replace(machine, exchange_overlap="off"))
    chunks = Layers(alone).chunks(pp, len(parts), [len(part) for part in parts])
    schedule = "1f1b-overlap" if vpp == 1 else "interleaved-overlap"
    simulated = simulate(make_schedule(schedule, pp, batches, vpp), make_times(chunks, pp, batches))
    assert phase(estimate(config, MI300X, machine)) == pytest.approx(simulated.makespan, rel=2e-3)


def test_ranks_wait_for_the_slowest_of_their_group() -> None:
    config = run("moe_2t", 4, ranks=64, ep=64)
    even, uneven = (estimate(config, MI300X, Machine(jitter=jitter)) for jitter in (0.0, 0.1))
    times = layer_times(config, MI300X)
    ends = 4 * (sum(times.head) + sum(times.embedding))
    computed = even.parts["forward"] + even.parts["backward"] - ends
    assert even.parts["waiting"] == 0
    # The largest of 64 draws is 2.3437 standard deviations above the mean (Harter 1961).
    assert uneven.parts["waiting"] == pytest.approx(0.1 * 2.3437 * computed, rel=1e-3)
    assert estimate(run("moe_2t", 4, ranks=64, ep=1), MI300X, Machine(jitter=0.1)).parts["waiting"] == 0


def test_messages_between_stages_by_hand() -> None:
    config = run("moe_1t", 32, ranks=32, pp=4, vpp=2)
    estimated = estimate(config, MI300X)
    # The last stage has the head and so most to do. Two chunks: activations come to both, gradients to one.
    message_ns = 4096 * 8192 * 2 / 50e9 * 1e9 + 20_000
    assert estimated.stage == 3
    assert estimated.parts["stage_exchange"] == pytest.approx(32 * 3 * message_ns)
    middle = estimate(override(config, ["vocab=8", "pp_layout=12,12,12,12,12,13,12,11"]), MI300X)
    assert middle.stage == 1
    assert middle.parts["stage_exchange"] == pytest.approx(32 * 4 * message_ns)
    assert estimate(config, MI300X, LONE).parts["stage_exchange"] == 0


def test_what_is_done_once_a_step_by_hand() -> None:
    config = run("moe_1t", 8, ranks=32, pp=2, ep=8)
    machine = replace(ROOFLINE, link_latency_ns=0, nic_latency_ns=0, hbm_efficiency=0.5)
    estimated = estimate(config, MI300X, machine)
    # Of 48 layers and the head or the embedding: 28 experts here, each on two ranks; the rest on all 16.
    experts = 48 * 28 * 3 * 8192 * 1920
    rest = sum(sum(counts.values()) for name, counts in parameters(config, 31).items() if name != "edp")
    # Gradient and new parameter of two bytes; parameter and two moments, read and written, of four each.
    moved = 28 * (experts / 2 + rest / 16)
    assert estimated.parts["optimizer"] == pytest.approx(moved / (5.325e12 / 2) * 1e9, rel=1e-6)
    # Reduced and gathered: experts between two nodes, the rest around both of them.
    across = 2 * experts * 2 * (1 / 2) / 50e9
    around = 2 * rest * 2 * max(1 / 2 / 8 / 50e9, 15 / 16 / 448e9)
    assert estimated.parts["gradients"] == pytest.approx((across + around) * 1e9, rel=1e-3)


def test_buffers_are_those_of_each_stage() -> None:
    config = override(run("deepseek_v2", 4, ranks=16, pp=4, ep=4), ["pp_layout=9,17,17,17"])
    for stage in range(4):
        rank = stage * 4
        held = {name: 2 * sum(counts.values()) for name, counts in parameters(config, rank).items()}
        # Each parameter may be filled up to a multiple of 128 bytes, and the whole to one for each rank.
        assert buffer_bytes(RankShare(config, rank)) == pytest.approx(held, rel=1e-5)


def test_imbalance_makes_experts_and_their_exchanges_longer() -> None:
    config = run("moe_1t", 1, ranks=8, ep=8)
    even, uneven = (estimate(config, MI300X, Machine(imbalance=factor)) for factor in (1.0, 1.5))
    assert uneven.parts["experts_exchange"] == pytest.approx(1.5 * even.parts["experts_exchange"], rel=1e-2)
    assert even.parts["forward"] < uneven.parts["forward"] < 1.5 * even.parts["forward"]


def test_utilisation_is_that_of_six_flops_a_parameter_and_token_and_attention() -> None:
    config = run("moe_1t", 4, ranks=8, ep=8)
    estimated, model = estimate(config, MI300X), config.model
    # An embedding is looked up, not multiplied. Half a square of scores, for each head two products.
    weights = totals(model).active - model.vocab * model.hidden
    scores = 2 * model.layers * model.heads * 2 * model.head_dim * config.training.seq / 2
    each = 3 * (2 * weights + scores)
    peak = MI300X.peak("matrix", "bf16")
    assert peak is not None
    assert estimated.mfu == pytest.approx(each * estimated.tokens_per_s / peak, rel=1e-3)


def test_tokens_a_second_are_those_of_one_gpu() -> None:
    config = run("moe_1t", 4, ranks=8, ep=8)
    estimated = estimate(config, MI300X)
    assert estimated.tokens_per_s * 8 * estimated.step_ns / 1e9 == pytest.approx(config.global_tokens)


MACHINES = st.builds(
    Machine,
    matrix_efficiency=st.sampled_from([0.3, 1.0]),
    hbm_efficiency=st.sampled_from([0.5, 1.0]),
    nic_bytes_per_s=st.sampled_from([12.5e9, 50e9]),
    link_efficiency=st.sampled_from([0.5, 1.0]),
)
LAYOUTS = [
    {"ranks": 8}, {"ranks": 16, "cp": 2}, {"ranks": 32, "pp": 4, "vpp": 3, "tp": 2}, {"ranks": 64, "ep": 32},
]  # fmt: skip


@given(MACHINES, st.sampled_from(LAYOUTS), st.sampled_from(["moe_1t", "deepseek_v2_lite"]))
@settings(deadline=None, max_examples=30)
def test_nothing_is_faster_than_the_roofline(machine: Machine, layout: dict[str, int], name: str) -> None:
    config = run(name, 8, **layout)
    estimated, least = estimate(config, MI300X, machine), estimate(config, MI300X)
    # Another stage may be the slowest one, so that a part may be shorter.
    assert estimated.step_ns >= least.step_ns
    assert estimated.mfu <= least.mfu <= 1


def test_times_of_layers_are_whole_nanoseconds_of_the_slowest_rank() -> None:
    plain, halved = (layer_times(run("moe_1t", 1, ranks=8, ep=8, cp=cp), MI300X) for cp in (1, 2))
    assert plain.forward.dtype == "int64"
    # Half the tokens, but the later half of the queries sees more than half of the keys.
    assert plain.forward[0] / 2 < halved.forward[0] < plain.forward[0] * 0.6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"matrix_efficiency": 0.0}, "matrix_efficiency must be above 0 and at most 1"),
        ({"hbm_efficiency": 1.5}, "hbm_efficiency must be above 0 and at most 1"),
        ({"nic_bytes_per_s": 400}, "use 50e9 for a 400 Gb/s link"),
        ({"nic_latency_ns": -1}, "latencies must be 0 ns or more"),
        ({"imbalance": 0.5}, "imbalance must be at least 1"),
        ({"jitter": -0.1}, "jitter must be between 0 and 1"),
        ({"nic_efficiency": 0.0}, "nic_efficiency must be above 0"),
        ({"nic_messages_per_s": -1.0}, "nic_messages_per_s must be 0 or more"),
        ({"exchange_overlap": "on"}, "unknown exchange_overlap"),
        ({"node": 0}, "node must be at least 1"),
        ({"links": "ring"}, "unknown links"),
        ({"matrix": "fast"}, "unknown matrix"),
    ],
)
def test_assumptions_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TracelensError, match=message):
        Machine(**changes)


def test_rates_are_the_published_achievable_ones_or_the_peak() -> None:
    assert Machine().matrix_rate(MI300X, "bfloat16") == 708e12
    assert Machine(matrix="peak").matrix_rate(MI300X, "bfloat16") == 1307.4e12
    # None is published, and none is made up.
    assert Machine(matrix_efficiency=0.5).matrix_rate(MI355X, "bfloat16") == pytest.approx(
        2516.6e12 / 2, 1e-3
    )
    with pytest.raises(TracelensError, match="has no rate for"):
        Machine().matrix_rate(structs.replace(MI300X, matrix={}, vector={}, maf={}), "bfloat16")


def read_config(content: dict[str, Any]) -> Config:
    """The configuration that a run wrote beside its traces."""
    parts = {}
    for part, kind in CONFIG_PARTS.items():
        values = {
            name: tuple(value) if isinstance(value, list) else value for name, value in content[part].items()
        }
        parts[part] = kind(**values)
    return Config(**parts)  # type: ignore[arg-type]


def test_measured_steps_take_longer_and_not_without_bounds() -> None:
    """Nine rungs on four H200 GPUs: hosts that launch too late make them 2 to 5 times as long.

    With the cost of a launch, which was measured on another host, the projection comes within a factor of 2.
    """
    content = json.loads((SAMPLES / "ladder/ep4/ladder.json").read_text())
    base = read_config(content["config"])
    ratios, projected = {}, {}
    for rung in content["rungs"]:
        changes = {name: tuple(v) if isinstance(v, list) else v for name, v in rung["toggles"].items()}
        config = replace(base, toggles=replace(base.toggles, **changes))
        ratios[rung["name"]] = rung["typical_ms"] * 1e6 / estimate(config, H200, ROOFLINE).step_ns
        projected[rung["name"]] = rung["typical_ms"] * 1e6 / estimate(config, H200).step_ns
    assert len(ratios) == 9
    assert all(1 < ratio < 5 for ratio in ratios.values()), ratios
    assert all(1 < ratio < 2 for ratio in projected.values()), projected
    # With the host out of the way, in one graph, it is nearest.
    assert min(ratios, key=ratios.__getitem__) == "graph"


def test_a_preset_on_one_gpu_has_no_messages() -> None:
    estimated = estimate(preset("small"), H200)
    assert estimated.step_ns > 0
    assert [name for name in PARTS if not estimated.parts[name]] == [
        "recompute", "experts_exchange", "context_exchange", "tensor_exchange", "stage_exchange", "waiting",
        "bubble", "gradients",
    ]  # fmt: skip
