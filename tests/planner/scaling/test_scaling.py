"""Scaling of expert parallelism: the published experiment, and each table by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tracelens.devices import device
from tracelens.errors import TracelensError
from tracelens.planner.config import MODELS, Config, Layout, Toggles, Training
from tracelens.planner.scaling import PARTS, Request, scaling
from tracelens.planner.step_time import Machine, estimate, read_network
from tracelens.session import project_scaling
from tracelens.table import Result

MI300X = device("mi300x")
EPS = (8, 16, 32, 64)
GUIDE = 1.05, 7.66
"""Published speedups of DeepEP over all-to-all, from the least to the largest."""


LAYOUT = {"pp": 16, "vpp": 6, "cp": 2, "micro_batches": 32}


def guide(**options: object) -> Result:
    """The experiment of AMD's guide with the settings of docs/how-to/plan.md."""
    return project_scaling(
        "moe_2t", 1024, "mi300x", ep=EPS, network="mi300x-8x400g",
        **(LAYOUT | options),  # type: ignore[arg-type]
    )  # fmt: skip


def column(result: Result, dispatch: str, name: str, table: str = "scaling") -> list[float]:
    rows = [text == dispatch for text in result.data[table].texts("dispatch")]
    values: list[float] = result.data[table].array(name)[rows].tolist()
    return values


def flatness(result: Result) -> list[float]:
    """Tokens/s of DeepEP over their mean."""
    rates = column(result, "deepep", "tokens_per_s")
    return [rate * len(rates) / sum(rates) for rate in rates]


def test_the_published_experiment() -> None:
    result = guide()
    # DeepEP is nearly flat, all-to-all degrades at each doubling.
    assert flatness(result) == pytest.approx([1, 1, 1, 1], abs=0.1)
    rates = column(result, "alltoall", "tokens_per_s")
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 0.65 * rates[0]
    assert all(GUIDE[0] <= ratio <= GUIDE[1] for ratio in column(result, "deepep", "speedup"))


@pytest.mark.parametrize(
    ("vpp", "cp", "batches"), [(1, 1, 64), (2, 1, 64), (6, 1, 64), (1, 2, 64), (6, 2, 128)]
)
def test_it_does_not_hang_on_one_schedule(vpp: int, cp: int, batches: int) -> None:
    result = guide(vpp=vpp, cp=cp, micro_batches=batches)
    assert flatness(result) == pytest.approx([1, 1, 1, 1], abs=0.1)
    assert all(GUIDE[0] <= ratio <= GUIDE[1] for ratio in column(result, "deepep", "speedup"))


def test_figures_of_the_page() -> None:
    """The second table of docs/how-to/plan.md, and what it says of recomputation."""
    result, small_batch = guide(), guide(micro_batches=16, overlap="none")
    rows = {
        "DeepEP, tokens/s / EP 8": column(result, "deepep", "relative"),
        "the same with 16 micro-batches and `--overlap none`": column(small_batch, "deepep", "relative"),
        "all-to-all, tokens/s / EP 8": column(result, "alltoall", "relative"),
        "DeepEP / all-to-all": column(result, "deepep", "speedup"),
    }
    page = (Path(__file__).parents[3] / "docs/how-to/plan.md").read_text()
    for name, values in rows.items():
        assert f"| {name} | " + " | ".join(f"{value:.2f}" for value in values) + " |" in page
    kept = column(guide(recompute="full"), "deepep", "relative")[-1]
    assert f"DeepEP then keeps {kept:.0%} at EP 64" in page.replace("\n", " ")
    other = column(result, "deepep", "other", "breakdown")
    assert f"{other[0]:.1%} at EP 8, {other[-1]:.1%} at EP 64; published 13.6% and 1.2%" in page.replace(
        "\n", " "
    )


