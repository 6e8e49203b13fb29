"""Steps from the JSON: the parts add up, and every analyzer says the same lengths."""

from functools import cache
from pathlib import Path

import pytest

import tracelens
from tests.reference.raw import read
from tests.reference.steps import Steps, owners, steps
from tests.reference.traces import (
    EP8,
    GROUPED_COMPILE,
    INTERLEAVED,
    PLAIN,
    PP2EP4,
    PP2VPP2EP4,
    path_of,
)
from tracelens.trace import Run, select_step

MS = 1_000_000
# The parameter all-gather that ends a step runs behind the last kernel of the busiest stream.
TAIL = [
    "foreign/nvidia-h200-megatron/faults/host_delay/rank5.json.zst",
    f"{PP2VPP2EP4}/rank0.json.zst",
    f"{PP2EP4}/rank0.json.gz",
    f"{EP8}/rank3.json.gz",
]
# The GPU still works on steps from before the recording when the first mark begins.
BACKLOG = [
    GROUPED_COMPILE,
    "foreign/nvidia-h200-hf/dsv2_grouped_stack_mem.json.zst",
    "corpus/nvidia-h100-hf/dsv2_grouped.json.gz",
    "corpus/mi300x/resnet_act_checkpoint.json.gz",
    "corpus/misc/hta_test.json.gz",
    "corpus/misc/negative_queue.json.gz",
]
IN_STEP = [
    f"{PLAIN}/rank1.json.zst",
    f"{INTERLEAVED}/rank0.json.zst",
    "sample_traces/one_gpu/loop/rank0.json.gz",
]
TRACES = [*TAIL, *BACKLOG, *IN_STEP]
ANALYZERS = ["steps", "timeline", "breakdown", "roofline", "--step"]


@cache
def reference(path: Path) -> Steps:
    return steps(read(path))


@cache
def loaded(path: Path) -> Run:
    return tracelens.load(path)


def step_lengths(path: Path) -> dict[str, int]:
    return {step.name: step.end - step.start for step in reference(path).steps}


def test_grouped_compile_whose_host_runs_ahead() -> None:
    recording = read(path_of(GROUPED_COMPILE))
    first, second = steps(recording).steps
    since_begin = [time - recording.begin for time in (first.start, first.end, second.end)]
    assert [round(time / MS, 1) for time in since_begin] == [31.4, 77.7, 123.8]
    assert [round((step.end - step.start) / MS, 1) for step in (first, second)] == [46.3, 46.1]
    assert (first.count, second.count) == (703, 703)
    assert steps(recording).outside_count == 356


@pytest.mark.parametrize("name", TRACES)
def test_parts_add_up(name: str) -> None:
    recording = read(path_of(name))
    parts = reference(path_of(name))
    begin, end = parts.window
    inside = sum(max(min(step.end, end) - max(step.start, begin), 0) for step in parts.steps)
    assert inside + parts.outside_ns == end - begin
    total = sum(work.dur for work in recording.work)
    assert sum(step.kernel for step in parts.steps) + parts.outside_kernel == total
    assert sum(step.count for step in parts.steps) + parts.outside_count == len(recording.work)
    assert sum(step.busy for step in parts.steps) <= parts.busy
    edges = [time for step in parts.steps for time in (step.start, step.end)]
    assert edges == sorted(edges)


@pytest.mark.parametrize("name", TRACES)
def test_work_ends_in_its_step(name: str) -> None:
    """It may begin in the step before, as copies of the next batch do, but is done when its step ends."""
    recording = read(path_of(name))
    end = {step.name: step.end for step in reference(path_of(name)).steps}
    for work, step in zip(recording.work, owners(recording), strict=True):
        assert work.end <= end.get(step, work.end)


def lengths_of(analyzer: str, run: Run) -> dict[str, int]:
    """Length of each step by one analyzer, ns."""
    if analyzer == "--step":
        windows = [select_step(run, name).traces[0].window for name in step_names(run)]
        return {window.label: window.end - window.start for window in windows if window is not None}
    table, column = {
        "steps": ("steps", "dur_ns"),
        "timeline": ("steps", "total_ns"),
        "breakdown": ("breakdown", "exclusive_ns"),
        "roofline": ("utilisation", "dur_ns"),
    }[analyzer]
    rows = tracelens.analyze(run, analyzer)[table]
    if analyzer == "breakdown":
        rows = rows[rows["level"] == "step"].assign(step=lambda nodes: nodes["name"])
    steps_of = rows["step"].astype(str).tolist()
    return {
        name: int(dur)
        for name, dur in zip(steps_of, rows[column].tolist(), strict=True)
        if name.startswith("ProfilerStep#")
    }


def step_names(run: Run) -> list[str]:
    return [name for name in run.traces[0].arrays.names if name.startswith("ProfilerStep#")]


@pytest.mark.parametrize("analyzer", ANALYZERS)
@pytest.mark.parametrize("name", TRACES)
def test_every_analyzer_has_the_same_steps(name: str, analyzer: str) -> None:
    path = path_of(name)
    assert lengths_of(analyzer, loaded(path)) == step_lengths(path)
