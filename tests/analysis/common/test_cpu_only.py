"""Traces without a GPU through the analyzers: the host's ops are the work."""

from __future__ import annotations

import pytest

from tests.builders import aligned, draw, records
from tracelens import analyze, diff, report
from tracelens.analysis.common import NO_LAUNCH
from tracelens.table import Result
from tracelens.trace import Run, make_run

GROUPS = {
    "backend": "gloo",
    "world_size": 2,
    "pg_config": [{"pg_name": "0", "pg_desc": "world", "ranks": [0, 1]}],
}
SIZES = 'shapes=[[4,8],[8,2]] types=["float","float"]'
GRADIENT = 'shapes=[[8,4],[4,2]] types=["float","float"]'
ASKS = 'shapes=[[[6]],[]] types=["TensorList",""]'
SUMS = 'shapes=[[6]] types=["float"]'

STEP = f"""
                                                                    | 0    5    10   15   20   25
    step 1                                                          | -------------------------
    scope layer                                                     |  -------
    scope backward                                                  |           ------
    op aten::linear seq=1                                           |  ------
    op aten::t                                                      |  -
    op aten::mm {SIZES}                                             |    ----
    op autograd::engine::evaluate_function: MmBackward0 seq=1 fwd=1 |           -----
    op aten::mm {GRADIENT}                                          |            ---
    op aten::item                                                   |                 -
    op c10d::allreduce_ {ASKS}                                      |                   -
    scope gloo:all_reduce tid=7 {SUMS}                              |                    ----
    op aten::add_                                                   |                      -
"""
LATE = STEP.replace("|                   -\n", "|                     -\n").replace(
    "|                    ----\n", "|                      --\n"
)


def rank(text: str, number: int = 0) -> Run:
    return make_run([draw(aligned(text), distributedInfo=GROUPS | {"rank": number})])


def ranks(*texts: str) -> Run:
    return make_run(
        draw(aligned(text), distributedInfo=GROUPS | {"rank": number}) for number, text in enumerate(texts)
    )


def reasons(result: Result) -> dict[str, str]:
    return {skip.subject: skip.reason for skip in result.skips}


def test_timeline() -> None:
    metrics = dict(records(analyze(rank(STEP), "timeline")["timeline"], "metric", "dur_ns"))
    # Products 4 + 3 and an addition of 1, which hides one of the 4 columns of communication; 3 to 24.
    assert {name: ns // 1000 for name, ns in metrics.items() if ns} == {
        "total": 20,
        "busy": 11,
        "idle": 9,
        "computation": 8,
        "comm": 4,
        "exposed_comm": 3,
    }


def test_ops_and_kernels() -> None:
    ops = records(analyze(rank(STEP), "ops")["ops"], "name", "category", "count", "dur_ns")
    assert ops == [
        ("aten::mm", "gemm", 2, 7000),
        ("c10d::allreduce_", "communication", 1, 4000),
        ("aten::add_", "elementwise", 1, 1000),
    ]
    kernels = records(analyze(rank(STEP), "kernels")["kernels"], "name", "category", "count", "sum_ns")
    assert kernels[1] == ("gloo:all_reduce", "communication", 1, 4000)


def test_scopes_with_flops() -> None:
    table = analyze(rank(STEP), "scopes")["scopes"]
    columns = ("exclusive_ns", "forward_ns", "backward_ns", "matrix_flops", "backward_matrix_flops")
    by_name = {name: values for name, *values in records(table, "name", *columns)}
    # 2 x 4 x 8 x 2 in either direction; the gradient counts in the scope of its forward op.
    assert by_name["layer"] == [7000, 4000, 3000, 256, 128]
    assert "backward" not in by_name
    assert by_name["(outside)"][3:] == [0, 0]


