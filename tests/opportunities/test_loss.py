"""Cross-entropy losses kernel by kernel. A column is 10 us."""

from __future__ import annotations

import pytest

from tests.builders import aligned, draw
from tracelens.devices import Device, device
from tracelens.findings import DETECTORS, Detection, Outcome, RankContext

loss_unfused = DETECTORS.get("loss_unfused")


COLUMN = 10_000
H100 = device("h100")
ELEMENTS = 1000 * 8192

TEXTS = {
    "LL": "[1000,8192]",  # logits: tokens by words
    "FP": '"float"',
    "BF": '"c10::BFloat16"',
    "INT": '"long"',
}

# Kernels c, s and n are the forward pass of the loss, z, b, w and g its backward pass: columns 4 to 28. The
# matrix products m and k and the copy x of an optimizer's weights are none of it.
TORCH = """
    step 1                                                             | --------------------------------
    op aten::mm shapes=[[1000,64],[64,8192]] types=[BF,BF]             | -
    op aten::copy_ shapes=[LL,LL,[]] types=[FP,BF,""]                  |  -
    op aten::cross_entropy_loss shapes=[LL,[1000]] types=[FP,INT]      |   --
    op aten::_log_softmax shapes=[LL,[],[]] types=[FP]                 |   -
    op aten::nll_loss_forward shapes=[LL,[1000]] types=[FP,INT]        |    -
    op aten::nll_loss_backward shapes=[[],LL,[1000]] types=[FP,FP,INT] |      --
    op aten::fill_ shapes=[LL,[]] types=[FP,""]                        |      -
    op aten::_log_softmax_backward_data shapes=[LL,LL] types=[FP,FP]   |        -
    op aten::copy_ shapes=[LL,LL,[]] types=[BF,FP,""]                  |         -
    op aten::mm shapes=[[8192,1000],[1000,64]] types=[BF,BF]           |          -
    op aten::copy_ shapes=[[8192,64],[8192,64],[]] types=[BF,FP,""]    |           -
    launch                                                             | mcsn zbwgkx
    s7 gemm                                                            |   mm
    s7 k                                                               |     ccccssssssnzzbwwwwwwwggg
    s7 gemm                                                            |                             kk
    s7 k                                                               |                               x
"""

# Megatron's: the conversion to FP32 is inside of the function, that of the gradient in the function's node.
# The all-reduce r between tensor-parallel ranks stays; t, of a row of numbers, goes.
PARALLEL = """
    op _VocabParallelCrossEntropy shapes=[LL,[1000]] types=[BF,INT]            | -----
    op aten::copy_ shapes=[LL,LL,[]] types=[FP,BF,""]                          | -
    op aten::sub_ shapes=[LL,[1000,1]] types=[FP,FP]                           |  -
    op aten::log shapes=[[1000]] types=[FP]                                    |    -
    op autograd::engine::evaluate_function: _VocabParallelCrossEntropyBackward |       ----
    op _VocabParallelCrossEntropyBackward seq=1 fwd=1                          |       --
    op aten::mul_ shapes=[LL,[1000,1]] types=[FP,FP]                           |       -
    op aten::copy_ shapes=[LL,LL,[]] types=[BF,FP,""]                          |          -
    launch                                                                     | usrt  v  w
    s7 k                                                                       |  uuuussss   t vvvv ww
    s9 ncclDevKernel_AllReduce_Max                                             |          rrr
"""


def drawing(text: str) -> str:
    for name, meaning in TEXTS.items():
        text = text.replace(name, meaning)
    return aligned(text)


def outcome(text: str, chip: Device | None = H100) -> Outcome:
    return loss_unfused.of_rank(RankContext(draw(drawing(text), ns_per_char=COLUMN), chip))


def detect(text: str, chip: Device | None = H100) -> Detection:
    detection = outcome(text, chip)
    assert isinstance(detection, Detection), detection
    return detection


def quantity(detection: Detection, name: str) -> float:
    (value,) = [value for measure, value, _ in detection.quantities if measure == name]
    return value


def without(text: str, *words: str) -> str:
    return "\n".join(line for line in text.splitlines() if not any(word in line for word in words))


