"""Serving ranks drawn by hand: which steps run together, and what mismatched phases and padding cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import aligned, draw, draw_run, events, read, records
from tracelens import analyze
from tracelens.analysis import ANALYZERS
from tracelens.analysis.common import FILE_VARIABLE, KINDS, Label, grammar
from tracelens.analysis.serving import RankSteps, global_steps
from tracelens.analysis.serving.steps import Step
from tracelens.costs import Lengths, ServingBatch
from tracelens.errors import TracelensError
from tracelens.rendering import RENDERERS
from tracelens.table import Report, Result
from tracelens.trace import make_run, select_step

PREFILL, DECODE = "prefill[bs=1 tok=1024 ctx=1024]", "decode[bs=16 tok=16 d=16]"


def rank(*steps: tuple[str, int]) -> str:
    """A rank with these steps, (label, columns on the GPU), one behind the other; the host runs ahead.

    Each mark is one column on the host, every second one; the kernels begin at column 20.
    """
    rows, column = [], 20
    for index, (label, columns) in enumerate(steps):
        letter = "abcdefghij"[index]
        rows.append(f"scope {label} | {' ' * 2 * index}-")
        rows.append(f"launch | {' ' * 2 * index}{letter}")
        rows.append(f"s7 gemm | {' ' * column}{letter * columns}")
        column += columns
    return aligned("\n".join(rows))


def of(*texts: str, **options: Any) -> Result:
    return analyze(draw_run(*texts, **options), "serving")


def row(result: Result, *columns: str) -> tuple[Any, ...]:
    (only,) = records(result["summary"], *columns)
    return only


def test_one_prefill_among_decoding_ranks_pads_86_percent() -> None:
    """1 x 1024 + 7 x 16 = 1136 tokens in 8 x 1024 = 8192 places."""
    result = of(rank((PREFILL, 10)), *[rank((DECODE, 10))] * 7)
    columns = ("kinds", "mismatch", "dur_ns", "ranks", "tokens_max", "tokens_sum", "padding_fraction")
    assert records(result["alignment"], *columns) == [
        ("7 decode, 1 prefill", True, 10_000, 8, 1024, 1136, 1 - 1136 / 8192)
    ]
    assert row(result, "tokens", "slots", "padding_fraction") == (1136, 8192, 1 - 1136 / 8192)
    assert round(100 * row(result, "padding_fraction")[0], 1) == 86.1


def test_a_serving_run_of_eight_ranks() -> None:
    """Rank 0 prefills in step 0, ranks 0 to 3 in step 3; the two steps between are decoding everywhere."""
    short = "prefill[bs=2 tok=512 ctx=[500, 12]]"
    first = rank((PREFILL, 10), (DECODE, 4), (DECODE, 4), (short, 6))
    with_graph = rank((DECODE, 10), (DECODE, 4), (DECODE, 4), (short, 6))
    eager = rank((DECODE, 10), (DECODE, 4), (DECODE, 4), ("eager_decode[bs=64 tok=64 ctx=[9, 9]]", 6))
    result = of(first, *[with_graph] * 3, *[eager] * 4)
    assert records(result["alignment"], "step", "kinds", "dur_ns", "tokens_sum", "ts_ns") == [
        (0, "7 decode, 1 prefill", 10_000, 1136, 20_000),
        (1, "8 decode", 4_000, 128, 30_000),
        (2, "8 decode", 4_000, 128, 34_000),
        (3, "4 decode, 4 prefill", 6_000, 4 * 512 + 4 * 64, 38_000),
    ]
    columns = ("steps", "step_ns", "mismatch_steps", "mismatch_ns", "phase_mismatch_fraction", "delay_ns")
    # Decoding alone takes 4 us: the first step cost 6 us more, the last one 2. Rank 0 prefills in both.
    assert row(result, *columns) == (4, 24_000, 2, 16_000, 16 / 24, 8_000)
    assert row(result, "alignable_ns") == (0,)
    tokens, slots = 1136 + 128 + 128 + 2304, 8192 + 128 + 128 + 4096
    assert row(result, "tokens", "slots", "padding_fraction") == (tokens, slots, 1 - tokens / slots)
    # Of decoding, rank 0 has 8 us, ranks 1 to 3 have 18, ranks 4 to 7 have 24 with 6 of them eager.
    decode = 8 + 3 * 18 + 4 * 24
    assert row(result, "engine", "eager_fraction", "dummy_fraction") == ("ATOM", 4 * 6 / decode, 0)
    kinds = result["ranks"]
    columns = ("kind", "count", "dur_ns", "fraction_of_step_time", "requests", "tokens", "eager_fraction")
    assert records(kinds[kinds["rank"] == 0], *columns) == [
        ("prefill", 2, 16_000, 16 / 24, 3, 1536, 1),
        ("decode", 2, 8_000, 8 / 24, 32, 32, 0),
    ]
    assert records(kinds[kinds["rank"] == 7], *columns) == [("decode", 4, 24_000, 1, 112, 112, 0.25)]


def test_prefills_that_could_run_together() -> None:
    """Late by 6, 4 and 3 us over decoding in 4: rank 0 alone accounts for 6, rank 1 for 4 + 3."""
    trace = rank((PREFILL, 10), (DECODE, 8), (DECODE, 7), (DECODE, 4))
    other = rank((DECODE, 10), (PREFILL, 8), (PREFILL, 7), (DECODE, 4))
    result = of(trace, other, rank((DECODE, 10), (DECODE, 8), (DECODE, 7), (DECODE, 4)))
    assert row(result, "mismatch_steps", "delay_ns", "alignable_ns") == (3, 13_000, 13_000 - 7_000)


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        ("execute_context_1(1024)_generation_0(0)", "execute_context_0(0)_generation_16(16)"),
        (
            "execute_1024_context_1(sq1024sk1024sqsq1048576sqsk1048576)_generation_0(sq0sk0sqsq0sqsk0)",
            "execute_16_context_0(sq0sk0sqsq0sqsk0)_generation_16(sq16sk640sqsq16sqsk640)",
        ),
        ("step[EXTEND bs=1 toks=1024]", "step[DECODE bs=16]"),
    ],
)
def test_ranks_of_any_engine_are_compared(prefill: str, decode: str) -> None:
    """1024 + 16 tokens in 2 x 1024 places, 6 us more than a step in which both decode; nothing to align."""
    result = of(rank((prefill, 10), (decode, 4)), rank((decode, 10), (decode, 4)))
    assert row(result, "mismatch_steps", "delay_ns", "alignable_ns") == (1, 6_000, 0)
    assert row(result, "tokens", "slots") == (1024 + 16 + 32, 2048 + 32)


def test_requests_without_tokens_leave_padding_open() -> None:
    prefill, decode = (
        f"[Executor] _forward_step 7: {reqs} gen reqs" for reqs in ("1 ctx reqs, 0", "0 ctx reqs, 8")
    )
    result = of(rank((prefill, 10), (decode, 4)), rank((decode, 10), (decode, 4)))
    assert row(result, "engine", "delay_ns", "padding_fraction") == ("TensorRT-LLM", 6_000, None)
    assert any(skip.subject == "padding of 2 step(s)" for skip in result.skips)


def test_equal_ranks_have_no_mismatch_and_no_padding() -> None:
    result = of(*[rank((PREFILL, 8), (DECODE, 4))] * 4)
    assert row(result, "steps", "phase_mismatch_fraction", "padding_fraction", "delay_ns") == (2, 0, 0, 0)


def test_without_a_step_of_pure_decoding_the_delay_is_not_known() -> None:
    result = of(rank((PREFILL, 8)), rank((DECODE, 8)))
    assert row(result, "delay_ns", "alignable_ns") == (None, None)
    assert row(result, "decode_ns", "decode_source") == (None, "")


def without_pure_decoding() -> tuple[str, str]:
    """Two steps in which one rank decodes: rank 0 computes 2 us and waits 5 for its all-gather.

    Rank 1 decodes without waiting. Collectives end together. The all-gather itself takes 2 us.
    """
    record = (
        "op record_param_comms collective=_allgather_base group=0 ranks=[0,1] size=2 in=8 out=16 dtype=Half"
    )
    first = aligned(f"""
        {record}                   | -    -
        scope {DECODE} | --
        scope {PREFILL} |      --
        launch                     | ac   bd
        s7 gemm                    |          cc       dddd
        s7 ncclDevKernel_AllGather |            aaaaaaa    bb
    """)
    second = aligned(f"""
        {record}                   | -    -
        scope {PREFILL} | --
        scope {DECODE} |      --
        launch                     | ac   bd
        s7 gemm                    |          ccccccc  dddd
        s7 ncclDevKernel_AllGather |                 aa    bb
    """)
    return first, second


def test_without_a_step_of_pure_decoding_the_least_work_of_a_decode_is_the_reference() -> None:
    """Rank 0: 2 us of GEMM and 2 of all-gather, 5 us of waiting left out; rank 1: 4 + 2 us.

    The steps take 9 and 6 us: 5 + 2 us late. Rank 1 prefills in the first one, rank 0 in the second.
    """
    result = of(*without_pure_decoding())
    assert row(result, "decode_ns", "decode_source") == (4_000, "least GPU work")
    assert row(result, "mismatch_steps", "delay_ns", "alignable_ns") == (2, 7_000, 2_000)


def test_a_step_of_pure_decoding_is_the_better_reference() -> None:
    result = of(rank((PREFILL, 10), (DECODE, 4)), rank((DECODE, 10), (DECODE, 4)))
    assert row(result, "decode_ns", "decode_source") == (4_000, "all-decode steps")


def test_a_rank_without_a_request_is_in_no_phase() -> None:
    """Its token serves nobody: 1024 useful ones in 3 x 1024 places, then none that can be counted."""
    dummy = "dummy_eager_decode[bs=1 tok=1 ctx=1]"
    result = of(rank((PREFILL, 8), (dummy, 2)), *[rank((dummy, 8), (dummy, 2))] * 2)
    assert records(result["alignment"], "kinds", "mismatch", "idle_ranks", "padding_fraction") == [
        ("2 dummy decode, 1 prefill", False, 2, 1 - 1024 / 3072),
        ("3 dummy decode", False, 3, None),
    ]
    # 2 x 8 us beside the prefill and 3 x 2 us, of 30 us.
    assert row(result, "padding_fraction", "dummy_fraction") == (1 - 1024 / 3072, 22 / 30)
    # Nobody decodes, eagerly or not.
    assert row(result, "eager_fraction") == (None,)
    assert records(result["ranks"], "rank", "kind", "tokens", "dummy_fraction")[:2] == [
        (0, "prefill", 1024, 0),
        (0, "decode", 0, 1),
    ]


def test_graph_padding() -> None:
    """117 requests in a graph for 128, 64 in one for 64; the dummy's padding serves nobody."""
    steps = [
        ("decode[bs=117/128 tok=117 d=117]", 4),
        ("decode[bs=64 tok=64 d=64]", 4),
        ("dummy_decode[bs=1/8 tok=1 d=1]", 4),
    ]
    result = of(rank(*steps))
    assert row(result, "graph_padding_fraction") == (1 - 181 / 192,)
    columns = ("kind", "eager", "graph", "dummy", "tbo", "requests", "graph_requests", "tokens")
    assert records(result["steps"], *columns) == [
        ("decode", False, True, False, False, 117, 128, 117),
        ("decode", False, True, False, False, 64, None, 64),
        ("decode", False, True, True, False, 1, 8, 1),
    ]
    assert records(result["steps"], "rank", "index", "ts_ns", "dur_ns") == [
        (0, 0, 20_000, 4_000),
        (0, 1, 24_000, 4_000),
        (0, 2, 28_000, 4_000),
    ]


