"""A stand-in for the library `deep_ep`: what the workload uses of its interface, on the CPU over gloo.

It is as strict as the library where that matters: dtypes, what `num_worst_tokens` leaves behind the last
token, and that nothing may be read before the event is waited for (until then there is no number in it).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

UNKNOWN = 10**9
"""Stands in integers that nothing has written."""

calls: list[tuple[str, int]] = []
"""Name and num_worst_tokens of all that was launched."""


class Config:
    """Sizes of buffers."""

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        return hidden_bytes * num_ranks * 256

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        return 0


class EventOverlap:
    """An event; waiting for it fills the tensors that it is about."""

    def __init__(self, fill: Callable[[], None] | None = None) -> None:
        self.fill = fill

    def current_stream_wait(self) -> None:
        assert self.fill is not None, "waited twice, or for a call without async_finish"
        with torch.no_grad():
            self.fill()
        self.fill = None


class Handle(NamedTuple):
    """Which tokens go to which rank, and how many come from each."""

    token_P: list[Tensor]
    come_P: list[int]
    room: int


class Buffer:
    """Buffers of a group of ranks."""

    def __init__(self, group: Any, num_nvl_bytes: int = 0, num_rdma_bytes: int = 0) -> None:
        assert num_nvl_bytes > 0
        self.group, self.ranks = group, group.size()

    @staticmethod
    def capture() -> EventOverlap:
        return EventOverlap(lambda: None)

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        assert num_ranks in (2, 4, 8), f"Unsupported number of EP ranks: {num_ranks}"
        return Config()

    get_combine_config = get_dispatch_config

    def get_dispatch_layout(
        self, topk_idx: Tensor, num_experts: int, previous_event: Any = None, async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, ...]:  # fmt: skip
        check_stream(previous_event, async_finish, allocate_on_comm_stream)
        assert topk_idx.dtype == torch.int64
        assert topk_idx.is_contiguous()
        calls.append(("get_dispatch_layout", 0))
        self.experts = num_experts // self.ranks
        rank_TK = topk_idx // self.experts
        goes_TP = (rank_TK.unsqueeze(2) == torch.arange(self.ranks)).any(1)
        per_expert = torch.bincount(topk_idx.flatten(), minlength=num_experts).int()
        return goes_TP.sum(0).int(), None, per_expert, goes_TP, EventOverlap(lambda: None)

    def dispatch(
        self, x: Tensor, handle: Handle | None = None, num_tokens_per_rank: Any = None,
        num_tokens_per_rdma_rank: Any = None, is_token_in_rank: Any = None, num_tokens_per_expert: Any = None,
        topk_idx: Any = None, topk_weights: Any = None, expert_alignment: int = 1, num_worst_tokens: int = 0,
        config: Any = None, previous_event: Any = None, async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, ...]:  # fmt: skip
        check_stream(previous_event, async_finish, allocate_on_comm_stream)
        check_tokens(x)
        calls.append(("dispatch", num_worst_tokens))
        if handle is not None:
            assert topk_idx is None
            assert topk_weights is None
            tokens, fill = late(self.send(x.float(), handle), handle.room, torch.bfloat16)
            return tokens, None, None, None, None, EventOverlap(fill)
        assert num_tokens_per_rank.tolist() == is_token_in_rank.sum(0).tolist()
        assert topk_weights.dtype == torch.float32
        token_P = [goes_T.nonzero()[:, 0] for goes_T in is_token_in_rank.T]
        come_P = torch.empty(self.ranks, dtype=torch.int64)
        dist.all_to_all_single(come_P, num_tokens_per_rank.long(), group=self.group)
        handle = Handle(token_P, come_P.tolist(), num_worst_tokens or int(come_P.sum()))
        assert sum(handle.come_P) <= handle.room
        first = self.group.rank() * self.experts
        idx = self.send(topk_idx, handle) - first
        here = (idx >= 0) & (idx < self.experts)
        idx = torch.where(here, idx, -1)
        weights = torch.where(here, self.send(topk_weights, handle), 0)
        counts = [] if num_worst_tokens else [int((idx == e).sum()) for e in range(self.experts)]
        # The experts of rows behind the last token are -1, everything else there is left as it was.
        idx = torch.cat([idx, torch.full((handle.room - len(idx), idx.shape[1]), -1)])
        results = [
            late(self.send(x.float(), handle), handle.room, torch.bfloat16),
            late(idx, handle.room, torch.int64),
            late(weights, handle.room, torch.float32),
        ]
        fills = [fill for _, fill in results]
        event = EventOverlap(lambda: every(fills))
        return (*(tensor for tensor, _ in results), counts, handle, event)

    def combine(
        self, x: Tensor, handle: Handle, topk_weights: Tensor | None = None, config: Any = None,
        previous_event: Any = None, async_finish: bool = False, allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, ...]:  # fmt: skip
        check_stream(previous_event, async_finish, allocate_on_comm_stream)
        check_tokens(x)
        assert len(x) == handle.room
        calls.append(("combine", 0))
        tokens, fill = late(self.sum(x.float(), handle), None, torch.bfloat16)
        if topk_weights is None:
            return tokens, None, EventOverlap(fill)
        assert topk_weights.dtype == torch.float32
        assert topk_weights.is_contiguous()
        weights, fill_weights = late(self.sum(topk_weights, handle), None, torch.float32)
        return tokens, weights, EventOverlap(lambda: every([fill, fill_weights]))

    def send(self, x: Tensor, handle: Handle) -> Tensor:
        """Rows of x to the ranks where their tokens go."""
        self.tokens = len(x)
        y = x.new_empty(sum(handle.come_P), x.shape[1])
        parts = torch.cat([x[token_T] for token_T in handle.token_P])
        dist.all_to_all_single(y, parts, handle.come_P, list(map(len, handle.token_P)), group=self.group)
        return y

    def sum(self, x: Tensor, handle: Handle) -> Tensor:
        """Rows of x back to where their tokens came from, added up there."""
        token_T = torch.cat(handle.token_P)
        y = x.new_empty(len(token_T), x.shape[1])
        x = x[: sum(handle.come_P)].contiguous()
        dist.all_to_all_single(y, x, list(map(len, handle.token_P)), handle.come_P, group=self.group)
        return x.new_zeros(self.tokens, x.shape[1]).index_add(0, token_T, y)


def check_stream(previous_event: Any, async_finish: bool, allocate_on_comm_stream: bool) -> None:
    """As the library: only a call on its own stream may allocate there."""
    if allocate_on_comm_stream:
        assert async_finish
        assert isinstance(previous_event, EventOverlap)


def check_tokens(x: Tensor) -> None:
    """What the kernels can read."""
    assert x.dtype == torch.bfloat16
    assert x.dim() == 2
    assert x.is_contiguous()
    assert x.shape[1] * x.element_size() % 32 == 0


def late(value: Tensor, room: int | None, dtype: torch.dtype) -> tuple[Tensor, Callable[[], None]]:
    """A tensor without a number in it, with room for more rows, and what writes the value into it."""
    nothing = float("nan") if dtype.is_floating_point else UNKNOWN
    tensor = torch.full((len(value) if room is None else room, value.shape[1]), nothing, dtype=dtype)
    return tensor, lambda: write(tensor, value)


def write(tensor: Tensor, value: Tensor) -> None:
    """Let a value arrive."""
    tensor[: len(value)] = value


def every(fills: list[Callable[[], None]]) -> None:
    """Let several values arrive."""
    for fill in fills:
        fill()
