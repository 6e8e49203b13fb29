"""The loop of one serving rank: tick by tick, what all ranks run together.

    engine = Engine(config, serving, ranks, device)
    for tick in range(ticks):
        engine.tick()

In a tick the ranks tell each other what each could run: a few numbers over the host's network, not the
device's. From them each makes the same plan (see `plan`), runs its part of it, and reads the tokens. Decoding
is greedy: the token with the highest logit.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from tracelens.planner.config import Config
from tracelens.recording import span
from tracelens.workload.parallel import Group, all_gather_into
from tracelens.workload.pipeline import default_dtype
from tracelens.workload.serving.graphs import DecodeGraphs, require
from tracelens.workload.serving.model import ServingModel
from tracelens.workload.serving.passes import eager, overlapped
from tracelens.workload.serving.plan import (
    Kind,
    Plan,
    PrefillDelayer,
    Proposal,
    half_label,
    label,
    make_plan,
    propose,
)
from tracelens.workload.serving.scheduler import Scheduler, Traffic
from tracelens.workload.serving.settings import Serving
from tracelens.workload.serving.split import Batch, Piece, halves


@dataclass(frozen=True)
class Ranks:
    """This rank among the others.

    Attributes:
        rank: its number.
        count: of all.
        device: group for collectives of the model; None where there is one rank.
        host: group of the hosts, for what could be run; likewise.
    """

    rank: int = 0
    count: int = 1
    device: Group = None
    host: Group = None


def make_ranks(rank: int, count: int) -> Ranks:
    """The groups; every rank must call it, and torch.distributed must run if there are several."""
    if count == 1:
        return Ranks()
    everyone = list(range(count))
    model = dist.new_group(everyone, group_desc="moe_tp")
    return Ranks(rank, count, model, dist.new_group(everyone, backend="gloo", group_desc="hosts"))


class Engine:
    """One serving rank, of a model whose `seq` is the longest context.

    Raises:
        TracelensError: graphs are on, and this device or model cannot have them.
    """

    def __init__(self, config: Config, serving: Serving, ranks: Ranks, device: torch.device) -> None:
        require(config, serving, device)
        self.serving, self.ranks, self.device = serving, ranks, device
        with device, default_dtype(getattr(torch, config.training.dtype)):
            self.model = ServingModel(config, serving.slots, ranks.device).eval()
        self.model.initialise(config.training.seed)
        self.traffic = Traffic(serving, config.model.vocab, ranks.rank, ranks.count)
        self.scheduler = Scheduler(serving)
        self.delayer = PrefillDelayer(serving) if serving.prefill_delayer == "on" else None
        self.graphs: DecodeGraphs | None = None
        if serving.graph == "on":
            self.graphs = DecodeGraphs(self.model, serving, device)
            with torch.inference_mode():
                self.graphs.capture()
        self.ticks = 0

    def tick(self) -> Plan | None:
        """Run one tick; its plan, None if no rank has anything to run."""
        self.scheduler.arrive(self.traffic.arrive(self.ticks))
        proposals = self.all_gather(propose(self.scheduler))
        allowed = self.delayer is None or self.delayer.allow(proposals)
        plan = make_plan(proposals, allowed, self.serving)
        if plan is not None:
            self.run(plan)
        self.ticks += 1
        return plan

    def all_gather(self, proposal: Proposal) -> list[Proposal]:
        if self.ranks.host is None:
            return [proposal]
        with span("wishes"):
            gathered = torch.empty(self.ranks.count * len(proposal), dtype=torch.int64)
            all_gather_into(gathered, torch.tensor(proposal), group=self.ranks.host)
        return [Proposal(*row) for row in gathered.view(self.ranks.count, -1).tolist()]

    def run(self, plan: Plan) -> None:
        kind = plan.kinds[self.ranks.rank]
        batch = self.batch(kind)
        with span(label(kind, batch, plan)), torch.inference_mode():
            logits_RV = self.forward(kind, batch, plan)
            token_R = logits_RV.argmax(1)
        with span("tokens"):
            made = token_R.tolist()
        tokens = [made[row] for row in self.order(batch, plan)]
        if kind == "prefill":
            self.scheduler.prefilled(tokens, self.ticks)
        elif kind == "decode":
            self.scheduler.decoded(tokens, self.ticks)

    def batch(self, kind: Kind) -> Batch:
        """What this rank runs: of a dummy, one token in the slot of nobody."""
        if kind == "prefill":
            return self.scheduler.prefill_batch()
        return self.scheduler.decode_batch() if kind == "decode" else (Piece(self.serving.slots, 0, (0,)),)

    def forward(self, kind: Kind, batch: Batch, plan: Plan) -> Tensor:
        """Logits_RV of a batch, of halves those of the first half first."""
        prefill = kind.endswith("prefill")
        if plan.graph:
            assert self.graphs is not None
            return self.graphs.run(batch, plan.graph)
        if not plan.split:
            return eager(self.model, batch, prefill, plan.padded[0], self.device)
        two = halves(batch, self.serving.tbo)
        labelled = [(half_label(number, half), half) for number, half in enumerate(two)]
        return overlapped(self.model, labelled, prefill, plan.padded, self.device)

    def order(self, batch: Batch, plan: Plan) -> list[int]:
        """In which row the answer to each request stands: halves of whole requests change their order."""
        if not plan.split:
            return list(range(len(batch)))
        slots = [piece.slot for half in halves(batch, self.serving.tbo) for piece in half if piece.answers]
        return [slots.index(piece.slot) for piece in batch]

    def close(self) -> None:
        """Free what must be gone before the process group is; to be called at the end."""
        if self.graphs is not None:
            self.graphs.close()
