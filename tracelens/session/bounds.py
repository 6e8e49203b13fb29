"""The speed of light of collectives, of a platform or of a recorded run, in the words of the command line."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from tracelens.errors import TracelensError
from tracelens.session.memory import assumed_values, resolved, texts
from tracelens.session.reading import Progress, Source, at_step, loaded, quiet

if TYPE_CHECKING:
    from tracelens.devices import Device
    from tracelens.planner.bounds import Operation, Platform
    from tracelens.table import Result

_LAYER = ("experts", "topk", "hidden", "tokens")
_GEMM = re.compile(r"(\d+)x(\d+)x(\d+)")
_NODES = 2


def project_bounds(
    run: Source | None = None, *, device: str | os.PathLike[str] | Device | None = None,
    nodes: int | None = None, gpus_per_node: int = 8, all_to_all: str | Sequence[str] = (),
    gemm_rs: str | Sequence[str] = (), ag_gemm: str | Sequence[str] = (), dtype: str = "bf16",
    assume: str | Sequence[str] = (), step: str | int | None = None, partial: bool = False,
    progress: Progress = quiet,
) -> Result:  # fmt: skip
    """Speed of light of collectives and the GEMMs next to them: what links, memory and matrix units allow.

    Without a run: MoE all-to-all, GEMM + reduce-scatter and all-gather + GEMM on one node, and all-reduce
    algorithms by message size. With a run: its collectives, without waiting, against the links of its GPUs.

    Args:
        run: a recorded run from `load`, or its path.
        device: a name, a TOML file (.toml or a Path) or a device; by default mi300x, or the traced one.
        nodes: nodes of the all-reduce, 2 by default; a run says where its ranks are.
        gpus_per_node: GPUs per node.
        all_to_all: MoE layers, each like "experts=256 topk=8 hidden=7168 tokens=256", tokens per GPU.
        gemm_rs: GEMMs before a reduce-scatter, each like "8192x8192x29568" (m x n x k, k divided).
        ag_gemm: GEMMs behind an all-gather, likewise (n divided). Without any shape, those of the AMD
            Developer Challenge 2025.
        dtype: element type of these shapes.
        assume: rates and latencies, each like "nic_bytes_per_s=25e9".
        step: of the run: 2 or "ProfilerStep#2"; None for all of it.
        partial: accept missing ranks.
        progress: called with a line of text before each part of the work.

    Returns:
        without a run tables `bounds`, `geometric_means`, `published`, `all_reduce`, `algorithms`,
        `crossovers` and `assumptions`; with one `collectives`, `fit`, `pairs` and `assumptions`.

    Raises:
        TracelensError: an unknown device, type or assumption, or a shape that the GPUs cannot share.
    """
    from tracelens.planner.bounds import bounds, trace_bounds, traced_device

    shapes = texts(all_to_all), texts(gemm_rs), texts(ag_gemm)
    chosen = resolved([device])[0] if device is not None else None
    if run is None:
        if step is not None:
            raise TracelensError("--step is for traces: pass their paths")
        platform = _platform(chosen or resolved(["mi300x"])[0], nodes or _NODES, gpus_per_node, texts(assume))
        return bounds(platform, _operations(*shapes, gpus_per_node, dtype))
    if any(shapes) or nodes is not None:
        option = "--nodes" if nodes is not None else "a shape"
        raise TracelensError(f"{option} is not for traces, which hold their own collectives and ranks")
    recorded = at_step(loaded(run, partial=partial, progress=progress), step)
    platform = _platform(chosen or traced_device(recorded), _NODES, gpus_per_node, texts(assume))
    progress("matching collectives")
    return trace_bounds(recorded, platform)


def _platform(device: Device, nodes: int, gpus_per_node: int, assume: Sequence[str]) -> Platform:
    """The platform with these assumptions.

    Raises:
        TracelensError: malformed text, or unknown name or value.
    """
    from tracelens.planner.bounds import HELP, Platform

    defaults = {item.name: item.default for item in fields(Platform) if item.name in HELP}
    changes = assumed_values(assume, defaults)
    return Platform(device, nodes, gpus_per_node, **changes)  # type: ignore[arg-type]  # of their defaults' kinds


def _operations(
    layers: Sequence[str], gemm_rs: Sequence[str], ag_gemm: Sequence[str], gpus: int, dtype: str
) -> list[Operation]:
    from tracelens.dtypes import element_bytes
    from tracelens.planner.bounds import all_gather_gemm, gemm_reduce_scatter, moe_all_to_all

    if not element_bytes(dtype):
        raise TracelensError(f"--dtype {dtype}: no element type of whole bytes, as bf16, fp16 or fp8")
    sizes = [_layer(text) for text in layers]
    return [
        *(moe_all_to_all(*layer, gpus, dtype, "expert") for layer in sizes),
        *(moe_all_to_all(*layer, gpus, dtype, "GPU") for layer in sizes),
        *(gemm_reduce_scatter(*_gemm("--gemm-rs", text), gpus, dtype) for text in gemm_rs),
        *(all_gather_gemm(*_gemm("--ag-gemm", text), gpus, dtype) for text in ag_gemm),
    ]


def _layer(text: str) -> tuple[int, int, int, int]:
    """(experts, topk, hidden, tokens) of a text such as 'experts=256 topk=8 hidden=7168 tokens=256'."""
    values = dict(part.partition("=")[::2] for part in text.split())
    if set(values) != set(_LAYER) or not all(value.isdecimal() and int(value) for value in values.values()):
        example = "experts=256 topk=8 hidden=7168 tokens=256"
        raise TracelensError(f"--all-to-all: {text!r} is not of the form {example!r}")
    experts, topk, hidden, tokens = (int(values[name]) for name in _LAYER)
    return experts, topk, hidden, tokens


def _gemm(option: str, text: str) -> tuple[int, int, int]:
    """(m, n, k) of a text such as '8192x8192x29568'."""
    match = _GEMM.fullmatch(text.strip().lower())
    if match is None:
        raise TracelensError(f"{option}: {text!r} is not of the form 8192x8192x29568 (m x n x k)")
    m, n, k = map(int, match.groups())
    return m, n, k
