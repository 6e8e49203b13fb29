"""The roofline of hand-drawn traces: which call is counted how, and against which bound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.builders import aligned, draw, draw_run, events, read, records
from tracelens import analyze, report
from tracelens.errors import TracelensError
from tracelens.table import Result
from tracelens.trace import make_run

# 2 TFLOP/s, 1 TB/s of memory, 100 GB/s between devices, 10 GB/s to the host: 2,000 FLOPs, 1,000 bytes,
# 100 bytes and 10 bytes a nanosecond.
DEVICE = """
name = "drawn"
hbm_bytes_per_s = 1e12
cache_bytes = 1048576
gpu_link_bytes_per_s = 100e9
host_link_bytes_per_s = 10e9
[matrix]
bf16 = 2e12
[vector]
fp32 = 1e12
"""

BF16 = '["c10::BFloat16","c10::BFloat16"]'
# 2 x 1000 x 1000 x 500 FLOPs take 500 us; (500 + 500 + 1000) x 1000 x 2 bytes 4 us.
MM = f"op aten::mm shapes=[[1000,500],[500,1000]] types={BF16}"


@pytest.fixture
def device_file(tmp_path: Path) -> str:
    path = tmp_path / "drawn.toml"
    path.write_text(DEVICE)
    return str(path)


def roofline(text: str, device_file: str | None = None, **options: Any) -> Result:
    drawing = options.pop("drawing", {})
    run = make_run([draw(aligned(text), **drawing)])
    return analyze(run, "roofline", device_file=device_file, **options)


def test_calls_with_the_same_arguments_are_one_row(device_file: str) -> None:
    result = roofline(
        f"""
        {MM}    | --      --
        launch  | a       b
        s7 gemm |   aaaaaa  bbbb
        """,
        device_file,
        drawing={"ns_per_char": 200_000},
    )
    columns = ("name", "shapes", "dtype", "dims", "count", "dur_ns", "flops", "read_bytes", "write_bytes")
    assert records(result["roofline"], *columns) == [
        ("aten::mm", "bf16[1000,500] bf16[500,1000]", "bf16", "M=1000 N=1000 K=500",
         2, 2_000_000, 1_000_000_000, 2_000_000, 2_000_000),
    ]  # fmt: skip
    (row,) = records(result["roofline"], "bound", "roofline_ns", "efficiency", "recoverable_ns", "note")
    # Sum over sum: 2 x 500 us at the roofline, 1.2 ms + 0.8 ms measured.
    assert row == ("compute", 1_000_000, 0.5, 1_000_000, "")
    (rates,) = records(result["roofline"], "flops_per_s", "bytes_per_s", "intensity", "maf_efficiency")
    assert rates[:3] == pytest.approx((1e12, 4e9, 250.0))
    assert rates[3] is None


def test_all_work_of_one_call_is_its_time(device_file: str) -> None:
    result = roofline(
        f"""
        {MM}    | -----
        launch  | a b
        s7 gemm |   aaaa
        s8 fill |     bbbb
        """,
        device_file,
    )
    assert records(result["roofline"], "count", "dur_ns") == [(1, 6000)]


def test_copies_are_held_against_the_link_and_not_against_memory(device_file: str) -> None:
    result = roofline(
        """
        launch                                                       | a    b
        s7 copy Memcpy HtoD (Pinned -> Device) bytes=20000           |  aaaa
        s7 copy Memcpy DtoD (Device -> Device) bytes=1000000         |       bbbb
        """,
        device_file,
    )
    # 20,000 bytes at 10 bytes a ns; 2 x 1,000,000 bytes at 1,000 a ns.
    assert records(result["roofline"], "bound", "roofline_ns", "dur_ns", "link_bytes") == [
        ("host link", 2000, 4000, 20_000),
        ("memory", 2000, 4000, 0),
    ]


def test_communication_is_held_against_the_link_between_devices(device_file: str) -> None:
    result = roofline(
        """
        op record_param_comms collective=allreduce size=2 in=100000 out=100000 dtype=Half | --
        launch                         | a
        s9 ncclDevKernel_AllReduce_Sum |  aaaa
        """,
        device_file,
    )
    # Each of 2 ranks sends 2 x 1/2 x 200,000 bytes.
    assert records(result["roofline"], "bound", "link_bytes", "roofline_ns") == [
        ("gpu link", 200_000, 2000),
    ]


def test_an_op_that_is_not_known_takes_the_model_of_the_op_around_it(device_file: str) -> None:
    text = f"""
        {MM}          | -----
        op my::kernel |  ---
        launch        |  a {{more}}
        s7 gemm       |     aaaa
    """
    alone = roofline(text.format(more=" "), device_file)
    assert records(alone["roofline"], "name", "dur_ns") == [("aten::mm", 4000)]


def test_an_op_around_work_that_is_counted_already_counts_nothing_twice(device_file: str) -> None:
    result = roofline(
        f"""
        op aten::linear shapes=[[1000,500],[1000,500]] types={BF16} | ---------
        {MM}          |  ---
        op my::kernel |      ---
        launch        |  a   b
        s7 gemm       |    aa bbb
        """,
        device_file,
    )
    assert records(result["roofline"], "name", "dur_ns") == [("aten::mm", 2000)]
    assert records(result["uncovered"], "name", "reason", "count", "dur_ns") == [
        ("my::kernel", "custom op without a registered cost model", 1, 3000)
    ]


def test_reasons() -> None:
    result = roofline(
        """
        op aten::mm                     | --
        op aten::not_an_op shapes=[[2]] types=["float"] | ..--
        op my::op                       |     --
        launch                          | a b c
        launch                          |       d
        launch cudaGraphLaunch          |         e
        s7 k1                           |  a b c d e
        s7 ncclDevKernel_AllReduce_Sum  |            ==
    """.replace("..", "  ")
    )
    assert sorted(records(result["uncovered"], "name", "reason")) == [
        ("aten::mm", "no shapes recorded (record_shapes=True)"),
        ("aten::not_an_op", "no cost model"),
        ("k1", "launched by a graph; --captures or --twin finds the ops"),
        ("k1", "launched outside any recorded op"),
        ("my::op", "custom op without a registered cost model"),
        ("ncclDevKernel_AllReduce_Sum", "launched before the recording began, and not repeated during it"),
    ]
    # A reason is no coverage; only what tracelens itself does not know has none.
    assert result.meta["coverage"] == 0
    assert result.meta["reasons_given"] == pytest.approx(6 / 7)
    assert records(result["coverage"], "status", "dur_ns") == [
        ("cost model", 0),
        ("cost model, arguments of a repeat", 0),
        ("reason given", 6000),
        ("no cost model", 1000),
    ]


def test_work_from_before_the_recording_takes_the_arguments_of_its_repeat(device_file: str) -> None:
    result = roofline(
        f"""
        {MM}    |      --   --
        launch  |      a    b
        s7 gemm | ===    aaa  bbb
        s7 gelu |    =
        """,
        device_file,
        drawing={"ns_per_char": 200_000},
    )
    # The gelu is the last early work and the last work of the recording is a gemm: nothing repeats.
    assert result.meta["repeats_fraction"] == 0
    result = roofline(
        f"""
        {MM}    |      --   --
        launch  |      a    b
        s7 gemm | ====   aaa  bbb
        """,
        device_file,
        drawing={"ns_per_char": 200_000},
    )
    assert records(result["roofline"], "count", "dur_ns", "note") == [
        (1, 800_000, "launched before the recording: arguments of the same work at its end"),
        (2, 1_200_000, ""),
    ]
    assert result.meta["repeats_fraction"] == pytest.approx(0.4)
    assert result.meta["coverage"] == 1


def test_half_a_call_from_before_the_recording_is_not_counted_as_a_whole(device_file: str) -> None:
    result = roofline(
        f"""
        {MM}    |      --
        launch  |      ab
        s7 prep |        a
        s7 gemm | ====    bbb
        """,
        device_file,
    )
    reason = "launched before the recording began; the GPU recorded only part of its call"
    assert records(result["uncovered"], "name", "reason") == [("gemm", reason)]


def test_calls_that_a_step_cuts_off_are_not_counted(device_file: str) -> None:
    drawing = aligned(f"""
        step 1  | ----------
        step 2  |           ----------
        step 3  |                     ----------
        {MM}    |  --     --  --        --
        launch  |  a      b   c         d
        s7 gemm |   aaa        ccc           ddd
        s9 gemm |          bbbbbbbbbbbbbbbb
    """)
    run = make_run([draw(drawing)])
    (whole,) = report(run, ["roofline"], device_file=device_file).results
    assert records(whole["roofline"], "count", "dur_ns") == [(4, 25_000)]
    (second,) = report(run, ["roofline"], step="2", device_file=device_file).results
    assert records(second["roofline"], "count", "dur_ns") == [(1, 3000)]
    assert records(second["uncovered"], "reason", "dur_ns") == [
        ("cut off at the edge of the chosen step", 15_000)
    ]


@pytest.mark.parametrize(
    ("rows", "width", "note"),
    [
        (1_000, 2, "cached input: all of it fits in the 1 MiB cache"),
        (200_000, 2, "cached input: much of it fits in the 1 MiB cache"),
        (600_000, 2, "beyond memory bandwidth: cached input, or less data moved than counted"),
        (
            600_000,
            8,
            "beyond the bf16 peak: narrower type, sparsity, or less work than counted",
        ),
    ],
)
def test_faster_than_the_roofline_is_explained(device_file: str, rows: int, width: int, note: str) -> None:
    """With bf16 and W x W, W/2 FLOPs a byte: memory bound below 2."""
    result = roofline(
        f"""
        op aten::mm shapes=[[{rows},{width}],[{width},{width}]] types={BF16} | --
        launch  | a
        s7 gemm |  a
        """,
        device_file,
        drawing={"ns_per_char": 1},
    )
    assert records(result["roofline"], "note") == [(note,)]


def test_without_a_known_device_there_are_counts_and_no_efficiency() -> None:
    drawing = f"""
        {MM}    | --
        launch  | a
        s7 gemm |  aaa
    """
    unnamed = roofline(drawing)
    assert [skip.reason for skip in unnamed.skips] == ["the trace names no device; pass --device"]
    (row,) = records(unnamed["roofline"], "flops", "bound", "roofline_ns", "efficiency", "recoverable_ns")
    assert row == (1_000_000_000, "", None, None, None)
    other = roofline(drawing, drawing={"deviceProperties": [{"id": 0, "name": "Voodoo 5"}]})
    assert "no peaks known for Voodoo 5" in other.skips[0].reason
    assert "projected_onto" not in other.meta


def test_another_device_is_a_projection() -> None:
    drawing = {"deviceProperties": [{"id": 0, "name": "NVIDIA H200"}]}
    text = f"""
        {MM}    | --
        launch  | a
        s7 gemm |  a
    """
    own = roofline(text, drawing=drawing)
    assert "H200" in own.meta["roofs_of"]
    assert "projected_onto" not in own.meta
    assert "projected_onto" not in roofline(text, device="h200", drawing=drawing).meta
    projected = roofline(text, device="mi355x", drawing={**drawing, "ns_per_char": 10})
    assert "MI355X" in projected.meta["projected_onto"]
    assert projected.meta["measured_on"] == "NVIDIA H200"
    (note,) = projected["roofline"]["note"]
    assert note.startswith("device mismatch: not measured on")
    roles = set(records(projected["roofs"], "device", "role"))
    assert {role for _, role in roles} == {"chosen", "measured", "other"}
    assert {("AMD Instinct MI355X", "chosen"), ("NVIDIA H200 SXM", "measured")} < roles
    nameless = {**drawing, "deviceProperties": [{"id": 0, "name": ""}], "ns_per_char": 10}
    vouched = roofline(text, device="mi355x", drawing=nameless)
    assert "projected_onto" not in vouched.meta
    assert vouched.meta["measured_on"] == "not known"


def test_wrong_devices_are_told(device_file: str) -> None:
    with pytest.raises(TracelensError, match="mi355x"):
        roofline("s7 k | ==", device="mi355")
    with pytest.raises(TracelensError, match="pass only one"):
        roofline("s7 k | ==", device_file, device="mi355x")


def test_sizes_beyond_any_memory() -> None:
    result = roofline(f"""
        op aten::mm shapes=[[8000000,8000000],[8000000,8000000]] types={BF16} | --
        launch  | a
        s7 gemm |  a
    """)
    assert records(result["uncovered"], "reason") == [("recorded sizes exceed any memory",)]


def test_each_rank_has_its_rows(device_file: str) -> None:
    drawing = aligned(f"""
        {MM}    | --
        launch  | a
        s7 gemm |  aaa
    """)
    result = analyze(draw_run(drawing, drawing), "roofline", device_file=device_file)
    assert records(result["roofline"], "rank", "count") == [(0, 1), (1, 1)]
    assert set(result["coverage"]["rank"]) == {0, 1}


def test_recomputed_work_is_no_model_work(device_file: str) -> None:
    result = roofline(
        f"""
        python torch/utils/checkpoint.py(9): recompute_fn |     -----
        {MM}    | --   ---
        launch  | a    b
        s7 gemm |  aaa  bbb
        """,
        device_file,
        drawing={"ns_per_char": 1_000_000},
    )
    (row,) = records(result["utilisation"], "flops", "recompute_flops", "mfu", "hfu")
    # 1 and 2 GFLOP in 8 ms at 2 TFLOP/s.
    assert row == pytest.approx((2e9, 1e9, 1 / 16, 1 / 8))


def test_bandwidth_is_used_by_the_bytes_of_all_counted_calls(device_file: str) -> None:
    drawing = f"""
        {MM}    | --   ---
        launch  | a    b
        s7 gemm |  aaa  bbb
    """
    result = roofline(drawing, device_file, drawing={"ns_per_char": 1_000_000})
    (mbu,) = result["utilisation"]["mbu"]
    # Two GEMMs read 1000 x 500 and 500 x 1000 of bf16 and write 1000 x 1000, in 8 ms at 1 TB/s.
    assert mbu == pytest.approx(2 * 2 * 2_000_000 / 8e-3 / 1e12)


def test_bandwidth_is_unknown_where_most_of_the_time_is_not_counted(device_file: str) -> None:
    result = roofline(step_of("vectorized_elementwise_kernel", "my_secret_kernel"), device_file)
    assert result["utilisation"]["mbu"].isna().all()


def step_of(first: str, second: str) -> str:
    """A step with a counted GEMM of 1 us and `first` launched by a graph, then one with `second` alone."""
    return f"""
        step 1                      | -------
        step 2                      |        --------
        {MM}                        | --
        launch                      | a
        launch cudaGraphLaunch      |    b    d
        s7 ampere_gemm              |  a
        s7 {first}                  |    bbb
        s7 {second}                 |          ddd
    """


def test_utilisation_of_a_replayed_graph_is_not_known(device_file: str) -> None:
    # 3 us of GEMMs that the graph launched, and 1 us that an op did: most FLOPs are not known.
    result = roofline(step_of("nvjet_gemm", "fmha_fwd"), device_file)
    columns = ("step", "modelled_fraction", "flops", "recompute_flops", "flops_per_s", "mfu", "hfu")
    assert records(result["utilisation"], *columns) == [
        ("ProfilerStep#1", 0.25, None, None, None, None, None),
        ("ProfilerStep#2", 0, None, None, None, None, None),
    ]
    (skip,) = [skip for skip in result.skips if "MFU" in skip.subject]
    assert skip.subject == "rank 0: MFU of 2 steps"
    assert "launched by a graph" in skip.reason
    assert "87.5%" in skip.reason  # mean of 75% and 100%


def test_utilisation_stands_beside_work_that_multiplies_nothing(device_file: str) -> None:
    # The graph adds and normalises; in the second step a kernel of an unknown kind is all there is.
    result = roofline(step_of("vectorized_elementwise_kernel", "my_secret_kernel"), device_file)
    known, unknown = records(result["utilisation"], "modelled_fraction", "flops", "mfu")
    assert known == pytest.approx((0.25, 1e9, 1e9 / 7e-6 / 2e12))
    assert unknown == (0, None, None)
    (skip,) = [skip for skip in result.skips if "MFU" in skip.subject]
    assert skip.subject == "rank 0: MFU of ProfilerStep#2"


GROUPED_TYPES = BF16.replace("]", ',"int"]')


@pytest.mark.parametrize(("columns", "is_known"), [(10, True), (9, False)])
def test_more_than_the_peak_allows_was_not_computed(device_file: str, columns: int, is_known: bool) -> None:
    """10 GFLOP by its shapes, an upper bound, which 2 TFLOP/s take 5 ms for; and a GEMM of 1 GFLOP in 3."""
    shapes = "[[10000,500],[4,500,1000],[4]]"
    grouped = f"op aten::_grouped_mm shapes={shapes} types={GROUPED_TYPES}"
    result = roofline(
        f"""
        {MM}      | -
        {grouped} |   -
        launch    | a b
        s7 gemm   | aaaaaa{"b" * columns}
        """,
        device_file,
        drawing={"ns_per_char": 500_000},
    )
    ((flops, mfu),) = records(result["utilisation"], "flops", "mfu")
    skips = [skip.reason for skip in result.skips if "MFU" in skip.subject]
    assert (flops is not None, mfu is not None, not skips) == (is_known,) * 3
    if is_known:
        assert flops == 11e9
    else:
        assert "aten::_grouped_mm beyond the peak, 60.0% of the time" in skips[0]


UNIFIED = (
    "op vllm::unified_attention_with_output shapes=[[64,8,64],[64,2,64],[64,2,64],[64,8,64]] "
    'types=["c10::BFloat16","c10::BFloat16","c10::BFloat16","c10::BFloat16"]'
)
DECODE = "execute_64_context_0(sq0sk0sqsq0sqsk0)_generation_64(sq64sk{0}sqsq64sqsk{0})"


def test_attention_over_a_cache_is_counted_by_the_label_of_its_step(device_file: str) -> None:
    result = roofline(
        f"""
        scope {DECODE.format(1000)} | -----
        scope {DECODE.format(5000)} |        -----
        {UNIFIED}                   |  ---    ---    ---
        launch                      |  a      b      c
        s7 attention                |   aa     bbbb    cc
        """,
        device_file,
        drawing={"ns_per_char": 100_000},
    )
    assert sorted(records(result["roofline"], "count", "flops", "dur_ns", "note")) == [
        (
            1,
            4 * 8 * 64 * keys,
            dur,
            "lengths from the step label; upper bound: a sliding window is not counted, nor recorded",
        )
        for keys, dur in ((1000, 200_000), (5000, 400_000))
    ]
    reason = "neither arguments nor a step label show the sequence lengths in the KV cache"
    assert records(result["uncovered"], "reason", "dur_ns") == [(reason, 200_000)]


def test_a_rate_beyond_the_max_achievable_one_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "drawn.toml"
    path.write_text(DEVICE + "[maf]\nbf16 = 1e12\n")
    result = roofline(
        f"""
        {MM}    | --
        launch  | a
        s7 gemm |   aaa
        """,
        str(path),
        drawing={"ns_per_char": 200_000},
    )
    ((efficiency, maf_efficiency, note),) = records(
        result["roofline"], "efficiency", "maf_efficiency", "note"
    )
    assert efficiency < 1 < maf_efficiency
    assert note == "beyond the max-achievable rate, which is a measurement, not a limit"


def test_an_op_is_counted_by_those_that_it_called(device_file: str) -> None:
    """vLLM's MoE op has no weights among its arguments: how many experts a token has, its routing tells."""
    two = '["c10::BFloat16","c10::BFloat16"]'
    kernel = "_matmul_ogs_NNT_bf16xbf16xmxfp4_128x128x128x1_swiglu"
    found = events(
        aligned(f"""
        op vllm::moe_forward shapes=[[256,128],[256,8]] types={two}                      | -----------
        op TopK shapes=[[256,8],[]] types=["c10::BFloat16","Scalar"] values=["","2"]      |  --
        op TopK shapes=[[256,8],[]] types=["c10::BFloat16","Scalar"] values=["","5"]      |              --
        launch                                                                           |     a
        s7 {kernel}                                                                      |      aaaaaaaa
        """)
    )
    for event in found:
        if event["cat"] == "kernel":
            # 512 rows of 8 experts: 4 full tiles and 7 that are not; two columns of tiles.
            event["args"]["grid"] = [22, 1, 1]
    result = analyze(make_run([read(found)]), "roofline", device_file=device_file)
    assert records(result["roofline"], "name", "dims", "flops", "dtype") == [
        ("vllm::moe_forward", "E=8 rows=512 H=128 inner=128", 2 * 512 * 128 * (256 + 128), "bf16")
    ]


