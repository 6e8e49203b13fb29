"""Chunks and micro-batches by messages: generated schedules, recorded as programs record them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import tracelens
from tests.analysis.schedules import Message, Piece, messages_of, played, stage, stages
from tests.builders import records
from tracelens import analyze
from tracelens.analysis.pipeline import micro_batches
from tracelens.table import Result
from tracelens.trace import make_run

SAMPLES = Path(__file__).parents[3] / "sample_traces" / "pipeline"
Lanes = list[list[Piece]]


def passes(result: Result, rank: int) -> list[tuple[str, int, int]]:
    """(F or B, chunk, micro-batch) of a rank in order of time."""
    spans = result["spans"].query(f"rank == {rank}").sort_values("ts_ns")
    return [
        (phase[0].upper(), chunk, micro_batch)
        for phase, chunk, micro_batch in records(spans, "phase", "chunk", "micro_batch")
    ]


def drawn(lane: Sequence[Piece]) -> list[tuple[str, int, int]]:
    return [(piece.kind, piece.chunk, piece.micro_batch) for piece in lane if piece.kind in "FB"]


def check(lanes: Lanes, chunks: int, **style: Any) -> Result:
    """Each pass has the numbers that it was drawn with, and nothing was assumed."""
    result = analyze(stages(*lanes, chunks=chunks, **style), "pipeline")
    assert result.skips == ()
    for rank, lane in enumerate(lanes):
        assert passes(result, rank) == drawn(lane)
    micro_batches = len({piece.micro_batch for lane in lanes for piece in lane})
    assert set(records(result["bubble"], "micro_batches", "chunks")) == {(micro_batches, chunks)}
    return result


@pytest.mark.parametrize("recompute", [False, True], ids=("stored", "recomputed"))
@pytest.mark.parametrize("p2p", ["", "overlap", "batch"])
@pytest.mark.parametrize(
    "chunks", [1, 2, 3, pytest.param(4, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("size", [2, 4])
def test_interleaved_schedules(size: int, chunks: int, p2p: str, recompute: bool) -> None:
    """Also where the host scales the loss behind a message, which is a node and no forward."""
    if p2p == "batch" and size == 2:
        pytest.skip("Megatron-LM refuses it: one batch would hold two messages to the same rank")
    check(played(size, 2 * size, chunks), chunks, p2p=p2p, scaled=True, recompute=recompute)


@pytest.mark.parametrize("sizes", [(3, 1, 1, 1), (1, 2, 4, 1), (1, 1, 2, 3)])
def test_chunks_of_different_sizes(sizes: tuple[int, ...]) -> None:
    check(played(2, 4, 2, sizes=sizes), 2, p2p="overlap", scaled=True)


def test_turns_that_no_schedule_of_megatron_makes() -> None:
    """All micro-batches go through the first chunk, and the warm-up has all forwards."""
    check(played(2, 6, 2, group=6), 2)


def halves(lanes: Lanes, second: str) -> Lanes:
    """Each backward in two: gradients of the inputs, then of the weights."""
    return [
        [
            half
            for piece in lane
            for half in (
                [piece._replace(end=piece.end - 1), piece._replace(kind=second, start=piece.end - 1)]
                if piece.kind == "B"
                else [piece]
            )
        ]
        for lane in lanes
    ]


@pytest.mark.parametrize("weights", ["W", "D"], ids=("by autograd", "by the host"))
@pytest.mark.parametrize("chunks", [1, 2])
def test_gradients_of_weights_are_part_of_the_backward(chunks: int, weights: str) -> None:
    lanes = played(2, 4, chunks, backward=2)
    whole = check(lanes, chunks)
    result = analyze(stages(*halves(lanes, weights), chunks=chunks), "pipeline")
    assert result.skips == ()
    assert records(result["bubble"], "micro_batches", "chunks") == records(
        whole["bubble"], "micro_batches", "chunks"
    )
    # What the host puts off behind its last backward is of no micro-batch.
    behind = 1000 if weights == "D" else 0
    lost = whole["bubble"]["backward_ns"] - result["bubble"]["backward_ns"]
    assert lost.tolist() == [behind, behind]
    assert result["bubble"]["forward_ns"].tolist() == whole["bubble"]["forward_ns"].tolist()
    for rank, lane in enumerate(lanes):
        assert list(dict.fromkeys(passes(result, rank))) == drawn(lane)


def test_gradients_of_weights_may_run_behind_the_next_forward() -> None:
    """As in zero-bubble schedules, which fill the bubble with them."""
    lanes = halves(played(2, 4, 1, backward=2), "W")
    for lane in lanes:
        for index, (weights, forward) in enumerate(pairwise(lane)):
            if (weights.kind, forward.kind) == ("W", "F") and weights.end == forward.start:
                lane[index] = forward._replace(start=weights.start, end=weights.end)
                lane[index + 1] = weights._replace(start=forward.start, end=forward.end)
    assert any((piece.kind, after.kind) == ("F", "W") for lane in lanes for piece, after in pairwise(lane))
    result = analyze(stages(*lanes), "pipeline")
    assert result.skips == ()
    for rank, lane in enumerate(lanes):
        kinds = [piece._replace(kind="B") if piece.kind == "W" else piece for piece in lane]
        assert list(dict.fromkeys(passes(result, rank))) == list(dict.fromkeys(drawn(kinds)))


@pytest.mark.parametrize("name", ["plain", "interleaved"])
def test_recorded_pipelines_are_numbered_as_their_scopes_say(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tracelens.load(SAMPLES / name)
    expected = analyze(run, "pipeline")
    monkeypatch.setattr(micro_batches, "_SCOPE", [])
    result = analyze(tracelens.load(SAMPLES / name), "pipeline")
    assert result.skips == ()
    for rank in (0, 1):
        assert passes(result, rank) == passes(expected, rank)


def test_gradients_put_off_behind_the_last_backward_are_other_work() -> None:
    """As those of the embedding: the first stage's backwards go on meanwhile."""
    lanes = played(2, 4, 1)
    end = lanes[1][-1].end
    late = [lanes[0], [*lanes[1], Piece("D", end, end + 1)]]
    result, expected = (analyze(stages(*drawing), "pipeline") for drawing in (late, lanes))
    assert records(result["spans"]) == records(expected["spans"])
    assert result["bubble"]["overlapped_ns"].tolist() == [0, 1000]


