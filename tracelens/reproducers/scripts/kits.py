"""Ops that need more than a call: another reference, a stand-in, what a forward pass leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tracelens.reproducers.inputs import Argument, Tensor


class Kit(NamedTuple):
    """What a script for an op is made of besides the common parts.

    Attributes:
        template: under templates/reference/, "" for none.
        reference: whether it has `reference(given)`; without it the op in double precision is the reference.
        stand_in: whether it has `stand_in(given)`, for devices without a kernel of the op.
        prepare: whether it has `prepare(given)`, which completes the arguments.
        slack: how many roundings of the least precise input type a result may be off.
        compared: how many results are compared with the reference; -1: all.
        unchecked: why none is.
        functional: whether the op has but one way to be called, and returns all that it makes.
        data: what the template is given.
    """

    template: str = ""
    reference: bool = True
    stand_in: bool = False
    prepare: bool = False
    slack: int = 3
    compared: int = -1
    unchecked: str = ""
    functional: bool = False
    data: Mapping[str, Any] = {}


def kit(op: str, arguments: Sequence[Argument]) -> Kit:
    """What a script for this op with these arguments needs."""
    op_kit = _KITS.get(op.removeprefix("aten::").removesuffix("_"), Kit())
    if op_kit.template == "scaled_mm" and not _plain_scales(arguments):
        return Kit(compared=0, unchecked="its scales are swizzled")
    if op_kit.template == "attention":
        return _attended(op_kit, arguments)
    if op_kit is _SCALED_GROUPED and not _rows_of_weights(arguments):
        return Kit(compared=0, unchecked="no reference for scaled groups of columns")
    return op_kit


def _attended(op_kit: Kit, arguments: Sequence[Argument]) -> Kit:
    """The kit of an attention, without a reference where that is not plain attention."""
    dropout_index = op_kit.data["dropout"]
    if dropout_index < len(arguments) and arguments[dropout_index]:
        return op_kit._replace(compared=0, unchecked="its results are random")
    if any(isinstance(argument, Tensor) and argument.maker == "ends" for argument in arguments):
        return op_kit._replace(stand_in=False, compared=0, unchecked="no reference for packed sequences")
    return op_kit


def _plain_scales(arguments: Sequence[Argument]) -> bool:
    """Whether each scale is one for all, or lies beside its rows, columns or blocks."""
    scales = [scale for scale in arguments[2:4] if isinstance(scale, Tensor)]
    return all(len(scale.shape) == 2 or scale.numel == 1 for scale in scales)


def _rows_of_weights(arguments: Sequence[Argument]) -> bool:
    """Whether groups are rows of the first operand, times a matrix each."""
    dims = [len(argument.shape) if isinstance(argument, Tensor) else 0 for argument in arguments[:2]]
    return dims == [2, 3]


def _attention(
    forward: str, backward: str, dropout: tuple[int, int], heads_first: bool, bias: str = "attn_bias",
    causal: str = 'by["is_causal"]',
) -> dict[str, Kit]:  # fmt: skip
    """Kits of a forward op and its backward op; `dropout` is the place of its probability in both."""
    data = {"heads_first": heads_first, "bias": bias, "causal": causal, "forward": forward}
    base = Kit("attention", stand_in=True, functional=True)
    forward_data = {**data, "backward": False, "dropout": dropout[0]}
    backward_data = {**data, "backward": True, "dropout": dropout[1]}
    return {
        forward: base._replace(compared=1, data=forward_data),
        backward: base._replace(prepare=True, slack=12, compared=3, data=backward_data),
    }


_SDPA = "_scaled_dot_product_"
_CONVOLUTION = Kit("convolution", stand_in=True, functional=True)
_BATCH_NORM = Kit("batch_norm", stand_in=True, compared=1, functional=True, data={"backward": False})
_BATCH_NORM_BACKWARD = Kit("batch_norm", stand_in=True, functional=True, data={"backward": True})
_SCALED_GROUPED = Kit("grouped", stand_in=True, functional=True, data={"ends_at": 4, "scaled": True})
_FIRST = Kit(compared=1)
_RANDOM = Kit(compared=0, unchecked="its results are random")

_KITS: dict[str, Kit] = {
    **_attention("_cudnn_attention_forward", "_cudnn_attention_backward", (9, 13), True),
    **_attention("_flash_attention_forward", "_flash_attention_backward", (7, 10), False),
    **_attention(
        "_efficient_attention_forward", "_efficient_attention_backward", (8, 11), False, "bias",
        'by["custom_mask_type"] == 1',
    ),
    **_attention(f"{_SDPA}flash_attention", f"{_SDPA}flash_attention_backward", (3, 10), True),
    **_attention(f"{_SDPA}efficient_attention", f"{_SDPA}efficient_attention_backward", (5, 9), True),
    **_attention(f"{_SDPA}cudnn_attention", f"{_SDPA}cudnn_attention_backward", (5, 13), True),
    **dict.fromkeys(
        ("miopen_convolution", "miopen_depthwise_convolution", "miopen_convolution_transpose",
         "cudnn_convolution", "cudnn_convolution_transpose", "mkldnn_convolution"), _CONVOLUTION,
    ),
    **dict.fromkeys(("miopen_batch_norm", "cudnn_batch_norm"), _BATCH_NORM),
    **dict.fromkeys(("miopen_batch_norm_backward", "cudnn_batch_norm_backward"), _BATCH_NORM_BACKWARD),
    "native_batch_norm_backward": Kit("single", stand_in=True, functional=True),
    "histc": Kit("single", stand_in=True),
    "max_pool2d_with_indices_backward": Kit("max_pool_backward", reference=False, prepare=True),
    "_grouped_mm": Kit("grouped", functional=True, data={"ends_at": 2, "scaled": False}),
    "_scaled_grouped_mm": _SCALED_GROUPED,
    "_scaled_mm": Kit("scaled_mm", functional=True),
    **dict.fromkeys(("_fused_adam", "_fused_adamw"), Kit("fused_optimizer")),
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"), Kit("softmax_backward")),
    **dict.fromkeys(("sort", "topk", "max", "min", "median", "kthvalue", "mode", "cummax", "cummin"), _FIRST),
    **dict.fromkeys(
        ("native_dropout", "_fused_dropout", "bernoulli", "normal", "uniform", "exponential",
         "random", "multinomial", "rand", "randn", "randint", "randperm", "rrelu_with_noise"), _RANDOM,
    ),
}  # fmt: skip
