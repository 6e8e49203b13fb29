"""The bubble of pipelines drawn by hand, and of schedules for which there is a formula."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analysis.schedules import Piece, pieces, played, stage, stages
from tests.builders import draw_run, records
from tests.effort import effort
from tracelens import analyze
from tracelens.table import Result
from tracelens.trace import make_run, select_step

PARTS = ("ramp_ns", "p2p_wait_ns", "imbalance_ns", "other_idle_ns")
UNIFORM = ("0011..aa..bb", "..00aa11bb..")
FOUR = (
    "0123......aa.bb.cc.dd",
    ".012....aa3bb.cc.dd..",
    "..01..aa2bb3cc.dd....",
    "...0aa1bb2cc3dd......",
)
SLOW = (
    "01...a2..b3..c...d",
    ".00aa11bb22cc33dd.",
)
LATE = (
    "0011..aa22~~~bb33cc..dd",
    "..00aa11bb22cc~~~33dd..",
)


def pipeline(*lines: Any, **style: Any) -> Result:
    return analyze(stages(*lines, **style), "pipeline")


def bubbles(result: Result) -> list[tuple[int, ...]]:
    """Of each row the bubble and its parts, in us."""
    rows = records(result["bubble"], "bubble_ns", *PARTS)
    assert all(sum(parts) == bubble for bubble, *parts in rows)
    return [tuple(ns // 1000 for ns in row) for row in rows]


@pytest.mark.parametrize(
    ("lines", "forward", "bubble", "phase"), [(UNIFORM, 2, 4, 12), (FOUR, 1, 9, 21)], ids=("two", "four")
)
def test_uniform_stages_have_the_bubble_of_the_formula(
    lines: tuple[str, ...], forward: int, bubble: int, phase: int
) -> None:
    result = pipeline(*lines)
    size, micro_batches = len(lines), 2 if len(lines) == 2 else 4
    assert bubbles(result) == [(bubble, bubble, 0, 0, 0)] * size
    table = result["bubble"]
    expected = Fraction(size - 1, size - 1 + micro_batches)
    assert table["bubble_fraction"].tolist() == [bubble / phase] * size
    assert Fraction(bubble, phase) == expected
    assert table["expected_fraction"].tolist() == [float(expected)] * size
    assert table["bubble_ideal_ratio"].tolist() == table["expected_ideal_ratio"].tolist()
    assert table["expected_ideal_ratio"].tolist() == [(size - 1) / micro_batches] * size
    about = records(table, "rank", "stage", "stages", "micro_batches", "chunks")
    assert about == [(rank, rank, size, micro_batches, 1) for rank in range(size)]
    assert set(table["forward_ns"]) == {forward * micro_batches * 1000}
    assert set(table["backward_ns"]) == {2 * micro_batches * 1000}
    assert result.skips == ()


def test_each_span_is_a_micro_batch() -> None:
    table = pipeline(*UNIFORM)["spans"]
    begin = table["ts_ns"].min()
    rows = records(
        table.assign(ts_ns=table["ts_ns"] - begin), "rank", "phase", "micro_batch", "ts_ns", "dur_ns"
    )
    assert rows == [
        (0, "forward", 0, 0, 2000),
        (0, "forward", 1, 2000, 2000),
        (0, "backward", 0, 6000, 2000),
        (0, "backward", 1, 10_000, 2000),
        (1, "forward", 0, 2000, 2000),
        (1, "backward", 0, 4000, 2000),
        (1, "forward", 1, 6000, 2000),
        (1, "backward", 1, 8000, 2000),
    ]
    assert table["busy_ns"].tolist() == [2000] * 8
    assert set(table["chunk"]) == {0}


def test_a_slow_stage_is_imbalance() -> None:
    # Stage 0 waits from 7 to 9 for stage 1 to end its backward 1; the rest is warm-up (2-5) and cool-down.
    result = pipeline(*SLOW)
    assert bubbles(result) == [(10, 8, 0, 2, 0), (2, 2, 0, 0, 0)]
    waits = result["waits"].query("rank == 0")
    begin = result["spans"]["ts_ns"].min()
    assert records(waits.assign(ts_ns=waits["ts_ns"] - begin), "part", "ts_ns", "dur_ns") == [
        ("ramp", 2000, 3000),
        ("imbalance", 7000, 2000),
        ("ramp", 11_000, 2000),
        ("ramp", 14_000, 3000),
    ]


def test_a_late_message_is_a_wait_for_it() -> None:
    # Backward 1 ends on stage 1 at 10, its gradient is there at 13; stage 1 then waits for stage 0's delay.
    assert bubbles(pipeline(*LATE)) == [(7, 4, 3, 0, 0), (7, 4, 0, 3, 0)]


def test_without_a_kernel_that_waits_it_is_other_idle() -> None:
    lines = [line.replace("~", ".") for line in LATE]
    assert bubbles(pipeline(*lines)) == [(7, 4, 0, 0, 3), (7, 4, 0, 3, 0)]


def test_who_waits_for_one_that_waits_for_a_message_waits_for_messages() -> None:
    """The gradient of backward 2 takes 3 us more from stage 2 to 1, and stage 0 waits for that as well."""
    lanes = played(3, 8, 1, late={("B", 2, 2): 3})
    on_time = played(3, 8, 1, late={("B", 2, 2): 0})
    result, before = bubbles(pipeline(*lanes)), bubbles(pipeline(*on_time))
    assert before == [(4, 4, 0, 0, 0)] * 3
    # Stage 1 waits from 7 to 10. Stage 0 does from 8 to 11, at last for stage 1 to compute; stage 2 from 10
    # to 13: for a forward of stage 0, which waits until 11 and computes until 12, and then of stage 1.
    assert result == [(7, 4, 2, 1, 0), (7, 4, 3, 0, 0), (7, 4, 1, 2, 0)]


def test_gradient_sync_is_no_part_of_a_backward() -> None:
    """It runs beside the cool-down of other stages, inside the bubble."""
    result = pipeline(UNIFORM[0], "..00aa11bb==")
    assert bubbles(result)[1] == (4, 4, 0, 0, 0)
    assert result["bubble"]["overlapped_ns"].tolist() == [0, 2000]
    assert result["bubble"]["other_ns"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("size", "micro_batches", "chunks"), [(2, 4, 2), (2, 8, 3), (4, 8, 2), (4, 4, 2), (3, 6, 3), (4, 12, 1)]
)
def test_an_interleaved_schedule_has_the_bubble_of_the_formula(
    size: int, micro_batches: int, chunks: int
) -> None:
    lanes = played(size, micro_batches, chunks)
    result = pipeline(*lanes, chunks=chunks)
    expected = Fraction(size - 1, size - 1 + micro_batches * chunks)
    table = result["bubble"]
    phase = max(piece.end for lane in lanes for piece in lane) * 1000
    assert {Fraction(bubble, phase) for bubble in table["bubble_ns"].tolist()} == {expected}
    assert set(table["expected_fraction"]) == {float(expected)}
    assert set(records(table, "micro_batches", "chunks")) == {(micro_batches, chunks)}
    # With several chunks the schedule itself has some waits for computation behind the first backwards.
    assert (table["ramp_ns"] + table["imbalance_ns"] == table["bubble_ns"]).all()
    assert (table["imbalance_ns"] <= table["bubble_ns"] / 3).all()
    assert chunks > 1 or not table["imbalance_ns"].any()
    for rank, lane in enumerate(lanes):
        drawn = [(piece.kind, piece.chunk, piece.micro_batch) for piece in lane]
        of_rank = result["spans"].query(f"rank == {rank}").sort_values("ts_ns")
        spans = [
            (phase[0].upper(), chunk, micro_batch)
            for phase, chunk, micro_batch in records(of_rank, "phase", "chunk", "micro_batch")
        ]
        assert spans == drawn


def test_the_turns_of_an_interleaved_schedule_are_seen_in_its_warm_up() -> None:
    """Four micro-batches pass a chunk in turn, though there are two stages."""
    lanes = played(2, 8, 2, group=4)
    result = pipeline(*lanes, chunks=2)
    table = result["spans"]
    forwards = table[(table["rank"] == 0) & (table["phase"] == "forward")].sort_values("ts_ns")
    assert forwards["chunk"].tolist() == [0] * 4 + [1] * 4 + [0] * 4 + [1] * 4
    assert forwards["micro_batch"].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7]


def test_a_middle_stage_alone_tells_chunks_by_its_warm_up() -> None:
    lanes = played(4, 8, 2)
    run = make_run([stage(lanes[1], 1, 4, chunks=2)], partial=True)
    result = analyze(run, "pipeline")
    assert records(result["bubble"], "stage", "stages", "micro_batches", "chunks") == [(1, 4, 8, 2)]
    absent, assumed = result.skips
    assert absent.subject == "stage(s) 0, 2, 3 of the pipeline of rank 1"
    assert assumed.subject == "chunks and micro-batches in step (whole trace) of rank 1"
    assert assumed.reason.startswith("only 1 of its 4 ranks have passes in the run; assuming the order")


def test_chunks_that_nothing_shows_are_one_with_a_skip() -> None:
    line = "0.1.2.3.4.a.b.c.d.e"  # five forwards ahead fit neither one chunk nor several
    result = analyze(make_run([stage(line, 1, 4)], partial=True), "pipeline")
    assert result["bubble"]["chunks"].tolist() == [1]
    assert result.skips[-1].subject == "chunks in step (whole trace) of rank 1"


@pytest.mark.parametrize(
    "scopes",
    [
        "PP:{stage}{kind}{micro_batch}",
        "mb{micro_batch}.chunk{stage}.{kind}",
        "{kind}{micro_batch}",
        "{kind}_{micro_batch}",
    ],
)
def test_scopes_name_what_autograd_does_not(scopes: str) -> None:
    result = pipeline(*FOUR, graph=False, scopes=scopes)
    expected = pipeline(*FOUR)
    for name in ("bubble", "spans", "waits"):
        assert records(result[name]) == records(expected[name])


@pytest.mark.parametrize("scopes", ["PP:{stage}{kind}{micro_batch}", "mb{micro_batch}.chunk{stage}.{kind}"])
def test_stages_by_scopes_alone(scopes: str) -> None:
    """torch.distributed.pipelining names stages through all chunks; without messages, that is enough."""
    lanes = played(2, 4, 2)
    result = pipeline(*lanes, chunks=2, graph=False, messages=False, scopes=scopes)
    expected = pipeline(*lanes, chunks=2)
    assert records(result["bubble"]) == records(expected["bubble"])
    assert records(result["spans"]) == records(expected["spans"])


def test_scopes_of_the_model_inside_that_of_the_schedule_are_not_counted_again() -> None:
    """torch's schedule around the bundled workload; here its scopes hold two of the model's each."""
    lanes = played(2, 4, 2, forward=2, backward=2)
    traces = []
    for rank, lane in enumerate(lanes):
        halves = [
            half
            for piece in lane
            for half in (piece._replace(end=piece.start + 1), piece._replace(start=piece.start + 1))
        ]
        around = [
            (
                f"PP:{2 * piece.chunk + rank}{piece.kind}{piece.micro_batch}",
                piece.start - 0.3,
                piece.start + 1.1,
            )
            for piece in lane
        ]
        inside = "mb{micro_batch}.chunk{stage}.{kind}"
        traces.append(stage(halves, rank, 2, 2, messages=False, graph=False, scopes=inside, steps=around))
    result, expected = analyze(make_run(traces), "pipeline"), pipeline(*lanes, chunks=2)
    assert records(result["bubble"]) == records(expected["bubble"])
    assert records(result["spans"]) == records(expected["spans"])


def test_scopes_of_a_model_in_one_chunk_are_no_pipeline() -> None:
    """The bundled workload names chunk 0 in a run without a pipeline as well."""
    scopes = "mb{micro_batch}.chunk0.{kind}"
    run = make_run(stage("0.a.1.b.", rank, 1, messages=False, scopes=scopes) for rank in (0, 1))
    result = analyze(run, "pipeline")
    assert [skip.subject for skip in result.skips] == ["rank 0", "rank 1"]
    assert all("no pipeline" in skip.reason for skip in result.skips)


def test_both_halves_of_a_backward_count() -> None:
    halves = [
        [
            half
            for piece in pieces(line)
            for half in (
                [piece]
                if piece.kind == "F"
                else [piece._replace(kind="B", end=piece.end - 1), piece._replace(start=piece.end - 1)]
            )
        ]
        for line in UNIFORM
    ]
    result = pipeline(*halves, scopes="PP:{stage}{kind}{micro_batch}")
    assert bubbles(result) == [(4, 4, 0, 0, 0)] * 2
    assert len(result["spans"]) == 12


def test_an_overlapped_pair_is_told_apart_by_autograd() -> None:
    lane = [
        Piece("F", 0, 2, 0), Piece("F", 4, 6, 1), Piece("B", 5, 8, 0), Piece("B", 9, 11, 1),
    ]  # fmt: skip
    trace = stage(lane, 0, 2, messages=False, steps=[
        ("PP:0F0", -1, 2.5), ("PP:(0F1;0B0)OVERLAP_F_B", 3, 8.5), ("PP:0B1", 8.6, 11),
    ])  # fmt: skip
    table = analyze(make_run([trace]), "pipeline")["spans"]
    assert records(table, "phase", "micro_batch", "dur_ns") == [
        ("forward", 0, 2000), ("forward", 1, 2000), ("backward", 0, 3000), ("backward", 1, 2000),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["forward_step", "x/pipeline_parallel/schedules.py(9): forward_step"])
def test_scopes_without_a_number_are_counted(name: str) -> None:
    backward = name.replace("forward", "backward")
    lines = []
    for rank, line in enumerate(UNIFORM):
        names = {"F": name, "B": backward}
        around = [(names[piece.kind], piece.start - 0.2, float(piece.start)) for piece in pieces(line)]
        lines.append(stage(line, rank, 2, graph=False, steps=around))
    result = analyze(make_run(lines), "pipeline")
    assert bubbles(result) == [(4, 4, 0, 0, 0)] * 2


def both_steps(**style: Any) -> Result:
    return pipeline(*(line + "===" + line for line in UNIFORM), **style)


def test_steps_are_measured_apart() -> None:
    marks = [("ProfilerStep#1", -1.0, 14.5), ("ProfilerStep#2", 14.5, 27.0)]
    result = both_steps(steps=marks)
    assert bubbles(result) == [(4, 4, 0, 0, 0)] * 4
    table = result["bubble"]
    assert records(table, "rank", "step", "micro_batches") == [
        (rank, step, 2) for rank in (0, 1) for step in ("ProfilerStep#1", "ProfilerStep#2")
    ]
    # From the first mark until its work has ended, less the phase; the last step ends with its mark.
    assert table["step_ns"].tolist() == [16_000, 12_000] * 2
    assert table["other_ns"].tolist() == [4000, 0] * 2


def test_without_marks_the_optimizer_ends_a_step() -> None:
    result = both_steps(
        steps=[("Optimizer.step#Adam.step", 13, 13.3), ("Optimizer.step#Adam.step", 13.4, 14)]
    )
    assert bubbles(result) == [(4, 4, 0, 0, 0)] * 4
    assert result["bubble"]["step"].tolist() == ["update 1", "update 2"] * 2


def test_one_step_chosen() -> None:
    marks = [("ProfilerStep#1", -1.0, 14.5), ("ProfilerStep#2", 14.5, 27.0)]
    run = stages(*(line + "===" + line for line in UNIFORM), steps=marks)
    result = analyze(select_step(run, "2"), "pipeline")
    assert bubbles(result) == [(4, 4, 0, 0, 0)] * 2
    assert result["bubble"]["step"].tolist() == ["ProfilerStep#2"] * 2


def test_a_step_recorded_in_part_is_a_skip() -> None:
    result = pipeline(*(line[3:] for line in FOUR))
    assert not len(result["bubble"])
    (skip,) = result.skips
    assert "only partly recorded" in skip.reason


def test_times_are_by_one_clock() -> None:
    """Traces with bases of their own: rank 1's numbers are 500 us smaller, its base is as much larger."""
    base = 1_700_000_000_000_000_000
    traces = []
    for rank, line in enumerate(UNIFORM):
        earlier = 500_000 * rank
        traces.append(stage(line, rank, 2, shift_ns=1_000_000 - earlier, baseTimeNanoseconds=base + earlier))
    assert bubbles(analyze(make_run(traces), "pipeline")) == [(4, 4, 0, 0, 0)] * 2


