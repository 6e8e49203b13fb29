"""The run on another device: hand-made sums, and one run recorded on two devices."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

import tracelens
from tests.what_if.replays import interval, projected, run_of
from tracelens.devices import Bandwidth, device, device_toml, gemm_rate, memory_rate, read_device
from tracelens.errors import UnknownName
from tracelens.what_if import whatif

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


GEMM, COPIED = (8192, 8192, 8192, "bf16"), 32 << 20


def bytes_ns(name: str, size: float) -> float:
    """Time of moving so many bytes on a device."""
    return size / memory_rate(device(name), size).per_s * 1e9


def guessed_ns(here: str, there: str, dur_ns: float) -> float:
    """Time on one device of the bytes that take so long on another."""
    size = dur_ns * device(here).hbm_bytes_per_s / 1e9
    for _ in range(100):
        size *= dur_ns / bytes_ns(here, size)
    return bytes_ns(there, size)


@pytest.mark.parametrize(("here", "there"), [("mi300x", "mi355x"), ("mi300x", "h100"), ("h200", "mi355x")])
def test_work_keeps_its_share_of_what_is_measured_or_modeled(here: str, there: str) -> None:
    rates = [gemm_rate(device(name), *GEMM) for name in (here, there)]
    assert rates[0]
    assert rates[1]
    step = 10 * rates[0].per_s / rates[1].per_s + 10 * bytes_ns(there, COPIED) / bytes_ns(here, COPIED)
    step += guessed_ns(here, there, 10_000) / 1e3
    assert projected_on(run_of(WORK), there, here) == pytest.approx(step, rel=0.01)


def test_the_assumptions_say_what_priced_which_share() -> None:
    run = run_of(WORK)
    result = whatif(run, ["device=h100", "device=MI300X", "device=mi355x"], device="mi300x")
    assert interval(result, "device=MI300X")[1] == pytest.approx(30)
    assumed = result["assumptions"].set_index("scenario")["assumption"]
    for basis, scenario in (("modeled -> measured", "device=h100"), ("modeled", "device=mi355x")):
        assert f"33% GEMMs ({basis})" in assumed[scenario]
        assert f"33% memory-bound kernels ({basis})" in assumed[scenario]
        assert f"33% kernels without a cost model ({basis})" in assumed[scenario]
    assert "another vendor" in assumed["device=h100"]
    assert "another vendor" not in assumed["device=mi355x"]


ARGUMENTS = (
    "shapes=[[64,64,56,56],[64,64,3,3],[],[],[],[],[],[],[]] "
    'types=["c10::BFloat16","c10::BFloat16"] '
    'values=["","","","[1,1]","[1,1]","[1,1]","False","[0,0]","1"]'
)
CONVOLUTION = f"""
    step 0                          | ----
    op aten::convolution {ARGUMENTS} | -
    launch                          | a
    s7 conv                         | aaaaaaaaaa