def test_one_rank_is_compared_with_nobody() -> None:
    result = of(rank((PREFILL, 8), (DECODE, 4)))
    assert row(result, "steps", "phase_mismatch_fraction", "padding_fraction") == (None, None, None)
    assert row(result, "step_ns", "mismatch_steps", "delay_ns", "tokens", "slots") == (None,) * 5
    assert len(result["alignment"]) == 0
    assert "one rank" in next(skip.reason for skip in result.skips if "mismatch" in skip.subject)


def test_a_rank_whose_recording_starts_later_joins_at_its_first_step() -> None:
    late = aligned(f"""
        scope {DECODE} |                           -
        launch         |                           a
        s7 gemm        |                              aaaa
    """)
    result = of(rank((PREFILL, 10), (DECODE, 4)), rank((DECODE, 10), (DECODE, 4)), late)
    assert records(result["alignment"], "kinds", "ranks") == [("1 decode, 1 prefill", 2), ("3 decode", 3)]
    # Only the two ranks that are there: 1 - 1040 / 2048.
    assert result["alignment"]["padding_fraction"].tolist() == [1 - 1040 / 2048, 0]
    assert any(skip.subject == "all ranks of 1 step(s)" for skip in result.skips)


def test_a_step_that_begins_as_another_ends_is_the_next_one() -> None:
    """Rank 1 leaves step 0 early and begins step 1 while rank 0 is still in step 0."""
    trace = rank((PREFILL, 10), (DECODE, 10))
    other = rank((DECODE, 8), (DECODE, 12))
    assert records(of(trace, other)["alignment"], "kinds", "ts_ns", "dur_ns") == [
        ("1 decode, 1 prefill", 20_000, 10_000),
        ("2 decode", 28_000, 12_000),
    ]


