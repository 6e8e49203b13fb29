"""Which experts the routers chose, kept on the device while steps are measured and read when they are over.

    log = RoutingLog(trainer.model, config, groups)
    with log:                       # keeps references: no copy, no kernel, no wait in the steps
        ...steps...
    steps = log.read()              # on all ranks, outside of what is measured: one Routing a step
                                    # (none at all where a rank has no layer with experts)

A log holds T * K * 8 bytes for each layer with experts and micro-batch.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tracelens.errors import TracelensError
from tracelens.planner.config import Config
from tracelens.planner.expected import RankRouting, Routing
from tracelens.workload.model import Router
from tracelens.workload.parallel import Groups, all_gather_into

_NO_BACKWARD = -1


class RoutingLog:
    """Choices of all routers of a rank's layers.

    `model` holds all its chunks; layers have their number as name, as in `Transformer`.

    Raises:
        TracelensError: the steps are those of a graph, which calls no router.
    """

    def __init__(self, model: nn.Module, config: Config, groups: Groups) -> None:
        if config.toggles.graph != "off":
            raise TracelensError("a routing log needs graph=off: a replayed graph calls no router")
        self.config, self.groups = config, groups
        self.layers: dict[nn.Module, int] = {}
        for name, module in model.named_modules():
            if isinstance(module, Router):
                parts = name.split(".")
                if "layers" not in parts[:-1]:
                    raise TracelensError(
                        f"the router {name} is in no numbered layer, so its routing cannot be assigned"
                    )
                self.layers[module] = int(parts[parts.index("layers") + 1])
        self.choices: dict[int, list[Tensor]] = {layer: [] for layer in sorted(self.layers.values())}
        self._hooks = ExitStack()

    def __enter__(self) -> RoutingLog:
        def keep(router: nn.Module, _: Any, output: tuple[Tensor, Tensor]) -> None:
            # A layer that is recomputed in the backward chooses once more, and the same.
            if torch._C._current_graph_task_id() == _NO_BACKWARD:
                self.choices[self.layers[router]].append(output[1].detach())

        for router in self.layers:
            self._hooks.enter_context(router.register_forward_hook(keep))
        return self

    def __exit__(self, *_: object) -> None:
        self._hooks.close()

    def read(self) -> list[Routing]:
        """The routing of each step, for which the host waits; all ranks must call it. The log is empty then.

        Raises:
            TracelensError: the steps are not whole.
        """
        batches = self.config.training.micro_batches
        lengths = {len(layer_choices) for layer_choices in self.choices.values()}
        if len(lengths) > 1 or any(length % batches for length in lengths):
            raise TracelensError(
                f"the routing log holds {', '.join(map(str, sorted(lengths)))} micro-batches of its layers, "
                f"and a step has {batches}: log whole steps"
            )
        if not any(lengths):
            return []
        ranks, E = self.config.layout.experts_over, self.config.model.experts_count
        own_rank = self.groups.coordinate("ep")
        # Of each layer, one micro-batch after the other.
        routed: dict[int, list[RankRouting]] = {}
        for layer, choices in self.choices.items():
            counts_ME = torch.stack([expert_TK.flatten().bincount(minlength=E) for expert_TK in choices])
            # How many tokens chose an expert of each rank.
            index_P = torch.arange(ranks, device=counts_ME.device)
            copies_MP = torch.stack(
                [((expert_TK * ranks // E).unsqueeze(2) == index_P).any(1).sum(0) for expert_TK in choices]
            )
            # Both from each rank that shares the experts, in their order, along a new first dimension.
            gathered = []
            for counts in (counts_ME.unflatten(1, (ranks, -1)), copies_MP):
                of_ranks = counts.unsqueeze(0)
                if self.groups.ep is not None:
                    of_ranks = counts.new_empty(dist.get_world_size(self.groups.ep), *counts.shape)
                    all_gather_into(of_ranks.flatten(0, 1), counts.contiguous(), group=self.groups.ep)
                gathered.append(of_ranks.tolist())
            rows_PMPe, copies_PMP = gathered
            routed[layer] = []
            for batch in range(len(choices)):
                from_each = [rows_PMPe[source][batch][own_rank] for source in range(ranks)]
                routed[layer].append(
                    RankRouting(
                        rows=tuple(map(sum, zip(*from_each, strict=True))),
                        rows_to=tuple(map(sum, rows_PMPe[own_rank][batch])),
                        rows_from=tuple(map(sum, from_each)),
                        copies_to=tuple(copies_PMP[own_rank][batch]),
                        copies_from=tuple(copies_PMP[source][batch][own_rank] for source in range(ranks)),
                    )
                )
        self.choices = {layer: [] for layer in self.choices}
        return [
            Routing({layer: tuple(all_[first : first + batches]) for layer, all_ in routed.items()})
            for first in range(0, lengths.pop(), batches)
        ]
