"""The bubble by its closed forms."""

from __future__ import annotations

import json

import pytest

from tracelens.errors import TracelensError
from tracelens.planner import PipelineSizes, bubble
from tracelens.rendering.formats import one_result

BATCH = PipelineSizes(pp=16, global_tokens=2**21, seq=4096, nodes=64)


@pytest.mark.parametrize(("vpp", "whole", "ideal"), [(1, 48.39, 93.75), (6, 13.51, 15.62)])
def test_both_conventions_of_the_published_example(vpp: int, whole: float, ideal: float) -> None:
    result = bubble(BATCH, vpp)
    assert result.meta["micro_batches"] == 16
    fraction = result["bubble"]["bubble_ratio"]
    # 15 / (15 + 16 VPP) and 15 / (16 VPP)
    assert fraction.tolist() == [15 / (15 + 16 * vpp), 15 / (16 * vpp)]
    assert [f"{100 * share:.2f}" for share in fraction] == [f"{whole:.2f}", f"{ideal:.2f}"]
    assert result["bubble"]["numbers"][0].endswith(f"= {whole:.2f}%")


def test_json_holds_convention_and_fraction() -> None:
    rows = json.loads(one_result(bubble(BATCH, 6), {"inputs": []}))["tables"]["bubble"]
    assert [row["convention"] for row in rows] == ["of the whole time", "of the ideal time (Megatron-LM)"]
    assert [round(row["bubble_ratio"], 4) for row in rows] == [0.1351, 0.1562]


def test_more_chunks_shrink_the_bubble_and_hold_more() -> None:
    batch = PipelineSizes(pp=8, global_tokens=2**22, seq=4096, nodes=16)
    table = bubble(batch, 12)["by_vpp"]
    assert table["vpp"].tolist() == list(range(1, 13))
    assert table["bubble_fraction"].is_monotonic_decreasing
    assert batch.micro_batches == 64
    # PP, and 2 (PP - 1) + (VPP - 1) PP + 1 chunks on the first stage.
    assert table["in_flight"].tolist()[:3] == [8, 23, 31]


def test_what_was_published_stands_beside_its_own_numbers_only() -> None:
    assert bubble(BATCH)["published"]["measured_fraction"].tolist() == [0.544, 0.244, 0.145]
    assert "published" not in bubble(PipelineSizes(pp=16, global_tokens=2**22, seq=4096, nodes=64)).data
    assert "published" not in bubble(PipelineSizes(pp=16, global_tokens=2**20, seq=2048, nodes=64)).data
    assert "published" not in bubble(PipelineSizes(pp=8, global_tokens=2**20, seq=4096, nodes=64)).data


def test_no_pipeline_has_no_bubble() -> None:
    result = bubble(PipelineSizes(pp=1, global_tokens=2**21, seq=4096, nodes=1))
    assert result["bubble"]["bubble_ratio"].tolist() == [0, 0]
    assert result["by_vpp"]["vpp"].tolist() == [1]


def test_context_and_tensor_parallel_ranks_share_a_micro_batch() -> None:
    batch = PipelineSizes(pp=4, global_tokens=2**21, seq=8192, nodes=8, mbs=2, cp=2, tp=2)
    assert (batch.dp, batch.micro_batches) == (4, 32)


def test_turns_that_do_not_fit_are_told() -> None:
    batch = PipelineSizes(pp=16, global_tokens=4096 * 32 * 18, seq=4096, nodes=64)
    assert batch.micro_batches == 18
    assert bubble(batch, 1).skips == ()
    (skip,) = bubble(batch, 2).skips
    assert "multiple of pp" in skip.reason


@pytest.mark.parametrize(
    ("changes", "vpp", "problem"),
    [
        ({"pp": 0}, 1, "pp must be at least 1"),
        ({"pp": 7}, 1, "512 GPUs are not a multiple of pp x cp x tp = 7"),
        ({"global_tokens": 2**21 + 1}, 1, "use 2097152 or 2228224"),
        ({"global_tokens": 5}, 1, "use 131072"),
        ({}, 0, "not 0"),
        ({"pp": 1, "global_tokens": 2**22}, 2, "1 without a pipeline"),
    ],
)
def test_numbers_that_do_not_fit(changes: dict[str, int], vpp: int, problem: str) -> None:
    numbers = {"pp": 16, "global_tokens": 2**21, "seq": 4096, "nodes": 64} | changes
    with pytest.raises(TracelensError, match=problem):
        bubble(PipelineSizes(**numbers), vpp)
