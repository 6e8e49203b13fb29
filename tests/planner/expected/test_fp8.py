"""FP8 experts by hand: which FLOPs run in FP8, what quantization moves, and what the step gains."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tracelens.devices import device
from tracelens.planner.block import Gemm, Load, RankSizes, expert_gemm, quantized
from tracelens.planner.config import Config, override, preset
from tracelens.planner.expected import flops, summary
from tracelens.planner.memory import worst
from tracelens.planner.step_time import ROOFLINE, Machine, Timer

H200 = device("h200")


def config(fields: str = "") -> Config:
    return override(preset("tiny"), f"routing=balanced experts=grouped fp8=experts {fields}".split())


def test_two_of_three_gemms_run_in_fp8() -> None:
    # Layers 1 and 2 have experts; 128 choices of 64 tokens in each of 2 micro-batches.
    rows = 2 * 128
    forward = 2 * rows * 64 * 3 * 48
    work = flops(config("recompute_layer_ids=2"), 0, dtype="fp8")
    assert {name: tuple(parts) for name, parts in work.items()} == {
        "L1.experts": (forward, forward, 0),
        "L2.experts": (forward, forward, forward),
    }
    assert flops(config(), 0) == flops(config("fp8=off"), 0)
    assert flops(config("fp8=off"), 0, dtype="fp8") == {}


def test_the_side_file_has_them_only_with_fp8() -> None:
    assert summary(config(), 0, "cpu")["fp8_flops"]["L1.experts"]["forward"] > 0
    assert "fp8_flops" not in summary(config("fp8=off"), 0, "cpu")


def test_bytes_of_quantized_operands() -> None:
    # 10 rows, 3 matrices of 16 x 32: one byte each, a float32 for each row and column.
    assert quantized(10, 16, 32, 3) == (10 * 16 + 3 * 16 * 32 + 4 * (10 + 3 * 32),
                                        10 * 32 + 3 * 16 * 32 + 4 * (10 + 3 * 16))  # fmt: skip


def test_loads_of_an_fp8_gemm() -> None:
    bfloat16 = "dtype=bfloat16 main_params=false experts_count=3 top_k=2 expert_groups=1 top_groups=1"
    sizes, operands = RankSizes(config(bfloat16)), quantized(10, 16, 32, 3)
    quantize, multiply, weight = expert_gemm(sizes, 10, 16, 32)
    assert quantize.forward == Load(0, 2 * (10 * 16 + 3 * 16 * 32) + operands.forward)
    assert multiply.backward[:2] == (2 * 10 * 16 * 32, operands.backward + 2 * 10 * 16)
    assert (multiply.forward.dtype, multiply.backward.dtype) == ("fp8", "fp8")
    assert (weight.forward, weight.backward.dtype) == (Load(), "")
    # The kernels have all of the FLOPs, and the shapes of the GEMM and its two gradients.
    kernels = [part.kernels for part in (multiply.forward, multiply.backward, weight.backward)]
    gemms = [kernel for (kernel,) in kernels if isinstance(kernel, Gemm)]
    assert [(kernel.k, kernel.n, kernel.kind) for kernel in gemms] == [
        (16, 32, "output"), (32, 16, "output"), (16, 32, "weight"),
    ]  # fmt: skip
    assert [round(kernel.flops) for kernel in gemms] == [2 * 10 * 16 * 32] * 3
    (gemm,) = expert_gemm(RankSizes(config(f"{bfloat16} fp8=off")), 10, 16, 32)
    for phase in ("forward", "backward"):
        in_parts = sum(getattr(part, phase).flops for part in (quantize, multiply, weight))
        assert in_parts == getattr(gemm, phase).flops


def test_the_rate_is_that_of_fp8() -> None:
    machine = replace(ROOFLINE, matrix_efficiency=0.5)
    timer = Timer(config("dtype=bfloat16 main_params=false"), H200, machine)
    assert timer.rates.nanoseconds(Load(10**12, 0, dtype="fp8")) == pytest.approx(1e21 / (1979e12 / 2))
    assert timer.rates.nanoseconds(Load(10**12, 0)) == pytest.approx(1e21 / (989.4e12 / 2))


def test_large_gemms_in_fp8_are_faster_by_size_too() -> None:
    large = "dtype=bfloat16 hidden=4096 expert_ffn=4096 seq=4096 micro_batch=4"
    times = {}
    for value in ("off", "experts"):
        timer = Timer(config(f"{large} fp8={value}"), H200, Machine())
        kernels = expert_gemm(timer.share.sizes, 4 * timer.share.tokens, 4096, 8192)
        times[value] = sum(timer.rates.nanoseconds(kernel.forward) for kernel in kernels)
    assert 0.5 < times["experts"] / times["off"] < 0.9


def test_operands_in_fp8_are_gone_when_their_gemm_is() -> None:
    """Nothing more is kept; the copies count where the peak lies in the experts."""
    fields = "layers=1 dense_layers=0 vocab=16 dtype=bfloat16 main_params=false expert_ffn=1024 seq=256"
    plain, quantizing = (worst(config(f"{fields} fp8={value}")) for value in ("off", "experts"))
    assert quantizing.moments["between"] == plain.moments["between"]
    most = quantized(1024, 64, 2048, 8).forward + quantized(1024, 1024, 64, 8).forward
    assert 0 <= quantizing.total - plain.total <= most
