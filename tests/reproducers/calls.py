"""Calls as a profiler records them: `called("aten::mm", "bf16 2 3", "bf16 3 4")`, and scripts of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.builders import events, read
from tracelens.reproducers.arguments import dense
from tracelens.reproducers.calls import OpCase, cases
from tracelens.reproducers.folder import Script
from tracelens.reproducers.scripts import script
from tracelens.trace import Trace

MI300X, H100 = "AMD Instinct MI300X", "NVIDIA H100 80GB HBM3"

TYPES = {
    "fp64": "double", "fp32": "float", "fp16": "c10::Half", "bf16": "c10::BFloat16", "i64": "long int",
    "i32": "int", "u8": "unsigned char", "bool": "bool", "c64": "c10::complex<float>",
    "fp8": "c10::Float8_e4m3fn", "fp8z": "c10::Float8_e4m3fnuz", "bf8": "c10::Float8_e5m2",
    "bf8z": "c10::Float8_e5m2fnuz", "e8m0": "c10::Float8_e8m0fnu",
}  # fmt: skip
"""Short names of element types to the profiler's."""


@dataclass(frozen=True)
class Called:
    """A call in a trace.

    Attributes:
        op: name.
        recorded: what the profiler says of its arguments.
        us: GPU time.
        kernel: what it launches.
        scope: record_function around it, "" for none.
    """

    op: str
    recorded: dict[str, Any] = field(hash=False)
    us: float = 10.0
    kernel: str = "gemm"
    scope: str = ""


def called(op: str, *given: Any, us: float = 10.0, kernel: str = "gemm", scope: str = "") -> Called:
    """A call of an op.

    Args:
        op: name.
        given: a tensor as "bf16 2 3" (type and sizes), with strides as "bf16 2 3 @ 1 2"; a list of these,
            whose types are not recorded, or of none; a number, or a tuple or list of some; None for what is
            not recorded.
        us: GPU time.
        kernel: what it launches.
        scope: record_function around it.
    """
    columns = list(zip(*map(_argument, given), strict=True)) or [(), (), (), ()]
    names = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
    recorded = {name: list(column) for name, column in zip(names, columns, strict=True)}
    return Called(op, recorded, us, kernel, scope)


def _argument(one: Any) -> tuple[Any, str, Any, str]:
    """Sizes, type, strides and value."""
    if isinstance(one, str):
        kind, shape, stride = _tensor(one)
        return shape, TYPES[kind], stride, ""
    if isinstance(one, list) and (not one or isinstance(one[0], str)):
        found = [_tensor(text) for text in one]
        return [shape for _, shape, _ in found], "TensorList", [stride for _, _, stride in found], ""
    if one is None:
        return [], "", [], ""
    if isinstance(one, list | tuple):
        return [], "ScalarList", [], str(list(one))
    return [], "Scalar", [], str(one)


def _tensor(text: str) -> tuple[str, list[int], list[int]]:
    before, _, strides = text.partition("@")
    kind, *sizes = before.split()
    shape = [int(size) for size in sizes]
    return kind, shape, [int(step) for step in strides.split()] or list(dense(shape))


def trace_of(*calls: Called, rank: int = -1, device: str = MI300X, more: Sequence[Any] = ()) -> Trace:
    """The trace of these calls, one after the other, as the real parser reads it.

    Args:
        calls: in order of time; each starts when the GPU work of the one before has ended.
        rank: -1 writes none.
        device: name of the GPU, "" for none.
        more: raw events beside those.
    """
    header = {"deviceProperties": [{"id": 0, "name": device}]} if device else {}
    return read([*more, *raw(*calls)], rank=rank, **header)


def raw(*calls: Called) -> list[dict[str, Any]]:
    """The events of these calls."""
    found: list[dict[str, Any]] = []
    at = 0.0
    for number, call in enumerate(calls, start=1):
        op, launch, *work = events("op f corr=- | ---\nlaunch      |  a\ns7 k        |   a")
        kernel = next(event for event in work if event["cat"] == "kernel")
        op |= {"name": call.op, "args": call.recorded, "ts": at}
        launch |= {"ts": at + 1, "args": {"correlation": number}}
        kernel |= {"name": call.kernel, "ts": at + 2, "dur": call.us}
        kernel["args"] = {**kernel["args"], "correlation": number}
        found += [op, launch, kernel]
        if call.scope:
            scope = {"cat": "user_annotation", "name": call.scope, "args": {}, "ts": at, "dur": 3}
            found.append({**op, **scope})
        at += 2 + call.us
    return found