def test_steps_at_different_times_are_not_compared() -> None:
    result = of(rank((PREFILL, 4)), aligned(f"scope {DECODE} | {' ' * 60}----"))
    assert len(result["alignment"]) == 0
    assert any("no two ranks' steps overlap" in skip.reason for skip in result.skips)


def test_clocks_are_aligned_by_collectives() -> None:
    """Rank 1 is on a host whose clock is 5 ms ahead; its all-reduces end when those of rank 0 end."""
    record = "op record_param_comms collective=allreduce group=0 ranks=[0,1] size=2 in=8 out=8 dtype=Half"

    def drawing(first: str) -> str:
        return aligned(f"""
            {record}                   | -   -
            scope {first}              | --
            scope {DECODE}             |     --
            launch                     | a   b
            s7 ncclDevKernel_AllReduce |      aaaaaabbb
        """)

    traces = [draw(drawing(PREFILL), rank=0), draw(drawing(DECODE), rank=1, start_ns=5_000_000)]
    result = analyze(make_run(traces), "serving")
    assert records(result["alignment"], "kinds", "ts_ns", "dur_ns") == [
        ("1 decode, 1 prefill", 5_000, 6_000),
        ("2 decode", 11_000, 3_000),
    ]
    assert result["steps"]["ts_ns"].tolist() == [5_000, 11_000] * 2


def test_a_step_begins_behind_what_was_in_flight_at_the_start() -> None:
    """A copy to the host waits for 22 ms on a stream for what is not recorded."""
    text = f"""
        scope {DECODE}         | ---------------------------
        launch                 | a
        s9 add                 |  a
        launch cudaMemcpyAsync |   bbbbbbbbbbbbbbbbbbbbbb
        s7 copy DtoH           |                         b
        launch                 |                          c
        s7 gemm                |                           cc
    """
    result = of(aligned(text), ns_per_char=1_000_000)
    assert records(result["steps"], "dur_ns") == [(4_000_000,)]


