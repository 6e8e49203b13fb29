"""Random edits of real traces: diff and gate name the same sign, cause and size, the true ones."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache

import pytest

import tracelens
from tests.conformance.timed_edits import COMM, IDLE, ONE_SIDED, SAME, WAIT, Edit, Program, random_edit
from tests.reference.traces import path_of
from tracelens.compare.gate import RuleOutcome, Verdict, headline
from tracelens.table import Result
from tracelens.units import amount

EDITS = {
    "sample_traces/toggles/baseline": 32,
    "sample_traces/toggles/fp8": 24,
    "sample_traces/toggles/multistream": 24,
    "sample_traces/one_gpu/grouped": 24,
    "sample_traces/one_gpu/loop": 16,
    "sample_traces/toggles/tensor": 32,
    "sample_traces/toggles/exchange": 16,
    "sample_traces/toggles/tensor_chunked": 16,
    "sample_traces/faults/control": 16,
    "corpus/mi300x/gaunernst_bert-small-uncased__1016001.json.gz": 16,
    "corpus/mi300x/Falconsai_nsfw_image_detection__1016002.json.gz": 16,
    "corpus/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz": 16,
    "foreign/mi300x-serving/sglang_decode/sglang_Qwen3-8B_decode.json.gz": 16,
    "foreign/nvidia-h200-hf/dsv2_grouped_compile.json.zst": 16,
}
"""Edits of each trace: 200 of the samples, and more of traces that are not in the repository."""

OFTEN = 8
"""Edits of each trace that are not rare: every kind of edit is among those of all traces."""

COMPUTED = (SAME, ONE_SIDED)
ROUNDED_NS = 50  # an edit rounds each of its spans to a nanosecond, a table each of its rows
TIMES = (
    "idle.time<=1.01",
    "exposed_comm.time<=1.01",
)  # in ns; the built-in rules have shares of single steps
MISPAIRED_SHARE = 0.06
"""Of a change with calls on one side only, what other classes may get.

