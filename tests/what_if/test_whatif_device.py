"""The run on another device: hand-made sums, and one run recorded on two devices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tracelens
from tests.what_if.replays import interval, projected, run_of
from tracelens.devices import Bandwidth, device, device_toml, memory_rate
from tracelens.errors import UnknownName
from tracelens.what_if import whatif
from tracelens.what_if.scenarios.scaling import MemoryCurves

BF16 = 'types=["c10::BFloat16","c10::BFloat16"]'
# 10 us each: a product that computes, a copy that moves 32 MiB, a kernel of which nothing is known.
WORK = f"""
    step 0                                                   | ----
    op aten::mm shapes=[[8192,8192],[8192,8192]] {BF16}      | -
    launch                                                   | a
    op aten::copy_ shapes=[[4096,2048],[4096,2048]] {BF16}   |  -
    launch                                                   |  b
    launch                                                   |   c
    s7 nvjet_gemm                                            | aaaaaaaaaa
    s7 elementwise_copy                                      |           bbbbbbbbbb
    s7 unheard_of                                            |                     cccccccccc
"""


def test_work_keeps_its_efficiency_against_the_roofline() -> None:
    """MI300X and MI325X reach 708 and 843 TFLOP/s, and 5.3 and 6 TB/s."""
    run = run_of(WORK)
    result = whatif(run, ["device=mi325x", "device=MI300X"], device="mi300x")
    step = 10 * 708 / 843 + 20 * 5.3 / 6
    assert interval(result, "device=mi325x")[1] == pytest.approx(step, abs=0.01)
    assert interval(result, "device=MI300X")[1] == pytest.approx(30)
    assumed = result["assumptions"].set_index("scenario")["assumption"]["device=mi325x"]
    assert "33% of GPU time has no cost model and scales with memory bandwidth (0.88)" in assumed


def test_products_go_by_peaks_where_a_device_publishes_no_more() -> None:
    """The peaks are 1,307.4 and 989.4 TFLOP/s; what an H100 reaches is not published."""
    step = 10 * 1307.4 / 989.4 + 20 * 5.3 / 3.35
    assert projected_on(run_of(WORK), "h100", "mi300x") == pytest.approx(step, rel=0.005)


def with_messages(path: Path, name: str, rate: float, ranks: int = 2) -> str:
    """A device file in which all-to-alls have one bus bandwidth."""
    curve = Bandwidth("all_to_all", (1,), (rate,), ranks, ranks)
    known = device(name)
    bandwidths = (*known.measured.bandwidths, curve)
    path.write_text(device_toml(replace(known, measured=replace(known.measured, bandwidths=bandwidths))))
    return str(path)


def projected_on(run: tracelens.Run, to: str, home: str) -> float:
    scenario = f"device={to}"
    return interval(whatif(run, [scenario], device=home), scenario)[1]


RECORD = "op record_param_comms collective=all_to_all group=0 ranks=[0,1] size=2 in=4000 out=4000 dtype=Half"
EXCHANGE = f"""
    step 0 | --------
    {RECORD} | -
    launch | a
    s9 ncclDevKernel | {{kernel}}