"""


def test_where_one_device_is_known_by_its_data_sheet_both_are() -> None:
    """Convolutions: by peaks, and by max-achievable rates where both publish them."""
    run = run_of(CONVOLUTION)
    cost = tracelens.analyze(run, "roofline", device="mi300x")["roofline"].iloc[0]
    assert cost["flops"] > 0
    result = whatif(run, ["device=mi355x", "device=mi325x"], device="mi300x")
    assert "100% other matrix work (data sheet)" in result["assumptions"]["assumption"][0]
    moved = cost["read_bytes"] + cost["write_bytes"]
    for to, rates in (("mi355x", (1307.4e12, 2516.6e12)), ("mi325x", (708e12, 843e12))):
        here_s, there_s = (
            max(cost["flops"] / rate, moved / device(name).hbm_bytes_per_s)
            for name, rate in zip(("mi300x", to), rates, strict=True)
        )
        assert interval(result, f"device={to}")[1] == pytest.approx(10 * there_s / here_s, abs=0.01)


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
    """After a wait of 4 us, 40 us of transfer: two ranks use one of seven links, or all behind a switch."""
    run = run_of(EXCHANGE.format(kernel="  " + 44 * "a"), EXCHANGE.format(kernel="      " + 40 * "a"))
    one_link = device("mi300x").gpu_link_bytes_per_s / 7
    for to, rate in (
        ("mi355x", device("mi355x").gpu_link_bytes_per_s / 7),
        ("h100", device("h100").gpu_link_bytes_per_s),
    ):
        assert projected_on(run, to, "mi300x") == pytest.approx(6 + 40 * one_link / rate, abs=0.01)


def test_transfers_measured_on_both_devices_go_by_these(tmp_path: Path) -> None:
    """40 us of transfer at 40 GB/s instead of 20."""
    run = run_of(EXCHANGE.format(kernel="  " + 44 * "a"), EXCHANGE.format(kernel="      " + 40 * "a"))
    home = with_messages(tmp_path / "home.toml", "gb200", 20e9)
    to = with_messages(tmp_path / "to.toml", "h100", 40e9, ranks=8)
    result = whatif(run, [f"device={to}"], device=home)
    assert interval(result, f"device={to}")[1] == pytest.approx(6 + 40 / 2, abs=0.01)
    text = result["assumptions"]["assumption"].iloc[0]
    assert "measured by size among 2 ranks of NVIDIA GB200, one GPU and 8 ranks of NVIDIA H100 SXM" in text
    # With messages of one device alone it goes by the links.
    assert projected_on(run, to, "mi300x") == pytest.approx(6 + 40 * (448 / 7) / 450, abs=0.01)


def test_a_device_of_one_s_own(tmp_path: Path) -> None:
    """Twice the matrix units and half the memory's bandwidth of an MI300X, and no links."""
    path = tmp_path / "mine.toml"
    path.write_text('name = "mine"\nhbm_bytes_per_s = 2.65e12\n[matrix]\nbf16 = 2614.8e12\n')
    run = run_of(WORK)
    rates = [gemm_rate(item, *GEMM) for item in (device("mi300x"), read_device(str(path)))]
    assert rates[0]
    assert rates[1]
    copied = memory_rate(device("mi300x"), COPIED).per_s / memory_rate(read_device(str(path)), COPIED).per_s
    step = 10 * rates[0].per_s / rates[1].per_s + 10 * copied
    assert 10 < projected_on(run, str(path), "mi300x") - step < 20
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


@pytest.mark.parametrize(("here", "there", "error"), [("h100", "mi300x", -0.02), ("mi300x", "h100", -0.04)])
def test_one_run_on_two_devices(corpus: Path, here: str, there: str, error: float) -> None:
    """One eager run of a 0.5B model, recorded on both. The hosts decide, which are other ones."""
    name = "Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"
    scenario = f"device={there}"
    step = interval(whatif(tracelens.load(corpus / here / name), [scenario]), scenario)[1]
    measured = whatif(tracelens.load(corpus / there / name), ["identity"]).meta["base_ns"] / 1e3
    assert step / measured - 1 == pytest.approx(error, abs=0.03)


def test_what_is_not_bytes_stays_where_both_memories_were_measured() -> None:
    """A copy three times as slow as its bytes, and a short kernel of which nothing is known."""
    run = run_of(
        f"""
        step 0                                                 | ----
        op aten::copy_ shapes=[[4096,2048],[4096,2048]] {BF16} | -
        launch                                                 | a
        launch                                                 |  b
        s7 elementwise_copy                                    | aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
        s7 unheard_of                                          |                               bbb
        """
    )
    more = (bytes_ns("h100", COPIED) - bytes_ns("h200", COPIED)) / 1e3
    assert 2 < more < 5
    step = 30 + more + guessed_ns("h200", "h100", 3_000) / 1e3
    assert projected_on(run, "h100", "h200") == pytest.approx(step, rel=0.01)
    assert projected_on(run, "h200", "h200") == pytest.approx(33)
    assert 3_000 <= guessed_ns("h200", "h100", 3_000) < 3_500
