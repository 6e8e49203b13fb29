"""Values that stand where others are expected."""

from __future__ import annotations

import math
import random
from typing import Any

EXTREME = (
    0,
    -1,
    1,
    2**31 - 1,
    2**31,
    2**32,
    2**53 + 1,
    2**62,
    2**63 - 1,
    2**63,
    2**64,
    -(2**31),
    -(2**62),
    -(2**63),
    10**30,
    1e308,
    -1e308,
    1e18,
    9.2e15,
    5e-324,
    1e-9,
    -0.0,
    0.5,
)
TEXTS = (
    "",
    " ",
    "0",
    "-1",
    "NaN",
    "Infinity",
    "1e400",
    "9223372036854775807",
    "18446744073709551616",
    "0x7",
    "None",
    "null",
    "[]",
    "[",
    "[0, 1, ...",
    "[[[]]]",
    "{}",
    "é",
    "日本語",
    "²",
    "\u0000",
    "\ud800",
    "\u202e",
    "a\nb\rc",
    "x" * 5000,
)
OTHER_TYPES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    7,
    1.5,
    "",
    "text",
    [],
    [None],
    [[]],
    {},
    {"name": "x"},
    [{}],
)
SIZES = (0, 1, 3, -1, 2**31, 2**40, 2**62, 2**63 - 1, 2**64, 1.5, "4", None, True, [], [2], [5, []])
TYPES = (
    "float",
    "c10::BFloat16",
    "c10::Half",
    "double",
    "long int",
    "bool",
    "unsigned char",
    "c10::Float8_e4m3fn",
    "Scalar",
    "ScalarList",
    "TensorList",
    "GenericList[]",
    "",
    "unknown",
)
MESSAGE_TYPES = ("Float", "BFloat16", "Half", "Byte", "Long", "", "unknown", "Float8_e4m3fn", 7, None)
COLLECTIVES = (
    "allreduce",
    "all_to_all",
    "all_to_allv",
    "_allgather_base",
    "allgather",
    "reduce_scatter",
    "_reduce_scatter_base",
    "broadcast",
    "send",
    "recv",
    "barrier",
    "wait",
    "init",
    "",
    "unknown",
)
GROUPS = (
    "[]",
    "[0]",
    "[0, 1]",
    "[1, 0]",
    "[0, 0]",
    "[0, 1, ...",
    "[0, 1, 2, 3, ..., 1023]",
    "[-1, 0]",
    "[7, 8]",
    "[0, 9223372036854775807]",
    "[0, 1e300]",
    "[0.5, 1]",
    '["0", "1"]',
    "[[0, 1]]",
    "0, 1",
    "[" + ", ".join(map(str, range(3000))) + "]",
    "",
)
SPLITS = (
    "[]",
    "[0, 0]",
    "[1, 2, 3]",
    "[-5, 5]",
    "[9223372036854775807, 1]",
    "[1.5]",
    '["a"]',
    "[[1]]",
    "[1, ...",
    "x",
)
NAMES = (
    "ProfilerStep#0",
    "ProfilerStep#1",
    "ProfilerStep#99999999999999999999",
    "ProfilerStep#",
    "ProfilerStep",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "record_param_comms",
    "gloo:all_reduce",
    "gloo:all_to_all",
    "gloo:send",
    "nccl:all_reduce",
    "Memcpy HtoD (Pinned -> Device)",
    "Memset (Device)",
    "cudaLaunchKernel",
    "cudaGraphLaunch",
    "hipLaunchKernel",
    "cudaDeviceSynchronize",
    "cudaStreamSynchronize",
    "cudaMemcpyAsync",
    "aten::mm",
    "aten::bmm",
    "aten::addmm",
    "aten::_grouped_mm",
    "aten::cat",
    "aten::copy_",
    "aten::item",
    "aten::_foreach_add_",
    "aten::convolution",
    "aten::_scaled_dot_product_flash_attention",
    "aten::scatter_add_",
    "aten::topk",
    "autograd::engine::evaluate_function: MmBackward0",
    "L1.shared.B",
    "L1.moe.F",
    "mb0.chunk0.F",
    "mb9999999999999999999.chunk0.B",
    "moe.dispatch",
    "dispatch",
    "combine",
    "experts",
    "router",
    "prefill",
    "decode",
    "optimizer.step",
    "Optimizer.step#AdamW.step",
    "loss.B",
    "gemm_bf16_256x128",
    "triton_poi_fused_add_0",
    "[memory]",
)
CATEGORIES = (
    "cpu_op",
    "kernel",
    "cuda_runtime",
    "cuda_driver",
    "gpu_memcpy",
    "gpu_memset",
    "user_annotation",
    "gpu_user_annotation",
    "python_function",
    "cpu_instant_event",
    "ac2g",
    "fwdbwd",
    "overhead",
    "cuda_sync",
    "Trace",
    "Kernel",
    "",
    "unknown",
)


def odd(rng: random.Random) -> Any:
    """A value of any type."""
    return rng.choice((rng.choice(EXTREME), rng.choice(TEXTS), rng.choice(OTHER_TYPES)))


def number(rng: random.Random, value: Any) -> Any:
    """A number near or far from a given one, sometimes as text."""
    known = value if isinstance(value, int | float) and math.isfinite(value) else 1
    found = rng.choice(
        (rng.choice(EXTREME), rng.choice(EXTREME), -known, known * 1000, known + 1, known / 1000)
    )
    return str(found) if rng.random() < 0.15 else found


def like(rng: random.Random, value: Any) -> Any:
    """A value of another type, or of the same and far away."""
    if isinstance(value, bool) or value is None or rng.random() < 0.3:
        return odd(rng)
    if isinstance(value, int | float):
        return number(rng, value)
    if isinstance(value, str):
        return rng.choice((rng.choice(TEXTS), value[: len(value) // 2], value * 2, [value], number(rng, 1)))
    if isinstance(value, list):
        return broken_list(rng, value)
    return odd(rng)


def broken_list(rng: random.Random, values: list[Any]) -> Any:
    """A list with something of it changed, at any depth."""
    found = list(values)
    change = rng.randrange(7)
    if change == 0 or not found:
        return [*found, rng.choice(SIZES)]
    place = rng.randrange(len(found))
    if change == 1:
        del found[place]
    elif change == 2:
        found[place] = broken_list(rng, found[place]) if isinstance(found[place], list) else rng.choice(SIZES)
    elif change == 3:
        found[place] = rng.choice(SIZES)
    elif change == 4:
        rng.shuffle(found)
    elif change == 5:
        found = found * rng.choice((2, 3, 40))
    else:
        found[place] = odd(rng)
    return found
