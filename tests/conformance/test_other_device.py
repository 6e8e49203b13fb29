"""device= against kernels recorded on two GPUs: calls of equal ops, shapes and types in traces of both.

Each kind of call is projected from one GPU to the other and compared with its time there. A kind counts if it
takes 5 us (a shorter one is mostly launch and drain) and was called at least twice on both, or takes 200 us.
"""

from __future__ import annotations

import os
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest

import tracelens
from tests.conformance.corpus import FOREIGN, folder
from tests.conformance.test_recordings import FOLDER as RECORDINGS
from tracelens.analysis.roofline import Counted, costing, least_ns, reachable_time
from tracelens.arrays import Int
from tracelens.devices import device
from tracelens.trace import Run
from tracelens.what_if import Edit, Node, ScenarioContext, parse_request
from tracelens.what_if.graph import Recorded, build

TRUTH = Path(__file__).parent / "truth"
QWEN = "Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"
CORPUS = folder() or Path("no corpus")
ON_H100 = CORPUS / "nvidia-h100-hf/dsv2_grouped.json.gz"
ON_H200 = FOREIGN / "nvidia-h200-hf/dsv2_grouped_stack_mem.json.zst"
TRACES = {
    "h100": (
        CORPUS / "h100" / QWEN,
        ON_H100,
        RECORDINGS / "nvidia-h100-fsdp2/fsdp/rank0.json.gz",
        TRUTH / "third/qwen3.half/rank0.json.zst",
    ),
    "h200": (
        ON_H200,
        RECORDINGS / "nvidia-h200-dsv3/dsv3_grouped/rank0.json.gz",
        TRUTH / "second/glm.half/rank0.json.zst",
    ),
    "mi300x": (CORPUS / "mi300x" / QWEN,),
}
PAIRS = (("h100", "h200"), ("h200", "h100"), ("h100", "mi300x"), ("mi300x", "h100"))
DOCUMENT = Path(__file__).parents[2] / "docs" / "concepts" / "what-if.md"
HEADER = """\
| from, to | kernels | kinds | median error | within 25% | total time | by data sheets | nothing changes |
|---|---|---:|---:|---:|---:|---:|---:|
"""

LEAST_CALLS, SHORT_NS, LONG_NS = 2, 5_000, 200_000


class Calls(NamedTuple):
    """Calls of one kind on one GPU."""

    example: Counted
    measured_ns: list[float]
    projected_ns: dict[str, list[float]]  # by the other GPU


@cache
def recorded_run(path: Path) -> tuple[Run, Recorded]:
    """A run and its graph; skips where it is missing."""
    if not path.exists():
        pytest.skip(f"no {path.name}: set TRACELENS_CORPUS, TRACELENS_FOREIGN and TRACELENS_RECORDINGS")
    run = tracelens.load(path)
    return run, build(run)


def projected_ns(path: Path, scenario: str) -> Int:
    """Durations of a run's nodes under a scenario."""
    run, recorded = recorded_run(path)
    edit = Edit.of(recorded.graph)
    for item, argument in parse_request(scenario).parts:
        item.change(ScenarioContext(recorded, run.traces), edit, argument)
    return edit.dur


@cache
def calls_on(name: str) -> dict[tuple[str, str, str], Calls]:
    """Kinds of calls on a GPU, by op, shapes and type, all GPU work of a call together."""
    kinds: dict[tuple[str, str, str], Calls] = {}
    others = [there for here, there in PAIRS if here == name]
    for path in TRACES[name]:
        run, recorded = recorded_run(path)
        trace, graph = run.traces[0], recorded.graph
        nodes = graph.nodes(0, Node.WORK)
        work, costs = graph.work[nodes], costing(trace, trace.work)
        columns = {"": graph.dur[nodes]}
        columns |= {other: projected_ns(path, f"device={other}")[nodes] for other in others}
        frame = pd.DataFrame({**columns, "item": costs.item[work], "call": costs.call[work]})
        for (number, _), call in frame[frame["item"] >= 0].groupby(["item", "call"]).sum().iterrows():  # type: ignore[misc]
            item = costs.items[int(number)]
            key = (item.name, item.shapes, item.cost.dtype)
            kind = kinds.setdefault(key, Calls(item, [], defaultdict(list)))
            kind.measured_ns.append(float(call[""]))
            for other in others:
                kind.projected_ns[other].append(float(call[other]))
    return kinds


