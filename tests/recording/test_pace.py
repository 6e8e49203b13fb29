"""Steps timed without the profiler: which ones, what is written of them, and what readers make of it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="recording needs torch")

import torch
import torch.distributed as dist
from torch import nn

import tracelens
from tests.recording.traces import read
from tests.workload.ranks import run_ranks
from tracelens.errors import TracelensError
from tracelens.filenames import VALUES
from tracelens.recording import LEFT_OUT, RecordingWindow
from tracelens.recording import pace as pace_module
from tracelens.recording.pace import PaceTimer
from tracelens.recording.scopes import recording
from tracelens.recording.window import RecordingWarning
from tracelens.trace import PacePart

# torch warns of its own deprecations.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning:torch.*")

MS = 1_000_000


def sleep_2_ms() -> None:
    time.sleep(0.002)
    torch.ones(3).cos()


class Clock:
    """What the loop itself sees of the time of its steps: a recorder takes it inside of its `step`."""

    def __init__(self) -> None:
        self._called: list[int] = []
        self._returned: list[int] = []

    def step(self, r: Any, **told: Any) -> None:
        """End a step."""
        self._called.append(time.perf_counter_ns())
        r.step(**told)
        self._returned.append(time.perf_counter_ns())

    def bounds(self, first: int, end: int) -> tuple[int, int]:
        """The least and the most ns that the steps from `first` to before `end` can have taken."""
        begin, last = first - 1, end - 1
        return self._called[last] - self._returned[begin], self._returned[last] - self._called[begin]


def loop(
    folder: Path,
    count: int,
    tell: Callable[[int], dict[str, Any]],
    clock: Clock | None = None,
    **options: Any,
) -> Any:
    """Record a loop of so many steps of 2 ms; the recorder.

    step     0 1 | 2 3 4 | 5      | 6 7    | 8 9 | 10 11 12 13 | 14
             out   before  warmup   record   out   after
    """
    clock = clock or Clock()
    window = {"wait": 5, "warmup": 1, "steps": 2, "pace_steps": 4}
    with tracelens.record(folder, **(window | options)) as r:
        for step in range(count):
            sleep_2_ms()
            clock.step(r, **tell(step))
    return r


def told(step: int) -> dict[str, Any]:
    return {"tokens": 100 + step, "samples": torch.tensor(step)}


def run_json(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return document


def pace_of(folder: Path, rank: int = 0) -> tuple[PacePart, ...]:
    run = tracelens.load(folder)
    return run.traces[list(run.ranks).index(rank)].meta.pace


def test_both_parts(tmp_path: Path) -> None:
    clock = Clock()
    r = loop(tmp_path, 15, told, clock)
    pace = run_json(tmp_path)["pace"]
    before, after = pace["before"], pace["after"]
    assert (before["steps"], after["steps"]) == ([2, 5], [10, 14])
    assert before["tokens"], after["tokens"] == (102 + 103 + 104, 110 + 111 + 112 + 113)
    assert (before["samples"], after["samples"]) == (2 + 3 + 4, 10 + 11 + 12 + 13)
    for part in (before, after):
        least, most = clock.bounds(*part["steps"])
        assert (part["steps"][1] - part["steps"][0]) * 2 * MS <= least <= part["dur_ns"] <= most
    assert read(r.path)["tracelens"]["pace"] == {"recording": pace["recording"], "before": before}
    assert pace_of(tmp_path) == (
        PacePart("before", 2, 3, before["dur_ns"], 309, 9),
        PacePart("after", 10, 4, after["dur_ns"], 446, 46),
    )


def test_the_profiler_is_off_while_steps_are_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the device is synchronised at both ends of a part, never in between, and where the window opens."""
    synchronised: list[int] = []
    monkeypatch.setattr(pace_module, "_synchronize", lambda _: synchronised.append(len(timed)))
    timed: list[bool] = []
    with tracelens.record(tmp_path, wait=5, warmup=1, steps=2, pace_steps=4) as r:
        for _ in range(15):
            timed.append(recording())
            r.step()
    assert timed == [False] * 6 + [True] * 2 + [False] * 7  # warm-up records nothing
    assert synchronised == [2, 5, 6, 10, 14]


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({}, {"before": [2, 5], "after": [10, 14]}),
        ({"pace_steps": 0}, None),
        ({"pace_steps": 1}, {"before": [4, 5], "after": [10, 11]}),
        ({"wait": 2}, {"after": [7, 11]}),
        ({"wait": 0, "warmup": 0}, {"after": [4, 8]}),
        ({"wait": 9, "pace_steps": 3}, {"before": [6, 9], "after": [14, 16]}),
    ],
)
def test_which_steps(tmp_path: Path, options: dict[str, int], steps: dict[str, Any] | None) -> None:
    """The last case's loop ends before its part does."""
    r = loop(tmp_path, 16, lambda _: {}, **options)
    pace = run_json(tmp_path)["pace"]
    if steps is None:
        assert pace is None
        assert "pace" not in read(r.path)["tracelens"]
        assert pace_of(tmp_path) == ()
    else:
        assert {name: part["steps"] for name, part in pace.items() if name != "recording"} == steps
        assert {part["tokens"] for name, part in pace.items() if name != "recording"} == {None}