def test_marks_without_kernels_count_as_they_are() -> None:
    drawing = aligned(f"""
        scope {PREFILL} | --------
        scope {DECODE}  |         ---
    """)
    result = of(drawing, drawing)
    assert records(result["alignment"], "kinds", "dur_ns") == [("2 prefill", 8_000), ("2 decode", 3_000)]


def test_marks_on_the_gpu_count_where_the_cpu_was_not_recorded() -> None:
    drawing = aligned(f"""
        gpu {PREFILL} | --------
        gpu {DECODE}  |         ---
        s7 gemm       | ====== ====
    """)
    result = of(drawing, drawing)
    assert records(result["alignment"], "kinds", "dur_ns") == [("2 prefill", 8_000), ("2 decode", 3_000)]


def test_a_mark_is_drawn_on_every_stream_of_the_gpu() -> None:
    """Equal steps follow each other at once, so the marks of one stream overlap those of another."""
    marks = events(f"gpu {DECODE} | ----====")
    other = [{**event, "tid": 9, "ts": event["ts"] + 0.5} for event in marks[:1]]
    result = analyze(make_run([read([*marks, *other], rank=0)]), "serving")
    assert records(result["steps"], "ts_ns", "dur_ns") == [(0, 4_000), (4_000, 4_000)]


def test_a_mark_on_the_gpu_beside_that_of_the_host_is_no_second_step() -> None:
    drawing = aligned(f"""
        scope {DECODE} | --
        launch         | a
        gpu {DECODE}   |    ----
        s7 gemm        |    aaaa
    """)
    assert records(of(drawing)["steps"], "ts_ns", "dur_ns") == [(3_000, 4_000)]


def test_the_outer_one_of_two_labels_is_the_step() -> None:
    drawing = aligned("""
        scope step[DECODE bs=4]        | ----------
        scope step[TARGET_VERIFY bs=4] |   ----
        scope step[MIXED bs=3]         |            ----
    """)
    result = of(drawing)
    assert records(result["steps"], "kind", "tokens", "dur_ns") == [
        ("decode", 4, 10_000),
        ("mixed", None, 4_000),
    ]


def test_launch_calls_tell_eager_where_the_label_does_not() -> None:
    drawing = aligned("""
        scope step[DECODE bs=4]  | --
        scope step[DECODE bs=5]  |    --
        scope step[DECODE bs=6]  |       --
        launch cudaGraphLaunch   | a
        launch                   |    b
        s7 gemm                  |   aaaaaabb
    """)
    result = of(drawing)
    assert records(result["steps"], "eager", "graph") == [(False, True), (True, False), (False, False)]
    assert row(result, "eager_fraction") == (2 / 8,)


def test_padding_needs_all_tokens() -> None:
    result = of(rank(("step[MIXED bs=66]", 4)), rank(("step[DECODE bs=64]", 4)))
    assert records(result["alignment"], "kinds", "mismatch", "tokens_max", "padding_fraction") == [
        ("1 decode, 1 mixed", True, None, None)
    ]
    assert row(result, "padding_fraction", "slots") == (None, 0)
    assert any(skip.subject == "padding of 1 step(s)" for skip in result.skips)


def test_two_batch_overlap() -> None:
    """Halves of 600 and 400 tokens; of 10 columns of communication 6 are beside computation."""
    drawing = aligned("""
        scope prefill[bs=3 tok=1000 ctx=[400, 300, 300] tbo=1] | ------------
        scope ub0[bs=2 tok=600] tid=2                          |  ---
        scope ub1[bs=2 tok=400] tid=3                          |   ---
        scope decode[bs=4 tok=4 d=4]                           |             --
        launch                                                 |  a          d
        launch tid=2                                           |   b
        launch tid=3                                           |    c
        s7 gemm                                                |      aaaaaa      dddd
        s9 ncclDevKernel_AllGather                             |        bbbbb
        s9 ncclDevKernel_ReduceScatter                         |             ccccc
        s7 softmax                                             |             cc
    """)
    result = of(drawing)
    columns = ("index", "kind", "tokens", "token_imbalance", "comm_ns", "hidden_ns", "overlap_efficiency")
    # The all-gather runs from 8 to 13, beside the GEMM until 12; of the reduce-scatter the softmax hides 2.
    assert records(result["overlap"], *columns) == [(0, "prefill", 1000, 0.2, 10_000, 6_000, 0.6)]
    assert row(result, "tbo_steps", "tbo_imbalance", "tbo_efficiency") == (1, 0.2, 0.6)
    assert not [skip for skip in result.skips if "overlap" in skip.subject]


def test_two_batch_overlap_without_labels_of_the_halves() -> None:
    result = of(rank(("prefill[bs=1 tok=9 ctx=9 tbo=1]", 4)))
    assert records(result["overlap"], "token_imbalance", "comm_ns", "overlap_efficiency") == [(None, 0, None)]
    assert "token balance of two-batch overlap" in [skip.subject for skip in result.skips]