"""


def test_transfers_go_by_the_links_and_waiting_stays() -> None:
    """Rank 0 waits for 4 us, then 8 us of transfer: links of 448 GB/s become such of 537.6 or 450."""
    run = run_of(EXCHANGE.format(kernel="  aaaaaaaaaaaa"), EXCHANGE.format(kernel="      aaaaaaaa"))
    links = device("mi300x").gpu_link_bytes_per_s
    for to in ("mi355x", "h100"):
        step = 6 + 8 * links / device(to).gpu_link_bytes_per_s
        assert projected_on(run, to, "mi300x") == pytest.approx(step, abs=0.01)


def test_transfers_measured_on_both_devices_go_by_these(tmp_path: Path) -> None:
    """8 us of transfer at 40 GB/s instead of 20; the links of both have the same rate."""
    run = run_of(EXCHANGE.format(kernel="  aaaaaaaaaaaa"), EXCHANGE.format(kernel="      aaaaaaaa"))
    home = with_messages(tmp_path / "home.toml", "h200", 20e9)
    to = with_messages(tmp_path / "to.toml", "h100", 40e9, ranks=8)
    result = whatif(run, [f"device={to}"], device=home)
    assert interval(result, f"device={to}")[1] == pytest.approx(6 + 8 / 2, abs=0.01)
    text = result["assumptions"]["assumption"].iloc[0]
    assert "measured by size among 2 ranks of NVIDIA H200 SXM and 8 ranks of NVIDIA H100 SXM" in text
    # With messages of one device alone it goes by the links.
    assert projected_on(run, to, "mi300x") == pytest.approx(6 + 8 * 448 / 450, abs=0.01)


def test_a_device_of_one_s_own(tmp_path: Path) -> None:
    """Twice the matrix units and half the memory's bandwidth of an MI300X, and no links."""
    path = tmp_path / "mine.toml"
    path.write_text('name = "mine"\nhbm_bytes_per_s = 2.65e12\n[matrix]\nbf16 = 2614.8e12\n')
    assert projected_on(run_of(WORK), str(path), "mi300x") == pytest.approx(10 / 2 + 20 * 2, abs=0.01)
    run = run_of(EXCHANGE.format(kernel="  aaaaaaaaaaaa"), EXCHANGE.format(kernel="      aaaaaaaa"))
    result = whatif(run, [f"device={path}"], device="mi300x")
    assert result["whatif"]["projected_ns"].tolist() == [14_000]
    assert (
        "collectives keep their time, as a device's link rate is unknown"
        in (result["assumptions"]["assumption"][0])
    )


def test_one_rank_alone_keeps_its_communication() -> None:
    run = run_of(EXCHANGE.format(kernel="  aaaaaaaaaaaa"))
    result = whatif(run, ["device=mi355x"], device="mi300x")
    assert interval(result, "device=mi355x")[1] == 14
    assert "communication recorded on one rank only keeps its time" in result["assumptions"]["assumption"][0]


def test_devices_that_nobody_knows() -> None:
    run = run_of(WORK)
    (skip,) = [
        candidate for candidate in whatif(run, ["device=mi355x"]).skips if "device" in candidate.subject
    ]
    assert skip.reason == "rank 0: unknown device; give --device"
    with pytest.raises(UnknownName, match="mi999"):
        projected(run, "device=mi999")


@pytest.mark.parametrize(("here", "there", "error"), [("h100", "mi300x", -0.02), ("mi300x", "h100", -0.01)])
def test_one_run_on_two_devices(corpus: Path, here: str, there: str, error: float) -> None:
    """One eager run of a 0.5B model, recorded on both. The hosts decide, which are other ones."""
    name = "Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"
    scenario = f"device={there}"
    step = interval(whatif(tracelens.load(corpus / here / name), [scenario]), scenario)[1]
    measured = whatif(tracelens.load(corpus / there / name), ["identity"]).meta["base_ns"] / 1e3
    assert step / measured - 1 == pytest.approx(error, abs=0.03)


def test_bytes_take_as_long_as_they_did_on_the_device_that_was_measured() -> None:
    """Large copies at the full rates of both; small ones hardly differ; what is not bytes stays."""
    curves = MemoryCurves(device("h200"), device("h100"))
    large = 1 << 30
    before, after = (large / memory_rate(device(name), large).per_s * 1e9 for name in ("h200", "h100"))
    slow, exact, small = curves.scaled(
        np.array([3 * before, before, 3_000.0]), np.array([large, large, 1 << 16], dtype=float)
    )
    assert exact == pytest.approx(after, rel=0.01)
    assert slow == pytest.approx(2 * before + after, rel=0.01)
    assert 3_000 <= small < 3_500
    same = MemoryCurves(device("h200"), device("h200")).scaled(np.array([5e3, 5e6]), np.array([-1.0, 1e9]))
    assert same.tolist() == [5e3, 5e6]
