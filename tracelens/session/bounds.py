"""The speed of light of collectives, of a platform or of a recorded run, in the words of the command line."""

from __future__ import annotations

import os
import re
from dataclasses import fields
from typing import TYPE_CHECKING

from tracelens.errors import TracelensError
from tracelens.read import TraceFiles
from tracelens.session.layouts import assumed_values, resolved, texts
from tracelens.session.reading import STEP, Partial, Source, loaded
from tracelens.session.request import (
    DEVICE,
    RUN,
    ApiRequest,
    CommandOption,
    Texts,
    function_of,
    option,
)

if TYPE_CHECKING:
    from tracelens.devices import Device
    from tracelens.planner.bounds import Operation, Platform
    from tracelens.table import Result

SHAPES, MACHINE = "Shapes", "Machine"
_LAYER = ("experts", "topk", "hidden", "tokens")
_GEMM = re.compile(r"(\d+)x(\d+)x(\d+)")
_NODES = 2


class BoundsRequest(Partial, ApiRequest["Result"], panel=SHAPES):
    """Speed of light of collectives and the GEMMs next to them: what links, memory and matrix units allow.

    Without a run: MoE all-to-all, GEMM + reduce-scatter and all-gather + GEMM on one node, and all-reduce
    algorithms by message size. With a run: its collectives, without waiting, against the links of its GPUs.

    Returns:
        without a run tables `bounds`, `geometric_means`, `published`, `all_reduce`, `algorithms`,
        `crossovers` and `assumptions`; with one `collectives`, `fit`, `pairs` and `assumptions`.

    Raises:
        TracelensError: an unknown device, type or assumption, or a shape that the GPUs cannot share.
    """

    run: Source | None = option(
        "A recorded run: trace files, directories of ranks, or quoted patterns. Its own collectives are "
        "compared with their links.",
        doc="a recorded run from `load`, or its path.",
        name="paths",
        metavar="PATH...",
        argument=True,
        type=list[str] | None,
        convert=lambda paths: TraceFiles(paths) if paths else None,
        default=None,
        kw_only=False,
    )
    all_to_all: Texts = option(
        "MoE dispatch and combine, as in 'experts=256 topk=8 hidden=7168 tokens=256' (tokens per GPU). "
        "Repeatable.",
        metavar="FIELDS",
        default=(),
    )
    gemm_rs: Texts = option(
        "GEMM + reduce-scatter, as in 8192x8192x29568: m x n x k, with k divided among the GPUs. Repeatable.",
        metavar="MxNxK",
        default=(),
    )
    ag_gemm: Texts = option(
        "All-gather + GEMM, likewise, with n divided among the GPUs. Repeatable.",
        doc="GEMMs behind an all-gather, likewise (n divided). Without any shape, those of the AMD Developer "
        "Challenge 2025.",
        metavar="MxNxK",
        default=(),
        shown="without any shape, those of the AMD Developer Challenge 2025",
    )
    dtype: str = option("Element type of these shapes.", metavar="TYPE", default="bf16")
    nodes: int | None = option(
        "Nodes of the all-reduce.", MACHINE, metavar="N", default=None, min=1, shown="2"
    )
    gpus_per_node: int = option("GPUs per node.", MACHINE, metavar="N", default=8, min=1)
    assume: Texts = option(
        "A rate or latency, as in nic_bytes_per_s=25e9; the result lists all. Repeatable.",
        MACHINE,
        metavar="NAME=VALUE",
        default=(),
    )
    step: str | int | None = option(
        STEP, RUN, help="Only this step of the run: 2 or ProfilerStep#2.", doc="", default=None
    )
    device: str | os.PathLike[str] | Device | None = option(
        "Take rates from this device (`tracelens list devices`).",
        DEVICE,
        doc="a name, a TOML file (.toml or a Path) or a device; by default mi300x, or the traced one.",
        metavar="NAME",
        type=str | None,
        default=None,
        shown="the traced one, or mi300x",
        complete="devices",
        file=CommandOption(
            help="Compute rooflines for the device in this TOML file.", panel=DEVICE, metavar="FILE"
        ),
    )

    def answer(self) -> Result:
        """The bounds."""
        from tracelens.planner.bounds import bounds, trace_bounds, traced_device

        shapes = texts(self.all_to_all), texts(self.gemm_rs), texts(self.ag_gemm)
        chosen = resolved([self.device])[0] if self.device is not None else None
        if self.run is None:
            if self.step is not None:
                raise TracelensError("--step is for traces: pass their paths")
            platform = self._platform(chosen or resolved("mi300x")[0], self.nodes or _NODES)
            return bounds(platform, self._operations())
        if any(shapes) or self.nodes is not None:
            name = "--nodes" if self.nodes is not None else "a shape"
            raise TracelensError(f"{name} is not for traces, which hold their own collectives and ranks")
        run = loaded(self.run, self.step, partial=self.partial, progress=self.progress)
        platform = self._platform(chosen or traced_device(run), _NODES)
        self.progress("matching collectives")
        return trace_bounds(run, platform)

    def _platform(self, device: Device, nodes: int) -> Platform:
        """The platform with the assumptions; raises TracelensError for malformed or unknown ones."""
        from tracelens.planner.bounds import HELP, Platform

        defaults = {item.name: item.default for item in fields(Platform) if item.name in HELP}
        return Platform(device, nodes, self.gpus_per_node, **assumed_values(texts(self.assume), defaults))

    def _operations(self) -> list[Operation]:
        """The collectives with their GEMMs; raises TracelensError for a malformed shape."""
        from tracelens.dtypes import element_bytes
        from tracelens.planner.bounds import all_gather_gemm, gemm_reduce_scatter, moe_all_to_all

        gpus, dtype = self.gpus_per_node, self.dtype
        if not element_bytes(dtype):
            raise TracelensError(f"--dtype {dtype}: no element type of whole bytes, as bf16, fp16 or fp8")
        layers: list[tuple[int, int, int, int]] = []
        for text in texts(self.all_to_all):
            sizes = dict(part.partition("=")[::2] for part in text.split())
            if set(sizes) != set(_LAYER) or not all(
                size.isdecimal() and int(size) for size in sizes.values()
            ):
                example = "experts=256 topk=8 hidden=7168 tokens=256"
                raise TracelensError(f"--all-to-all: {text!r} is not of the form {example!r}")
            experts, topk, hidden, tokens = (int(sizes[name]) for name in _LAYER)
            layers.append((experts, topk, hidden, tokens))
        return [
            *(moe_all_to_all(*layer, gpus, dtype, "expert") for layer in layers),
            *(moe_all_to_all(*layer, gpus, dtype, "GPU") for layer in layers),
            *(gemm_reduce_scatter(*_gemm("--gemm-rs", text), gpus, dtype) for text in texts(self.gemm_rs)),
            *(all_gather_gemm(*_gemm("--ag-gemm", text), gpus, dtype) for text in texts(self.ag_gemm)),
        ]


project_bounds = function_of("project_bounds", BoundsRequest)


def _gemm(flag: str, text: str) -> tuple[int, int, int]:
    """(m, n, k) of a text such as '8192x8192x29568'."""
    match = _GEMM.fullmatch(text.strip().lower())
    if match is None:
        raise TracelensError(f"{flag}: {text!r} is not of the form 8192x8192x29568 (m x n x k)")
    m, n, k = map(int, match.groups())
    return m, n, k