def test_one_step_of_the_profiler() -> None:
    drawing = aligned(f"""
        step 1          | ----------
        step 2          |           ----------
        scope {PREFILL} | --
        scope {DECODE}  |           --
        launch          | a         b
        s7 gemm         |  aaaaaaaa  bbbb
    """)
    result = analyze(select_step(draw_run(drawing, drawing), "2"), "serving")
    assert records(result["alignment"], "kinds", "dur_ns") == [("2 decode", 4_000)]


def test_no_labels_no_tables() -> None:
    drawing = "scope forward | ----"
    result = of(drawing, drawing)
    assert [len(table) for table in result.data.values()] == [0] * 6
    reason = "no step label of ATOM, vLLM, SGLang or TensorRT-LLM in the trace"
    assert [(skip.subject, skip.reason) for skip in result.skips] == [("rank 0", reason), ("rank 1", reason)]
    (text,) = RENDERERS.get("markdown").files(Report((result,))).values()
    assert b"| engine" not in text


def test_a_rank_without_labels_beside_others() -> None:
    result = of(rank((DECODE, 4)), rank((DECODE, 4)), "scope forward | ----")
    assert records(result["alignment"], "kinds", "ranks") == [("2 decode", 2)]
    assert [skip.subject for skip in result.skips if skip.subject.startswith("rank")] == ["rank 2"]


def test_every_label_of_the_grammars() -> None:
    """What each example in the file says, by hand."""
    read = {
        "prefill[bs=2 tok=14721 ctx=[7803, 6918]]": ("prefill", "eager", False, False, 2, -1, 14721),
        "prefill[bs=1 tok=8192 ctx=8192 tbo=1]": ("prefill", "eager", False, True, 1, -1, 8192),
        "prefill[bs=6 tok=17408 ctx=[4096, 4096, 4096]...+3]": (
            "prefill",
            "eager",
            False,
            False,
            6,
            -1,
            17408,
        ),
        "prefill[bs=1 tok=8192 ctx=8192] tbo=1": ("prefill", "eager", False, True, 1, -1, 8192),
        "decode[bs=117/128 tok=117 d=117]": ("decode", "graph", False, False, 117, 128, 117),
        "decode[bs=32 tok=128 d=32 spec=3 sqsq=512 sqsk=26 sk=6]": (
            "decode",
            "graph",
            False,
            False,
            32,
            -1,
            128,
        ),
        "decode[bs=128 tok=384 p=2 d=126 tbo=1]": ("decode", "graph", False, True, 128, -1, 384),
        "decode[bs=16]": ("decode", "graph", False, False, 16, -1, -1),
        "eager_decode[bs=300 tok=300 ctx=[12, 9, 31]...+297]": (
            "decode",
            "eager",
            False,
            False,
            300,
            -1,
            300,
        ),
        "dummy_prefill[bs=1 tok=8192 ctx=8192]": ("prefill", "eager", True, False, 1, -1, 8192),
        "dummy_decode[bs=1/8 tok=1 d=1]": ("decode", "graph", True, False, 1, 8, 1),
        "dummy_eager_decode[bs=1 tok=1 ctx=1]": ("decode", "eager", True, False, 1, -1, 1),
        "propose_eagle[0/3 tok=5 bs=4/8 graph]": ("draft", "graph", False, False, 4, 8, 5),
        "propose_eagle[1/3 tok=4 bs=4]": ("draft", "", False, False, 4, -1, 4),
        "propose_mtp[0/1 tok=4 bs=4/8]": ("draft", "", False, False, 4, 8, 4),
        "propose_dspark[bs=3/4 T=5]": ("draft", "", False, False, 3, 4, -1),
        "execute_context_2(6144)_generation_3(3)": ("mixed", "", False, False, 5, -1, 6147),
        "execute_context_2(14721)_generation_0(0)": ("prefill", "", False, False, 2, -1, 14721),
        "execute_context_0(0)_generation_64(64)": ("decode", "", False, False, 64, -1, 64),
        "execute_context_0(0)_generation_0(0)": ("idle", "", True, False, 0, -1, 0),
        "execute_6147_context_2(sq6144sk7144sqsq2sqsk3)_generation_3(sq3sk6144sqsq3sqsk6144)": (
            ("mixed", "", False, False, 5, -1, 6147)
        ),
        "execute_64_context_0(sq0sk0sqsq0sqsk0)_generation_64(sq64sk131072sqsq64sqsk131072)": (
            ("decode", "", False, False, 64, -1, 64)
        ),
        "execute_new_1_cached_31": ("mixed", "", False, False, 32, -1, -1),
        "execute_new_0_cached_31": ("decode", "", False, False, 31, -1, -1),
        "gpu_model_runner: forward": ("other", "", False, False, -1, -1, -1),
        "v2_gpu_model_runner: forward": ("other", "", False, False, -1, -1, -1),
        "[Executor] _forward_step 12: 3 ctx reqs, 32 gen reqs": ("mixed", "", False, False, 35, -1, -1),
        "[Executor] _forward_step 9: 2 ctx reqs, 800 ctx tokens, 0 gen reqs": (
            ("prefill", "", False, False, 2, -1, 800)
        ),
        # Generation steps may verify drafts: their tokens are not in the label.
        "[Executor] _forward_step 60000: 0 ctx reqs, 0 ctx tokens, 32 gen reqs": (
            ("decode", "", False, False, 32, -1, -1)
        ),
        "[Executor] _forward_step: 2 ctx reqs, 1 gen reqs": ("mixed", "", False, False, 3, -1, -1),
        "_forward_step: 1 ctx reqs, 0 gen reqs": ("prefill", "", False, False, 1, -1, -1),
        "_forward_step: 0 ctx reqs, 0 gen reqs": ("idle", "", True, False, 0, -1, -1),
        "step[DRAFT_LOOP raw_bs=3 bs=4 topk=1]": ("draft", "graph", False, False, 3, 4, -1),
        "step[EXTEND bs=2 toks=14721]": ("prefill", "", False, False, 2, -1, 14721),
        "step[EXTEND bs=1 toks=1025 c_sqsq=1050625 c_sqsk=1050625 c_sk=1025]": (
            ("prefill", "", False, False, 1, -1, 1025)
        ),
        "step[SPLIT_PREFILL bs=2]": ("prefill", "", False, False, 2, -1, -1),
        "step[DECODE bs=64]": ("decode", "", False, False, 64, -1, 64),
        "step[DECODE bs=64 g_sq=128 g_sqsq=256 g_sqsk=262144 g_sk=131072]": (
            ("decode", "", False, False, 64, -1, 128)
        ),
        "step[TARGET_VERIFY bs=8]": ("decode", "", False, False, 8, -1, -1),
        "step[MIXED bs=66 c=2 g=64 c_sq=2048 c_sk=2048 c_sqsq=1 g_sq=64 g_sk=65600]": (
            ("mixed", "", False, False, 66, -1, 2112)
        ),
        "step[MIXED bs=2 c=1 g=1 c_sq=5 c_sk=8 c_sqsq=25 c_sqsk=40 g_sq=1 g_sk=12 g_sqsq=1 g_sqsk=12]": (
            ("mixed", "", False, False, 2, -1, 6)
        ),
        "step[MIXED bs=1 c=1 g=0 c_sq=3 c_sk=3 c_sqsq=9 c_sqsk=9 g_sq=0 g_sk=0 g_sqsq=0 g_sqsk=0]": (
            ("prefill", "", False, False, 1, -1, 3)
        ),
        "step[TARGET_VERIFY bs=8 g_sq=32 g_sqsq=128 g_sqsk=4096 g_sk=1024]": (
            ("decode", "", False, False, 8, -1, 32)
        ),
        "step[MIXED bs=66]": ("mixed", "", False, False, 66, -1, -1),
        "step[IDLE bs=0]": ("idle", "", True, False, 0, -1, 0),
        "step[DRAFT_EXTEND_V2 bs=1]": ("draft", "", False, False, 1, -1, -1),
        "step[PREBUILT bs=4]": ("other", "", False, False, 4, -1, -1),
        "step[prefill bs=3 toks=99]": ("prefill", "", False, False, 3, -1, 99),
        "step[decode bs=3]": ("decode", "", False, False, 3, -1, 3),
        "step[mixed bs=66 ext=2048 dec=64]": ("mixed", "", False, False, 66, -1, 2112),
        "step[idle]": ("idle", "", True, False, 0, -1, 0),
    }
    labels = {text: grammar().step(text) for text in read}
    assert {text: label[1:8] if label else None for text, label in labels.items()} == read
    engines = [label.engines for label in labels.values() if label]
    assert {names: engines.count(names) for names in set(engines)} == {
        ("ATOM",): 16,
        ("vLLM",): 8,
        ("vLLM", "SGLang"): 2,
        ("SGLang",): 19,
        ("TensorRT-LLM",): 6,
    }
    examples = {text for rule in grammar().steps for text in rule.values["examples"]}
    assert examples <= set(read), "an example of serving_labels.toml is not read here"