def test_without_overlap_deepep_is_faster_and_less_flat() -> None:
    result = guide(overlap="none")
    speedups, kept = column(result, "deepep", "speedup"), column(result, "deepep", "relative")
    assert all(GUIDE[0] <= ratio <= GUIDE[1] for ratio in speedups)
    assert column(result, "alltoall", "relative")[-1] < kept[-1] < 0.9


def test_breakdown_of_four_million_tokens_as_published() -> None:
    """The 4M tokens per step of the chart."""
    result = guide()
    assert result.meta["tokens_per_step"] == 2**22
    table = result.data["published"]
    rows = zip(table.texts("dispatch"), table.array("ep").tolist(), table.texts("figures"), strict=True)
    shares = {key: {part: table.array(part)[row] for part in PARTS} for row, key in enumerate(rows)}
    assert len(shares) == 16
    # The chart's bubble is that of 96 chunks a step: its layout is another one (tests/planner/published).
    points = {"compute": 0.22, "all_to_all": 0.10, "p2p": 0.10, "other": 0.13, "bubble": 0.12}
    for run in (("alltoall", 8), ("deepep", 8), ("deepep", 64)):
        for part, off in points.items():
            projected, published = (shares[(*run, figures)][part] for figures in ("projected", "published"))
            assert projected == pytest.approx(published, abs=off), (run, part)
    # The fluctuation of all-to-alls over eight nodes is not modeled.
    assert shares["alltoall", 64, "projected"]["p2p"] < 0.05 < shares["alltoall", 64, "published"]["p2p"]


def test_defaults_are_one_expert_group_per_stage() -> None:
    result = project_scaling("moe_2t", 1024, "mi300x", ep=(8, 64))
    assert [result.meta[name] for name in ("pp", "vpp", "micro_batches", "dp")] == [16, 1, 64, 64]
    few = project_scaling("deepseek_v2_lite", 64, "mi300x", ep=(8, 16), tp=2)
    assert [few.meta[name] for name in ("pp", "micro_batches", "dp")] == [4, 16, 8]
    # No more stages than layers.
    assert project_scaling("moe_2t", 1024, "mi300x", ep=8).meta["pp"] == 64
    assert project_scaling("deepseek_v2_lite", 64, "mi300x", ep=2).meta["pp"] == 16
    with pytest.raises(TracelensError, match="must divide the 96 ranks of a stage"):
        project_scaling("moe_2t", 96, "mi300x", ep=64)


def small(**toggles: object) -> Config:
    model = replace(MODELS["moe_2t"], layers=8)
    return Config(
        model,
        Layout(ranks=128, pp=2),
        Toggles(loss="fused", **toggles),
        Training(micro_batches=8),  # type: ignore[arg-type]
    )


def test_rates_and_parts_are_those_of_the_steps() -> None:
    request = Request(small(), (64, 8, 8), ("alltoall", "dedup", "deepep"), Machine(jitter=0.05), ("dedup",))
    result = scaling(request, MI300X)
    table = result.data["scaling"]
    assert table.array("ep").tolist() == [8, 64] * 3
    overlaps = {"alltoall": "off", "dedup": "1f1b", "deepep": "off"}
    for row, (dispatch, ep) in enumerate(
        zip(table.texts("dispatch"), table.array("ep").tolist(), strict=True)
    ):
        config = replace(small(dispatch=dispatch), layout=replace(request.config.layout, ep=ep))
        machine = Machine(jitter=0.05, exchange_overlap=overlaps[dispatch])  # type: ignore[arg-type]
        time = estimate(config, MI300X, machine)
        assert table.array("step_ns")[row] == time.step_ns
        shares = {part: result.data["breakdown"].array(part)[row] for part in PARTS}
        assert sum(shares.values()) == pytest.approx(1)
        assert shares["all_to_all"] * time.step_ns == pytest.approx(time.parts["experts_exchange"])
        waited = time.parts["stage_exchange"] + time.parts["waiting"]
        assert shares["p2p"] * time.step_ns == pytest.approx(waited)
        assert shares["other"] * time.step_ns == pytest.approx(
            sum(time.parts[name] for name in ("gradients", "optimizer"))
        )
    rates = table.array("tokens_per_s")
    assert table.array("relative") == pytest.approx(
        [1, rates[1] / rates[0], 1, rates[3] / rates[2], 1, rates[5] / rates[4]]
    )
    assert table.array("speedup") == pytest.approx([rates[row] / rates[row % 2] for row in range(6)])


