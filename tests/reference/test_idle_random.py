"""Idle time of small random traces: threads, nested and overlapping events, the profiler's own, streams."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.effort import effort
from tests.reference.host import recorded_of
from tests.reference.idle import gaps_of
from tests.reference.test_idle import blamed, split

NAMES = {
    "cpu_op": ("aten::mm", "aten::item", "c10d::allreduce_", "record_param_comms"),
    "user_annotation": (
        "forward", "Python GC", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
    ),
    "python_function": (
        "train.py(12): step", "torch/utils/data/dataloader.py(700): __next__",
        "torch/profiler/profiler.py(800): step", "torch/autograd/profiler.py(854): __enter__",
    ),
    "cuda_runtime": (
        "cudaLaunchKernel", "cudaLaunchKernel", "hipGraphLaunch", "cudaMemcpyAsync", "hipMemcpyWithStream",
        "cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaMalloc", "cudaEventQuery",
    ),
}  # fmt: skip
OVERHEAD = ("Buffer Flush", "Activity Buffer Request", "Command Buffer Full")
COPIES = (
    "Memcpy HtoD (Pinned -> Device)",
    "Memcpy DtoH (Device -> Pageable)",
    "Memcpy DtoD (Device -> Device)",
)
PROCESS, BEGIN = 7, 10_000


def event(
    category: str, name: str, thread: tuple[int, int], start: int, end: int, **args: int
) -> dict[str, Any]:
    pid, tid = thread
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": start,
        "dur": end - start,
        "args": args,
    }


def random_trace(random: Random) -> list[dict[str, Any]]:
    """Events with times in ns."""
    total = random.choice([50_000, 1_000_000, 8_000_000, 30_000_000])
    events: list[dict[str, Any]] = []
    for tid in range(1, random.randint(1, 3) + 1):
        nested(random, events, (PROCESS, tid), BEGIN, BEGIN + total, 0)
    for _ in range(random.randint(0, 2)):
        start = BEGIN + random.randrange(total)
        events.append(
            event("overhead", random.choice(OVERHEAD), (-1, 0), start, start + random.randrange(total // 4))
        )
    if random.random() < 0.5:
        # The annotation may begin in one event and end in another.
        low, high = sorted(BEGIN + random.randrange(total) for _ in range(2))
        events.append(event("user_annotation", "ProfilerStep#3", (PROCESS, 1), low, high + 1))
    return events + gpu_work(random, events, total)


def nested(
    random: Random, events: list[dict[str, Any]], thread: tuple[int, int], low: int, high: int, depth: int
) -> None:
    for _ in range(random.randint(0, 5 - depth)):
        if high - low < 100:
            return
        start = low + int(random.random() ** 2 * 0.5 * (high - low))
        end = start + 2 + int(random.random() ** 2 * (high - start - 2))
        category = random.choice(list(NAMES))
        args = {"correlation": len(events) + 1} if category == "cuda_runtime" else {}
        events.append(event(category, random.choice(NAMES[category]), thread, start, end, **args))
        if depth < 3 and not args:
            nested(random, events, thread, start, end, depth + 1)
        # Now and then the next event begins before this one is over.
        low = end - (random.randrange(min(500, end - start)) if random.random() < 0.1 else 0)


def gpu_work(random: Random, events: list[dict[str, Any]], total: int) -> list[dict[str, Any]]:
    work = []
    free = {7: 0, 20: 0}
    calls = [call for call in events if call["args"] and random.random() < 0.8]
    for call in sorted(calls, key=lambda call: call["ts"]):
        stream = random.choice([7, 7, 20])
        for _ in range(random.randint(1, 3) if "Graph" in call["name"] else 1):
            delay = random.choice([1_000, 100_000, 400_000])
            start = max(free[stream], call["ts"] + 1 + int(random.random() * delay))
            free[stream] = start + 1 + int(random.random() ** 3 * total * random.choice([0.001, 0.02, 0.3]))
            is_copy = "emcpy" in call["name"]
            category, name = ("gpu_memcpy", random.choice(COPIES)) if is_copy else ("kernel", "gemm")
            number = call["args"]["correlation"] if random.random() < 0.95 else 1_000_000 + len(work)
            args = {"device": 0, "stream": stream, "correlation": number}
            work.append(event(category, name, (0, stream), start, free[stream], **args))
    return work


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("random") / "trace.json"


@settings(
    max_examples=effort(75, 150), suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example]
)
@given(random=st.randoms(use_true_random=True))
@example(random=Random(92))  # annotations copied under a graph launch, which the host did not run then
def test_random_traces_are_split_alike(file: Path, random: Random) -> None:
    events = random_trace(random)
    times = [{**e, "ts": f"<{e['ts'] / 1000:.3f}>", "dur": f"<{e['dur'] / 1000:.3f}>"} for e in events]
    text = json.dumps({"schemaVersion": 1, "traceEvents": times})
    file.write_text(text.replace('"<', "").replace('>"', ""))
    recording = recorded_of(file)
    if not recording.work:
        return
    found = blamed(file, recording).gaps
    # Where steps begin is a question of its own: see test_steps.
    low = min(found)[0] if found else 0
    expected = {(gap.start, gap.end): split(gap.pieces) for gap in gaps_of(recording) if gap.start >= low}
    assert {window: split(pieces) for window, pieces in found.items() if window in expected} == expected
