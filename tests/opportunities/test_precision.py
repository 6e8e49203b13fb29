"""GEMMs in 32 bits on devices that multiply faster in 16, and messages of as many. A column is 100 us."""

from __future__ import annotations

from pathlib import Path

import pytest

import tracelens
from tests.builders import aligned, draw, draw_run
from tracelens.analysis.roofline import reachable_time
from tracelens.costs import OpCost
from tracelens.devices import Device, device, memory_rate
from tracelens.findings import DETECTORS, Detection, Outcome, RankContext, TracePlatform, remedy
from tracelens.opportunities.precision import OPTIMIZER_SHARE, in_type, kept_wide
from tracelens.what_if import whatif

SAMPLES = Path(__file__).parents[2] / "sample_traces"
wide_gemms, wide_messages = DETECTORS.get("wide_gemms"), DETECTORS.get("wide_messages")

H200 = device("h200")
BFLOAT16 = '["c10::BFloat16","c10::BFloat16"]'
COLUMN = 100_000
SIMT, TF32, BF16 = "cutlass_80_simt_sgemm", "cutlass_80_tensorop_s1688gemm_128x128", "nvjet_tst_128x256"


def program(wide: int = 8, narrow: int = 0, kernel: str = SIMT, types: str = '["float","float"]') -> str:
    """GEMMs of so many columns in 32 bits and in BF16, and another kernel of one column."""
    text = f"""
        step 1 | ---
        op aten::mm shapes=[[4096,4096],[4096,4096]] types={types} | -
        op aten::mm shapes=[[4096,4096],[4096,4096]] types=["c10::BFloat16","c10::BFloat16"] |  -
        launch | w{"n" if narrow else ""}
        s7 {kernel} |    {"w" * wide}
    """
    if narrow:
        text += f"s7 {BF16} |    {' ' * wide}{'n' * narrow}"
    return aligned(text)


def detected(text: str, on: Device | None = H200) -> Outcome:
    return wide_gemms.of_rank(RankContext(draw(aligned(text), ns_per_char=COLUMN), on))


def advice(detection: Detection, vendor: str, *frameworks: str, trains: bool = True) -> str:
    platform = TracePlatform(vendor, frameworks, trains=trains)
    return remedy(wide_gemms, platform, cause=detection.cause)


def test_gemms_in_fp32_take_as_much_less_as_the_peaks_say() -> None:
    detection = detected(program())
    assert isinstance(detection, Detection)
    saved = 1 - (H200.vector["fp32"] / H200.matrix["bf16"])
    assert detection.saving_ns == pytest.approx(8 * COLUMN * saved)
    assert detection.where.total == 8 * COLUMN
    figures = {quantity.measure: quantity.value for quantity in detection.quantities}
    assert figures["share of the GPU time"] == 1
    assert figures["rate"] == pytest.approx(2 * 4096**3 / (8 * COLUMN) * 1e9)
    assert figures["rate"] < figures["rate in 16 bits"] < H200.matrix["bf16"]
    assert detection.scenario == "dtype=bf16"


def test_the_replay_saves_what_the_detector_expects() -> None:
    detection = detected(program())
    assert isinstance(detection, Detection)
    result = whatif(draw_run(program(), ns_per_char=COLUMN), ["dtype=bf16"], device="h200")
    saved_ns = result.meta["base_ns"] - int(result["whatif"]["projected_ns"][0])
    assert saved_ns == pytest.approx(detection.saving_ns, rel=0.01)


