"""Decode as CUDA or HIP graphs, one for each of a few batch sizes, captured once and replayed by one launch.

A graph holds addresses: its input is copied to where it was captured, weights and caches stay where they are.
Collectives are part of it, so all ranks capture, and replay, the same size together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tracelens.errors import TracelensError
from tracelens.planner.config import Config
from tracelens.recording import span
from tracelens.workload.graph import cause, no_collection
from tracelens.workload.serving.model import ServingModel
from tracelens.workload.serving.passes import together
from tracelens.workload.serving.rows import BatchTensors, numbers
from tracelens.workload.serving.settings import Serving
from tracelens.workload.serving.split import Batch, Piece

INSTEAD = "take graph=off"


def require(config: Config, serving: Serving, device: torch.device) -> None:
    """Check that decode can be captured, where it is asked for.

    Raises:
        TracelensError: no GPU, or a dtype for which torch's grouped GEMM reads the sizes of groups.
    """
    if serving.graph == "off":
        return
    if device.type != "cuda":
        raise TracelensError(f"graph=on needs a GPU, and this run is on {device}: {INSTEAD}")
    if config.model.moe_layers and config.training.dtype != "bfloat16":
        raise TracelensError(
            f"graph=on needs dtype=bfloat16, not {config.training.dtype}, for which torch's grouped GEMM "
            f"makes the host wait for the sizes of experts: {INSTEAD}"
        )


@dataclass
class _Captured:
    graph: Any
    logits_BV: Tensor


class DecodeGraphs:
    """The graphs of one rank.

    Args:
        model: of the rank.
        serving: sizes; its slots are what the model has besides the last one.
        device: a GPU.
    """

    def __init__(self, model: ServingModel, serving: Serving, device: torch.device) -> None:
        self.model, self.serving, self.device = model, serving, device
        self.stream = torch.cuda.Stream(device)
        # Token, slot and position of each row; graphs of smaller batches take the first rows.
        self.input_3B = torch.zeros(3, max(serving.graph_sizes), dtype=torch.int64, device=device)
        self.row_B = torch.arange(max(serving.graph_sizes), device=device)
        self.captured: dict[int, _Captured] = {}

    def capture(self) -> None:
        """Capture all sizes, the largest first, whose memory the others share; all ranks must call it.

        Raises:
            TracelensError: the decode cannot be captured.
        """
        pool = None
        for size in sorted(self.serving.graph_sizes, reverse=True):
            self._fill((), size)
            # Once as it is: what a capture must find ready are compiled kernels, workspaces, connections.
            current = torch.cuda.current_stream(self.device)
            self.stream.wait_stream(current)
            with torch.cuda.stream(self.stream):
                self._decode(size)
            current.wait_stream(self.stream)
            torch.cuda.synchronize(self.device)
            self.captured[size] = self._capture(size, pool)
            pool = self.captured[size].graph.pool()

    def run(self, batch: Batch, size: int) -> Tensor:
        """Logits_BV of a decode, valid until the next one.

        Args:
            batch: one token of each request.
            size: that a graph was captured for, and that all ranks take.
        """
        self._fill(batch, size)
        captured = self.captured[size]
        with span("graph"):
            captured.graph.replay()
        return captured.logits_BV[: len(batch)]

    def close(self) -> None:
        """Free the graphs; to be called before the process group is destroyed, which waits for their work."""
        if self.captured:
            torch.cuda.synchronize(self.device)
            for captured in self.captured.values():
                captured.graph.reset()
            self.captured.clear()

    def _fill(self, batch: Batch, size: int) -> None:
        """Copy a batch to where the graph of a size reads it, padded by tokens of nobody."""
        nobody = Piece(self.serving.slots, 0, (0,))
        columns = numbers(batch + (nobody,) * (size - len(batch)))[:3]
        self.input_3B[:, :size].copy_(torch.tensor(columns).pin_memory(), non_blocking=True)

    def _decode(self, size: int) -> Tensor:
        token_B, slot_B, position_B = self.input_3B[:, :size]
        rows = BatchTensors(token_B, slot_B, position_B, self.row_B[:size], longest=self.serving.context)
        return together([self.model.run(rows, size)])[0]

    def _capture(self, size: int, pool: Any) -> _Captured:
        graph = torch.cuda.CUDAGraph()
        # A failed capture leaves its own stream the current one; what other threads do is no part of it.
        with torch.cuda.stream(torch.cuda.current_stream(self.device)), no_collection():
            try:
                with torch.cuda.graph(
                    graph, pool=pool, stream=self.stream, capture_error_mode="thread_local"
                ):
                    logits_BV = self._decode(size)
            except RuntimeError as error:
                raise TracelensError(
                    f"graph=on: the capture of a decode of {size} failed ({cause(error)}): {INSTEAD}"
                ) from error
        return _Captured(graph, logits_BV)