def test_no_pipeline_is_one_line_a_rank() -> None:
    result = analyze(draw_run("s7 gemm | ====", "op f | --"), "pipeline")
    assert [len(table) for table in result.data.values()] == [0, 0, 0]
    assert [skip.subject for skip in result.skips] == ["rank 0", "rank 1"]
    assert all("no pipeline" in skip.reason for skip in result.skips)


def test_forward_and_backward_scopes_alone_are_no_pipeline() -> None:
    result = pipeline(*UNIFORM, messages=False, scopes="{kind}{micro_batch}")
    assert not len(result["bubble"])


def test_a_pipeline_whose_ranks_are_not_listed_is_a_skip() -> None:
    result = pipeline(*UNIFORM, ranks="[0, 1,")
    assert not len(result["bubble"])
    assert "ranks of its pipeline are not recorded" in result.skips[0].reason


@pytest.mark.parametrize("recompute", [False, True], ids=("stored", "recomputed"))
def test_what_follows_the_last_backward_is_no_forward(recompute: bool) -> None:
    """Norms of gradients and the like, on the thread of the forward and without an optimizer's mark.

    Where layers are recomputed, ops of the forward have no backward: only the node around them does.
    """
    traces = [
        stage([*pieces(line), Piece("N", 22, 24)], rank, 4, recompute=recompute)
        for rank, line in enumerate(FOUR)
    ]
    result = analyze(make_run(traces), "pipeline")
    assert records(result["spans"]) == records(pipeline(*FOUR)["spans"])