def test_waiting_is_no_time_that_a_kernel_could_save() -> None:
    """The first rank comes 6 columns early: of its 16 it waits 6, so both could save as much."""
    record = (
        "op record_param_comms collective=allreduce group=0 ranks=[0,1] size=2 in=4000 out=4000 dtype=Float"
    )
    texts = [
        f"""
            {record} | -
            launch   | a
            s7 ncclDevKernel_AllReduce |  {early * "a"}aaaaaaaaaa
        """
        for early in (6, 0)
    ]
    texts[1] = texts[1].replace("s7 ncclDevKernel_AllReduce |  ", "s7 ncclDevKernel_AllReduce |        ")
    table = analyze(draw_run(*map(aligned, texts)), "roofline", device="h100")["roofline"]
    assert table["dur_ns"].tolist() == [16_000, 10_000]
    assert table["wait_ns"].tolist() == [6_000, 0]
    assert table["recoverable_ns"].nunique() == table["efficiency"].nunique() == 1
    assert table["recoverable_ns"][0] == 10_000 - table["roofline_ns"][0]


def test_uneven_all_to_alls_of_a_size_class_are_one_row() -> None:
    """Messages of 40 and 60 kB are both between 32 and 64 KiB, one of 4 kB is not."""
    text = ""
    for at, letter, size in ((0, "a", 10_000), (2, "b", 15_000), (4, "c", 1_000)):
        sizes = f"group=0 ranks=[0,1] size=2 in={size} out={size} dtype=Float"
        text += f"""
            op record_param_comms collective=all_to_allv {sizes} | {" " * at}-
            launch | {" " * at}{letter}
            s7 ncclDevKernel_SendRecv | {" " * at} {letter}
        """
    rows = roofline(text, device="h100")["roofline"]
    assert sorted(zip(rows["count"], rows["read_bytes"], strict=True)) == [(1, 4_000), (2, 50_000)]
    assert rows.sort_values("read_bytes")["shapes"].tolist() == [
        "fp32 2 KiB to 4 KiB, 2 ranks",
        "fp32 32 KiB to 64 KiB, 2 ranks",
    ]
