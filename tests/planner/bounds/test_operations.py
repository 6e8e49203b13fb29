"""Bounds of operations against hand computations and token by token."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pandas as pd
import pytest
from msgspec import structs

from tracelens.devices import Bandwidth, Measured, device
from tracelens.errors import TracelensError
from tracelens.planner.bounds import (
    Operation,
    Platform,
    all_gather_gemm,
    bound,
    bounds,
    gemm_reduce_scatter,
    moe_all_to_all,
)

MI300X = Platform(device("mi300x"))
LINKS, HBM, BF16 = 448e9, 5.325e12, 1307.4e12


def test_a_gemm_before_a_reduce_scatter_by_hand() -> None:
    """8 GPUs, [512, 12288] x [12288, 4096]: each multiplies 512 x 1536 by 1536 x 4096."""
    limit = bound(gemm_reduce_scatter(512, 4096, 12288, 8), MI300X)
    assert limit.gemm == pytest.approx(2 * 512 * 4096 * 1536 / BF16)
    assert limit.memory == pytest.approx(2 * (512 * 1536 + 1536 * 4096 + 512 * 4096) / HBM)
    # Seven eighths of a 4 MiB partial result leave over seven links: 8.19 us.
    assert limit.links == pytest.approx(2 * 512 * 4096 * 7 / 8 / LINKS) == pytest.approx(8.192e-6)
    assert limit.overlapped == limit.links
    assert limit.serial == pytest.approx(limit.gemm + limit.links)
    assert limit.limit == "links"


def test_a_gemm_behind_an_all_gather_by_hand() -> None:
    """8 GPUs, [64, 7168] x [7168, 18432]: each multiplies 64 x 7168 by 7168 x 2304."""
    limit = bound(all_gather_gemm(64, 18432, 7168, 8), MI300X)
    assert limit.gemm == pytest.approx(2 * 64 * 2304 * 7168 / BF16)
    assert limit.memory == pytest.approx(2 * (64 * 7168 + 7168 * 2304 + 64 * 2304) / HBM)
    assert limit.links == pytest.approx(2 * 64 * 7168 * 7 / 8 / LINKS)
    assert limit.limit == "memory"
    assert limit.serial == pytest.approx(limit.memory + limit.links)


def test_a_large_gemm_is_limited_by_its_flops() -> None:
    limit = bound(gemm_reduce_scatter(8192, 8192, 29568, 8), MI300X)
    assert limit.limit == "GEMM"
    assert limit.overlapped == pytest.approx(2 * 8192 * 8192 * 29568 / 8 / BF16)
    achievable = bound(gemm_reduce_scatter(8192, 8192, 29568, 8), replace(MI300X, matrix="achievable"))
    assert achievable.gemm == pytest.approx(limit.gemm * 1307.4 / 708)


def test_measured_messages_stand_beside_the_links() -> None:
    """Two messages of an all-to-all at 44.8 GB/s take ten times as long as at 448."""
    curves = tuple(Bandwidth("all_to_all", (1,), (44.8e9,), ranks, ranks) for ranks in (2, 8))
    measured = replace(MI300X, device=structs.replace(MI300X.device, measured=Measured(bandwidths=curves)))
    exchange, gemm = moe_all_to_all(256, 8, 7168, 256, 8), gemm_reduce_scatter(512, 4096, 12288, 8)
    tables = bounds(measured, [exchange, gemm])
    (line,) = tables["all_to_all"].to_dict("records")
    assert line["measured_ns"] == pytest.approx(10 * line["link_ns"])
    # A reduce-scatter was not measured.
    (line,) = tables["gemms"].to_dict("records")
    assert pd.isna(line["measured_ns"])


def routed(experts: int, topk: int, tokens: int, ranks: int, copies: str) -> Counter[tuple[int, int]]:
    """Rows from rank to rank of one dispatch, token by token."""
    choose = random.Random(29)
    rows: Counter[tuple[int, int]] = Counter()
    for source in range(ranks):
        for _ in range(tokens):
            owners = [expert * ranks // experts for expert in choose.sample(range(experts), topk)]
            for owner in owners if copies == "expert" else set(owners):
                rows[source, owner] += 1
    return rows


@pytest.mark.parametrize("copies", ["expert", "GPU"])
@pytest.mark.parametrize(("experts", "topk"), [(8, 2), (64, 6), (256, 8)])
def test_dispatch_and_combine_token_by_token(experts: int, topk: int, copies: str) -> None:
    tokens, hidden, ranks = 4000, 1024, 8
    operation = moe_all_to_all(experts, topk, hidden, tokens, ranks, copies=copies)  # type: ignore[arg-type]
    rows = routed(experts, topk, tokens, ranks, copies)
    link = sum(count for (source, target), count in rows.items() if source != target) / (ranks * (ranks - 1))
    limit = bound(operation, MI300X)
    # Both ways, over one of seven links of 64 GB/s; the mean over links is within 1% of expectation.
    assert limit.links == pytest.approx(2 * link * hidden * 2 / 64e9, rel=0.01)
    arriving = sum(rows.values()) / ranks
    assert limit.memory == pytest.approx(2 * 2 * hidden * (tokens + arriving) / HBM, rel=0.01)
    assert limit.gemm == 0


def test_two_experts_of_eight_gpus_by_hand() -> None:
    """One expert a GPU, top-2 of 8: a copy per expert is a copy per GPU, and 2 x 16 rows of 12 KiB leave."""
    per_expert = bound(moe_all_to_all(8, 2, 6144, 16, 8), MI300X)
    assert per_expert.links == pytest.approx(2 * 16 * 2 * 6144 * 2 * 7 / 8 / LINKS) == pytest.approx(1.536e-6)
    assert bound(moe_all_to_all(8, 2, 6144, 16, 8, copies="GPU"), MI300X) == pytest.approx(per_expert)


def test_few_gpus_of_a_mesh_have_few_links() -> None:
    """Between two MI300X there is one link of 64 GB/s; between two H200 the whole NVLink bandwidth."""
    operation = all_gather_gemm(1024, 1024, 1024, 2)
    assert bound(operation, MI300X).links == pytest.approx(1024 * 1024 / 64e9)
    assert bound(operation, Platform(device("h200"))).links == pytest.approx(1024 * 1024 / 450e9)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: gemm_reduce_scatter(64, 64, 100, 8), "k=100 is not a multiple of the 8 GPUs"),
        (lambda: gemm_reduce_scatter(60, 64, 64, 8), "m=60 is not a multiple"),
        (lambda: all_gather_gemm(64, 100, 64, 8), "n=100 is not a multiple"),
        (lambda: moe_all_to_all(12, 2, 64, 16, 8), "experts=12 is not a multiple"),
        (lambda: moe_all_to_all(8, 9, 64, 16, 8), "topk must be 1 to the 8 experts, not 9"),
        (lambda: Platform(device("mi300x"), gpus_per_node=0), "gpus_per_node must be at least 1"),
        (lambda: Platform(device("mi300x"), link_bytes_per_s=448), "use 448e9"),
        (lambda: Platform(device("mi300x"), nic_step_ns=-1), "latencies must be 0 ns or more"),
        (
            lambda: Platform(structs.replace(device("mi300x"), gpu_link_bytes_per_s=0)),
            "link rate of mi300x is unknown",
        ),
    ],
)
def test_what_cannot_be_shared_is_an_error(make: object, problem: str) -> None:
    with pytest.raises(TracelensError, match=problem):
        make()  # type: ignore[operator]


def test_the_challenge_on_eight_mi300x() -> None:
    result = bounds(MI300X)
    layers, gemms = result["all_to_all"], result["gemms"]
    assert len(layers) == 10
    assert len(gemms) == 12
    by_limit = Counter(zip(gemms["operation"], gemms["limited_by"], strict=True))
    assert by_limit["GEMM + reduce-scatter", "links"] == by_limit["all-gather + GEMM", "links"] == 4
    means = result["geometric_means"].set_index("operation")
    product = 1.0
    for value in gemms[gemms["operation"] == "all-gather + GEMM"]["overlapped_ns"]:
        product *= value
    assert means.loc["all-gather + GEMM", "overlapped_ns"] == pytest.approx(product ** (1 / 6))
    assert (result["published"]["achieved"] < 1).all()


def test_own_shapes_replace_the_challenge() -> None:
    operations: list[Operation] = [gemm_reduce_scatter(512, 512, 512, 8)]
    result = bounds(MI300X, operations)
    assert set(result.data) == {
        "gemms", "geometric_means", "all_reduce", "algorithms", "crossovers", "assumptions",
    }  # fmt: skip


def test_the_challenge_is_of_eight_gpus() -> None:
    result = bounds(replace(MI300X, gpus_per_node=4))
    assert "gemms" not in result.data
    assert [skip.subject for skip in result.skips] == ["AMD Developer Challenge 2025"]