@pytest.mark.parametrize(
    "text",
    [
        "prefill",
        "decode[0]",
        "decode[layer=3]",
        "predecode[bs=4 tok=4]",
        "decode[bs=4",
        "decode[bs=4]: attention",
        "my decode[bs=4 tok=4 d=4]",
        "warm_decode[bs=4 tok=4]",
        "eager_decode[tok=4]",
        "propose_eagle[0/3 tok=5]",
        "draft_kv[bs=4 tok=4]",
        "dspark_sched[bs=4]",
        "execute_model",
        "execute_context_2",
        "execute_context_2(6144)",
        "execute_new_1_cached_",
        "step[1]",
        "step[DECODE]",
        "step[decode lr=0.1]",
        "step[warmup bs=4]",
        "ProfilerStep#3",
        "scheduler.run_batch",
        "aten::mm",
        "",
    ],
)
def test_what_looks_alike_is_no_label(text: str) -> None:
    assert grammar().step(text) is None


@pytest.mark.parametrize(
    ("text", "half"),
    [
        ("ub0[tok=512]", (0, 512)),
        ("ubatch_1[bs=4 tok=500]", (1, 500)),
        ("ub1[tok=500 bs=4]", (1, 500)),
        ("ub0", None),
        ("ub[tok=512]", None),
        ("sub0[tok=512]", None),
        ("ub0[bs=512]", None),
    ],
)
def test_labels_of_halves(text: str, half: tuple[int, int] | None) -> None:
    assert grammar().half(text) == half