def case_of(call: Called, device: str = MI300X) -> OpCase:
    """The one case of a trace of this call."""
    trace = trace_of(call, device=device)
    (case,) = cases(trace, trace.work)
    return case


def script_of(op: str, *given: Any, max_elements: int | None = None, **options: Any) -> Script:
    """The script for a call; arguments as for `called`."""
    return script(case_of(called(op, *given, **options)), max_elements)


def space_of(text: str) -> dict[str, Any]:
    """What a script defines; needs torch."""
    space: dict[str, Any] = {"__name__": "script"}
    exec(compile(text, "script.py", "exec"), space)
    return space


def described(value: Any) -> Any:
    """A tensor as its type, sizes and strides; any other argument as it is."""
    if isinstance(value, list):
        return [described(one) for one in value]
    if not hasattr(value, "stride"):
        return value
    return str(value.dtype).removeprefix("torch."), tuple(value.shape), tuple(value.stride())


_Q, _BSHD = "bf16 2 4 8 16", "bf16 2 8 4 16"
_LSE = "fp32 2 4 8"
_IMAGE, _WEIGHT = "fp32 2 4 6 6", "fp32 8 4 3 3"
_ONES = ([1, 1], [1, 1], [1, 1])
_CHANNEL = "fp32 4"

CATALOG: dict[str, Called] = {
    name: called(f"aten::{name.partition(' (')[0]}", *given)
    for name, *given in [
        ("_cudnn_attention_forward", _Q, _Q, _Q, None, None, None, 8, 8, True, 0.0, True, False, 0.25),
        ("_cudnn_attention_backward", _Q, _Q, _Q, _Q, _Q, "fp32 2 4 8 1", "i64", "i64", None, None, None,
         8, 8, 0.0, True, 0.25),
        ("_flash_attention_forward", _BSHD, _BSHD, _BSHD, None, None, 8, 8, 0.0, True, False, 0.125,
         None, None, None, None),
        ("_flash_attention_forward (fewer heads)", _BSHD, "bf16 2 8 2 16", "bf16 2 8 2 16", None, None,
         8, 8, 0.0, True, False, None),
        ("_flash_attention_backward", _BSHD, _BSHD, _BSHD, _BSHD, _BSHD, _LSE, None, None, 8, 8, 0.0, True,
         "i64 2", "i64", 0.25, None, None),
        ("_efficient_attention_forward", _BSHD, _BSHD, _BSHD, None, None, None, None, None, 0.0, 1, True,
         0.25, None, None),
        ("_efficient_attention_forward (bias)", _BSHD, _BSHD, _BSHD, "bf16 2 4 8 8", None, None, None, None,
         0.0, 0, True, None, None, None),
        ("_efficient_attention_backward", _BSHD, _BSHD, _BSHD, _BSHD, None, _BSHD, None, None, 8, 8, _LSE,
         0.0, "i64", "i64", 1, False, 0.25, None, None, False),
        ("_scaled_dot_product_flash_attention", _Q, _Q, _Q, 0.0, True, False, 0.25),
        ("_scaled_dot_product_flash_attention_backward", _Q, _Q, _Q, _Q, _Q, _LSE, None, None, 8, 8, 0.0,
         True, "i64 2", "i64", 0.25),
        ("_scaled_dot_product_efficient_attention", _Q, _Q, _Q, None, True, 0.0, True, None),
        ("_scaled_dot_product_efficient_attention_backward", _Q, _Q, _Q, _Q, None, _Q, _LSE, "i64", "i64",
         0.0, [True, True, True, False], True, None),
        ("_scaled_dot_product_cudnn_attention", _Q, _Q, _Q, None, True, 0.0, False, False, None),
        ("_scaled_dot_product_cudnn_attention_backward", _Q, _Q, _Q, _Q, _Q, "fp32 2 4 8 1", "i64", "i64",
         None, None, None, 8, 8, 0.0, True, None),
        ("miopen_convolution", _IMAGE, _WEIGHT, "fp32 8", *_ONES, 1, False, False),
        ("miopen_convolution (bf16, strides, no bias)", "bf16 2 3 16 16", "bf16 8 3 4 4", None, [0, 0],
         [4, 4], [1, 1], 1, False, False),
        ("miopen_depthwise_convolution", _IMAGE, "fp32 4 1 3 3", "fp32 4", *_ONES, 4, False, False),
        ("miopen_convolution_transpose", _IMAGE, "fp32 4 8 3 3", None, [1, 1], [1, 1], [2, 2], [1, 1], 1,
         False, False),
        ("cudnn_convolution", _IMAGE, _WEIGHT, [1, 1], [2, 2], [1, 1], 1, False, False, True),
        ("cudnn_convolution_transpose", _IMAGE, "fp32 4 8 3 3", [1, 1], [0, 0], [2, 2], [1, 1], 1, False,
         False, True),
        ("mkldnn_convolution", _IMAGE, _WEIGHT, "fp32 8", *_ONES, 1),
        ("miopen_batch_norm", _IMAGE, *[_CHANNEL] * 4, True, 0.1, 1e-5),
        ("cudnn_batch_norm", _IMAGE, *[_CHANNEL] * 4, True, 0.1, 1e-5),
        ("miopen_batch_norm_backward", _IMAGE, _IMAGE, *[_CHANNEL] * 5, 1e-5),
        ("cudnn_batch_norm_backward", _IMAGE, _IMAGE, *[_CHANNEL] * 5, 1e-5, "u8 0"),
        ("native_batch_norm_backward", "bf16 2 4 6 6", "bf16 2 4 6 6", *["bf16 4"] * 3, _CHANNEL, _CHANNEL,
         True, 1e-5, [True, True, True]),
        ("histc", "i32 1000", 64, 0, 63),
        ("max_pool2d_with_indices_backward", "bf16 2 4 3 3", "bf16 2 4 6 6", [3, 3], [2, 2], [1, 1], [1, 1],
         False, "i64 2 4 3 3"),
        ("_grouped_mm (rows)", "bf16 48 32", "bf16 4 32 16 @ 512 1 32", "i32 4", None, None),
        ("_grouped_mm (columns)", "bf16 4 16 32", "bf16 32 48 @ 1 32", "i32 4", None, None),
        ("_grouped_mm (inner)", "bf16 16 48 @ 1 16", "bf16 48 32", "i32 4", None, None),
        ("_scaled_mm (one scale)", "fp8 32 64", "fp8 64 16 @ 1 64", "fp32", "fp32", None, None, 15, True),
        ("_scaled_mm (a scale a row)", "fp8 32 64", "fp8 64 16 @ 1 64", "fp32 32 1", "fp32 1 16", None, None,
         15, False),
        ("_scaled_grouped_mm", "fp8 48 32", "fp8 4 32 16 @ 512 1 32", "fp32 48", "fp32 4 16", "i32 4", None,
         None, 15, True),
        ("_fused_adam_", *[["fp32 8 4", "fp32 5"]] * 5, ["fp32", "fp32"], 0.001, 0.9, 0.999, 0.0, 1e-8, True,
         False, None, None),
        ("_fused_adamw_", *[["fp32 8 4", "fp32 5"]] * 4, [], ["fp32", "fp32"], 0.001, 0.9, 0.999, 0.01, 1e-8,
         False, False, None, None),
        ("_softmax_backward_data", "bf16 8 32", "bf16 8 32", -1, 15),
        ("_log_softmax_backward_data", "fp32 8 32", "fp32 8 32", 1, 6),
        ("sort", "i64 300", False, -1, False),
        ("topk", "fp32 16 64", 6, -1, True, False),
        ("max", "bf16 16 64", 1, False),
        ("min", "fp32 16 64", 0, True),
        ("median", "fp32 16 63", 1, False),
        ("kthvalue", "fp32 16 64", 3, -1, False),
        ("mode", "i64 16 64", -1, False),
        ("cummax", "fp32 16 64", 1),
        ("cummin", "fp32 16 64", 1),
        ("native_dropout", "bf16 16 64", 0.1, True),
        ("bernoulli_", "fp32 16 64", 0.5, None),
        ("normal_", "bf16 16 64", 0.0, 1.0, None),
        ("uniform_", "fp32 16 64", 0.0, 1.0, None),
        ("exponential_", "fp32 16 64", 1.0, None),
        ("random_", "i64 16 64", 0, 10, None),
        ("multinomial", "fp32 16 64", 1, True, None),
        ("randperm", 64, None, "i64 0"),
        ("rrelu_with_noise", "fp32 16 64", "fp32 16 64", 0.125, 0.333, True, None),
    ]
}  # fmt: skip
"""A call of each op that has a kit; in brackets what tells several of one op apart."""

RANDOM = (
    "native_dropout", "bernoulli_", "normal_", "uniform_", "exponential_", "random_", "multinomial",
    "randperm", "rrelu_with_noise",
)  # fmt: skip
"""Those whose results cannot be checked."""
