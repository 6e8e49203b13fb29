"""The loop of one serving rank: tick by tick, what all ranks run together.

    engine = Engine(config, serving, ranks, device)
    for tick in range(ticks):
        engine.tick()

In a tick the ranks tell each other what each could run: a few numbers over the host's network, not the
device's. From them each makes the same plan (see `plan`), runs its part of it, and reads the tokens. Decoding
is greedy: the token with the highest logit.

A forward pass runs eagerly, as two overlapped halves, or, for decode, from a CUDA or HIP graph: one for each
of a few batch sizes, captured once and replayed by one launch. A graph holds addresses: its input is copied
to where it was captured, weights and caches stay where they are. Collectives are part of it, so all ranks
capture, and replay, the same size together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from tracelens.planner.config import Config
from tracelens.recording import span
from tracelens.workload import pipeline
from tracelens.workload.parallel import Group, all_gather_into
from tracelens.workload.pipeline import default_dtype
from tracelens.workload.serving.model import BatchTensors, ServingModel, Waits, make_rows, numbers
from tracelens.workload.serving.plan import (
    Batch,
    BatchPiece,
    Kind,
    Plan,
    PrefillDelayer,
    Proposal,
    RequestTraffic,
    Scheduler,
    half_label,
    halves,
    label,
    make_plan,
    propose,
)
from tracelens.workload.serving.settings import Serving


@dataclass(frozen=True)
class Ranks:
    """This rank among the others."""

    rank: int = 0  # its number
    count: int = 1  # of all
    device: Group = None  # group for collectives of the model; None where there is one rank
    host: Group = None  # group of the hosts, for what could be run; likewise


class ServingEngine:
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
        self.traffic = RequestTraffic(serving, config.model.vocab, ranks.rank, ranks.count)
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
        return (
            self.scheduler.decode_batch() if kind == "decode" else (BatchPiece(self.serving.slots, 0, (0,)),)
        )

    def forward(self, kind: Kind, batch: Batch, plan: Plan) -> Tensor:
        """Logits_RV of a batch, of halves those of the first half first."""
        prefill = kind.endswith("prefill")
        if plan.graph:
            assert self.graphs is not None
            return self.graphs.run(batch, plan.graph)
        if not plan.split:
            return eager(self.model, make_rows(batch, prefill, self.device), plan.padded[0])
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
            token_B, slot_B, position_B = self.input_3B[:, :size]
            rows = BatchTensors(token_B, slot_B, position_B, self.row_B[:size], longest=self.serving.context)
            decode = partial(eager, self.model, rows, size)
            pipeline.warm_up(decode, self.stream, self.device)
            torch.cuda.synchronize(self.device)
            what = f"graph=on: the capture of a decode of {size}"
            self.captured[size] = pipeline.capture(decode, self.stream, self.device, what, pool)
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
        nobody = BatchPiece(self.serving.slots, 0, (0,))
        columns = numbers(batch + (nobody,) * (size - len(batch)))[:3]
        self.input_3B[:, :size].copy_(torch.tensor(columns).pin_memory(), non_blocking=True)


def make_ranks(rank: int, count: int) -> Ranks:
    """The groups; every rank must call it, and torch.distributed must run if there are several."""
    if count == 1:
        return Ranks()
    everyone = list(range(count))
    model = dist.new_group(everyone, group_desc="moe_tp")
    return Ranks(rank, count, model, dist.new_group(everyone, backend="gloo", group_desc="hosts"))


def eager(model: ServingModel, rows: BatchTensors, padded: int) -> Tensor:
    """Logits_RV of a prefill or a decode, which has `padded` tokens on each rank where all meet."""
    return together([model.run(rows, padded)])[0]


def overlapped(
    model: ServingModel,
    batches: Sequence[tuple[str, Batch]],
    prefill: bool,
    padded: Sequence[int],
    device: torch.device,
) -> Tensor:
    """Logits_RV of the halves of a batch, those of the first half first.

    The halves take turns: where one waits for other ranks, the other one goes on. As the first is always a
    turn ahead, what it puts into the cache in a layer is there when the second half looks at it.
    """
    runs = [
        model.run(make_rows(batch, prefill, device), tokens, alone=False)
        for (_, batch), tokens in zip(batches, padded, strict=True)
    ]
    return torch.cat(together(runs, [label for label, _ in batches]))


def together(runs: Sequence[Waits], labels: Sequence[str] | None = None) -> list[Tensor]:
    """Run computations in turns, each as far as its next wait for other ranks; what each made.

    All wait as often; the scopes of their turns have the names in `labels`.
    """
    made: list[Tensor] = []
    while len(made) < len(runs):
        for number, run in enumerate(runs):
            try:
                if labels is None:
                    next(run)
                else:
                    # A scope cannot stay open while another computation has its turn.
                    with span(labels[number]):
                        next(run)
            except StopIteration as end:
                made.append(end.value)
    return made


def require(config: Config, serving: Serving, device: torch.device) -> None:
    """Raise TracelensError where graphs are on and decode cannot be captured: see `graph.require`."""
    if serving.graph == "on":
        pipeline.require(config, device, "graph=on")