def test_gemms_of_the_optimizer_are_no_gradients_of_weights() -> None:
    """As Muon has; another step follows."""
    first, second = played(2, 4, 1)
    period = 30
    lanes = [
        [*lane, Piece("D", 20, 22), *(piece._replace(start=piece.start + period, end=piece.end + period)
                                      for piece in lane)]
        for lane in (first, second)
    ]  # fmt: skip
    steps = [("Optimizer.step#Muon.step", 19, 23)]
    result = analyze(stages(*lanes, steps=steps), "pipeline")
    assert result.skips == ()
    expected = analyze(stages(first, second), "pipeline")["bubble"]
    for step in ("update 1", "update 2"):
        of_step = result["bubble"][result["bubble"]["step"] == step]
        for column in ("bubble_ns", "forward_ns", "backward_ns"):
            assert of_step[column].tolist() == expected[column].tolist()


def test_without_all_ranks_the_order_is_assumed() -> None:
    lanes = played(4, 8, 2)
    messages = messages_of(lanes, 2, "")
    run = make_run([stage(lanes[rank], rank, 4, 2, messages[rank]) for rank in (0, 1, 3)], partial=True)
    result = analyze(run, "pipeline")
    for rank in (0, 1, 3):
        assert passes(result, rank) == drawn(lanes[rank])
    _, skip = result.skips
    assert skip.reason.startswith("only 3 of its 4 ranks have passes in the run; assuming the order")


def without(messages: Sequence[Message], index: int) -> list[Message]:
    return [*messages[:index], *messages[index + 1 :]]


@pytest.mark.parametrize("lost", [0, 5, -1])
def test_where_a_message_is_missing_the_order_is_assumed(lost: int) -> None:
    lanes = played(2, 4, 2)
    first, second = messages_of(lanes, 2, "")
    receives = [index for index, message in enumerate(second) if message.collective == "recv"]
    second = without(second, receives[lost])
    traces = [stage(lanes[rank], rank, 2, 2, mail) for rank, mail in enumerate((first, second))]
    result = analyze(make_run(traces), "pipeline")
    (skip,) = result.skips
    assert skip.reason.startswith("its recorded sends and receives do not match; assuming the order")
    for rank, lane in enumerate(lanes):
        assert passes(result, rank) == drawn(lane)


def test_messages_without_peers_tell_nothing_between_more_than_two_ranks() -> None:
    result = analyze(stages(*played(4, 4, 2), chunks=2, peers=False), "pipeline")
    (skip,) = result.skips
    assert "peers of its sends and receives are not recorded" in skip.reason
    check(played(2, 4, 2), 2, peers=False)