def test_absurd_numbers_are_not_told() -> None:
    label = grammar().step(f"decode[bs={'9' * 30} tok=4]")
    assert label is not None
    assert (label.requests, label.tokens) == (-1, 4)


DETAILED = "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk96sqsq32sqsk96)"
SGLANG_FRAME = "python /sgl-workspace/sglang/python/sglang/srt/managers/scheduler.py(9):_run_batch"
VLLM_FRAME = "python vllm/v1/worker/gpu_model_runner.py(3380):execute_model"
ATOM_FRAME = "python /app/ATOM/atom/model_ops/attention_mla.py(7):forward"


@pytest.mark.parametrize(
    ("rows", "engine"),
    [
        ([DETAILED], "vLLM or SGLang"),
        (["execute_context_0(0)_generation_32(32)"], "vLLM"),
        (["step[DECODE bs=32]"], "SGLang"),
        (["decode[bs=32 tok=32 d=32]"], "ATOM"),
        # SGLang's own label inside, or beside one.
        ([DETAILED, "step[DECODE bs=32]"], "SGLang"),
        ([DETAILED, "op sglang::store_cache"], "SGLang"),
        ([DETAILED, "op vllm::unified_attention_with_output"], "vLLM"),
        ([DETAILED, "op sglang::store_cache", "op vllm::moe_forward"], "vLLM or SGLang"),
        ([DETAILED, "op aten::mm"], "vLLM or SGLang"),
        ([DETAILED, SGLANG_FRAME], "SGLang"),
        ([DETAILED, VLLM_FRAME, "op sglang::store_cache"], "vLLM"),
        # The engine is who calls, whose layers it runs and in whose words it labels.
        (["decode[bs=32 tok=32 d=32]", VLLM_FRAME, ATOM_FRAME], "vLLM"),
        (["step[DECODE bs=32]", VLLM_FRAME], "vLLM"),
        (["decode[bs=32 tok=32 d=32]", "python train.py(3):forward"], "ATOM"),
    ],
)
def test_engines_are_told_by_their_own_signs(rows: list[str], engine: str) -> None:
    """Each row one deeper than the one above."""
    labels = [row if row.startswith(("op ", "python ")) else f"scope {row}" for row in rows]
    lines = [f"{label} | {' ' * depth}{'-' * (20 - 2 * depth)}" for depth, label in enumerate(labels)]
    assert row(of(aligned("\n".join(lines))), "engine") == (engine,)


def test_two_ranks_of_two_engines() -> None:
    result = of(rank(("step[DECODE bs=32]", 4)), rank((DECODE, 4)))
    assert row(result, "engine") == ("SGLang, ATOM",)


EXTRA = r"""
[[engine]]
name = "home"
[[engine.step]]
pattern = 'turn (?P<prefill_requests>\d+)\+(?P<decode_requests>\d+)'
"""


def test_labels_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "labels.toml"
    file.write_text(EXTRA)
    monkeypatch.setenv(FILE_VARIABLE, str(file))
    result = of(
        aligned("""
        scope turn 2+0 | ----
        scope turn 1+4 |      ----
    """)
    )
    assert records(result["steps"], "kind", "requests") == [("prefill", 2), ("mixed", 5)]
    assert row(result, "engine") == ("home",)
    assert [engine.name for engine in grammar().engines] == ["home", "ATOM", "vLLM", "SGLang", "TensorRT-LLM"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[engine", "not TOML"),
        ("engine = 3", "must consist of [[engine]] tables"),
        ("[[engine]]", "[[engine]] 1 has no name"),
        (EXTRA + "kind = 'encode'", "kind must be one of prefill, decode"),
        (EXTRA + "run = 'fast'", "run must be one of eager, graph"),
        (EXTRA + "speed = 3", "unknown speed"),
        (EXTRA + "examples = ['turn']", "does not match the example 'turn'"),
        (EXTRA.replace("(?P<pre", "(?P<post"), "unknown postfill_requests"),
        (EXTRA.replace("turn (", "turn (("), "not a regular expression"),
        (EXTRA.replace("pattern =", "examples = []#"), "not a regular expression"),
        (EXTRA.replace("[[engine.s", "fields = { tokens = 'x' }\n[[engine.s"), "needs exactly one group"),
    ],
)
def test_wrong_files_are_refused(
    text: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "labels.toml"
    file.write_text(text)
    monkeypatch.setenv(FILE_VARIABLE, str(file))
    with pytest.raises(TracelensError) as caught:
        of(rank((DECODE, 4)))
    assert problem in str(caught.value)
    assert str(file) in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "none.toml"))
    with pytest.raises(TracelensError, match=r"none\.toml: no such file"):
        of(rank((DECODE, 4)))


def test_it_is_in_the_report_behind_the_comparisons_of_ranks() -> None:
    analyzer = ANALYZERS.get("serving")
    assert (analyzer.name, analyzer.title, analyzer.order) == ("serving", "Serving", 90)
    assert analyzer.doc == (
        "Which steps does each serving rank run, and what do phase mismatch and padding cost?"
    )