def test_what_the_chain_of_torch_costs() -> None:
    detection = detect(TORCH)
    assert (detection.where.start.tolist(), detection.where.end.tolist()) == ([4 * COLUMN], [28 * COLUMN])
    # Fused, the logits are read twice and their gradient written once, in BF16.
    least = 3 * ELEMENTS * 2 / 3.35e12 * 1e9
    assert detection.saving_ns == pytest.approx(24 * COLUMN - least)
    assert detection.confidence == "medium"
    assert quantity(detection, "loss") == 24 * COLUMN
    assert quantity(detection, "share of the step") == 24 / 32
    assert quantity(detection, "kernels per step") == 7
    assert quantity(detection, "passes over the logits per step") == 7
    # FP32: the copy, the logarithms, and the gradients before and behind the softmax.
    assert quantity(detection, "intermediate copies of the logits") == 4 * ELEMENTS * 4
    assert quantity(detection, "one fused kernel") == pytest.approx(least)
    assert detection.evidence == (
        "the loss over 1,000 x 8,192 logits takes 240 µs per step (75.0%) in 7 kernels that write 0.13 GB of "
        "intermediate copies; one fused kernel takes 14.7 µs at 3.35 TB/s of NVIDIA H100 SXM"
    )


def test_two_steps_halve_it() -> None:
    detection, both = detect(TORCH), detect(f"{TORCH}step 2 | {' ' * 32}{'-' * 32}")
    assert both.saving_ns == pytest.approx(detection.saving_ns / 2)
    assert quantity(both, "kernels per step") == 3.5


def test_where_the_device_is_not_known_the_fastest_kernel_tells_the_rate() -> None:
    detection = detect(TORCH, None)
    # g reads FP32 and writes BF16 in 3 columns, w reads FP32 twice in 7, z writes FP32 in 2; c is slower.
    rate = max(ELEMENTS * 6 / 3, ELEMENTS * 8 / 7, ELEMENTS * 4 / 2, ELEMENTS * 4 / 1) / (COLUMN * 1e-9)
    assert quantity(detection, "one fused kernel") == pytest.approx(3 * ELEMENTS * 2 / rate * 1e9)
    assert "of its fastest kernel" in detection.evidence


def test_a_loss_without_a_backward_pass_only_reads() -> None:
    forward = without(TORCH, "backward", "fill_", "types=[BF,FP").replace("zbwgkx", "    k ")
    least = ELEMENTS * 2 / 3.35e12 * 1e9
    detection = detect(forward.replace("zzbwwwwwwwggg", ""))
    assert detection.saving_ns == pytest.approx(11 * COLUMN - least)
    assert quantity(detection, "intermediate copies of the logits") == 2 * ELEMENTS * 4


def test_a_saving_is_never_negative() -> None:
    # A hundred times the tokens in the same time: more than memory could move.
    detection = detect(TORCH.replace("1000", "100000").replace("LL", "[100000,8192]"))
    assert detection.saving_ns == 0


def test_logits_that_are_fp32_are_not_converted() -> None:
    detection = detect(without(TORCH, "aten::copy_").replace("cccc", "    "))
    assert quantity(detection, "one fused kernel") == pytest.approx(3 * ELEMENTS * 4 / 3.35e12 * 1e9)
    # The gradient that the softmax writes is the one the model asks for.
    assert quantity(detection, "intermediate copies of the logits") == 2 * ELEMENTS * 4


def test_copies_of_logits_with_the_last_token_belong_to_the_loss() -> None:
    shifted = TORCH.replace("aten::copy_ shapes=[LL,LL", "aten::copy_ shapes=[[2,501,8192],[2,501,8192]")
    assert quantity(detect(shifted), "kernels per step") == 7
    twice = TORCH.replace("aten::copy_ shapes=[LL,LL", "aten::copy_ shapes=[[2,1000,8192],[2,1000,8192]")
    assert quantity(detect(twice), "kernels per step") == 5


def test_a_copy_that_converts_nothing_is_not_the_losss() -> None:
    assert quantity(detect(TORCH.replace("types=[FP,BF", "types=[BF,BF")), "kernels per step") == 6


