"""A batch as tensors on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tracelens.workload.serving.split import Batch


class Stretch(NamedTuple):
    """Tokens of one request among those of a prefill.

    Attributes:
        begin: first of them in the batch.
        end: the one after the last.
        slot: of the cache.
        first: position of the first of them in the request.
    """

    begin: int
    end: int
    slot: int
    first: int


@dataclass(frozen=True)
class BatchTensors:
    """The T tokens of a forward pass, those of a request side by side.

    Attributes:
        token_T: int64 ids.
        slot_T: int64 slots of the cache.
        position_T: int64 positions in their requests.
        answer_R: int64, tokens whose logits yield a new one.
        stretches: of a prefill, requests; None in a decode, where each token is of another request.
        longest: of a decode, rows of the cache that it looks at.
    """

    token_T: Tensor
    slot_T: Tensor
    position_T: Tensor
    answer_R: Tensor
    stretches: tuple[Stretch, ...] | None = None
    longest: int = 0

    def __len__(self) -> int:
        return len(self.token_T)


def numbers(batch: Batch) -> list[list[int]]:
    """Tokens, slots, positions and rows with an answer: the columns of `BatchTensors`, on the host."""
    tokens = [token for piece in batch for token in piece.tokens]
    slots = [piece.slot for piece in batch for _ in piece.tokens]
    positions = [piece.first + offset for piece in batch for offset in range(len(piece.tokens))]
    answers, end = [], 0
    for piece in batch:
        end += len(piece.tokens)
        if piece.answers:
            answers.append(end - 1)
    return [tokens, slots, positions, answers]


def make_rows(batch: Batch, prefill: bool, device: torch.device) -> BatchTensors:
    """A batch on the device; a decode has one token a request."""
    columns = numbers(batch)
    flat = torch.tensor([number for column in columns for number in column], dtype=torch.int64)
    if device.type == "cuda":
        # From page-locked memory a copy does not make the host wait.
        flat = flat.pin_memory()
    lengths = [len(column) for column in columns]
    token_T, slot_T, position_T, answer_R = flat.to(device, non_blocking=True).split(lengths)
    if not prefill:
        longest = max((piece.first + 1 for piece in batch), default=1)
        return BatchTensors(token_T, slot_T, position_T, answer_R, longest=longest)
    stretches, begin = [], 0
    for piece in batch:
        end = begin + len(piece.tokens)
        stretches.append(Stretch(begin, end, piece.slot, piece.first))
        begin = end
    return BatchTensors(token_T, slot_T, position_T, answer_R, tuple(stretches))
