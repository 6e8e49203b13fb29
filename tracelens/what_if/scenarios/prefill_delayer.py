"""Serving ranks prefill in the same steps: what a prefill delayer does."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from tracelens.analysis.serving import GlobalStep
from tracelens.arrays import Int
from tracelens.table import codes, sums
from tracelens.what_if.graph import MEET, WORK, Edit, Graph, whole_ns
from tracelens.what_if.scenario import NotApplicable, ScenarioContext, scenario
from tracelens.what_if.scenarios.ticks import Ticks, ticks

_PREFILLS = ("prefill", "mixed")


class Fate(NamedTuple):
    """What becomes of a step.

    Attributes:
        decodes: all ranks decode, and what was prefilled in it waits.
        tokens: times the tokens that the rank with most of them prefills in it.
    """

    decodes: bool
    tokens: float = 1.0


@scenario("prefill_delayer")
def prefill_delayer(scene: ScenarioContext, edit: Edit, argument: str) -> str:
    """Serving ranks keep prompts back until others prefill too: nobody decodes beside a prefill."""
    graph, found = scene.recorded.graph, ticks(scene)
    if not any(one.mismatch for one in found.steps):
        raise NotApplicable("the ranks are in one phase in all steps")
    fates = aligned(found.steps)
    if not any(one.decodes for one in fates):
        raise NotApplicable("no prefill beside decoding meets a prefill of another rank in the recording")
    usual, how = _decoding_ns(scene, found)
    dur_ns = np.array([step.dur_ns for step in found.steps], dtype=np.int64)
    decodes = np.array([fate.decodes for fate in fates], dtype=bool)
    gained = int(dur_ns[decodes].sum())
    # The last element is for nodes that are in no step.
    shorter = np.append(np.where(decodes, np.minimum(usual / np.maximum(dur_ns, 1), 1.0), 1.0), 1.0)
    nodes = np.flatnonzero(np.append(decodes, False)[found.of])
    for values in (edit.dur, edit.delay):
        values[nodes] = np.rint(values[nodes] * shorter[found.of[nodes]]).astype(np.int64)
    inside = np.flatnonzero(
        np.append(decodes, False)[found.of[graph.src]] & (found.of[graph.src] == found.of[graph.dst])
    )
    factor = shorter[found.of[graph.src[inside]]]
    edit.lag[inside] = np.rint(edit.lag[inside] * factor).astype(np.int64)
    longer = np.array([1.0 if fate.decodes else max(fate.tokens, 1.0) for fate in fates] + [1.0])
    busy = np.flatnonzero((longer[found.of] > 1) & np.isin(graph.kind, (WORK, MEET)))
    edit.dur[busy] = whole_ns(edit.dur[busy] * longer[found.of[busy]], edit.dur[busy])
    moved = sum(one.decodes for one in fates)
    left = sum(step.mismatch for step in found.steps) - moved
    return (
        f"{moved} of {moved + left} steps with prefill beside decoding ({gained / 1e6:,.1f} ms) "
        f"become decoding, {how}; their prompts join the next step in which another rank prefills, whose GPU "
        "work and transfers grow with the tokens of the rank with most, without a limit on tokens; requests "
        "arrive as they did, and what meets no partner stays where it is"
    )


def aligned(steps: Sequence[GlobalStep]) -> list[Fate]:
    """What a delayer makes of the steps: prompts wait for the next step in which another rank prefills.

    A step with prefill beside decoding becomes decoding if its prompts find such a step later on; one in
    which waiting ranks and others prefill together takes as long as the rank with most tokens needs.
    """
    fates = [Fate(False) for _ in steps]
    waiting: dict[int, int] = {}
    since: list[int] = []
    for number, step in enumerate(steps):
        prefills = {
            one.rank: max(one.step.label.tokens, 0)
            for one in step.rank_steps
            if one.step.label.kind in _PREFILLS and not one.step.label.dummy
        }
        if not prefills:
            continue
        partners = set(waiting) - set(prefills)
        if step.mismatch and not partners:
            for rank, tokens in prefills.items():
                waiting[rank] = waiting.get(rank, 0) + tokens
            since.append(number)
            continue
        if waiting:
            most = max(prefills.values())
            together = {rank: prefills.get(rank, 0) + waiting.get(rank, 0) for rank in {*prefills, *waiting}}
            fates[number] = Fate(False, max(together.values()) / max(most, 1))
            for place in since:
                fates[place] = Fate(True)
            waiting, since = {}, []
    return fates


def _decoding_ns(scene: ScenarioContext, found: Ticks) -> tuple[float, str]:
    """What a step takes in which all ranks decode, ns, and where that is from.

    The median of those in the recording. Without one: of the mismatched steps the one in which a decoding
    rank had least work, and that work and its transfers alone, as a graph would replay them. Beside a
    prefill ranks replay no graphs, and compute its tokens in their experts; so it is an upper bound of the
    work.
    """
    pure = [step.dur_ns for step in found.steps if step.phases == {"decode"}]
    if pure:
        usual = float(median(pure))
        return usual, f"as long as the steps in which all ranks do ({usual / 1e6:,.2f} ms)"
    graph = scene.recorded.graph
    place = {rank: at for at, rank in enumerate(graph.run.ranks)}
    work_ns = _sums_ns(graph, found.of, graph.rank, WORK)
    transfer_ns = _sums_ns(graph, found.of, np.zeros_like(graph.rank), MEET)
    work = [
        float(work_ns.get((number, place[one.rank]), 0) + transfer_ns.get((number, 0), 0))
        for number, step in enumerate(found.steps)
        if step.mismatch
        for one in step.rank_steps
        if one.step.label.kind == "decode" and not one.step.label.dummy
    ]
    if not work:
        raise NotApplicable("no rank decodes in the steps whose ranks are in different phases")
    usual = min(work)
    return usual, (
        f"as long as the least GPU work of a rank that decoded ({usual / 1e6:,.2f} ms), replayed by a graph, "
        "since in no step all decode"
    )


def _sums_ns(graph: Graph, step: Int, part: Int, kind: int) -> dict[tuple[int, int], int]:
    """(step, part) to the duration of all its nodes of a kind."""
    nodes = np.flatnonzero((step >= 0) & (graph.kind == kind))
    group, (steps, parts) = codes(step[nodes], part[nodes])
    total = sums(group, graph.dur[nodes], len(steps))
    return dict(zip(zip(steps.tolist(), parts.tolist(), strict=True), total.tolist(), strict=True))
