"""The same work inside other scopes is the same work: diffs of programs that differ in wrappers alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import CPU_PID, GPU_PID, MAIN_TID, draw, read, records
from tests.compare.diff.edits import Program
from tracelens.compare.diff import diff
from tracelens.compare.diff.pairing import SAME_WORK, pair
from tracelens.compare.diff.sides import RankSide
from tracelens.table import Result
from tracelens.trace import Run, make_run

Event = dict[str, Any]
Tree = tuple[str, list[Any]]
"""A name, and the trees below; a leaf launches a kernel."""

LEAF_US = 10.0


def adds_up(result: Result) -> bool:
    sums = result["waterfall"].groupby("level", observed=True)["delta_ns"].sum()
    return set(sums) == {result.meta["delta_ns"]}


def same_share(base: Run, cand: Run) -> float:
    """Share of both runs' GPU time that is told as the same calls with the same kernels."""
    base_side, cand_side = RankSide(base.traces[0]), RankSide(cand.traces[0])
    pairing = pair(base_side, cand_side)
    same = sum(
        int(side.ns[cause == SAME_WORK].sum())
        for side, cause in zip((base_side, cand_side), pairing.cause, strict=True)
    )
    return same / (int(base_side.ns.sum()) + int(cand_side.ns.sum()))