def _step(start: int, end: int, kind: str = "decode", tokens: int = 1) -> Step:
    label = Label(("x",), kind, "", kind == "idle", False, 1, -1, tokens)
    return Step(label, False, False, start, end, (), -1, -1)


@pytest.mark.parametrize(
    ("first", "second", "common"),
    [
        # The last step of one rank ends as the first of the other begins: 5 of 100 ns together.
        ([(0, 100)], [(95, 200)], []),
        ([(0, 100)], [(50, 150)], [(0, 50)]),
        # The other rank has no label for the first step; its only one lies over the second.
        ([(0, 10), (10, 100)], [(4, 100)], [(10, 4)]),
        ([(0, 10), (10, 20)], [(0, 10), (10, 20)], [(0, 0), (10, 10)]),
        # Marks without extent.
        ([(5, 5)], [(5, 5)], [(5, 5)]),
        ([(5, 5)], [(6, 6)], []),
    ],
)
def test_which_steps_are_one(
    first: list[tuple[int, int]], second: list[tuple[int, int]], common: list[tuple[int, int]]
) -> None:
    ranks = [
        RankSteps(n, [_step(*times) for times in times_of_rank])
        for n, times_of_rank in enumerate((first, second))
    ]
    together = global_steps(ranks)
    assert [tuple(on_rank.step.start for on_rank in step.rank_steps) for step in together] == common


@given(
    st.lists(st.integers(min_value=20, max_value=1000), min_size=1, max_size=8),
    st.integers(min_value=2, max_value=5),
    st.data(),
)
def test_steps_with_ragged_borders_are_matched(durations: list[int], count: int, data: st.DataObject) -> None:
    """All ranks leave a step within less than half of the shortest step of each other."""
    ranks = []
    for number in range(count):
        start, steps = 0, []
        for duration in durations:
            low = start + data.draw(st.integers(min_value=0, max_value=4))
            start += duration
            steps.append(_step(low, start + data.draw(st.integers(min_value=0, max_value=4))))
        ranks.append(RankSteps(number, steps))
    assert [len(step.rank_steps) for step in global_steps(ranks)] == [count] * len(durations)


@given(
    st.lists(
        st.tuples(st.sampled_from(KINDS), st.integers(min_value=0, max_value=4096)), min_size=2, max_size=9
    )
)
def test_a_step_by_its_definitions(kinds_and_tokens: list[tuple[str, int]]) -> None:
    ranks = [RankSteps(n, [_step(0, 10, kind, tokens)]) for n, (kind, tokens) in enumerate(kinds_and_tokens)]
    (step,) = global_steps(ranks)
    kinds = [kind for kind, _ in kinds_and_tokens if kind != "idle"]
    assert step.mismatch == (len(set(kinds)) > 1)
    assert step.idle == len(kinds_and_tokens) - len(kinds)
    if kinds:
        assert step.tokens == sum(tokens for kind, tokens in kinds_and_tokens if kind != "idle")
        assert step.slots == len(kinds_and_tokens) * max(tokens for _, tokens in kinds_and_tokens)
        assert 0 <= step.tokens <= step.slots
    else:
        assert step.tokens == -1


NONE = Lengths(0, 0, 0, 0)


@pytest.mark.parametrize(
    ("label", "batch"),
    [
        (
            "execute_8192_context_9(sq8155sk8430sqsq7475785sqsk7671310)_generation_37(sq37sk34489sqsq37sqsk34489)",
            ServingBatch(Lengths(8155, 8430, 7475785, 7671310), Lengths(37, 34489, 37, 34489)),
        ),
        (
            "execute_64_context_0(sq0sk0sqsq0sqsk0)_generation_64(sq64sk131072sqsq64sqsk131072)",
            ServingBatch(NONE, Lengths(64, 131072, 64, 131072)),
        ),
        (
            "step[EXTEND bs=1 toks=1025 c_sqsq=1050625 c_sqsk=1050625 c_sk=1025]",
            ServingBatch(Lengths(1025, 1025, 1050625, 1050625), NONE),
        ),
        (
            "step[DECODE bs=64 g_sq=128 g_sqsq=256 g_sqsk=262144 g_sk=131072]",
            ServingBatch(NONE, Lengths(128, 131072, 256, 262144)),
        ),
        ("prefill[bs=1 tok=10 sk=30 sqsq=100 sqsk=300]", ServingBatch(Lengths(10, 30, 100, 300), NONE)),
        # Without all sums, or with sums that no requests have, the lengths are not known.
        ("step[MIXED bs=66 c=2 g=64 c_sq=2048 c_sk=2048 c_sqsq=1 g_sq=64 g_sk=65600]", None),
        ("step[EXTEND bs=2 toks=14721]", None),
        ("execute_context_2(6144)_generation_3(3)", None),
        ("execute_9_context_9(sq9sk9sqsq999sqsk9)_generation_0(sq0sk0sqsq0sqsk0)", None),
        ("execute_9_context_9(sq9sk9sqsq9sqsk999)_generation_0(sq0sk0sqsq0sqsk0)", None),
    ],
)  # fmt: skip
def test_lengths_of_a_labelled_batch(label: str, batch: ServingBatch | None) -> None:
    step = grammar().step(label)
    assert step is not None
    assert step.batch == batch
