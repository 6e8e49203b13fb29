"""Decode as CUDA or HIP graphs, one for each of a few batch sizes, captured once and replayed by one launch.

A graph holds addresses: its input is copied to where it was captured, weights and caches stay where they are.
Collectives are part of it, so all ranks capture, and replay, the same size together.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from tracelens.planner.config import Config
from tracelens.recording import span
from tracelens.workload import graph
from tracelens.workload.serving.model import ServingModel
from tracelens.workload.serving.passes import together
from tracelens.workload.serving.rows import BatchTensors, numbers
from tracelens.workload.serving.settings import Serving
from tracelens.workload.serving.split import Batch, Piece


def require(config: Config, serving: Serving, device: torch.device) -> None:
    """Raise TracelensError where graphs are on and decode cannot be captured: see `graph.require`."""
    if serving.graph == "on":
        graph.require(config, device, "graph=on")


class DecodeGraphs:
    """The graphs of one rank; `serving.slots` are what the model has besides its last one."""

    def __init__(self, model: ServingModel, serving: Serving, device: torch.device) -> None:
        self.model, self.serving, self.device = model, serving, device
        self.stream = torch.cuda.Stream(device)
        # Token, slot and position of each row; graphs of smaller batches take the first rows.
        self.input_3B = torch.zeros(3, max(serving.graph_sizes), dtype=torch.int64, device=device)
        self.row_B = torch.arange(max(serving.graph_sizes), device=device)
        self.captured: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}

    def capture(self) -> None:
        """Capture all sizes, the largest first, whose memory the others share; all ranks must call it.

        Raises:
            TracelensError: the decode cannot be captured.
        """
        pool = None
        for size in sorted(self.serving.graph_sizes, reverse=True):
            self._fill((), size)
            decode = partial(self._decode, size)
            graph.warm_up(decode, self.stream, self.device)
            torch.cuda.synchronize(self.device)
            what = f"graph=on: the capture of a decode of {size}"
            self.captured[size] = graph.capture(decode, self.stream, self.device, what, pool)
            pool = self.captured[size][0].pool()

    def run(self, batch: Batch, size: int) -> Tensor:
        """Logits_BV of a decode by the graph of a size that all ranks take; valid until the next one."""
        self._fill(batch, size)
        captured, logits_BV = self.captured[size]
        with span("graph"):
            captured.replay()
        return logits_BV[: len(batch)]

    def close(self) -> None:
        """Free the graphs; to be called before the process group is destroyed, which waits for their work."""
        if self.captured:
            torch.cuda.synchronize(self.device)
            for captured, _ in self.captured.values():
                captured.reset()
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