def test_steps_and_idle() -> None:
    step = records(analyze(rank(STEP), "steps")["steps"], "dur_ns", "kernels", "launches", "blocking_calls")
    assert step == [(25_000, 4, None, 1)]
    causes = dict(records(analyze(rank(STEP), "idle")["causes"], "cause", "dur_ns"))
    # 9 columns from the first GEMM to the second and on to the sum; 3 before the first and 2 behind the sum.
    assert {name: ns // 1000 for name, ns in causes.items()} == {"launch overhead": 9 + 3 + 2}


def test_what_an_op_reads_on_its_way_does_not_block() -> None:
    trace = """
        op aten::_grouped_mm         | ------
        op aten::item                |  -
        op aten::nonzero             |         --
        op aten::item                |             --
        op aten::_local_scalar_dense |              -
        op aten::add_                |                 -
    """
    (step,) = records(analyze(rank(trace), "steps")["steps"], "blocking_calls")
    assert step == (2,)


def test_lists_of_values_are_read_but_not_within_ops() -> None:
    """x.tolist() is recorded as two ops of its own, which others call as well."""
    trace = """
        op aten::addmm        | -----
        op aten::resolve_neg  |  -
        op aten::resolve_conj |       -
        op aten::resolve_neg  |        -
        op MyFunction         |          ---
        op aten::resolve_neg  |           -
        op aten::add_         |              -
    """
    (step,) = records(analyze(rank(trace), "steps")["steps"], "blocking_calls")
    assert step == (2,)


GATE = 'shapes=[[8,4],[4,6]] types=["float","float"]'
CHOICE = 'shapes=[[8,6],[],[],[],[]] types=["float","Scalar","","",""] values=["","2","-1","True","True"]'
LAYER = f"""
    scope moe              | -----------------------------
    scope moe.router       |  ------
    op aten::mm {GATE}     |  --
    op aten::topk {CHOICE} |      --
    scope moe.permute      |         -----
    op aten::nonzero       |          -
    op aten::index_select  |            -
    scope moe.experts      |               ---------
    op aten::item          |                -
    op aten::mm {SIZES}    |                  --
    op aten::mm {SIZES}    |                     --
    op aten::item          |                           -
    op aten::add_          |                             -
"""


def test_reads_belong_to_the_part_that_they_stand_in() -> None:
    """A part may begin with one, before any work; outside of parts it goes with the work before."""
    result = analyze(rank(LAYER), "moe")
    assert {
        stage: count for stage, count in records(result["stages"], "stage", "blocking_count") if count
    } == {
        "permute": 1.0,
        "experts": 2.0,
    }
    assert result.meta["sync_free_stage"] == 0


def test_collectives_are_matched_across_ranks() -> None:
    result = analyze(ranks(STEP, LATE), "collectives")
    columns = ("collective", "group", "ranks", "bytes", "start_skew_ns", "last_rank")
    assert records(result["collectives"], *columns) == [("allreduce", "world 0-1", 2, 24, 2000, 1)]
    assert records(result["ranks"], "rank", "kernel_ns", "wait_ns") == [(0, 4000, 2000), (1, 2000, 0)]


def test_stragglers_name_what_the_host_was_in() -> None:
    (row,) = records(analyze(ranks(STEP, LATE), "stragglers")["stragglers"], "rank", "cause", "evidence")
    assert row[:2] == (1, "late_launch")
    assert row[2].startswith("no op ran for ")


READS = f"""
    op aten::mm {SIZES}                   | ----
    op aten::item                         |      {{reads}}
    op c10d::allreduce_ {ASKS}            |      {{before}}-
    scope gloo:all_reduce tid=7 {SUMS}    |      {{before}} {{sum}}
"""


def reading(reads: str) -> Run:
    """Rank 1 reads what the other does not, and comes 30 columns later for it."""
    prompt = READS.format(reads="-", before="  ", sum="-" * 40)
    late = READS.format(reads=reads, before=" " * 32, sum="-" * 10)
    return ranks(prompt, late)


@pytest.mark.parametrize(
    ("reads", "cause", "evidence"),
    [
        # The processor was taken from it twice.
        ("- " * 5 + " " * 8 + "- " * 3 + " " * 4 + "- " * 2, "blocking_call", "31.0 µs (others 1.00 µs)"),
        # It reads for 3 of 32 columns; what else it does is not recorded.
        ("-          -          -", "late_launch", "31.0 µs (others 3.00 µs)"),
        ("-" * 25, "blocking_call", "25.0 µs (others 1.00 µs)"),
    ],
)
def test_a_host_that_reads_one_value_after_the_other_is_in_a_blocking_call(
    reads: str, cause: str, evidence: str
) -> None:
    (row,) = records(analyze(reading(reads), "stragglers")["stragglers"], "rank", "cause", "evidence")
    assert row[:2] == (1, cause)
    assert row[2].startswith(f"no op ran for {evidence}")
    assert ("aten::item" in row[2]) == (cause == "blocking_call")


def test_launches_are_skipped() -> None:
    result = analyze(rank(STEP), "launches")
    assert len(result["launches"]) == 0
    assert reasons(result) == {"rank 0": "CPU-only trace: nothing is launched"}


def test_roofline_counts_without_a_roof() -> None:
    result = analyze(rank(STEP), "roofline")
    columns = ("name", "shapes", "flops", "read_bytes", "efficiency")
    products = [row[1:] for row in records(result["roofline"], *columns) if row[0] == "aten::mm"]
    assert products == [
        ("fp32[4,8] fp32[8,2]", 128, 4 * (4 * 8 + 8 * 2), None),
        ("fp32[8,4] fp32[4,2]", 128, 4 * (8 * 4 + 4 * 2), None),
    ]
    assert "CPU-only trace" in reasons(result)["rank 0: roofline time and efficiency"]
    # A device that the header names did nothing, so its peaks are none of this trace's.
    gpus = [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]
    trace = draw(aligned(STEP), distributedInfo=GROUPS | {"rank": 0}, deviceProperties=gpus)
    assert analyze(make_run([trace]), "roofline")["roofline"]["efficiency"].isna().all()


@pytest.mark.parametrize(
    "name",
    ["launch_bound", "small_kernels", "moe_blocking_calls", "other_blocking_calls", "deepep_busy_wait"],
)
def test_detectors_of_launching_are_silent(name: str) -> None:
    checked = analyze(rank(STEP), "findings")["checks"]
    assert dict(records(checked, "detector", "verdict"))[name] == NO_LAUNCH


def test_every_section_says_what_is_meant() -> None:
    whole = report(rank(STEP))
    assert whole.meta["devices"] == ["cpu (host ops)"]
    assert all("CPU-only trace: GPU means the CPU" in result.doc for result in whole.results)
    (compared,) = diff(rank(STEP), rank(STEP)).results
    assert "CPU-only trace: GPU means the CPU" in compared.doc


def test_scope_linked_is_all_of_it() -> None:
    every, linked = (analyze(rank(STEP), "timeline", scope=scope)["timeline"] for scope in ("all", "linked"))
    wanted = {"total", "busy", "computation"}
    assert [row for row in records(every, "metric", "dur_ns") if row[0] in wanted] == [
        row for row in records(linked, "metric", "dur_ns") if row[0] in wanted
    ]


def test_messages_of_a_pipeline_meet_by_their_ranks() -> None:
    """Three stages pass a message on; the group has more than two ranks."""
    send, receive = (
        f'op c10d::{name} shapes=[[[9]],[],[],[]] types=["TensorList","","Scalar","Scalar"] '
        for name in ("send", "recv_")
    )
    note = 'shapes=[[9]] types=["float"]'
    info = {"world_size": 3, "pg_config": [{"pg_name": "0", "pg_desc": "pp", "ranks": [0, 1, 2]}]}
    texts = (
        f"""
            {send} values=["","","1","0"]  | --
            scope gloo:send {note}         |  --
        """,
        f"""
            {receive} values=["","","0","0"] | --
            scope gloo:recv {note}           |  --
            {send} values=["","","2","0"]    |     --
            scope gloo:send {note}           |      --
        """,
        f"""
            {receive} values=["","","1","0"] |     --
            scope gloo:recv {note}           |      ---
        """,
    )
    run = make_run(
        draw(aligned(text), distributedInfo=info | {"rank": number}) for number, text in enumerate(texts)
    )
    result = analyze(run, "collectives")
    assert records(result["collectives"], "collective", "ranks", "bytes", "last_rank") == [
        ("send/recv", 2, 36, 0),
        ("send/recv", 2, 36, 1),
    ]
    assert not [skip for skip in result.skips if "does not say" in skip.reason]
