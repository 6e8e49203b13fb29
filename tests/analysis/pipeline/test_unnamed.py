"""Pipelines that no group and no scope names: passes that exchange their inputs, outputs and gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.analysis.schedules import Message, Piece, drawn_stages, messages_of, played, stage
from tests.builders import records
from tracelens import analyze
from tracelens.table import Result
from tracelens.trace import make_run

UNNAMED = {"description": "default_pg"}
# Forwards of micro-batches 0 to 3, backwards a to d.
ONE_F_ONE_B = (
    "0123......aa.bb.cc.dd",
    ".012....aa3bb.cc.dd..",
    "..01..aa2bb3cc.dd....",
    "...0aa1bb2cc3dd......",
)
GPIPE = (
    "0123....aabbccdd",
    ".0123.aabbccdd..",
)


def pipeline(*lines: Any, chunks: int = 1, **style: Any) -> Result:
    traces = drawn_stages(*lines, chunks=chunks, **{**UNNAMED, "world_size": len(lines), **style})
    return analyze(make_run(traces), "pipeline")


def sizes(result: Result) -> set[tuple[int, int, int]]:
    """(stages, micro-batches, chunks) of all ranks and steps."""
    return set(records(result["bubble"], "stages", "micro_batches", "chunks"))


def is_none(result: Result) -> bool:
    return not len(result["bubble"]) and all(skip.reason.startswith("no pipeline") for skip in result.skips)


@pytest.mark.parametrize("description", ["default_pg", "undefined", "stages"])
@pytest.mark.parametrize("lines", [ONE_F_ONE_B, GPIPE], ids=("1F1B", "GPipe"))
def test_the_same_as_with_a_name(lines: Sequence[str], description: str) -> None:
    result = pipeline(*lines, description=description)
    named = pipeline(*lines, description="PIPELINE_MODEL_PARALLEL_GROUP")
    assert sizes(result) == {(len(lines), 4, 1)}
    assert result.skips == ()
    for table in ("bubble", "spans", "waits"):
        assert records(result[table]) == records(named[table])


@pytest.mark.parametrize("p2p", ["", "overlap"])
@pytest.mark.parametrize(("size", "chunks"), [(2, 1), (2, 2), (4, 1), (4, 2), (3, 3)])
def test_schedules(size: int, chunks: int, p2p: str) -> None:
    """Also where the last stage scales its loss behind a message."""
    result = pipeline(*played(size, 2 * size, chunks), chunks=chunks, p2p=p2p, scaled=True)
    assert result.skips == ()
    assert sizes(result) == {(size, 2 * size, chunks)}
    assert dict(records(result["bubble"], "rank", "stage")) == {rank: rank for rank in range(size)}


def test_stages_in_the_order_of_their_messages() -> None:
    """Rank 2 has the first stage, then 0 and 1 follow."""
    order = [2, 0, 1]
    lanes = played(3, 6, 1)
    mail = messages_of(lanes, 1, "")
    traces = [
        stage(
            lanes[number], rank, 3, 1,
            [message._replace(peer=order[message.peer]) for message in mail[number]],
            world_size=3, **UNNAMED,
        )
        for number, rank in enumerate(order)
    ]  # fmt: skip
    result = analyze(make_run(sorted(traces, key=lambda trace: trace.meta.rank)), "pipeline")
    assert result.skips == ()
    assert sizes(result) == {(3, 6, 1)}
    assert dict(records(result["bubble"], "rank", "stage")) == {2: 0, 0: 1, 1: 2}


def test_replicas_share_the_group_of_all_ranks() -> None:
    """Two pipelines of two stages among four ranks: 0 and 2, 1 and 3."""
    lanes = played(2, 4, 1)
    mail = messages_of(lanes, 1, "")
    traces = [
        stage(
            lanes[rank // 2], rank, 4, 1,
            [message._replace(peer=2 * message.peer + rank % 2) for message in mail[rank // 2]],
            world_size=4, **UNNAMED,
        )
        for rank in range(4)
    ]  # fmt: skip
    result = analyze(make_run(traces), "pipeline")
    assert result.skips == ()
    assert sizes(result) == {(2, 4, 1)}
    assert dict(records(result["bubble"], "rank", "stage")) == {0: 0, 1: 0, 2: 1, 3: 1}


def test_one_stage_of_two_ranks() -> None:
    """No other ranks exist: its neighbor is the other stage."""
    lanes = played(2, 4, 1)
    for rank in (0, 1):
        trace = drawn_stages(*lanes, world_size=2, **UNNAMED)[rank]
        result = analyze(make_run([trace], partial=True), "pipeline")
        assert sizes(result) == {(2, 4, 1)}
        assert result["bubble"]["stage"].tolist() == [rank]
        assert [skip.subject for skip in result.skips] == [
            f"stage(s) {1 - rank} of the pipeline of rank {rank}"
        ]


@pytest.mark.parametrize("present", [(0,), (1,), (0, 1), (1, 2), (0, 2, 3)])
def test_how_many_stages_others_would_be_is_not_known(present: Sequence[int]) -> None:
    traces = drawn_stages(*ONE_F_ONE_B, world_size=4, **UNNAMED)
    result = analyze(make_run([traces[rank] for rank in present], partial=True), "pipeline")
    assert not len(result["bubble"])
    assert {skip.reason for skip in result.skips} == {"the ranks of its pipeline are not recorded"}


@pytest.mark.parametrize("line", ["0aa1bb2cc", "012aabbcc", "012"])
@pytest.mark.parametrize("ring", ["FB", "F", "B"])
def test_attention_in_a_ring_is_no_pipeline(line: str, ring: str) -> None:
    """Passes send and receive while they run, and nothing between them; so do exchanges of tokens."""
    assert is_none(pipeline(line, line, messages=False, ring=ring))


def test_a_pipeline_whose_attention_goes_in_a_ring() -> None:
    """Through another group."""
    result = pipeline(*ONE_F_ONE_B, ring="FB")
    assert sizes(result) == {(4, 4, 1)}
    assert records(result["spans"]) == records(pipeline(*ONE_F_ONE_B)["spans"])


def with_messages(mail: Sequence[Sequence[Message]], line: str = "00aa11bb") -> Result:
    traces = [
        stage(line, rank, 2, 1, list(messages), world_size=2, **UNNAMED) for rank, messages in enumerate(mail)
    ]
    return analyze(make_run(traces), "pipeline")


def exchanged(*times: float) -> list[list[Message]]:
    """Both ranks send something to each other and receive something, at these times."""
    return [
        [message for time in times for message in (
            Message(time, "send", 1 - rank, False), Message(time + 0.01, "recv", 1 - rank, False)
        )]
        for rank in (0, 1)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "times", [(8.5, 9.5), (-1.0, -0.8), (3.5, 7.5)], ids=("gradients", "inputs", "behind each backward")
)
def test_exchanges_of_replicas_are_no_pipeline(times: Sequence[float]) -> None:
    """Gradients that go round behind all backwards or behind each; borders of inputs in front."""
    assert is_none(with_messages(exchanged(*times)))


def test_a_figure_that_one_rank_sends_is_no_pipeline() -> None:
    assert is_none(with_messages([[Message(8.5, "send", 1, False)], [Message(8.5, "recv", 0, False)]]))


def test_a_server_of_weights_is_no_stage() -> None:
    """Rank 1 gets weights before each forward, and sends gradients after each backward to rank 0."""
    worker = [
        message
        for start in (0, 4)
        for message in (Message(start - 0.35, "recv", 0, False), Message(start + 3.5, "send", 0, True))
    ]
    server = [
        message._replace(collective="recv" if message.collective == "send" else "send", peer=1)
        for message in worker
    ]
    traces = [
        stage([Piece("N", 0, 1)], 0, 2, 1, server, world_size=2, **UNNAMED),
        stage("00aa11bb", 1, 2, 1, worker, world_size=2, **UNNAMED),
    ]
    result = analyze(make_run(traces), "pipeline")
    assert not len(result["bubble"])


def test_gradients_of_weights_behind_those_of_inputs() -> None:
    """As in zero-bubble schedules: two backwards of one forward, of which the first sends."""
    lanes = [
        [
            half
            for piece in lane
            for half in (
                [piece._replace(end=piece.end - 1), piece._replace(kind="W", start=piece.end - 1)]
                if piece.kind == "B"
                else [piece]
            )
        ]
        for lane in played(2, 4, 1, backward=2)
    ]
    result = pipeline(*lanes)
    assert result.skips == ()
    assert sizes(result) == {(2, 4, 1)}


def test_what_a_stage_that_is_not_there_does_is_not_known() -> None:
    """Alone, neither stage says whether what it waits for is ready."""
    late = ("0011..aa22~~~bb33cc..dd", "..00aa11bb22cc~~~33dd..")
    assert pipeline(*late)["bubble"]["p2p_wait_ns"].tolist() == [3000, 0]
    for rank in (0, 1):
        trace = drawn_stages(*late, world_size=2, **UNNAMED)[rank]
        table = analyze(make_run([trace], partial=True), "pipeline")["bubble"]
        assert records(table, "p2p_wait_ns", "imbalance_ns") == [(0, 0)]
        assert table["other_idle_ns"].tolist() == [3000]
