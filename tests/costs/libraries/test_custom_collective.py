"""Collectives of serving libraries: what a rank sends at least, against hand-worked counts."""

from __future__ import annotations

import pytest

from tests.costs.recorded import costed, recorded
from tracelens.costs import MESSAGE_OPS, Message, Uncounted, find, message

ROWS = "bf16 64 4096"
S = 2 * 64 * 4096
EIGHT = "void vllm::cross_device_reduce_2stage<__hip_bfloat16, 8>(vllm::RankData*, vllm::RankSignals, int)"


@pytest.mark.parametrize(
    ("name", "behind"),
    [
        ("_C_custom_ar::all_reduce", ("0", "0")),
        ("aiter::all_reduce", ("True",)),
        ("sgl_kernel::all_reduce_reg", ()),
    ],
)
def test_all_reduce(name: str, behind: tuple[str, ...]) -> None:
    cost = costed(name, "94210", ROWS, ROWS, *behind, kernel=EIGHT)
    assert (cost.flops, cost.read_bytes, cost.write_bytes) == (0, S, S)
    assert (cost.link, cost.link_bytes) == ("gpu", 2 * 7 * S // 8)
    assert (cost.dims, cost.dtype, cost.note) == ((("ranks", 8),), "bf16", "")


@pytest.mark.parametrize(
    ("kernel", "ranks"),
    [
        ("void aiter::cross_device_reduce_1stage_naive<opus::bf16_t, 4>(aiter::RankData*)", 4),
        ("_ZN4vllm26cross_device_reduce_1stageI14__hip_bfloat16Li2EEEvPNS_8RankDataE", 2),
        ("void quickreduce::allreduce_prototype_twoshot<quickreduce::AllReduceTwoshot<__half, "
         "quickreduce::CodecQ4<__half, 8>, false>, __half>(__half const*, __half*)", 8),
        ("ncclDevKernel_Generic", 0),
        ("void reduce<float, 512>(float*)", 0),
        ("void reduce<float, 99999999999999999999999999>(float*)", 0),
        ("", 0),
    ],
)  # fmt: skip
def test_ranks_stand_in_the_kernel_name(kernel: str, ranks: int) -> None:
    cost = costed("_C_custom_ar::all_reduce", "1", ROWS, ROWS, kernel=kernel)
    assert cost.link_bytes == (2 * (ranks - 1) * S // ranks if ranks else S)
    assert bool(cost.note) == (not ranks)


@pytest.mark.parametrize(("level", "bits"), [(0, 16), (1, 8), (2, 6), (3, 4)])
@pytest.mark.parametrize("name", ["_C_custom_ar::qr_all_reduce", "sgl_kernel::qr_all_reduce"])
def test_elements_cut_on_the_way(name: str, level: int, bits: int) -> None:
    cost = costed(name, "1", ROWS, ROWS, str(level), "False", kernel=EIGHT)
    assert cost.link_bytes == 2 * 7 * (64 * 4096 * bits // 8) // 8
    assert (cost.read_bytes, cost.write_bytes) == (S, S)


def test_a_level_that_is_not_recorded() -> None:
    with pytest.raises(Uncounted, match="argument 3 has no recorded value"):
        costed("_C_custom_ar::qr_all_reduce", "1", ROWS, ROWS)


def test_all_reduce_with_a_norm() -> None:
    elements = 64 * 4096
    cost = costed("aiter::fused_allreduce_rmsnorm", "1", *[ROWS] * 4, "bf16 4096", "1e-06", kernel=EIGHT)
    assert cost.flops == 5 * elements
    assert (cost.read_bytes, cost.write_bytes) == (2 * S + 2 * 4096, 2 * S)
    assert cost.link_bytes == 2 * 7 * S // 8
    fp4 = costed("aiter::fused_allreduce_rmsnorm_mxfp4_quant", "1", *[ROWS] * 3, "fp4x2 64 2048",
                 "fp8e8m0 64 128", "bf16 4096", "1e-06")  # fmt: skip
    assert (fp4.flops, fp4.write_bytes) == (7 * elements, S + elements // 2 + 64 * 128)
    assert fp4.link_bytes == S


def test_all_reduce_with_a_norm_into_new_tensors() -> None:
    """gpt-oss: rows of 2880 padded to 3072."""
    rows, weight = "bf16 64 2880", "bf16 2880"
    name = "aiter::fused_allreduce_rmsnorm_"
    cost = costed(name, rows, rows, weight, "1e-05", "tp:0", "False", "256")
    assert cost.flops == 5 * 64 * 2880
    assert cost.read_bytes == 2 * (2 * 64 * 2880 + 2880)
    assert cost.write_bytes == 2 * 64 * (3072 + 2880)
    assert costed(name, rows, rows, weight, "1e-05", "tp:0").write_bytes == 2 * 2 * 64 * 2880


def test_gathered_and_scattered_parts() -> None:
    gathered = costed("aiter::all_gather_reg", "1", ROWS, "bf16 512 4096", "0")
    assert (gathered.read_bytes, gathered.write_bytes, gathered.link_bytes) == (S, 8 * S, 7 * S)
    assert gathered.dims == (("ranks", 8),)
    assert costed("sglang::reg_all_gather_into_tensor", "bf16 512 4096", ROWS, "tp:0") == gathered
    scattered = costed("aiter::reduce_scatter", "1", "bf16 512 4096", ROWS, "512", "4096", "1", "0")
    assert (scattered.read_bytes, scattered.write_bytes, scattered.link_bytes) == (8 * S, S, 7 * S)
    with pytest.raises(Uncounted, match="number of ranks"):
        costed("aiter::all_gather_reg", "1", ROWS, "bf16 100 4096", "0")


def test_messages_as_the_profiler_would_record_them() -> None:
    reduced = recorded("_C_custom_ar::all_reduce", "1", ROWS, ROWS, kernel=EIGHT)
    assert message(reduced) == Message("allreduce", S, S, "bf16", 8)
    assert message(reduced._replace(kernel="")) == Message("allreduce", S, S, "bf16", 0)
    normed = recorded(
        "aiter::fused_allreduce_rmsnorm_", ROWS, ROWS, "bf16 4096", "1e-06", "tp:0", kernel=EIGHT
    )
    assert message(normed) == Message("allreduce", S, S, "bf16", 8)
    gathered = recorded("sglang::reg_all_gather_into_tensor", "bf16 256 4096", ROWS, "tp:0")
    assert message(gathered) == Message("all_gather", S, 4 * S, "bf16", 4)
    scattered = recorded("aiter::reduce_scatter", "1", "bf16 256 4096", ROWS, "256")
    assert message(scattered) == Message("reduce_scatter", 4 * S, S, "bf16", 4)
    assert message(recorded("aten::mm", ROWS, ROWS)) is None
    assert message(recorded("_C_custom_ar::all_reduce", "1", None, None)) is None


def test_every_message_has_a_cost() -> None:
    assert {name for name in MESSAGE_OPS if find(name) is None} == set()
