"""Bytes of all tensors that are alive while the workload runs on a CPU. Needs torch."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tracelens.planner.config import Config
from tracelens.workload.parallel import Groups
from tracelens.workload.train import Trainer


class Meter(TorchDispatchMode):
    """Inside, every op's new storages count until they are freed; ops on a CPU hide what they free at once.

    Attributes:
        live: bytes now.
        most: at the peak.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.most = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        given = set(map(_place, _tensors((args, kwargs))))
        for tensor in _tensors(made):
            storage, place = tensor.untyped_storage(), _place(tensor)
            if storage.nbytes() and place not in given | self._known:
                self._known.add(place)
                self.live += storage.nbytes()
                self.most = max(self.most, self.live)
                weakref.finalize(storage, self._freed, place, storage.nbytes())
        return made

    def _freed(self, place: int, size: int) -> None:
        self._known.discard(place)
        self.live -= size


def _tensors(values: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor))


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def peak(config: Config) -> int:
    """The most that forward and backward of a step hold beside parameters, gradients and tokens."""
    trainer = Trainer(config, Groups(config.layout), torch.device("cpu"))
    tokens, targets = trainer.batches.next_step()
    # Gradients are there, and views of the buffers made before the meter.
    with Meter() as meter:
        trainer.schedule.step(tokens, targets)
    return meter.most
