"""Serving ranks prefill in the same steps: what a prefill delayer does."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from tracelens.analysis.serving import GlobalStep
from tracelens.arrays import Bool
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
    gained = 0
    for number, fate in enumerate(fates):
        nodes = found.of == number
        if fate.decodes:
            took = found.steps[number].dur_ns
            factor = min(usual / max(took, 1), 1.0)
            gained += took
            inside = nodes[graph.src] & nodes[graph.dst]
            edit.dur[nodes] = np.rint(edit.dur[nodes] * factor).astype(np.int64)
            edit.delay[nodes] = np.rint(edit.delay[nodes] * factor).astype(np.int64)
            edit.lag[inside] = np.rint(edit.lag[inside] * factor).astype(np.int64)
        elif fate.tokens > 1:
            busy = nodes & np.isin(graph.kind, (WORK, MEET))
            edit.dur[busy] = whole_ns(edit.dur[busy] * fate.tokens, edit.dur[busy])
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
            for one in step.members
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
    work = [
        float(graph.dur[(found.of == number) & _part_of(graph, place[one.rank])].sum())
        for number, step in enumerate(found.steps)
        if step.mismatch
        for one in step.members
        if one.step.label.kind == "decode" and not one.step.label.dummy
    ]
    if not work:
        raise NotApplicable("no rank decodes in the steps whose ranks are in different phases")
    usual = min(work)
    return usual, (
        f"as long as the least GPU work of a rank that decoded ({usual / 1e6:,.2f} ms), replayed by a graph, "
        "since in no step all decode"
    )


def _part_of(graph: Graph, at: int) -> Bool:
    """Nodes of a rank's work, and all meetings."""
    found: Bool = ((graph.kind == WORK) & (graph.rank == at)) | (graph.kind == MEET)
    return found
