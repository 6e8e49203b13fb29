"""Times of a roofline: the layers of a model, cut into stages."""

from __future__ import annotations

import pytest

from tracelens.devices import device
from tracelens.planner.config import read_config
from tracelens.planner.memory import Assumptions, Stages
from tracelens.planner.pipeline import Setting, activations, pipeline, roofline

RUN = ["ranks=64", "pp=8", "ep=8", "micro_batches=16", "seq=4096"]


def test_a_chunk_is_the_sum_of_its_layers() -> None:
    source, costs = roofline(read_config("deepseek_v2_lite", RUN), device("mi300x"))
    assert source.layers == 27
    table = pipeline(Setting(("1f1b",), 8, 16, costs=costs), source)["partition"]
    times = source.times
    assert table["layers"].tolist() == [4, 4, 4, 3, 3, 3, 3, 3]
    assert table["forward_ns"][0] == times.embedding[0] + times.forward[:4].sum()
    assert table["forward_ns"][1] == times.forward[4:8].sum()
    assert table["backward_ns"][7] == times.backward[24:].sum() + times.head[1]
    # The dense layer in front takes another time than those with experts, which are all alike.
    assert len(set(times.forward[1:].tolist())) == 1 != len(set(times.forward.tolist()))


def test_a_message_takes_its_bytes_at_the_rate_between_nodes() -> None:
    _, costs = roofline(read_config("deepseek_v2_lite", RUN), device("mi300x"))
    # 4096 tokens of 2048 bfloat16 values through a NIC of 50 GB/s, and its latency.
    assert (
        costs.forward_transit
        == costs.backward_transit
        == pytest.approx(4096 * 2048 * 2 / 50e9 * 1e9 + 20_000, abs=1)
    )


def test_the_best_cut_gives_the_head_its_room() -> None:
    source, costs = roofline(read_config("deepseek_v2_lite", RUN), device("mi300x"))
    even, best = (
        pipeline(Setting(("1f1b",), 8, 32, costs=costs, best=choice), source) for choice in (False, True)
    )
    assert best["summary"]["makespan_ns"][0] < even["summary"]["makespan_ns"][0]
    assert best["partition"]["layers"].sum() == 27


@pytest.mark.parametrize("layout", [[], ["vpp=3"], ["pp_layout=3,4,4,4,4,3,3,2", "recompute_layer_ids=0,5"]])
def test_what_is_in_flight_is_what_the_memory_projection_counts(layout: list[str]) -> None:
    """Of each stage, activations at the peak less what only the running pass holds."""
    config = read_config("deepseek_v2_lite", [*RUN, *layout])
    source, costs = roofline(config, device("mi300x"))
    name, cut = ("interleaved" if config.layout.vpp > 1 else "1f1b"), config.layout.pp_layout
    setting = Setting((name,), 8, 16, config.layout.vpp, layout=cut, costs=costs, kept=activations(config))
    table = pipeline(setting, source)["stages"]
    ranks = Stages(config, Assumptions())
    for stage, most in enumerate(table["peak_bytes"].tolist()):
        whole = ranks.stage(stage)
        assert whole.in_flight == table["peak_chunks"][stage]
        temporary = whole.moments["backward"] - whole.moments["between"] - most
        assert 0 <= temporary < 0.5 * most + 2e9
