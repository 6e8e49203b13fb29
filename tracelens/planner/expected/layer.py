"""Messages of one layer in one micro-batch, forward and backward."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from tracelens.planner.config import STATIC
from tracelens.planner.expected.message import Collective
from tracelens.planner.expected.routed import Routed
from tracelens.planner.expected.share import FLOAT32, INT64, Share

TRANSPOSED: dict[Collective, Collective] = {
    "all_to_all": "all_to_all",
    "all_gather": "reduce_scatter",
    "reduce_scatter": "all_gather",
    "deepep": "deepep",
}
"""Collective of the forward to that of its gradients."""

# Chunks of a reduce-scatter with tp_overlap=chunked.
CHUNKS = 4


class LayerMessage(NamedTuple):
    """The fields of a Message that depend on the layer alone."""

    scope: str
    what: str
    collective: Collective
    group: str
    sent: int
    received: int

    @property
    def transposed(self) -> LayerMessage:
        """The message of the gradient."""
        scope, what, collective, group, sent, received = self
        return LayerMessage(scope, what, TRANSPOSED[collective], group, received, sent)


class Step(NamedTuple):
    """Messages of a forward that belong together, and those of its backward."""

    forward: list[LayerMessage]
    backward: list[LayerMessage]


def layer_steps(share: Share, layer: int, routed: Routed | None) -> list[Step]:
    """The steps of a layer in execution order; `routed` is needed where sizes depend on the routing."""
    model, name = share.config.model, f"L{layer}"
    steps = _attention(share, f"{name}.attention")
    if not share.is_moe(layer):
        return [*steps, *_sharded(share, f"{name}.mlp")]
    if model.aux_loss:
        # The balance loss counts tokens of the whole sequence; the counts have no gradient.
        size = share.config.training.micro_batch * model.experts_count * FLOAT32
        steps.append(Step([LayerMessage(f"{name}.router", "counts", "all_reduce", "cp_tp", size, size)], []))
    shared = _sharded(share, f"{name}.shared") if model.shared_ffn else []
    *dispatch, combine = _dispatch(share, name, routed)
    if share.config.toggles.overlap_shared:
        return [*steps, *dispatch, *shared, combine]
    return [*steps, *dispatch, combine, *shared]


def _both_ways(scope: str, what: str, collective: Collective, group: str, sent: int, received: int) -> Step:
    """A message whose gradient travels in the opposite direction."""
    message = LayerMessage(scope, what, collective, group, sent, received)
    return Step([message], [message.transposed])


def _sharded(share: Share, scope: str) -> list[Step]:
    """A block sharded by tensor parallelism: gathers all positions, reduce-scatters the results."""
    overlap, ranks = share.config.toggles.tp_overlap, share.config.layout.tp
    part, full = share.tokens * share.row, share.gathered * share.row
    gather = LayerMessage(scope, "positions", "all_gather", "tp", part, full)
    scatter = LayerMessage(scope, "positions", "reduce_scatter", "tp", full, part)
    if overlap == "off":
        return [Step([gather], [scatter]), Step([scatter], [gather])]
    if overlap == "symmetric":
        return [Step([], [scatter]), Step([], [])]
    broadcasts = [LayerMessage(scope, "positions", "broadcast", "tp", part, part)] * ranks
    ends = [share.tokens * piece // CHUNKS for piece in range(CHUNKS + 1)]
    sizes = [(end - start) * share.row for start, end in pairwise(ends) if start < end]
    pieces = [scatter._replace(sent=size * ranks, received=size) for size in sizes]
    return [Step(broadcasts, [scatter]), Step(pieces, broadcasts)]


def _attention(share: Share, scope: str) -> list[Step]:
    model, (first, last) = share.config.model, _sharded(share, scope)
    # "mla" sends the latents, which each rank then up-projects to keys and values.
    width = model.kv_lora + model.rope_dim
    if model.attention == "gqa":
        width = share.kv_groups * (model.query_dim + model.value_dim)
    part = share.gathered * width * share.element
    return [first, _both_ways(scope, "keys", "all_gather", "cp", part, part * share.config.layout.cp), last]


def _dispatch(share: Share, name: str, routed: Routed | None) -> list[Step]:
    """Dispatch of tokens to the experts, and combine as the last step."""
    toggles, scope, combine = share.config.toggles, f"{name}.dispatch", f"{name}.combine"
    if toggles.dispatch == "allgather":
        return _gathered(share, scope, combine)
    sent, received = (count * share.row for count in _rows(share, routed))
    if toggles.dispatch == "deepep":
        return [
            _both_ways(scope, "tokens", "deepep", "ep", sent, received),
            _both_ways(combine, "results", "deepep", "ep", received, sent),
        ]
    return [
        *_sizes_first(share, scope, routed),
        _both_ways(scope, "tokens", "all_to_all", "ep", sent, received),
        _both_ways(combine, "results", "all_to_all", "ep", received, sent),
    ]


def _gathered(share: Share, scope: str, combine: str) -> list[Step]:
    ranks, K = share.config.layout.experts_over, share.config.model.top_k
    weights, experts, tokens = (share.tokens * size for size in (K * FLOAT32, K * INT64, share.row))
    return [
        _both_ways(scope, "weights", "all_gather", "ep", weights, ranks * weights),
        Step([LayerMessage(scope, "experts", "all_gather", "ep", experts, ranks * experts)], []),
        _both_ways(scope, "tokens", "all_gather", "ep", tokens, ranks * tokens),
        _both_ways(combine, "results", "reduce_scatter", "ep", ranks * tokens, tokens),
    ]


def _sizes_first(share: Share, scope: str, routed: Routed | None) -> list[Step]:
    """Messages ahead of an all-to-all of tokens: counts, and with copies their routing."""
    toggles, model, ranks = share.config.toggles, share.config.model, share.config.layout.experts_over
    steps = []
    has_copies = toggles.dispatch == "dedup"
    if not has_copies or toggles.sync_free < STATIC:
        # dedup: number of copies, and of the rows that they expand to.
        size = (2 * ranks if has_copies else model.experts_count) * INT64
        steps.append(Step([LayerMessage(scope, "counts", "all_to_all", "ep", size, size)], []))
    if has_copies:
        sent, received = (2 * model.top_k * FLOAT32 * count for count in _rows(share, routed))
        steps.append(_both_ways(scope, "routing", "all_to_all", "ep", sent, received))
    return steps


def _rows(share: Share, routed: Routed | None) -> tuple[int, int]:
    """Rows of tokens that this rank sends and receives; without a routing those of static buffers."""
    has_copies = share.config.toggles.dispatch != "alltoall"
    if routed is None:
        rows = share.config.layout.experts_over * share.tokens if has_copies else share.buffer_rows
        return rows, rows
    if has_copies:
        return sum(routed.copies_to), sum(routed.copies_from)
    return sum(routed.rows_to), sum(routed.rows_from)
