"""Replays of one program against the same program run eagerly, recorded on an H200 (torch 2.11).

A MoE model of three batch sizes, on one stream and with its shared expert on a second one, a Hugging Face
model with stacks, a compiled model (reduce-overhead), and a training step. Traces: <kind>_eager, _capture,
_replay, _all (warm-up, captures and replays in one) in the folder TRACELENS_GRAPHS.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest

from tests.reference.traces import ROOT
from tracelens.read import GraphSources, parse
from tracelens.trace import Trace, Work, gpu_work

FOLDER = Path(os.environ.get("TRACELENS_GRAPHS", ROOT.parent / "shared" / "graphs"))

pytestmark = pytest.mark.skipif(not FOLDER.exists(), reason="no recordings of graphs: set TRACELENS_GRAPHS")

THREE_TWICE = ((0, 186), (372, 558), (744, 930))
"""Kernels of the first of two eager passes of each batch size."""
COMPILED = ((0, 118), (236, 354), (472, 610))
_OUTER = re.compile(r"(?:eager|replay|warmup) bs|pass \d|capture_|ProfilerStep|#|## Call")

Content = tuple[str, str, tuple[str, ...]]


def load(name: str, captures: str = "", twin: str = "") -> Trace:
    sources = (str(FOLDER / f"{other}.json.gz") if other else "" for other in (captures, twin))
    (trace,) = parse(str(FOLDER / f"{name}.json.gz"), graphs=GraphSources(*sources))
    return trace


def contents(trace: Trace, work: Work, rows: np.ndarray) -> list[Content]:
    """Op, shapes and module of each piece of work."""
    events, ops = trace.arrays, trace.tables["ops"]
    row_of = {event: row for row, event in enumerate(ops.array("event_id").tolist())}
    shapes = ops.coded("shapes")
    is_frame = events.where("annotation") | events.named(lambda name: name.startswith("nn.Module: "))
    found = []
    for call, op in zip(work.host_call[rows].tolist(), work.op[rows].tolist(), strict=True):
        modules, above = [], call
        while above >= 0:
            name = events.names[events.name[above]]
            if is_frame[above] and not _OUTER.match(name):
                modules.append(name)
            above = int(events.parent[above])
        if op < 0:
            found.append(("", "", tuple(modules)))
        else:
            name = events.names[events.name[op]]
            found.append((name, shapes.values[shapes.codes[row_of[op]]], tuple(modules)))
    return found


def eager_work(trace: Trace) -> tuple[Work, np.ndarray]:
    """The work of an eager run, and its positions in the order of the program."""
    work = gpu_work(trace)
    return work, np.argsort(trace.arrays.start[work.launch], kind="stable")


Kernel = tuple[str, int]
"""Name and number of thread blocks."""


def kernels(trace: Trace, work: Work, rows: np.ndarray) -> list[Kernel]:
    blocks = trace.tables["events"].array("blocks")
    return [(work.names[work.name[row]], int(blocks[work.event[row]])) for row in rows.tolist()]


def in_program_order(names: list[Kernel], replayed: list[Kernel], stream: np.ndarray) -> list[int]:
    """Positions of replayed work, each stream in its order, as the eager run has its kernels."""
    queues = {number: np.flatnonzero(stream == number).tolist() for number in np.unique(stream).tolist()}
    order: list[int] = []
    last = -1
    for name in names:
        fits = [number for number, queue in queues.items() if queue and replayed[queue[0]] == name]
        last = last if last in fits else min(fits, key=lambda number: queues[number][0])
        order.append(queues[last].pop(0))
    return order


CAPTURE, TWIN, ALONE = ("replay", "capture", ""), ("replay", "", "eager"), ("all", "", "")
CASES = [
    *(("one", THREE_TWICE, *sources) for sources in (CAPTURE, TWIN, ALONE)),
    *(("two", THREE_TWICE, *sources) for sources in (("replay", "capture", "eager"), TWIN, ALONE)),
    *(("hf", ((0, 411),), *sources) for sources in (CAPTURE, TWIN)),
    *(("compile", COMPILED, *sources) for sources in (("replay", "all", ""), TWIN, ALONE)),
]


@pytest.mark.parametrize(("kind", "parts", "name", "captures", "twin"), CASES)
def test_what_a_graph_replays_is_what_the_eager_run_says(
    kind: str, parts: tuple[tuple[int, int], ...], name: str, captures: str, twin: str
) -> None:
    """Op, shapes and module of at least 99.5% of the time; none of it is another op's."""
    trace = load(f"{kind}_{name}", captures and f"{kind}_{captures}", twin and f"{kind}_{twin}")
    eager = load(f"{kind}_eager")
    truth_work, program = eager_work(eager)
    work = gpu_work(trace)
    graph = trace.arrays.named(lambda text: "GraphLaunch" in text)
    calls = np.unique(work.launch[(work.launch >= 0) & graph[work.launch]])
    right = wrong = total = 0
    for number, call in enumerate(calls[np.argsort(trace.arrays.start[calls], kind="stable")].tolist()):
        first, last = parts[number % len(parts)]
        expected = program[first:last]
        rows = np.flatnonzero(work.launch == call)
        order = in_program_order(
            kernels(eager, truth_work, expected), kernels(trace, work, rows), work.stream[rows]
        )
        rows = rows[order]
        pairs = zip(contents(trace, work, rows), contents(eager, truth_work, expected), strict=True)
        for row, (content, expected_content) in zip(rows.tolist(), pairs, strict=True):
            dur = int(work.dur[row])
            total += dur
            right += dur * (content == expected_content)
            wrong += dur * (content[0] not in ("", expected_content[0]))
    assert total
    assert right / total >= 0.995
    assert wrong == 0


def test_streams_without_names_stay_unattributed() -> None:
    """CUDA's captures name no kernel: nothing says on which stream a call's kernel ran."""
    trace = load("two_replay", "two_capture")
    assert not trace.arrays.copied.any()


def test_training_step() -> None:
    """Forward and backward graph: from the capture and from the eager run the same ops, but for one addition.

    Autograd adds gradients in place in the eager run and out of place in the capture (torch 2.11).
    """
    texts = []
    for captures, twin in (("train_capture", ""), ("", "train_eager")):
        trace = load("train_replay", captures, twin)
        work = gpu_work(trace)
        rows = np.flatnonzero(work.node >= 0)
        texts.append([content[:2] for content in contents(trace, work, rows)])
        names = trace.arrays
        is_backward = [names.names[names.name[row]] != "" for row in work.forward[rows].tolist() if row >= 0]
        assert len(is_backward) == 168
    captured, eager = texts
    assert len(captured) == len(eager) == 291
    differing = {(one[0], other[0]) for one, other in zip(captured, eager, strict=True) if one != other}
    assert differing == {("aten::add", "aten::add_")}
