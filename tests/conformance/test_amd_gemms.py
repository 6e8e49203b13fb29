"""GEMMs of the public MI300X traces beside the model of them (tracelens/devices/tiles.py).

Traces alternate by name: one half set the numbers of [modeled] in mi300x.toml, the other half tests them. A
shape counts if it was called at least twice or takes 200 us: a first launch loads code and takes up to 130 us
longer.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from msgspec.structs import replace

import tracelens
from tests.conformance.corpus import FOREIGN, folder
from tracelens.analysis.roofline import costing
from tracelens.arrays import Float
from tracelens.devices import Device, device, gemm_rate, memory_rate

CORPUS = folder()
SET = (
    "mi300x/Falconsai_nsfw_image_detection__1016002.json.gz",
    "mi300x/facebook_timesformer-base-finetuned-k400__1016002.json.gz",
    "mi300x/resnet_act_checkpoint.json.gz",
    "mi300x-serving/vllm_prefilldecode_piecewise/graph_execution.json.gz",
)
TEST = (
    "mi300x/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "mi300x/gaunernst_bert-small-uncased__1016001.json.gz",
    "mi300x-serving/sglang_decode/sglang_Qwen3-8B_decode.json.gz",
)
LEAST_CALLS, LONG_NS = 2, 200_000

Shape = tuple[int, int, int, int, str]
"""Rows of each matrix, inner size, columns, matrices, type."""


def trace_path(name: str) -> Path:
    """The trace of this name; skips where it is missing."""
    root = FOREIGN if name.startswith("mi300x-serving/") else CORPUS
    if root is None or not (root / name).is_file():
        pytest.skip(f"no trace {name}: set TRACELENS_CORPUS and TRACELENS_FOREIGN")
    return root / name


def shapes(path: Path) -> dict[Shape, list[int]]:
    """Times of the calls of each shape, all GPU work of a call together, ns."""
    times: dict[Shape, list[int]] = defaultdict(list)
    for trace in tracelens.load(path).traces:
        work, counted = trace.work, costing(trace, trace.work)
        dur_ns = pd.Series(work.end - work.start).groupby([counted.item, counted.call]).sum()
        for (item, _), call_ns in dur_ns.items():  # type: ignore[misc]
            dims = dict(counted.items[item].cost.dims) if item >= 0 else {}
            if {"M", "N", "K"} <= dims.keys():
                matrices, cost = dims.get("B", 1), counted.items[item].cost
                times[dims["M"], dims["K"], dims["N"], matrices, cost.dtype].append(int(call_ns))
    return times


def errors(names: tuple[str, ...], judged: Device) -> Float:
    """(modeled - measured) / measured of the shapes that count."""
    found = []
    for name in names:
        for (m, k, n, matrices, dtype), times in shapes(trace_path(name)).items():
            measured_ns = float(np.median(times))
            if len(times) >= LEAST_CALLS or measured_ns >= LONG_NS:
                rate = gemm_rate(judged, m, k, n, dtype, matrices)
                assert rate is not None
                found.append(2 * matrices * m * k * n / rate.per_s * 1e9 / measured_ns - 1)
    return np.array(found)


def test_shapes_that_set_nothing() -> None:
    off = np.abs(errors(TEST, device("mi300x")))
    assert len(off) == 11
    assert np.median(off) <= 0.10
    assert np.mean(off <= 0.25) >= 0.90


def test_shapes_that_set_the_numbers() -> None:
    off = np.abs(errors(SET, device("mi300x")))
    assert len(off) == 20
    assert np.median(off) <= 0.10
    assert np.mean(off <= 0.25) >= 0.85


def test_the_public_trace_of_an_mi250_has_no_gemm_to_test() -> None:
    """Its two are of 5 rows, called once each: 13 and 25 us, as first launches take; 5 us are modeled."""
    found = shapes(trace_path("mi250/mi250_minitoy_train_ROCm6_2_kineto.json.gz"))
    assert [len(times) for times in found.values()] == [1, 1]
    assert all(2 * matrices * m * k * n < 1e6 for m, k, n, matrices, _ in found)
    assert max(max(times) for times in found.values()) < LONG_NS


def test_the_share_of_an_h200_is_further_off() -> None:
    """Without [modeled], GEMMs reach the share of the ceiling that an H200 does."""
    transferred = replace(device("mi300x"), modeled=None)
    for names in (SET, TEST):
        modeled, by_share = (np.abs(errors(names, item)) for item in (device("mi300x"), transferred))
        assert np.median(modeled) < 0.5 * np.median(by_share)
        assert np.mean(modeled <= 0.25) > 1.5 * np.mean(by_share <= 0.25)


def test_what_a_kernel_of_a_framework_moves() -> None:
    """memory_share in mi300x.toml: kernels of torch that only read and write, 20 MB and more."""
    simple = {
        "copy_",
        "cat",
        "mul",
        "add",
        "pow",
        "silu",
        "gelu",
        "clamp_min_",
        "threshold_backward",
        "_foreach_add_",
    }
    shares: dict[tuple[str, str, str], float] = {}
    for name in (*SET, *TEST):
        trace = tracelens.load(trace_path(name)).traces[0]
        work, counted = trace.work, costing(trace, trace.work)
        dur_ns = pd.Series(work.end - work.start).groupby([counted.item, counted.call]).sum()
        for item, call_ns in dur_ns.groupby(level=0):
            if item < 0 or len(call_ns) < LEAST_CALLS:
                continue
            kind = counted.items[item]
            moved = kind.cost.read_bytes + kind.cost.write_bytes
            if kind.name.rpartition("::")[2] in simple and moved >= 20e6 and not kind.cost.link:
                best = memory_rate(device("mi300x"), moved).per_s
                shares[name, kind.name, kind.shapes] = moved / float(call_ns.median()) * 1e9 / best
    modeled = device("mi300x").modeled
    assert modeled is not None
    assert np.median(list(shares.values())) == pytest.approx(modeled.memory_share, abs=0.02)