def test_bytes_of_a_dispatch_by_hand() -> None:
    dispatches = ("alltoall", "dedup", "deepep")
    table = scaling(Request(small(), (8, 64), dispatches), MI300X).data["exchange"]
    rows = {
        (dispatch, ep): row
        for row, (dispatch, ep) in enumerate(
            zip(table.texts("dispatch"), table.array("ep").tolist(), strict=True)
        )
    }
    tokens = 4096 * 8192 * 2
    ranks, nodes = (
        table.array("ranks_per_token")[rows["deepep", 64]],
        table.array("nodes_per_token")[rows["deepep", 64]],
    )
    expected = {
        ("alltoall", 8): (0, 16 * 7 / 8),
        ("alltoall", 64): (16 * 56 / 64, 16 * 7 / 64),
        ("dedup", 64): (ranks * 56 / 64, ranks * 7 / 64),
        ("deepep", 64): (nodes * 7 / 8, ranks * 7 / 8),
        ("deepep", 8): (0, table.array("ranks_per_token")[rows["deepep", 8]] * 7 / 8),
    }
    for key, (through_nic, over_links) in expected.items():
        assert table.array("nic_bytes")[rows[key]] == pytest.approx(through_nic * tokens, abs=1), key
        assert table.array("link_bytes")[rows[key]] == pytest.approx(over_links * tokens, abs=1), key
    # The slower of the two, plus the latency: 50 GB/s between nodes, 448 GB/s inside.
    taken = table.array("dur_ns")[rows["alltoall", 64]]
    assert taken == pytest.approx(16 * 56 / 64 * tokens / 50e9 * 1e9 + 20_000, rel=1e-4)
    taken = table.array("dur_ns")[rows["deepep", 8]]
    assert taken == pytest.approx(expected["deepep", 8][1] * tokens / 448e9 * 1e9 + 10_000, rel=1e-4)


def test_invalid_layouts_are_skipped_with_the_reason() -> None:
    result = scaling(Request(small(), (8, 48), ("alltoall",)), MI300X)
    assert result.data["scaling"].array("ep").tolist() == [8]
    (skip,) = result.skips
    assert skip.subject == "alltoall with EP 48"
    assert "must divide the 64 ranks of a stage" in skip.reason
    with pytest.raises(TracelensError, match=r"no layout is valid: ep \(48\) must divide"):
        scaling(Request(small(), (48,)), MI300X)
    with pytest.raises(TracelensError, match="nothing to compare"):
        Request(small(), ())


def test_only_the_published_run_is_compared() -> None:
    assert "published" not in scaling(Request(small(), (8,)), MI300X).data
    other = project_scaling("moe_2t", 1024, "mi355x", ep=8, pp=16)
    assert "published" not in other.data
    assert "published" not in project_scaling("moe_2t", 1024, "mi300x", ep=8, pp=16).data
    assert "published" in project_scaling("moe_2t", 1024, "mi300x", ep=8, pp=16, micro_batches=16).data
    assert "published" not in project_scaling("moe_2t", 1024, "mi300x", ep=16, pp=16).data


def test_networks_are_those_of_the_file() -> None:
    line_rate, reached = (
        project_scaling("moe_2t", 1024, "mi300x", ep=64, network=name, overlap="none", dispatch="alltoall")
        for name in ("", read_network("mi300x-8x400g").name)
    )
    ns = [result.data["exchange"].array("dur_ns")[0] - 20_000 for result in (line_rate, reached)]
    assert ns[1] == pytest.approx(ns[0] / 0.97, rel=1e-4)
