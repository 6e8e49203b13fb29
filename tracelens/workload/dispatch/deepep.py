"""DeepEP's dispatch and combine, where the library `deep_ep` is installed.

As in `dedup` a copy of a token goes to each rank with one of its experts, but by the kernels of DeepEP
(github.com/deepseek-ai/DeepEP, class `Buffer`; Primus-Turbo's port for AMD GPUs has the same interface),
which run on a stream of their own. On the way back the library adds up what the ranks made of a token. The
backward of a dispatch is a combine, that of a combine a dispatch, both with the handle of the forward.

With `sync_free` below 3 the host waits inside the library for the number of tokens that come: it spins on a
counter, for which no blocking call shows in a trace. With 3 the buffers have room for all tokens of all
ranks, and it does not wait.

The adapter was run on 2 and 4 ranks with a stand-in that has the library's interface over gloo (see the
tests), not with the library itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from tracelens.errors import TracelensError
from tracelens.planner.config import Config
from tracelens.workload.dispatch.base import Dispatcher, OnTheWay, RoutedTokens, Sent
from tracelens.workload.parallel import Group, Groups, Waiting

LIBRARIES = ("deep_ep", "primus_turbo.pytorch.deep_ep")
# On Hopper the kernels move each half of a token as whole 16-byte pieces: 16 elements of bfloat16.
ALIGNMENT = 16
# With more ranks the library goes over the network, where it knows no buffers for the worst case.
NODE_RANKS = 8


@dataclass
class _Note:
    """What the library said of a dispatch."""

    handle: Any = None  # by which results find their way back
    expert_NK: Any = None  # the experts here that each copy chose; -1 for others
    rows: int = 0  # how many rows they need, or as many as there may be


_Launched = tuple[tuple[Tensor, ...], Any]


class _Trip:
    """Tensors on their way through the library."""

    def __init__(self, forward: Callable[..., _Launched], backward: Callable[..., _Launched]) -> None:
        # Launch the all-to-all of tensors, or of gradients; return what arrives and the event of its arrival.
        self.forward, self.backward = forward, backward
        self.tensors: tuple[Tensor, ...]  # what will arrive, or its gradients on their way back
        self.event: Any = None  # after which they are there

    def leave(self, *tensors: Tensor) -> _Trip:
        """Send tensors on their way."""
        self.tensors = _Leave.apply(self, *tensors)
        return self

    def enter(self, change: Callable[[Any], Any]) -> None:
        """Enter a region of the trace, as Pending does."""
        self.tensors = change(self.tensors)

    def arrive(self) -> tuple[Tensor, ...]:
        return _Arrive.apply(self, *self.take())

    def take(self) -> tuple[Tensor, ...]:
        """The tensors, which are not kept: their history holds this trip."""
        tensors = self.tensors
        del self.tensors
        return tensors

    def wait(self) -> None:
        """Let the current stream wait for what is on its way; another micro-batch may run before."""
        Waiting.before()
        self.event.current_stream_wait()


class _Leave(Function):
    @staticmethod
    def forward(ctx: Any, trip: _Trip, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.trip = trip
        arriving, trip.event = trip.forward(*tensors)
        return arriving

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        ctx.trip.wait()
        return None, *ctx.trip.take()


class _Arrive(Function):
    @staticmethod
    def forward(ctx: Any, trip: _Trip, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.trip = trip
        trip.wait()
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        ctx.trip.tensors, ctx.trip.event = ctx.trip.backward(*gradients)
        # Autograd wants gradients of what arrived; those of what was sent are on their way.
        return None, *gradients


@dataclass(kw_only=True)
class _SentByLibrary(Sent):
    """With what the library said of it."""

    note: _Note


class DeepEPDispatch(Dispatcher):
    """A token travels to a rank once, by the library.

    Raises:
        TracelensError: the library is not there, or cannot do what the configuration asks for.
    """

    def __init__(self, config: Config, groups: Groups, name: str) -> None:
        super().__init__(config, groups, name)
        instead = "or use dispatch=dedup"
        if config.training.dtype != "bfloat16":
            raise TracelensError(
                f"dispatch=deepep takes dtype=bfloat16, not {config.training.dtype}; {instead}"
            )
        if config.model.hidden % ALIGNMENT:
            raise TracelensError(
                f"dispatch=deepep needs hidden to be a multiple of {ALIGNMENT}, not {config.model.hidden}; "
                f"{instead}"
            )
        if self.group is None:
            raise TracelensError(f"dispatch=deepep needs experts over several ranks (ep > 1); {instead}")
        if self.static and self.ranks > NODE_RANKS:
            raise TracelensError(
                f"dispatch=deepep with sync_free=3 needs ep of at most {NODE_RANKS}, one node, not "
                f"{self.ranks}; {instead}"
            )
        reasons = []
        for library in LIBRARIES:
            try:
                self.library = import_module(library)
                break
            except ImportError as error:
                reasons.append(str(error))
        else:
            raise TracelensError(
                f"dispatch=deepep needs the library DeepEP ({'; '.join(reasons)}): install it, or use "
                "dispatch=dedup, which does the same in torch ops"
            )
        self.all_experts, self.hidden = config.model.experts_count, config.model.hidden

    def send(self, x_TD: Tensor, weight_TK: Tensor, expert_TK: Tensor) -> Sent:
        """Send one copy of a token to each rank with an expert of its choice, with its weights."""
        buffer, note = _buffer(self.library, self.group, self.hidden), _Note()
        T, K = expert_TK.shape
        worst = T * self.ranks if self.static else 0
        static = {"num_worst_tokens": worst} if worst else {}

        def dispatch(x_TD: Tensor, weight_TK: Tensor) -> _Launched:
            per_rank, per_node, per_expert, goes_TP, ready = buffer.get_dispatch_layout(
                expert_TK, self.all_experts, **_beside(buffer)
            )
            x_ND, note.expert_NK, weight_NK, rows_e, note.handle, event = buffer.dispatch(
                x_TD, topk_idx=expert_TK, topk_weights=weight_TK, num_tokens_per_rank=per_rank,
                num_tokens_per_rdma_rank=per_node, num_tokens_per_expert=per_expert, is_token_in_rank=goes_TP,
                **static, **_beside(buffer, ready),
            )  # fmt: skip
            note.rows = worst * min(K, self.experts) or sum(rows_e)
            return (x_ND, weight_NK), event

        def combine(g_ND: Tensor, g_NK: Tensor) -> _Launched:
            g_TD, g_TK, event = buffer.combine(
                g_ND.contiguous(), note.handle, topk_weights=g_NK.contiguous(), **_beside(buffer)
            )
            return (g_TD, g_TK), event

        trip = _Trip(dispatch, combine).leave(x_TD.contiguous(), weight_TK.contiguous())
        return _SentByLibrary(tokens=trip, note=note)

    def receive(self, sent: Sent) -> RoutedTokens:
        """Wait for the copies, and give each expert a row of those that chose it."""
        assert isinstance(sent, _SentByLibrary)
        x_ND, weight_NK = sent.tokens.arrive()
        local_NK = sent.note.expert_NK
        expert_NK = torch.where(local_NK >= 0, local_NK, self.experts)
        rows = self.sort(expert_NK, self.experts, sent.note.rows)
        return RoutedTokens(self.permute(x_ND, rows), rows, weight_NK, sent)

    def send_back(self, y_RD: Tensor, routed: RoutedTokens) -> tuple[OnTheWay, Sent]:
        """One result for each copy: the weighted sum of what this rank's experts made of it."""
        assert isinstance(routed.sent, _SentByLibrary)
        buffer, handle = _buffer(self.library, self.group, self.hidden), routed.sent.note.handle

        def combine(y_ND: Tensor) -> _Launched:
            y_TD, _, event = buffer.combine(y_ND, handle, **_beside(buffer))
            return (y_TD,), event

        def dispatch(g_TD: Tensor) -> _Launched:
            g_ND, *_, event = buffer.dispatch(g_TD.contiguous(), handle=handle, **_beside(buffer))
            return (g_ND,), event

        y_ND = self.unpermute(y_RD, routed.weight_NK, routed.rows)
        return _Trip(combine, dispatch).leave(y_ND.contiguous()), routed.sent

    def combine(self, returned: tuple[OnTheWay, Sent]) -> Tensor:
        """Sum of a token's copies, which the library has added up."""
        (y_TD,) = returned[0].arrive()
        return y_TD


def _beside(buffer: Any, after: Any = None) -> dict[str, Any]:
    """Arguments for a call on the library's stream, behind an event or all that the current one has got."""
    ready = buffer.capture() if after is None else after
    return {"previous_event": ready, "async_finish": True, "allocate_on_comm_stream": True}


_buffers: dict[tuple[Group, int], Any] = {}


def _buffer(library: Any, group: Group, hidden: int) -> Any:
    """The buffers of a group, which all layers share; made by all its ranks together."""
    if (group, hidden) not in _buffers:
        ranks = group.size()
        try:
            hints = (library.Buffer.get_dispatch_config(ranks), library.Buffer.get_combine_config(ranks))
        except AssertionError as error:
            raise TracelensError(f"dispatch=deepep does not work over ep={ranks} ranks: {error}") from None
        bytes_of_token = hidden * torch.bfloat16.itemsize
        _buffers[group, hidden] = library.Buffer(
            group,
            max(hint.get_nvl_buffer_size_hint(bytes_of_token, ranks) for hint in hints),
            max(hint.get_rdma_buffer_size_hint(bytes_of_token, ranks) for hint in hints),
        )
    return _buffers[group, hidden]
