"""One call as a standalone script."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from tracelens.analysis.roofline import least_ns
from tracelens.costs import OpCost
from tracelens.devices import devices, match
from tracelens.dtypes import element_bytes, epsilon, torch_dtype
from tracelens.reproducers.folder import Script
from tracelens.reproducers.inputs import (
    OP,
    Argument,
    Unreplayable,
    complete,
    fill,
    read,
    scaled,
    tensors,
)
from tracelens.reproducers.scripts.kits import kit
from tracelens.reproducers.scripts.render import render
from tracelens.reproducers.scripts.source import (
    Source,
    about,
    call_arguments,
    in_graph,
    mapping,
    plain,
    timed,
)
from tracelens.reproducers.select import Case
from tracelens.trace import describe

# Sums are added in another order, and single precision may run as TF32.
_SUMS = 1e-3
_BY_GRID = "Index tensors are not recorded; their length follows from the kernel grid."
_LIST_TYPE = "Element types in tensor lists are not recorded; they follow from the kernel."
# Kernels that only move elements are compiled for a width.
_OPAQUE = re.compile(r"OpaqueType<(\d+)u?>")
_OF_WIDTH = {"1": "uint8", "2": "bfloat16", "4": "float32", "8": "int64", "16": "complex128"}
_NAME = 80
_LAUNCH_NS = 100
_RECENT = ("mi300x", "mi325x", "mi355x", "h100", "h200", "b200")
_CACHES, _LARGE = 1 << 29, 8 << 30


def script(case: Case, max_elements: int | None = None) -> Script:
    """A script that runs, checks and times the call of `case`.

    Raises:
        Unreplayable: the trace does not say enough, what it says is nothing that can be called, or the script
            would be more than its template and data.
    """
    op = case.call.op
    if not OP.fullmatch(op):
        raise Unreplayable("not a registered op name (namespace::name)")
    traced = complete(
        op, read(*case.call.recorded, of_lists=_of_lists(case)), case.call.kernel, case.call.blocks
    )
    arguments = traced if max_elements is None else scaled(op, traced, max_elements)
    unscaled = arguments == traced
    cost = case.cost if unscaled else None
    filled = fill(op, arguments)
    op_kit = kit(op, filled)
    median_us = round(float(np.median(case.times)) / 1e3, 3)
    text = render(
        "op.py.j2",
        {
            "kit": op_kit,
            "library": not op.startswith("aten::"),
            "kinds": frozenset(tensor.maker for tensor in tensors(filled)),
            "complex": any(tensor.dtype.startswith("complex") for tensor in tensors(filled)),
        },
        about=about(_about(case, unscaled)),
        op=op,
        traced_us=median_us if unscaled else None,
        traced_on=plain(", ".join(case.devices)),
        flops=cost.flops if cost else 0,
        bytes=cost.read_bytes + cost.write_bytes if cost else 0,
        least_us=Source(mapping(least_us(cost, case.devices), len("LEAST_US = {}"))),
        arguments=call_arguments(filled),
        copies=_copies(filled),
        rtol=_rtol(filled, op_kit.slack),
    )
    return Script(
        name=re.sub(r"\W+", "_", op)[:_NAME],
        kind="op",
        subject=op,
        shapes=describe(case.call.shapes, case.call.dtypes),
        text=text,
        count=len(case.times),
        traced_us=median_us if unscaled else 0.0,
        total_us=case.total_ns / 1e3,
    )


def _rtol(arguments: Sequence[Argument], slack: int) -> float:
    """Tolerated error: some roundings of the coarsest input type, 0 where there are only integers."""
    eps = max((epsilon(tensor.dtype) for tensor in tensors(arguments)), default=0.0)
    return max(slack * eps, _SUMS) if eps else 0.0


def _copies(arguments: Sequence[Argument]) -> int:
    """How many sets of arguments are together beyond the caches of any GPU, 256 MB; not so many if large."""
    size = sum(tensor.numel * element_bytes(tensor.dtype) for tensor in tensors(arguments))
    return 1 if size > _LARGE else min(16, 2 + _CACHES // max(size, 1))


def least_us(cost: OpCost | None, traced_on: Sequence[str]) -> dict[str, float]:
    """Least time of a call on recent devices and the traced one, by the name that tells the device.

    Without those on which it takes next to nothing: starting a kernel is all that such a call is.
    """
    if cost is None:
        return {}
    least_by_device = {}
    traced_devices = {match(name) for name in traced_on}
    for device in devices():
        if device.name not in _RECENT and device not in traced_devices:
            continue
        least = least_ns(cost, device)
        if least > _LAUNCH_NS:
            least_by_device[device.aliases[0]] = least / 1e3
    return least_by_device


def _of_lists(case: Case) -> str:
    """Element type of tensors in lists, from the kernel: its type, or one of the width that it moves."""
    if case.cost and (dtype := torch_dtype(case.cost.dtype)):
        return dtype
    width = next((match[1] for name in case.kernels if (match := _OPAQUE.search(name))), "4")
    return _OF_WIDTH.get(width, "float32")


def _about(case: Case, unscaled: bool) -> list[str]:
    return [
        f"{case.call.op} {describe(case.call.shapes, case.call.dtypes)}",
        f"{timed((case.times / 1e3).tolist(), case.devices)}, rank {', '.join(map(str, case.ranks))}",
        f"Kernels: {', '.join(case.kernels)}",
        *in_graph(case.sources),
        *([_BY_GRID] if case.call.blocks >= 0 else []),
        *([_LIST_TYPE] if "TensorList" in case.call.dtypes else []),
        *([] if unscaled else ["Sizes are scaled down from those above."]),
    ]
