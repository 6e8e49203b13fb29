"""Each answer of the cookbook is short, prints what the page shows, and agrees with another computation.

UPDATE_GOLD=1 writes the outputs into the page.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pytest

import tracelens
from tracelens.devices import device

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "cookbook.md"
MOST_LINES = 3
BLOCK = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n(?P<output>.*?)```\n)?", re.DOTALL)
SHOWN = ("display.width", 80, "display.max_columns", 20)
"""What pandas does where it does not write to a terminal."""

Names = dict[str, Any]


class Answer(NamedTuple):
    """One question of the page: its code, the output shown, and the value of the last line."""

    code: str
    shown: str | None
    value: Any


def evaluated(code: str, names: Names) -> Any:
    """Run some lines; the value of the last one, None for a statement."""
    *before, last = ast.parse(code).body
    is_value = isinstance(last, ast.Expr)
    exec(compile(ast.Module(before if is_value else [*before, last], []), str(PAGE), "exec"), names)
    return eval(compile(ast.Expression(last.value), str(PAGE), "eval"), names) if is_value else None


@pytest.fixture(scope="module")
def answers() -> dict[str, Answer]:
    """All answers by question, run in the order of the page."""
    intro, *sections = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    (setup,) = BLOCK.finditer(intro)
    made, names = {}, Names()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        evaluated(setup["code"], names)
        for section in sections:
            (block,) = BLOCK.finditer(section)
            value = evaluated(block["code"], names)
            made[section.splitlines()[0]] = Answer(block["code"], block["output"], value)
    return made


@pytest.fixture(scope="module")
def run() -> tracelens.Run:
    return tracelens.load(ROOT / "sample_traces/ladder/ep4/00_baseline")


def test_answers_are_short(answers: dict[str, Answer]) -> None:
    assert len(answers) >= 10
    for question, answer in answers.items():
        assert question.endswith("?")
        assert len(answer.code.splitlines()) <= MOST_LINES, question
        assert max(map(len, answer.code.splitlines())) <= 115, question


def printed(value: Any) -> str:
    with pd.option_context(*SHOWN):
        return "".join(f"{line.rstrip()}\n" for line in str(value).splitlines())


def test_outputs_are_those_of_the_page(answers: dict[str, Answer]) -> None:
    if os.environ.get("UPDATE_GOLD"):
        text = PAGE.read_text()
        for answer in answers.values():
            code = f"```python\n{answer.code}```\n"
            old = code if answer.shown is None else f"{code}\n```text\n{answer.shown}```\n"
            text = text.replace(old, f"{code}\n```text\n{printed(answer.value)}```\n")
        PAGE.write_text(text)
        pytest.skip("outputs written")
    for question, answer in answers.items():
        assert answer.shown == printed(answer.value), question


def experts(value: pd.DataFrame, run: tracelens.Run) -> None:
    passes = tracelens.analyze(run, "moe", step=24)["passes"]
    assert value["sum"].sum() == passes[passes["rank"] == 0]["experts_ns"].sum()
    assert value["sum"].is_monotonic_decreasing


def all_to_all(value: pd.DataFrame, run: tracelens.Run) -> None:
    """From the recorded kernels: the n-th all-to-all of each rank is the same one."""
    rows = []
    for trace in run.traces:
        recorded = trace.collectives[trace.collectives["collective"] == "all_to_allv"]
        recorded = recorded.assign(dur_ns=trace.events["dur_ns"].to_numpy()[recorded["kernel_id"]])
        largest = recorded[["in_bytes", "out_bytes"]].max(axis=1)
        rows.append(recorded.assign(bytes=largest, number=range(len(recorded))))
    each = pd.concat(rows).groupby("number").agg({"bytes": "max", "dur_ns": "min"})
    expected = each.groupby("bytes")["dur_ns"].median()
    assert value["latency_ns"].astype(float).to_dict() == expected.to_dict()
    # The rate of an uneven one is that of the rank that moved most per time, at times over a longer one.
    busbw = [size / ns * 3 / 4 * 1e9 for size, ns in expected.items() if size == 51048448]
    assert value["busbw_bytes_per_s"][51048448] == pytest.approx(busbw[0], rel=0.03)


def late(value: pd.DataFrame, _: tracelens.Run) -> None:
    """The fault that was injected, see sample_traces/faults/MANIFEST.toml."""
    first = value.iloc[0]
    assert (first["rank"], first["cause"], first["significant"]) == (1, "slow_kernels", True)


def layers(value: pd.DataFrame, run: tracelens.Run) -> None:
    passes = tracelens.analyze(run, "moe")["passes"]
    own = passes[passes["rank"] == 0].groupby("layer")
    for stage in value.columns:
        expected = own[f"{stage.replace(' ', '_')}_ns"].sum() / 1e6
        assert value[stage].to_dict() == pytest.approx(expected.to_dict(), abs=1e-3)


def tokens(value: pd.DataFrame, run: tracelens.Run) -> None:
    """Rows of the expert GEMMs with weights of one size, from the shapes of their ops."""
    ops = run.ops().query("stage == 'experts' and phase == 'forward' and name == 'aten::mm'")
    sizes = ops["shapes"].astype(str).str.extract(r"\[(\d+),(\d+)\] \w+\[\d+,(\d+)\]").astype(int)
    rows = sizes.assign(layer=ops["layer"], rank=ops["rank"]).groupby(["layer", "rank", 1, 2])[0].sum()
    for (layer, rank, *_), count in rows.items():
        assert value["tokens"][layer, rank] * (count // value["tokens"][layer, rank]) == count


def slow_gemms(value: float, run: tracelens.Run) -> None:
    h200 = device("h200")
    kernels = run.kernels(rank=0)
    gemms = kernels[(kernels["category"] == "gemm") & (kernels["step"] == "ProfilerStep#24")]
    slow = 0
    for row in gemms.itertuples():
        least = max(
            row.flops / (h200.peak("matrix", row.dtype) or 1),
            (row.read_bytes + row.write_bytes) / h200.hbm_bytes_per_s,
        )
        slow += row.dur_ns if least * 1e9 < 0.5 * row.dur_ns else 0
    timeline = tracelens.analyze(run, "timeline", step=24)["timeline"].query(
        "rank == 0 and metric == 'total'"
    )
    assert value == pytest.approx(slow / timeline["dur_ns"].iloc[0], abs=1e-4)


def idle(value: pd.DataFrame, run: tracelens.Run) -> None:
    """The longest time in which no GPU event of the rank runs, by a loop over events."""
    events = run.traces[1].events
    work = events[events["kind"].isin(["kernel", "memcpy", "memset"])].sort_values("ts_ns")
    reached, longest = work["ts_ns"].iloc[0], 0
    for row in work.itertuples():
        longest, reached = max(longest, row.ts_ns - reached), max(reached, row.ts_ns + row.dur_ns)
    assert value.iloc[0][["rank", "dur_ns"]].tolist() == [1, longest]


def slower(value: pd.Series[int], run: tracelens.Run) -> None:
    """Times of the kernels of each op, from the links of the trace."""
    after = tracelens.load(ROOT / "sample_traces/ladder/ep4/01_grouped_gemm")
    times = []
    for side in (run, after):
        total: dict[str, int] = {}
        for trace in side.traces:
            links, events = trace.links[trace.links["op_id"] >= 0], trace.events
            names = events["name"].astype(str).to_numpy()[links["op_id"]]
            for name, ns in zip(names, events["dur_ns"].to_numpy()[links["kernel_id"]], strict=True):
                total[name] = total.get(name, 0) + int(ns)
        times.append(total)
    for name, ns in value.items():
        assert ns == times[1][name] - times[0].get(name, 0), name


def exposed(value: pd.DataFrame, run: tracelens.Run) -> None:
    overlap = tracelens.analyze(run, "overlap")["overlap"].query("rank == 0 and group != '(all)'")
    expected = {(row.group, row.collective): row.exposed_ns / 1e6 for row in overlap.itertuples()}
    assert value["exposed_ns"].to_dict() == pytest.approx(
        {key: ns for key, ns in expected.items() if key in value.index}, abs=1e-3
    )
    assert len(value) == sum(key[1] != "(all)" for key in expected)
    assert (value["wait_ns"] + value["comm_ns"]).tolist() == pytest.approx(value["dur_ns"].tolist(), abs=2e-3)


def memory_bound(value: pd.DataFrame, run: tracelens.Run) -> None:
    table = tracelens.analyze(run, "roofline")["roofline"].query("rank == 0 and bound == 'memory'")
    expected = table.groupby("name")[["dur_ns", "roofline_ns"]].sum()
    for name, row in value.iterrows():
        assert row["dur_ns"] == expected["dur_ns"][name]
        assert row["roofline_ns"] == pytest.approx(expected["roofline_ns"][name], abs=50)


def launch_bound(value: pd.Series[float], run: tracelens.Run) -> None:
    """The median over a step, from the links of the trace; each phase has its share of both sides."""
    trace = run.traces[0]
    start = trace.events["ts_ns"].to_numpy()
    links = trace.links[trace.links["launch_id"] >= 0]
    queued = sorted((start[links["kernel_id"]] - start[links["launch_id"]]).tolist())
    kernels = run.kernels(rank=0)
    assert sorted((kernels["ts_ns"] - kernels["launch_ts_ns"]).dropna().tolist()) == queued
    assert value.min() < 20_000 < value.max()


def faster(value: pd.DataFrame, run: tracelens.Run) -> None:
    steps = tracelens.analyze(run, "steps")["steps"].query("step == 'ProfilerStep#24'")
    assert value["base_ns"].tolist() == pytest.approx([steps["dur_ns"].max()] * 2, rel=0.05)
    projected = value.set_index("scenario")["projected_ns"]
    assert projected["launch_free"] < projected["all_to_all_bandwidth=2x"] <= value["base_ns"].max()


def rates(value: pd.Series[float], run: tracelens.Run) -> None:
    """FLOPs of the expert GEMMs by 2 M N K, which are nearly all of that stage."""
    kernels = run.kernels(rank=0)
    kernels = kernels[kernels["stage"] == "experts"]
    sizes = kernels.loc[kernels["op"] == "aten::mm", "shapes"].astype(str)
    m_k_n = sizes.str.extract(r"\[(\d+),(\d+)\] \w+\[\d+,(\d+)\]").astype(float)
    flops = 2 * m_k_n.prod(axis=1).sum()
    assert value["experts"] == pytest.approx(flops / kernels["dur_ns"].sum() / 1e3, rel=0.02)


def uncounted(value: pd.Series[int], _: tracelens.Run) -> None:
    serving = tracelens.load(ROOT / "sample_traces/serving/tbo_token")
    coverage = tracelens.analyze(serving, "roofline")["coverage"]
    without = coverage[~coverage["status"].str.startswith("modelled")]
    assert 0 < value.sum() <= without["dur_ns"].sum()


CHECKS: dict[str, Callable[[Any, tracelens.Run], None]] = {
    "Which kernels of the expert stage take the most time in step 24?": experts,
    "How does all-to-all latency grow with size?": all_to_all,
    "Which rank is late, and why?": late,
    "Where does the time of each MoE layer go?": layers,
    "Does an uneven token distribution cost expert time?": tokens,
    "What share of a step is in GEMMs below 50% of the roofline?": slow_gemms,
    "What are the longest idle gaps, and what causes them?": idle,
    "Which ops got slower between two runs?": slower,
    "How much communication is exposed, and in which process group?": exposed,
    "Which ops are memory-bound, and what would a perfect kernel save?": memory_bound,
    "Where is the run launch-bound?": launch_bound,
    "What if all-to-alls were twice as fast?": faster,
    "What rate do the stages of the MoE layers reach?": rates,
    "Which GPU time has no FLOPs, and why?": uncounted,
}


def test_every_answer_is_checked(answers: dict[str, Answer]) -> None:
    assert set(answers) == set(CHECKS)


@pytest.mark.parametrize("question", CHECKS)
def test_answer(question: str, answers: dict[str, Answer], run: tracelens.Run) -> None:
    CHECKS[question](answers[question].value, run)