def test_windows_and_parts_do_not_meet() -> None:
    for wait in range(8):
        for most in range(6):
            window = RecordingWindow(wait, 1, 2)
            parts = window.timed(most)
            phases = [window.phase(step) for steps in parts.values() for step in steps]
            assert set(phases) <= {"wait", "done"}
            assert all(steps.start >= LEFT_OUT and 1 <= len(steps) <= most for steps in parts.values())


def test_what_follows_the_last_step_is_not_timed(tmp_path: Path) -> None:
    """A loop that ends early, and then evaluates inside the `with`."""
    clock = Clock()
    with tracelens.record(tmp_path, wait=0, warmup=0, steps=1, pace_steps=9) as r:
        for _ in range(1 + LEFT_OUT + 3):
            sleep_2_ms()
            clock.step(r)
        time.sleep(0.05)
    (after,) = pace_of(tmp_path)
    assert after.steps == 3
    least, most = clock.bounds(1 + LEFT_OUT, 1 + LEFT_OUT + 3)
    assert 3 * 2 * MS <= least <= after.dur_ns <= most


@pytest.mark.parametrize(
    ("end", "names"), [(7, ["before"]), (9, ["before"]), (12, ["before"]), (14, ["before", "after"])]
)
def test_an_exception_keeps_what_is_complete(tmp_path: Path, end: int, names: list[str]) -> None:
    def tell(step: int) -> dict[str, Any]:
        if step == end:
            raise KeyboardInterrupt
        return {}

    with pytest.raises(KeyboardInterrupt):
        loop(tmp_path, 15, tell)
    assert [part.name for part in pace_of(tmp_path)] == names
    assert [name for name in run_json(tmp_path)["pace"] if name != "recording"] == names


def test_counts_that_are_none(tmp_path: Path) -> None:
    """A wrong count, or one that only some steps tell, ends no training and gives no tokens/s."""
    loop(
        tmp_path, 15, lambda step: {"tokens": "many" if step == 3 else 7, "samples": 5 if step > 3 else None}
    )
    before, after = pace_of(tmp_path)
    assert (before.tokens, after.tokens, before.samples, after.samples) == (-1, 28, -1, 20)


def test_a_device_that_fails_leaves_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("device-side assert")

    pace = PaceTimer(RecordingWindow(4, 0, 1), 4)
    pace.step(2)
    pace.step(3)
    monkeypatch.setattr(pace_module, "_synchronize", fail)
    assert not pace.step(4)
    assert pace.parts == {}


@pytest.mark.parametrize("steps", [-1, 1.5, True, "20"])
def test_what_is_no_number_of_steps(tmp_path: Path, steps: Any) -> None:
    with pytest.raises(TracelensError, match="pace_steps must be a whole number, 0 or more"):
        tracelens.record(tmp_path, pace_steps=steps)