# An RMS norm written op by op, another product, a loss, and a GEMM; a kernel of two columns each.
NORM = """
    step 1 | --------
    op aten::pow shapes=[[4096,4096],[]] types=["float","Scalar"] | -
    op aten::mean shapes=[[4096,4096],[],[],[]] types=["float","ScalarList","Scalar",""] |  -
    op aten::add shapes=[[4096,1],[],[]] types=["float","Scalar","Scalar"] |   -
    op aten::rsqrt shapes=[[4096,1]] types=["float"] |    -
    op aten::mul shapes=[[4096,4096],[4096,1]] types=["float","float"] |     -
    op aten::mul shapes=[[4096],[4096,4096]] types=["float","float"] |      -
    op aten::_log_softmax shapes=[[4096,4096],[],[]] types=["float","Scalar","Scalar"] |       -
    op aten::mm shapes=[[4096,4096],[4096,4096]] types=["float","float"] |        -
    launch | abcdefgh
    s7 vectorized_elementwise | aabbccddeeff
    s7 cunn_SoftMaxForward |             gg
    s7 cutlass_80_simt_sgemm |               hh
"""


def test_what_libraries_compute_in_32_bits_stays_between_casts() -> None:
    text = aligned(NORM)
    trace = draw(text, ns_per_char=COLUMN)
    kept = kept_wide(trace, H200)
    names = [
        trace.arrays.names[trace.arrays.name[op]].removeprefix("aten::") for op in trace.work.op.tolist()
    ]
    assert names == ["pow", "mean", "add", "rsqrt", "mul", "mul", "_log_softmax", "mm"]
    assert kept.stays.tolist() == [True, True, True, True, True, False, True, False]
    assert kept.casts.tolist() == [0, 0, 0, 0, 2, 0, 1, 0]
    # Each cast reads or writes 4096 x 4096 numbers of 4 bytes, and as many of 2.
    of_cast = 4096 * 4096 * (4 + 2)
    assert kept.cast_bytes.tolist() == [0, 0, 0, 0, 2 * of_cast, 0, of_cast, 0]
    run = draw_run(text, ns_per_char=COLUMN)
    result = whatif(run, ["dtype=bf16"], device="h200")
    saved_ns = result.meta["base_ns"] - int(result["whatif"]["projected_ns"][0])
    gemm_ns = 2 * COLUMN * (1 - H200.vector["fp32"] / H200.matrix["bf16"])
    casts_ns = 3 * of_cast / memory_rate(H200, of_cast).per_s * 1e9
    # The GEMM, and half of the product outside of the norm.
    assert saved_ns == pytest.approx(gemm_ns + COLUMN - casts_ns, rel=0.02)


def test_attention_takes_at_least_what_the_device_reaches_in_16_bits() -> None:
    """As fast as its peak in 32 bits already, which no kernel is in 16."""
    op, shape = "aten::_scaled_dot_product_efficient_attention", "[4,16,4096,128]"
    shapes = f"[{','.join([shape] * 3)},[],[],[],[]]"
    types, values = '["float","float","float","","","",""]', '["","","","","False","0.","False"]'
    text = f"""
        step 1 | --
        op {op} shapes={shapes} types={types} values={values} | -
        launch | a
        s7 fmha_cutlassF_f32_aligned_64x128_rf_sm80 |  aaaaaaaaaaaaaaaaaaaa
    """
    result = whatif(draw_run(aligned(text), ns_per_char=COLUMN), ["dtype=bf16"], device="h200")
    saved_ns = result.meta["base_ns"] - int(result["whatif"]["projected_ns"][0])
    flops = 4 * 4 * 16 * 4096**2 * 128
    cost = OpCost(flops, 0, 0, "bf16", "matrix", dims=(("Nq", 4096), ("D", 128)))
    left_ns = reachable_time(op, cost, H200).ns
    by_peaks = 20 * COLUMN * H200.vector["fp32"] / H200.matrix["bf16"]
    assert left_ns > by_peaks
    assert 20 * COLUMN - saved_ns == pytest.approx(left_ns, rel=0.05)