def test_gradients_through_the_group_of_all_ranks() -> None:
    lanes = played(2, 4, 2)
    result, expected = pipeline(*lanes, chunks=2, world=True), pipeline(*lanes, chunks=2)
    assert records(result["bubble"]) == records(expected["bubble"])
    assert records(result["spans"]) == records(expected["spans"])


def test_messages_of_other_groups_are_no_pipeline() -> None:
    result = pipeline(*UNIFORM, description="CONTEXT_PARALLEL_GROUP")
    assert not len(result["bubble"])
    assert "no pipeline" in result.skips[0].reason


def test_inference_has_forwards_only() -> None:
    result = pipeline("001122....", "..001122..", "....001122")
    assert [row[0] for row in bubbles(result)] == [4, 4, 4]
    assert result["bubble"]["expected_fraction"].tolist() == [2 / 5] * 3


@settings(max_examples=effort(15, 200), deadline=None)
@given(
    st.integers(2, 4),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_parts_always_add_up(size: int, turns: int, chunks: int, forward: int, backward: int) -> None:
    lanes = played(size, turns * size, chunks, forward, backward)
    result = pipeline(*lanes, chunks=chunks)
    table = result["bubble"]
    assert len(table) == size
    assert (table[list(PARTS)].sum(axis=1) == table["bubble_ns"]).all()
    waits = result["waits"].groupby("rank")["dur_ns"].sum()
    assert np.array_equal(waits.reindex(range(size), fill_value=0), table["bubble_ns"])
    phase = max(piece.end for lane in lanes for piece in lane) * 1000
    spent = table["bubble_ns"] + table["forward_ns"] + table["backward_ns"]
    assert set(spent) == {phase}