def test_gradient_accumulation(tmp_path: Path) -> None:
    """A step is one of the optimizer, with the tokens of all its micro-batches."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with tracelens.record(tmp_path, wait=4, warmup=1, steps=1, pace_steps=2) as r:
        for micro_batch in range(20 * 2):
            x = torch.ones(8, 4)
            model(x).sum().backward()
            if micro_batch % 2:
                optimizer.step()
                optimizer.zero_grad()
                r.step(tokens=2 * len(x))
    before, after = pace_of(tmp_path)
    assert (before.first, before.steps, before.tokens) == (2, 2, 32)
    assert (after.first, after.steps, after.tokens) == (8, 2, 32)


def train_in_parallel(rank: int, folder: str, ranks: Any) -> list[str]:
    """Notes of a rank that trains with DistributedDataParallel; the last rank is slower by 5 ms a step."""
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
    with tracelens.record(folder, wait=5, warmup=1, steps=1, pace_steps=3, ranks=ranks) as r:
        for _ in range(14):
            time.sleep(0.005 * rank)
            model(torch.ones(8, 4)).sum().backward()
            r.step(tokens=2 * 8)
    return r.notes


@pytest.mark.parametrize("ranks", ["all", [1], [0]])
def test_every_rank_times_its_steps(tmp_path: Path, ranks: Any) -> None:
    """Those that record nothing, too; with DDP all of them wait for the slowest."""
    folder = tmp_path / "traces"
    assert run_ranks(2, train_in_parallel, str(folder), ranks, folder=tmp_path) == [[], []]
    written = {path.name for path in folder.iterdir() if not path.name.endswith(VALUES)}
    recording_ranks = [0, 1] if ranks == "all" else ranks
    assert written == {"run.json", "rank1.pace.json", *(f"rank{rank}.json.gz" for rank in recording_ranks)}
    beside = json.loads((folder / "rank1.pace.json").read_text())
    assert (beside["schema"], beside["rank"]) == ("tracelens.pace/1", 1)
    for pace in (run_json(folder)["pace"], beside):
        assert (pace["before"]["steps"], pace["after"]["steps"]) == ([2, 5], [9, 12])
        assert pace["before"]["dur_ns"] >= 3 * 5 * MS * 0.9
    for rank in recording_ranks:
        assert [part.name for part in pace_of(folder, rank)] == ["before", "after"]
        assert [part.tokens for part in pace_of(folder, rank)] == [48, 48]


def send_on(rank: int, folder: str) -> list[tuple[int, int]]:
    """Two stages of a pipeline: the first works 4 ms for each of two micro-batches, the second one 1 ms.

    Returns the bounds of both parts' time.
    """
    x, clock = torch.ones(4), Clock()
    with tracelens.record(folder, wait=5, warmup=1, steps=1, pace_steps=3) as r:
        for _ in range(14):
            for _ in range(2):
                if rank:
                    dist.recv(x, 0)
                time.sleep(0.001 if rank else 0.004)
                if not rank:
                    dist.send(x, 1)
            clock.step(r, samples=2)
    return [clock.bounds(2, 5), clock.bounds(9, 12)]


def test_stages_of_a_pipeline_have_one_pace(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    for rank, bounds in enumerate(run_ranks(2, send_on, str(folder), folder=tmp_path)):
        for part, (least, most) in zip(pace_of(folder, rank), bounds, strict=True):
            assert (part.samples, part.steps) == (6, 3)
            assert least <= part.dur_ns <= most
            assert part.step_ns > 0.9 * 8 * MS


def test_a_pace_of_another_recording_is_not_taken(tmp_path: Path) -> None:
    loop(tmp_path / "old", 15, told)
    new = loop(tmp_path / "new", 9, told)
    (tmp_path / "new" / "run.json").write_bytes((tmp_path / "old" / "run.json").read_bytes())
    assert [part.name for part in pace_of(tmp_path / "new")] == ["before"]
    # Without its sidecar a trace still has the part before the window.
    (tmp_path / "new" / "run.json").unlink()
    assert [part.dur_ns for part in pace_of(tmp_path / "new")] == [
        read(new.path)["tracelens"]["pace"]["before"]["dur_ns"]
    ]


def test_a_rank_that_cannot_write_its_pace_says_so(tmp_path: Path) -> None:
    (tmp_path / "run.json").mkdir()
    with pytest.warns(RecordingWarning, match="run.json was not written"):
        r = loop(tmp_path, 15, told)
    assert r.path is not None
    assert len(r.notes) == 1  # though it was tried twice