def test_attention_op_by_op_is_one_kernel_in_16_bits() -> None:
    """Two batched GEMMs and a softmax inside of it, and an optimizer behind it, of eight columns each."""
    shapes = "[[4,16,2048,128],[4,16,2048,128],[4,16,2048,128],[],[],[]]"
    batched = 'shapes=[[64,2048,128],[64,128,2048]] types=["float","float"]'
    text = f"""
        step 1 | ------
        op aten::_scaled_dot_product_attention_math shapes={shapes} types=["float","float","float","","",""] values=["","","","","0.","False"] | -----
        op aten::bmm {batched} | -
        op aten::_softmax shapes=[[64,2048,2048],[],[]] types=["float","Scalar","Scalar"] |  -
        op aten::bmm {batched} |   -
        op aten::_fused_adamw_ |      -
        launch | abc  d
        s7 cutlass_80_simt_sgemm | aaaaaaaa        cccccccc
        s7 cunn_SoftMaxForward |         bbbbbbbb
        s7 multi_tensor_apply_kernel |                         dddddddd
    """  # noqa: E501
    run = draw_run(aligned(text), ns_per_char=COLUMN)
    (attention,) = kept_wide(run.traces[0], H200).op_by_op
    assert attention.rows.tolist() == [0, 1, 2]
    assert attention.cost.flops == 4 * 4 * 16 * 2048**2 * 128
    result = whatif(run, ["dtype=bf16"], device="h200")
    saved_ns = result.meta["base_ns"] - int(result["whatif"]["projected_ns"][0])
    needed_ns = reachable_time(attention.name, in_type(attention.cost, "bf16"), H200).ns
    expected_ns = 24 * COLUMN - needed_ns + 8 * COLUMN * (1 - OPTIMIZER_SHARE)
    # What is launched behind it starts no earlier than it is launched.
    assert saved_ns == pytest.approx(expected_ns, rel=0.03)
    assert (
        "1 call of attention, op by op before, as one kernel each" in result["assumptions"]["assumption"][0]
    )


def test_a_grouped_gemm_that_runs_group_by_group_is_one_kernel_in_16_bits() -> None:
    """The host reads the sizes of four groups, waits for them, and launches a GEMM each of six columns."""
    shapes = "[[8192,1024],[4,1024,2048],[4],[],[]]"
    text = f"""
        step 1 | ----------
        op aten::_grouped_mm shapes={shapes} types=["float","float","int","",""] |  --------
        op aten::item |  ---
        op aten::mm |     -
        op aten::mm |      -
        op aten::mm |       -
        op aten::mm |        -
        launch cudaMemcpyAsync |  c
        launch cudaStreamSynchronize |   --
        launch | a   wxyz b
        s7 copy Memcpy DtoH (Device -> Pinned) |    c
        s7 before | aaa
        s7 sgemm |     wwwwwwxxxxxxyyyyyyzzzzzz
        s7 after |                             bb
    """
    run = draw_run(aligned(text), ns_per_char=COLUMN)
    (grouped,) = kept_wide(run.traces[0], H200).op_by_op
    assert len(grouped.rows) == 5
    assert grouped.cost.flops == 2 * 8192 * 1024 * 2048
    result = whatif(run, ["dtype=bf16"], device="h200")
    needed_ns = reachable_time(grouped.name, in_type(grouped.cost, "bf16"), H200).ns
    saved_ns = result.meta["base_ns"] - int(result["whatif"]["projected_ns"][0])
    assert saved_ns == pytest.approx(24 * COLUMN - needed_ns, abs=2 * COLUMN)
    assert "1 call of grouped GEMMs, op by op before" in result["assumptions"]["assumption"][0]


@pytest.mark.parametrize(
    ("wide", "narrow", "found"), [(8, 0, True), (4, 3, True), (3, 4, False), (1, 20, False)]
)
def test_a_few_gemms_in_fp32_do_not_make_a_program_of_32_bits(wide: int, narrow: int, found: bool) -> None:
    assert isinstance(detected(program(wide, narrow)), Detection) == found


