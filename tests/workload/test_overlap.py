"""Forward and backward in turns: the same numbers, one order of collectives, and an end in every case."""

from __future__ import annotations

import faulthandler
import gzip
import json
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the workload needs torch")

import torch

import tracelens
from tests.workload.ranks import TIMEOUT_S, run_ranks
from tests.workload.schedules import SMALL, batch, beside_one_rank, filled_schedule
from tests.workload.whole import Result, assert_same
from tracelens.planner.config import Config, override, preset
from tracelens.workload.parallel import Groups, Waiting, collectives, interleave, make_groups

TOGETHER = {
    "alone": (),
    "two micro-batches": ("micro_batches=2",),
    "static buffers": ("sync_free=3", "experts=grouped"),
    "dedup": ("dispatch=dedup",),
    "allgather": ("dispatch=allgather",),
    "recomputed": ("recompute_layer_ids=0,1,2",),
    "shared": ("overlap_shared=on",),
    "all of it": (
        "sync_free=3", "experts=grouped", "dispatch=dedup", "recompute_layer_ids=1,2", "overlap_shared=on",
        "permute=fused", "router=fused", "loss=fused",
    ),
    "tensor parallel": ("tp=2",),
    "nothing to exchange": ("ep=1",),
}  # fmt: skip


def config_of(*assignments: str) -> Config:
    return override(preset("tiny"), (*SMALL, "ranks=2", "overlap_exchange=1f1b", *assignments))


@pytest.fixture(autouse=True)
def _no_silent_deadlock() -> Iterator[None]:
    """Where all threads wait for each other, say where, and end."""
    faulthandler.dump_traceback_later(2 * TIMEOUT_S, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Result, Result, int]]:
    """By toggles: what two ranks found, what one rank finds in turn, and the seed."""
    configs = {name: config_of(*assignments) for name, assignments in TOGETHER.items()}
    return beside_one_rank(configs, tmp_path_factory.mktemp("overlap"))


@pytest.mark.parametrize("name", TOGETHER)
def test_overlapped_agrees_with_one_rank_in_turn(
    name: str, results: dict[str, tuple[Result, Result, int]]
) -> None:
    found, expected, seed = results[name]
    assert_same(found, expected, seed)


def launches(rank: int, config: Config) -> str:
    """Who launches each exchange of a step: forwards (A, B, ... by micro-batch) and backwards (a, b, ...)."""
    schedule, log = filled_schedule(config, make_groups(config.layout, rank), 0), []
    running: dict[int, str] = {}  # by thread

    def told(part: Callable[..., Any], letter: str) -> Callable[..., Any]:
        def run(number: int, *arguments: Any) -> Any:
            running[threading.get_ident()] = chr(ord(letter) + number)
            return part(number, *arguments)

        return run

    def logged(launch: Callable[..., Any]) -> Callable[..., Any]:
        def run(self: Any, x: torch.Tensor) -> Any:
            log.append(running[threading.get_ident()])
            return launch(self, x)

        return run

    schedule.forward = told(schedule.forward, "A")
    schedule.backward = told(schedule.backward, "a")
    for kind in (collectives.AllToAll, collectives.AllGather, collectives.ReduceScatter):
        kind.launch = logged(kind.launch)
    schedule.step(*batch(config, make_groups(config.layout, rank), 0))
    return "".join(log)


@pytest.mark.parametrize(
    ("assignments", "expected"),
    [
        # Of each of two layers with experts: counts, tokens and results, and gradients of the latter two.
        ((), "AAAAAA BaBaBaBaBB CbCbCbCbCC cccc"),
        (("overlap_exchange=off",), "AAAAAAaaaa BBBBBBbbbb CCCCCCcccc"),
        # A recomputed layer launches its forward's exchanges again.
        (("recompute_layer_ids=1",), "AAAAAA BaBaBaBaBaBa a CbCbCbCbCbCb b ccccccc"),
        # Tokens and how they are routed leave together, both ways, and each is waited for.
        (("dispatch=dedup",), "AAAAAAAA BaBBaaBaBaaBBB CbCCbbCbCbbCCC cccccc"),
    ],
)
def test_exchanges_of_two_micro_batches_alternate_in_one_order_on_all_ranks(
    assignments: tuple[str, ...], expected: str, tmp_path: Path
) -> None:
    one, other = run_ranks(2, launches, config_of("micro_batches=3", *assignments), folder=tmp_path)
    assert one == other
    assert one == expected.replace(" ", "")


