"""Kernels that torch.compile generated as standalone scripts, which run the source that the recorder kept."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tracelens.arrays import Int, unique
from tracelens.dtypes import element_bytes
from tracelens.read import NotedCall
from tracelens.reproducers.arguments import (
    Argument,
    NotedCalls,
    Unreplayable,
    noted_tensor,
    same_tensors,
    tensors,
)
from tracelens.reproducers.calls import generated_kernels
from tracelens.reproducers.folder import GENERATED, Script
from tracelens.reproducers.scripts import Kit, about, call_arguments, makers, plain, render, timed
from tracelens.trace import Run, Work

_NAME = re.compile(r"triton_\w{1,240}", re.ASCII)
_UNCHECKED = "a generated kernel has no reference"
_NOTED = "Shapes and numbers are those of such a call in a step beside the recording."


def generated_scripts(run: Run, works: Sequence[Work], noted: NotedCalls) -> list[Script]:
    """A script for each kernel whose source the recorder `noted`; `works` is the GPU work, by trace."""
    times: dict[str, list[Int]] = {}
    ranks: dict[str, list[int]] = {}
    devices: dict[str, None] = {}
    for trace, work in zip(run.traces, works, strict=True):
        devices |= dict.fromkeys(trace.meta.devices.values())
        kernel = generated_kernels(trace, work, noted)
        for code in unique(kernel[kernel >= 0]).tolist():
            name = trace.arrays.names[code]
            times.setdefault(name, []).append(work.dur[kernel == code])
            ranks.setdefault(name, []).append(trace.meta.rank)
    scripts = []
    for name, of_kernel in times.items():
        call = noted.generated[name]
        digest = hashlib.sha256(noted.sources[call.source].encode()).hexdigest()
        if _NAME.fullmatch(name) and digest.startswith(call.source):
            try:
                scripts.append(_script(call, np.concatenate(of_kernel), ranks[name], [*devices]))
            except Unreplayable:
                continue
    return scripts


def _script(call: NotedCall, times: Int, ranks: Sequence[int], devices: Sequence[str]) -> Script:
    arguments: list[Argument] = []
    for known in call.arguments:
        if known is None or not known.dtype:
            value = known.value if known else None
            arguments.append([*value] if isinstance(value, tuple) else value)
        else:
            tensor = replace(noted_tensor(known), noted=None)
            arguments.append(tensor.made("indices", known.below) if known.below else tensor)
    inputs = tensors(arguments)
    same = same_tensors(arguments, call)
    for later, _ in same:
        arguments[later] = None
    median_us = round(float(np.median(times)) / 1e3, 3)
    shapes = " ".join(f"{tensor.dtype}[{','.join(map(str, tensor.shape))}]" for tensor in inputs)
    called = timed((times / 1e3).tolist(), devices)
    text = render(
        "generated.py.j2",
        {
            "kit": Kit(compared=0, unchecked=_UNCHECKED),
            "kinds": makers(inputs) | ({"shared"} if same else set()),
            "gaps": not all(tensor.is_dense for tensor in inputs),
        },
        about=about([call.op, f"{called}, rank {', '.join(map(str, ranks))}", _NOTED]),
        op=call.op,
        file=GENERATED.format(call.source),
        traced_us=median_us,
        traced_on=plain(", ".join(devices)),
        bytes=sum(tensor.numel * element_bytes(tensor.dtype) for tensor in inputs),
        arguments=call_arguments(arguments, {}, same),
    )
    return Script(
        name=call.op[:80],
        kind="generated",
        subject=call.op,
        shapes=shapes,
        text=text,
        count=len(times),
        traced_us=median_us,
        total_us=float(times.sum()) / 1e3,
        ages=call.ages,
        source=call.source,
    )
