"""The loop of all ranks without a model: who runs what in which tick, every token being the number 1."""

from __future__ import annotations

from dataclasses import dataclass

from tracelens.workload.serving import Serving
from tracelens.workload.serving.measure import Ticks
from tracelens.workload.serving.plan import PrefillDelayer, RequestTraffic, Scheduler, make_plan, propose

VOCAB = 16


@dataclass
class Simulated:
    """What came of it."""

    ticks: Ticks
    schedulers: list[Scheduler]
    over: bool
    most_used: int
    longest_wait: int


def simulate(settings: Serving, ranks: int, most: int) -> Simulated:
    """Run until all requests are served, or for so many ticks."""
    traffic = [RequestTraffic(settings, VOCAB, rank, ranks) for rank in range(ranks)]
    schedulers = [Scheduler(settings) for _ in range(ranks)]
    delayer = PrefillDelayer(settings) if settings.prefill_delayer == "on" else None
    ticks, used, waited = Ticks(), 0, 0
    for tick in range(most):
        for some, scheduler in zip(traffic, schedulers, strict=True):
            scheduler.arrive(some.arrive(tick))
        proposals = [propose(scheduler) for scheduler in schedulers]
        plan = make_plan(proposals, delayer is None or delayer.allow(proposals), settings)
        for kind, scheduler in zip(plan.kinds if plan else (), schedulers, strict=bool(plan)):
            if kind == "prefill":
                scheduler.prefilled([1] * len(scheduler.next_prefill()), tick)
            elif kind == "decode":
                scheduler.decoded([1] * len(scheduler.running), tick)
        held = delayer is not None and delayer.waited > 0
        ticks.add(plan, held, float(tick), tick + 1.0)
        used = max(used, *(scheduler.used for scheduler in schedulers))
        waited = max(waited, delayer.waited if delayer else 0)
        if all(some.over for some in traffic) and all(scheduler.idle for scheduler in schedulers):
            return Simulated(ticks, schedulers, True, used, waited)
    return Simulated(ticks, schedulers, False, used, waited)