def handing_over(log: list[str], name: str, times: int) -> Callable[..., str]:
    """Something that waits for a collective so many times."""

    def run(number: int, *_: object) -> str:
        for time in range(times):
            log.append(f"{name}{number}.{time}")
            Waiting.before()
        log.append(f"{name}{number}.end")
        return f"made {number}"

    return run


def test_the_two_change_at_each_wait_and_the_longer_one_goes_on_alone() -> None:
    log: list[str] = []
    interleave(2, handing_over(log, "F", 1), handing_over(log, "B", 2))
    assert log == [
        "F0.0", "F0.end",
        "F1.0", "B0.0", "F1.end", "B0.1", "B0.end",
        "B1.0", "B1.1", "B1.end",
    ]  # fmt: skip


def test_a_backward_is_given_what_its_forward_made() -> None:
    given: list[tuple[int, str]] = []
    interleave(3, lambda number: f"made {number}", lambda number, made: given.append((number, made)))
    assert given == [(0, "made 0"), (1, "made 1"), (2, "made 2")]


def test_only_one_of_the_two_ever_runs() -> None:
    running: list[int] = []

    def part(number: int, *_: object) -> None:
        for _ in range(50):
            running.append(threading.get_ident())
            sum(range(2000))
            assert running == [threading.get_ident()]
            running.clear()
            Waiting.before()

    interleave(4, part, part)


class Broken(Exception):
    """What goes wrong."""


def breaks(number: int, *_: object) -> None:
    if number:
        raise Broken


@pytest.mark.parametrize("waits", [0, 1, 5])
@pytest.mark.parametrize("forward", [True, False])
def test_what_goes_wrong_in_one_ends_both_and_reaches_the_caller(forward: bool, waits: int) -> None:
    log: list[str] = []

    def broken(number: int, *_: object) -> None:
        if number == (2 if forward else 1):
            handing_over([], "", waits)(number)
            breaks(1)

    good = handing_over(log, "G", 3)
    threads = threading.active_count()
    with pytest.raises(Broken) as raised:
        interleave(4, *((broken, good) if forward else (good, broken)))
    assert "breaks" in [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert threading.active_count() == threads
    # The other is the backward of micro-batch 1 or the forward of micro-batch 2; longer ones do not go on.
    number = 1 if forward else 2
    assert (f"G{number}.end" in log) == (waits == 5)
    assert f"G{number + 1}.0" not in log
    Waiting.before()  # is nothing again


def test_a_failure_in_autograd_reaches_the_caller() -> None:
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            Waiting.before()
            raise Broken

    def forward(number: int) -> torch.Tensor:
        Waiting.before()
        return Fails.apply(torch.ones((), requires_grad=True))

    with pytest.raises(Broken):
        interleave(3, forward, lambda number, loss: loss.backward())


def test_a_recorded_trace_has_both_threads_and_links_each_backward_to_its_forward(tmp_path: Path) -> None:
    config = config_of("ranks=1", "micro_batches=3")
    schedule = filled_schedule(config, Groups(config.layout), 0)
    with tracelens.record(tmp_path, wait=0, warmup=1, steps=1) as recorder:
        for _ in range(2):
            schedule.step(*batch(config, Groups(config.layout), 0))
            recorder.step()
    events = json.loads(gzip.decompress((tmp_path / "rank0.json.gz").read_bytes()))["traceEvents"]
    threads = {event["name"]: event["tid"] for event in events if event["name"].startswith("mb")}
    main = threads["mb0.chunk0.F"]
    assert {name for name, thread in threads.items() if thread == main} == {
        "mb0.chunk0.F", "mb1.chunk0.F", "mb2.chunk0.F", "mb2.chunk0.B",
    }  # fmt: skip
    assert threads.keys() == {f"mb{number}.chunk0.{phase}" for number in range(3) for phase in "FB"}
    ops = [event for event in events if "Sequence number" in event.get("args", {})]
    backward = [event for event in ops if event["args"].get("Fwd thread id", 0)]
    made = {
        event["args"]["Sequence number"] for event in ops if event not in backward and event["tid"] == main
    }
    helped = [event for event in backward if event["tid"] != main]
    assert len({event["tid"] for event in helped}) == 1  # one helper for all of a step
    assert len(helped) == 2 * (len(backward) - len(helped))
    assert {event["args"]["Sequence number"] for event in backward} <= made