Where a call is gone among others of its name, the rest may be paired with calls of other shapes or durations.
That is so in 7 of the 280 edits, by 5.1% at most; all edits of one op name it, its count and its time.
"""


@cache
def program(name: str) -> Program:
    return Program(path_of(name))


def by_class(result: Result) -> Counter[str]:
    """Differences in ns per step, idle time of all causes as one."""
    table = result["waterfall"]
    rows = table[table["level"] == "cause"]
    found: Counter[str] = Counter()
    for name, delta_ns in zip(rows["name"].astype(str), rows["delta_ns"].tolist(), strict=True):
        found[IDLE if name.startswith(IDLE) else name] += delta_ns
    return found


def check_diff(edit: Edit, result: Result) -> None:
    total_ns, found = sum(edit.delta_ns.values()), by_class(result)
    changed_ns = sum(map(abs, edit.delta_ns.values())) if ONE_SIDED in edit.delta_ns else 0
    margin_ns = ROUNDED_NS + MISPAIRED_SHARE * changed_ns
    assert result.meta["delta_ns"] == pytest.approx(total_ns, abs=ROUNDED_NS)
    for name in {*found, *edit.delta_ns}:
        assert found[name] == pytest.approx(edit.delta_ns.get(name, 0), abs=margin_ns), name
    if not edit.delta_ns:
        assert not any(found.values())
        assert not len(result["changes"])
    if edit.op:
        table = result["waterfall"]
        ops = table[(table["level"] == "op") & (table["name"] != "(idle)")]
        top = ops.iloc[ops["delta_ns"].abs().argmax()]
        assert top["name"] == edit.op
        computed_ns = sum(edit.delta_ns.get(name, 0) for name in COMPUTED)
        assert top["delta_ns"] == pytest.approx(computed_ns, abs=ROUNDED_NS)
        assert top["cand_count"] - top["base_count"] == pytest.approx(edit.calls)


def check_gate(edit: Edit, verdict: Verdict, times: Verdict) -> None:
    """The parts that the gate measures change as the edit did, and none fails that did not grow."""
    outcomes = {outcome.metric: outcome for outcome in (*verdict.outcomes, *times.outcomes)}
    computed_ns = sum(edit.delta_ns.get(name, 0) for name in COMPUTED)
    comm_ns = edit.delta_ns.get(COMM, 0) + edit.delta_ns.get(WAIT, 0)
    assert delta(outcomes["step.time"]) == pytest.approx(sum(edit.delta_ns.values()), abs=ROUNDED_NS)
    assert delta(outcomes["computation.time"]) == pytest.approx(computed_ns, abs=ROUNDED_NS)
    assert delta(outcomes["kernel.count"]) == pytest.approx(edit.calls)
    grown = {
        "step.time": sum(edit.delta_ns.values()),
        "computation.time": computed_ns,
        "kernel.count": edit.calls,
        "exposed_comm.fraction": comm_ns,
        "idle.fraction": edit.delta_ns.get(IDLE, 0),
    }
    assert all(grown[outcome.metric] > 0 for outcome in verdict.failed)
    for metric in ("exposed_comm", "idle"):
        assert delta(outcomes[f"{metric}.time"]) == pytest.approx(grown[f"{metric}.fraction"], abs=ROUNDED_NS)
    for outcome in verdict.outcomes:
        if outcome.status == "pass" and outcome.rule.kind == "ratio":  # it says that more would have shown
            assert outcome.interval.estimate <= max(outcome.shown, outcome.rule.limit)
    if not edit.delta_ns:
        assert verdict.verdict == "pass"
        assert not verdict.causes


def check_agreement(edit: Edit, result: Result, verdict: Verdict) -> None:
    """What the two say in words."""
    outcomes = {outcome.metric: outcome for outcome in verdict.outcomes}
    text = headline(verdict)
    assert delta(outcomes["step.time"]) == pytest.approx(result.meta["delta_ns"], abs=2)
    if verdict.verdict != "pass":
        # The gate's largest cause is the largest row of the diff.
        rows = result["waterfall"]
        rows = rows[rows["level"] == "cause"]
        top = rows.iloc[rows["delta_ns"].abs().argmax()]
        assert verdict.causes[0].name.startswith(top["name"])
        assert verdict.causes[0].delta_ns == top["delta_ns"]
    if result.meta["step_noise"] == "beyond" and result.meta["delta_ns"] > 0:
        assert outcomes["step.time"].status == "fail"
    if outcomes["step.time"].status == "fail":
        assert result.meta["step_noise"] != "within"
    if outcomes["computation.time"].status == "fail":
        if edit.op:
            more = f"{edit.calls:.3g} more {edit.op}" if edit.calls > 0 else f"most in {edit.op}"
            assert more[:60] in text
        assert f"+{amount(delta(outcomes['computation.time']), 'ns')} of GPU work" in text
    if edit.calls:
        assert not re.search(r"kernels( and [^;]*)? unchanged", text)
    if outcomes["kernel.count"].status == "fail":
        assert f"+{amount(edit.calls, 'count')} kernels" in text


def delta(outcome: RuleOutcome) -> float:
    return outcome.candidate - outcome.base


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        pytest.param(name, seed, marks=[pytest.mark.rare] * (seed >= OFTEN))
        for name, edits in EDITS.items()
        for seed in range(edits)
    ],
)
def test_diff_and_gate_name_the_edit(name: str, seed: int) -> None:
    original = program(name)
    edit = random_edit(original, seed)
    changed = original.edited(edit)
    result = tracelens.diff(original.base, changed)["diff"]
    verdict = tracelens.gate(original.base, changed)
    check_diff(edit, result)
    check_gate(edit, verdict, tracelens.gate(original.base, changed, TIMES, why=False))
    check_agreement(edit, result, verdict)


def test_there_are_200_edits_without_traces_from_elsewhere() -> None:
    assert sum(edits for name, edits in EDITS.items() if name.startswith("sample_traces/")) == 200