def test_the_vocabulary_may_come_second() -> None:
    second = TORCH.replace("nll_loss_", "nll_loss2d_").replace("LL", "[4,8192,1,250]")
    second = second.replace(
        "_data shapes=[[4,8192,1,250],[4,8192,1,250]]", "_data shapes=[[4,8192,250],[4,8192,250]]"
    )
    assert quantity(detect(second), "kernels per step") == 7


def test_what_megatrons_function_costs() -> None:
    detection = detect(PARALLEL)
    assert detection.where.start.tolist() == [1 * COLUMN, 12 * COLUMN, 14 * COLUMN, 19 * COLUMN]
    assert detection.where.end.tolist() == [9 * COLUMN, 13 * COLUMN, 18 * COLUMN, 21 * COLUMN]
    least = 3 * ELEMENTS * 2 / 3.35e12 * 1e9
    assert detection.saving_ns == pytest.approx(15 * COLUMN - least)
    assert quantity(detection, "kernels per step") == 5
    assert quantity(detection, "passes over the logits per step") == 4
    assert quantity(detection, "intermediate copies of the logits") == ELEMENTS * 4


def test_megatrons_function_of_compiled_kernels_is_fused() -> None:
    compiled = without(PARALLEL, "aten::").replace("s7 k ", "s7 triton_red_fused_max_0 ")
    assert outcome(compiled) == "the loss runs no kernels of its own over the logits"


@pytest.mark.parametrize(
    "kernel",
    [
        "liger_cross_entropy_kernel",
        "cross_entropy_fwd_kernel",
        "online_softmax_kernel",
        "void cunn_SoftMaxXEntropyForward<float>",
        "_cce_lse_forward_kernel",
        "triton_red_fused__log_softmax_nll_loss_forward_3",
    ],
)
def test_fused_losses(kernel: str) -> None:
    text = f"""
        launch      | a
        s7 {kernel} |  aaa
    """
    assert outcome(text) == f"the loss is already fused ({kernel})"


@pytest.mark.parametrize(
    "kernel", ["binary_cross_entropy_kernel", "vectorized_elementwise_kernel", "softmax_warp_forward"]
)
def test_other_kernels_are_no_fused_loss(kernel: str) -> None:
    assert outcome(f"s7 {kernel} | ===") == "no unfused cross-entropy loss"


def test_a_few_classes_are_no_vocabulary() -> None:
    assert outcome(TORCH.replace("8192", "1000").replace("LL", "[1000,1000]")) == (
        "the loss has 1,000 classes, too few for a vocabulary"
    )


def test_the_smallest_vocabulary() -> None:
    assert isinstance(outcome(TORCH.replace("8192", "4095").replace("LL", "[1000,4095]")), str)
    assert isinstance(outcome(TORCH.replace("8192", "4096").replace("LL", "[1000,4096]")), Detection)


def test_without_shapes_the_vocabulary_is_not_known() -> None:
    bare = "\n".join(
        line.partition(" shapes=")[0] + " |" + line.partition("|")[2] for line in TORCH.splitlines() if line
    )
    assert str(outcome(bare.replace("step 1 ", "step 1 "))).endswith("so its vocabulary is unknown")


def test_without_gpu_work() -> None:
    assert outcome("python loss.py(3): cross_entropy_loss | --") == "no GPU work"


def test_work_outside_of_the_steps_is_not_counted() -> None:
    before = "\n".join(
        line.replace("| -----", "|      ") if "step 1" in line else line for line in TORCH.splitlines()
    )
    # The step begins with column 5: what the host launched before is not of it, although it runs later.
    assert quantity(detect(before), "kernels per step") == 4


def test_a_softmax_may_convert_the_logits_itself() -> None:
    own = without(TORCH, "op aten::copy_ shapes=[LL,LL,[]]").replace("cccc", "    ")
    own = own.replace("shapes=[LL,[],[]] types=[FP]", 'shapes=[LL,[],[]] types=[BF] values=["","1","True"]')
    detection = detect(own)
    assert quantity(detection, "one fused kernel") == pytest.approx(3 * ELEMENTS * 2 / 3.35e12 * 1e9)
    # FP32: the logarithms and the two gradients, less the gradient of the logits in BF16.
    assert quantity(detection, "intermediate copies of the logits") == 3 * ELEMENTS * 4 - ELEMENTS * 2
