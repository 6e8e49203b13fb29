"""Names in columns: demangled, shortened, and still different."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rendering.sample import NASTY
from tracelens.rendering.tables import shorten, shortened_names

WIDTH = 44


def short(*texts: str, width: int = WIDTH) -> list[str]:
    return shortened_names(texts, width)


def test_what_fits_stays() -> None:
    assert short("aten::mm", "", "aten::mm", "Kernel(int)") == ["aten::mm", "", "aten::mm", "Kernel(int)"]


def test_parameters_and_namespaces_go_first() -> None:
    assert short("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)") == [
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    ]
    assert short(
        "void at::native::(anonymous namespace)::copy<at::native::Cast<c10::BFloat16>, 4>(int, int)"
    ) == ["copy<Cast<c10::BFloat16>, 4>"]
    assert short("one::two::three::kernel_with_a_name_of_its_own<four::five>") == [
        "kernel_with_a_name_of_its_own<five>"
    ]


def test_what_only_looks_like_parameters_stays() -> None:
    frame, op = (
        "a/rather/long/path/of/a/file/train.py(12): forward",
        "allgather_into_tensor_coalesced_of_all (DP)",
    )
    assert short(frame, op, width=40) == [
        shorten(frame, 40),
        shorten(op, 40),
    ]


def test_what_would_make_two_names_one_stays() -> None:
    names = [f"void kernel_with_a_long_name<float, float>(at::Tensor{n}, at::Tensor)" for n in (1, 2)]
    first, second = short(*names)
    assert first != second
    assert "Tensor1" in first
    assert "Tensor2" in second


def test_the_middle_that_is_kept_is_where_names_differ() -> None:
    begin, end = "gemm_" + "a" * 50, "b" * 50 + "_tail"
    names = [f"{begin}{size}x64x64{end}" for size in (128, 256, 192)]
    for name, size in zip(short(*names), (128, 256, 192), strict=True):
        assert name.startswith("gemm_aaaa")
        assert f"{size}x64" in name
        assert len(name) == WIDTH


def test_names_that_differ_in_several_places() -> None:
    names = [f"kernel<{'x' * 60}{a}{'y' * 60}{b}{'z' * 60}>" for a in "12" for b in "34"]
    assert len({*short(*names)}) == 4


def test_symbols_are_demangled() -> None:
    symbols = [
        "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELi16ELb1ELb0EEEvPT0_PT_PfS4_i",
        "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi64ELi8ELb0ELb0EEEvPT0_PT_PfS4_i",
        "_ZN5aiter50fmoe_bf16_blockscaleFp8_g1u1_vs_silu_1tg_ps_32x256E.kd",
        "Cijk_Ailk_Bljk.kd",
    ]
    assert short(*symbols, width=80) == [
        "aiter::add_rmsnorm_quant_kernel<bf16, bf16, 256, 16, true, false>",
        "aiter::add_rmsnorm_quant_kernel<bf16, bf16, 64, 8, false, false>",
        "aiter::fmoe_bf16_blockscaleFp8_g1u1_vs_silu_1tg_ps_32x256",
        "Cijk_Ailk_Bljk",
    ]


def test_symbols_that_read_alike_stay_symbols() -> None:
    assert short("_Z3addv", "add", "_Z3addi") == ["_Z3addv", "add", "_Z3addi"]


@pytest.mark.parametrize("text", ["_Z", "_ZN", "_ZN9999a", "_Z0", "_ZN3addI", "_ZN3addILi", "_Z3addILN3fooE"])
def test_damaged_symbols_do_no_harm(text: str) -> None:
    assert len(short(text)) == 1


@given(
    st.lists(st.text("ab<>(:,1_Z ", max_size=60) | st.sampled_from(NASTY), max_size=12), st.integers(12, 50)
)
def test_different_texts_stay_different_and_fit(texts: list[str], width: int) -> None:
    shortened = shortened_names(texts, width)
    assert all(len(text) <= width for text in shortened)
    assert len({*shortened}) == len({*texts})
    pairs = dict(zip(texts, shortened, strict=True))
    assert [pairs[text] for text in texts] == shortened