BASE = """
    op outer        | ---------------------------
    op aten::first  |  ---
    op aten::second |      ---
    op aten::first  |          ---
    op aten::third  |              ---
    launch          |   a   b   c   d
    s7 k            |   a   b   c   d
"""
WRAPPERS = {
    "one": "    scope wrap      |  -------\n",
    "two": "    scope wrap      |  -------\n    scope more      |          -------\n",
    "twice": "    scope outwrap   |  ---------------\n    scope wrap      |  -------\n",
    "around all": "    scope wrap      | ---------------------------\n",
    "same name": "    op aten::first  |  -------\n",
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_wrapped_calls_stay_the_same_calls(wrapper: str) -> None:
    base, cand = (make_run([draw(text)]) for text in (BASE, BASE + WRAPPERS[wrapper]))
    count = WRAPPERS[wrapper].count("\n")
    for before, after, kind in ((base, cand, "wrapper added"), (cand, base, "wrapper removed")):
        result = diff(before, after)
        assert adds_up(result)
        assert result.meta["delta_ns"] == 0
        assert same_share(before, after) == 1
        assert set(result["changes"]["kind"]) == {kind}
        assert result["changes"]["count"].sum() == count


def test_wrappers_around_a_changed_call_leave_the_others_alone() -> None:
    """The second call has another name, and each pair of calls has a scope of its own on one side."""
    changed = BASE.replace("aten::second", "aten::fourth") + WRAPPERS["two"]
    base, cand = (make_run([draw(text)]) for text in (BASE, changed))
    for before, after in ((base, cand), (cand, base)):
        result = diff(before, after)
        assert adds_up(result)
        kinds = records(result["changes"], "kind", "count")
        assert sum(count for kind, count in kinds if kind.startswith("wrapper")) == 2
        assert {kind for kind, _ in kinds if not kind.startswith("wrapper")} == {"renamed"}
        assert same_share(before, after) == 0.75


trees = st.recursive(
    st.sampled_from("abc").map(lambda name: (name, [])),
    lambda below: st.tuples(st.sampled_from("pqr"), st.lists(below, min_size=1, max_size=4)),
    max_leaves=12,
)
forests = st.lists(trees, min_size=1, max_size=6)


def rewrapped(forest: list[Tree], draw_from: Random, names: str) -> list[Tree]:
    """The same leaves: some nodes gone but for what they are around, and others around some siblings."""
    below: list[Tree] = []
    for name, children in forest:
        inner = rewrapped(children, draw_from, names)
        if children and draw_from.random() < 0.3:
            below += inner
        else:
            below.append((name, inner))
    made: list[Tree] = []
    while below:
        count = draw_from.randint(1, len(below))
        part, below = below[:count], below[count:]
        if draw_from.random() < 0.4:
            made.append((draw_from.choice(names), part))
        else:
            made += part
    return made


def events(forest: list[Tree]) -> list[Event]:
    """The program as a trace: one leaf after the other."""
    made: list[Event] = []

    def op(name: str, start: float, end: float) -> Event:
        times = {"pid": CPU_PID, "tid": MAIN_TID, "ts": start, "dur": end - start}
        return {"ph": "X", "cat": "cpu_op", "name": name, **times, "args": {}}

    def put(tree: Tree, start_us: float) -> float:
        name, children = tree
        if children:
            position = len(made)
            end = start_us
            for child in children:
                end = put(child, end)
            made.insert(position, op(name, start_us, end))  # outer ones before inner ones of the same extent
            return end
        number = sum(event["cat"] == "kernel" for event in made) + 1
        made.append(op(name, start_us + 1, start_us + LEAF_US - 1))
        launch = {
            **op("cudaLaunchKernel", start_us + 2, start_us + 4),
            "cat": "cuda_runtime",
            "args": {"correlation": number},
        }
        about = {"device": GPU_PID, "stream": 7, "correlation": number}
        work = {"ph": "X", "cat": "kernel", "name": f"k_{name}", "pid": GPU_PID, "tid": 7}
        made.extend((launch, {**work, "ts": start_us + 5, "dur": 3, "args": about}))
        return start_us + LEAF_US

    start_us = 0.0
    for tree in forest:
        start_us = put(tree, start_us)
    return made


@given(forests, st.randoms(use_true_random=False), st.sampled_from(("vw", "vwpab", "pq")))
def test_leaves_stay_matched_whatever_is_around_them(
    forest: list[Tree], draw_from: Random, names: str
) -> None:
    base, cand = (make_run([read(events(trees))]) for trees in (forest, rewrapped(forest, draw_from, names)))
    for before, after in ((base, cand), (cand, base)):
        result = diff(before, after)
        assert adds_up(result)
        assert not result["waterfall"]["delta_ns"].any()
        assert same_share(before, after) == 1


@cache
def program() -> Program:
    return Program("one_gpu/grouped")


def _without(kept: Callable[[Event], bool]) -> list[Event]:
    return [event for event in program().events if kept(event)]


def _without_engine() -> list[Event]:
    return _without(lambda event: not str(event["name"]).startswith("autograd::engine"))


def _without_marks() -> list[Event]:
    return _without(lambda event: not str(event["name"]).startswith("ProfilerStep"))


def _without_frames() -> list[Event]:
    return _without(lambda event: event.get("cat") != "python_function")


def _renamed() -> list[Event]:
    return [
        {**event, "name": str(event["name"]).replace("autograd::engine::evaluate_function", "engine")}
        for event in program().events
    ]


def _wrapped(times: int) -> list[Event]:
    """Every second op in a new scope."""

    def made() -> Iterator[Event]:
        seen = 0
        for event in program().events:
            if event.get("cat") == "cpu_op":
                seen += 1
                if seen % 2:
                    for number in range(times):
                        yield {**event, "cat": "user_annotation", "name": f"wrap{number}", "args": {}}
            yield event

    return list(made())


VARIANTS: dict[str, tuple[Callable[[], list[Event]], float]] = {
    # Scopes that begin in one of these ops and end in another then hold other calls than before.
    "without autograd's engine": (_without_engine, 0.96),
    "without steps": (_without_marks, 0.98),
    "without frames": (_without_frames, 1.0),
    "renamed": (_renamed, 0.98),
    "wrapped": (lambda: _wrapped(1), 1.0),
    "wrapped twice": (lambda: _wrapped(2), 1.0),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_real_trace_inside_other_scopes(variant: str) -> None:
    make, least = VARIANTS[variant]
    base, cand = (make_run([read(source, **program().header)]) for source in (program().events, make()))
    for before, after in ((base, cand), (cand, base)):
        result = diff(before, after)
        assert adds_up(result)
        if variant != "without steps":  # a step of the one is not all of the other
            assert result.meta["delta_ns"] == 0
        share = same_share(before, after)
        print(f"{variant}: {share:.2%} of GPU time told as the same calls")
        assert share >= least
        assert np.isfinite(result["waterfall"]["fraction_of_difference"]).all()