@pytest.mark.parametrize(
    ("chip", "kernel", "title", "scenario", "first"),
    [
        ("h200", SIMT, "GEMMs in FP32", "dtype=bf16", "TF32 on the tensor cores"),
        ("h200", TF32, "GEMMs in TF32", "dtype=bf16", "Compute in bfloat16"),
        ("v100", "volta_sgemm_128x64_nt", "GEMMs in FP32", "dtype=fp16", "torch.amp.GradScaler"),
    ],
)
def test_the_remedy_is_one_that_the_device_has(
    chip: str, kernel: str, title: str, scenario: str, first: str
) -> None:
    detection = detected(program(kernel=kernel), device(chip))
    assert isinstance(detection, Detection)
    assert (detection.title, detection.scenario) == (title, scenario)
    text = advice(detection, "nvidia")
    assert first in text
    assert ("set_float32_matmul_precision" in text) == (chip == "h200" and kernel == SIMT)
    assert ("bfloat16" in text.replace("no bfloat16", "")) == (chip == "h200")


@pytest.mark.parametrize(("chip", "has_tf32"), [("mi300x", True), ("mi355x", False)])
def test_on_amd_tf32_comes_first_where_the_device_has_it(chip: str, has_tf32: bool) -> None:
    detection = detected(program(kernel="Cijk_Ailk_Bljk_SB_MT128x64x16"), device(chip))
    assert isinstance(detection, Detection)
    assert ("set_float32_matmul_precision" in advice(detection, "amd")) == has_tf32


def test_only_a_run_that_trains_is_told_how_to_train() -> None:
    detection = detected(program())
    assert isinstance(detection, Detection)
    assert "TrainingArguments" in advice(detection, "nvidia", "huggingface")
    inference = advice(detection, "nvidia", "huggingface", trains=False)
    assert "from_pretrained" in inference
    assert "TrainingArguments" not in inference
    assert "loss" not in inference


@pytest.mark.parametrize(
    ("kernel", "title"),
    [
        (SIMT, "GEMMs in FP32"),
        ("ampere_sgemm_128x64_tn", "GEMMs in FP32"),
        ("Cijk_Alik_Bljk_S_B_Bias_HA_S_SAV_UserArgs_MT64x64x16", "GEMMs in FP32"),
        (TF32, "GEMMs in TF32"),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x128x16", "GEMMs in TF32"),
        ("Cijk_Alik_Bljk_S_MX_B_Bias_HA_S_SAV_UserArgs_MT64x64x16", "GEMMs in TF32"),
        ("turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_tn", ""),
        ("cutlass_75_tensorop_s1688gemm_f16_128x64", ""),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT64x64x16", ""),
        ("nvjet_tst_128x256_64x4", ""),
    ],
)
def test_without_shapes_the_names_of_kernels_tell_and_the_saving_is_an_estimate(
    kernel: str, title: str
) -> None:
    outcome = detected(program(kernel=kernel).replace("shapes", "ignored"))
    assert isinstance(outcome, Detection) == bool(title)
    if isinstance(outcome, Detection):
        assert outcome.title == title
        assert outcome.scenario == ""
        assert [quantity.measure for quantity in outcome.quantities] == ["share of the GPU time"]


@pytest.mark.parametrize(
    ("text", "chip", "reason"),
    [
        ("step 1 | --", H200, "no GPU work"),
        (program(), None, "device is unknown"),
        ("step 1 | ---\nlaunch | a\ns7 norm |  aa", H200, "no GEMM or attention"),
        (program(1, 20), H200, "5% of the time"),
        (program(types='["c10::Half","c10::Half"]', kernel=BF16), H200, "0% of the time"),
    ],
)
def test_why_there_is_nothing(text: str, chip: Device | None, reason: str) -> None:
    outcome = detected(text, chip)
    assert isinstance(outcome, str)
    assert reason in outcome


def test_a_processor_has_no_tensor_cores() -> None:
    trace = tracelens.load(SAMPLES / "cpu/tiny").traces[0]
    assert "CPU-only" in str(wide_gemms.of_rank(RankContext(trace, H200)))