def compared(here: str, there: str) -> pd.DataFrame:
    """Kinds of calls on both GPUs, one row each."""
    rows = []
    on_here, on_there = calls_on(here), calls_on(there)
    for key in on_here.keys() & on_there.keys():
        source, target = on_here[key], on_there[key]
        cost = source.example.cost
        before_ns, after_ns = np.median(source.measured_ns), np.median(target.measured_ns)
        calls = min(len(source.measured_ns), len(target.measured_ns))
        is_known = calls >= LEAST_CALLS or max(before_ns, after_ns) >= LONG_NS
        if cost.link or not is_known or min(before_ns, after_ns) < SHORT_NS:
            continue
        dims = dict(cost.dims)
        grouped = "grouped GEMMs" if dims.get("G", 1) > 1 else "GEMMs"
        sheets = least_ns(cost, device(there)) / least_ns(cost, device(here))
        rows.append(
            {
                "kind": "memory-bound"
                if cost.engine != "matrix"
                else "attention"
                if "Nq" in dims
                else grouped,
                "measured": after_ns,
                "device=": np.median(source.projected_ns[there]),
                "data sheets": before_ns * sheets,
                "nothing changes": before_ns,
                "calls": len(target.measured_ns),
            }
        )
    return pd.DataFrame(rows)


def summary(here: str, there: str) -> pd.DataFrame:
    """Median error by kind of work and way to project, share within 25%, and error of the total time."""
    rows = {}
    for kind, part in compared(here, there).groupby("kind"):
        total_ns = (part["measured"] * part["calls"]).sum()
        row: dict[str, float] = {"kinds": len(part)}
        for way in ("device=", "data sheets", "nothing changes"):
            error = part[way] / part["measured"] - 1
            row[way] = float(error.abs().median())
            row[f"{way} within"] = float((error.abs() <= 0.25).mean())
            row[f"{way} total"] = float((part[way] * part["calls"]).sum() / total_ns - 1)
        rows[kind] = row
    return pd.DataFrame(rows).T


def test_gemms_from_one_vendor_to_the_other() -> None:
    """By data sheets an MI300X would be a third faster than an H100; its GEMMs take a third longer."""
    for here, there in (("h100", "mi300x"), ("mi300x", "h100")):
        gemms = summary(here, there).loc["GEMMs"]
        assert gemms["kinds"] == 4
        assert gemms["device="] <= 0.05
        assert gemms["device= within"] == 1
        assert abs(gemms["device= total"]) <= 0.03
        assert gemms["data sheets"] >= 0.2


@pytest.mark.parametrize(("here", "there"), [("h100", "h200"), ("h200", "h100")])
def test_kernels_between_measured_devices(here: str, there: str) -> None:
    table = summary(here, there)
    assert table.loc["memory-bound", "kinds"] >= 80
    assert table.loc["memory-bound", "device="] < 0.7 * table.loc["memory-bound", "data sheets"]
    assert table.loc["GEMMs", "device="] <= 0.05
    assert abs(table.loc["GEMMs", "device= total"]) <= 0.03


@pytest.mark.parametrize("name", ["h100", "h200"])
def test_gemms_narrower_than_any_that_was_measured(name: str) -> None:
    """Routers to 64 experts in FP32: 2,048 x 2,048, the least that was measured, takes 20 times as long."""
    errors = []
    for calls in calls_on(name).values():
        cost, dims = calls.example.cost, dict(calls.example.cost.dims)
        is_gemm = dims.keys() >= {"M", "N", "K"} and cost.dtype == "fp32" and len(calls.measured_ns) > 1
        if is_gemm and min(dims.values()) == 64:
            needed_ns = reachable_time(calls.example.name, cost, device(name)).ns
            errors.append(needed_ns / float(np.median(calls.measured_ns)) - 1)
    assert len(errors) >= 3
    assert np.abs(errors).max() <= 0.4


def test_the_page_has_this_table() -> None:
    titles = {"h100": "H100", "h200": "H200", "mi300x": "MI300X"}
    lines = []
    for here, there in PAIRS:
        for kind, row in summary(here, there).iterrows():
            lines.append(
                f"| {titles[here]}, {titles[there]} | {kind} | {row['kinds']:.0f} | {row['device=']:.1%} "
                f"| {row['device= within']:.0%} | {row['device= total']:+.1%} | {row['data sheets']:.1%} "
                f"| {row['nothing changes']:.1%} |"
            )
    page = DOCUMENT.read_text(encoding="utf-8")
    head, _, rest = page.partition(HEADER)
    shown, _, tail = rest.partition("\n\n")
    if os.environ.get("UPDATE_GOLD"):
        DOCUMENT.write_text(head + HEADER + "\n".join(lines) + "\n\n" + tail, encoding="utf-8")
    else:
        assert shown.splitlines() == lines


@pytest.mark.parametrize(
    ("here", "there", "name"),
    [(ON_H200, ON_H100, "h100"), (ON_H100, ON_H200, "h200")],
    ids=["h100", "h200"],
)
def test_the_gpu_work_of_a_program_on_another_device(here: Path, there: Path, name: str) -> None:
    """By data sheets alone it would be 15% too much and 11% too little."""

    def work_ns(path: Path, scenario: str) -> int:
        recorded = recorded_run(path)[1]
        graph, window = recorded.graph, recorded.windows[-1]
        dur_ns = projected_ns(path, scenario)
        return int(dur_ns[(graph.kind == Node.WORK) & (window.step_of == window.number)].sum())

    recorded_run(there)
    assert work_ns(here, f"device={name}") == pytest.approx(work_ns(there, "identity"), rel=0.06)