def test_operands_of_another_type_are_as_much_smaller_and_results_at_least_16_bits() -> None:
    cost = OpCost(8, 400, 100, "fp32", "matrix")
    assert in_type(cost, "bf16") == OpCost(8, 200, 50, "bf16", "matrix")
    assert in_type(cost, "fp8") == OpCost(8, 100, 50, "fp8", "matrix")
    assert in_type(cost._replace(dtype="bf16"), "fp8") == OpCost(8, 200, 100, "fp8", "matrix")


def exchange(dtype: str, kind: str = "all_to_allv", gemms: str = "c10::BFloat16") -> str:
    """A rank that sends tokens to GEMMs: 4 columns of transfer, 10 of GEMM."""
    return aligned(f"""
        step 1 | ------
        op aten::mm shapes=[[4096,4096],[4096,4096]] types=["{gemms}","{gemms}"] | -
        launch | b
        op record_param_comms collective={kind} group=0 ranks=[0,1] size=2 in=4096 out=4096 dtype={dtype} |  -
        launch |  a
        s7 gemm |    bbbbbbbbbb
        s7 ncclDevKernel_SendRecv |              aaaa
    """)


def test_tokens_in_fp32_beside_gemms_in_bf16_need_half_the_bytes() -> None:
    detection = wide_messages.of_rank(RankContext(draw(exchange("Float"), ns_per_char=COLUMN), H200))
    assert isinstance(detection, Detection)
    assert {quantity.measure: quantity.value for quantity in detection.quantities} == {
        "all-to-alls per step": 1,
        "bytes per step": 4 * 4096,
        "time per step": 4 * COLUMN,
    }
    assert detection.saving_ns == detection.where.total / 2 == 2 * COLUMN
    run = draw_run(exchange("Float"), exchange("Float"), ns_per_char=COLUMN)
    result = whatif(run, ["narrow_messages"], device="h200")
    assert result.meta["base_ns"] - int(result["whatif"]["projected_ns"][0]) == 2 * COLUMN


@pytest.mark.parametrize(("elements", "found"), [(40_000, True), (1_000, False)])
def test_routing_weights_in_fp32_are_no_tokens(elements: int, found: bool) -> None:
    """Beside 160,000 tokens in BF16, which are 320,000 bytes."""
    record = "op record_param_comms collective=all_to_allv group=0 ranks=[0,1] size=2"
    text = aligned(f"""
        step 1 | ------
        op aten::mm shapes=[[4096,4096],[4096,4096]] types={BFLOAT16} | -
        launch | b
        {record} in=160000 out=160000 dtype=BFloat16 |  -
        launch |  a
        {record} in={elements} out={elements} dtype=Float |   -
        launch |   c
        s7 gemm |    bbbbbbbbbb
        s7 ncclDevKernel_SendRecv |              aaaacc
    """)
    outcome = wide_messages.of_rank(RankContext(draw(text, ns_per_char=COLUMN), H200))
    assert isinstance(outcome, Detection) == found
    if isinstance(outcome, Detection):
        assert outcome.where.total == 2 * COLUMN
    else:
        assert "no tokens" in outcome


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (exchange("BFloat16"), "no all-to-all sends"),
        (exchange("Long"), "no all-to-all sends"),
        (exchange("Float", "allreduce"), "no all-to-all sends"),
        (exchange("Float", gemms="float"), "not known to be in 16 bits"),
        (exchange("Float").replace("shapes", "unseen"), "not known to be in 16 bits"),
    ],
)
def test_messages_that_are_no_wider_than_needed(text: str, reason: str) -> None:
    outcome = wide_messages.of_rank(RankContext(draw(text, ns_per_char=COLUMN), H200))
    assert isinstance(outcome, str)
    assert reason in outcome
    if "no all-to-all" in reason:
        (skip,) = whatif(draw_run(text, text, ns_per_char=COLUMN), ["narrow_messages"], device="h200").skips
        assert "no all-to-all" in skip.reason
