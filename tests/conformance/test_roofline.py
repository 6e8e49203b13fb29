"""FLOPs against AMD's TraceLens reports, coverage and efficiencies of the corpus's traces.

In the reports a causal attention counts half of a full one, a flash backward 5 products against the forward's
2, a convolution 2 x its output x one filter, and their efficiencies are not compared: see `tracelens.costs`.
"""

from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

import tracelens
from tests.conformance.corpus import Case, Reference
from tracelens.table import Result

COVERED = (
    "mi300x/Falconsai",
    "mi300x/Qwen",
    "mi300x/facebook_timesformer",
    "mi300x/gaunernst_bert",
    "mi300x/resnet",
    "nvidia-h100-hf/dsv2_grouped",
    "nvidia-h200-megatron/ep8",
)
"""Traces of which nine tenths of the GPU time must be counted."""

FLOPS_OF = {
    "SDPA_fwd": ("attention", "backward", False),
    "SDPA_bwd": ("attention", "backward", True),
    "CONV_fwd": ("convolution", "backward", False),
    "CONV_bwd": ("convolution", "backward", True),
}
"""Report to (part of the op's name, part that tells forward from backward, whether it is there)."""


def rows(reference: Reference) -> pd.DataFrame:
    """Our table of what the reference counts: linked work."""
    table = reference.case.table("roofline", scope="linked")
    return table.assign(name=table["name"].astype(str), dims=table["dims"].astype(str))


def calls(table: pd.DataFrame) -> Counter[tuple[object, ...]]:
    """Number of calls by what they are."""
    counted: Counter[tuple[object, ...]] = Counter()
    for key, count in zip(table["key"], table["count"].tolist(), strict=True):
        counted[key] += count
    return counted


def test_matrix_products(reference: Reference) -> None:
    """Each op, B, M, N, K and FLOPs of the reference's GEMMs, with the number of its calls.

    The reference counts the addition of a bias, M x N FLOPs, which is part of the product's epilogue and
    which nobody's count of a model has: with M = 141, N = 30522, K = 512 it says 4,411,192,050, which is
    2 x 141 x 30522 x 512 = 4,406,888,448 and 141 x 30522 = 4,303,602 on top.
    """
    theirs = reference.csv("GEMM")
    theirs["count"] = theirs["name_count"]
    batch = theirs.get("param: B", pd.Series(1, theirs.index)).fillna(1).astype(int)
    m, n, k = (theirs[f"param: {size}"].astype(int) for size in "MNK")
    flops = 2 * batch * m * n * k
    assert (theirs["GFLOPS_first"] * 1e9).round().tolist() == (flops + theirs["param: bias"] * m * n).tolist()
    theirs["key"] = list(zip(theirs["name"], batch, m, n, k, flops, strict=True))
    ours = rows(reference)
    ours = ours[ours["name"].isin(set(theirs["name"]))].copy()
    ours["key"] = [
        (name, sizes.get("B", 1), sizes["M"], sizes["N"], sizes["K"], flops)
        for name, sizes, flops in zip(ours["name"], map(dimensions, ours["dims"]), ours["flops"], strict=True)
    ]
    assert calls(ours) == calls(theirs)


def dimensions(text: str) -> dict[str, int]:
    """'M=2 N=3' as numbers."""
    return {key: int(value) for key, _, value in (word.partition("=") for word in text.split())}


@pytest.mark.parametrize("report", FLOPS_OF)
def test_attention_and_convolutions(reference: Reference, report: str) -> None:
    """FLOPs of each call; the reference names the outer of two nested ops, so only FLOPs are compared.

    Where a convolution's input needs no gradient (output_mask [False, True, False]), the reference counts
    it all the same. ResNet's first layer: 10 images to 64 x 112 x 112 outputs of 3 x 7 x 7 products are
    2 x 10 x 64 x 112 x 112 x 147 = 2,360,279,040 FLOPs for the weight's gradient, and nothing else is done.
    """
    theirs = reference.csv(report)
    theirs["count"] = theirs["name_count"]
    both = ~theirs["Concrete Inputs_first"].str.contains("[False, True, False]", regex=False)
    theirs["key"] = [
        (round(gigaflops * 1e9 * (1 if computed else 0.5)),)
        for gigaflops, computed in zip(theirs["GFLOPS_first"], both, strict=True)
    ]
    part, mark, there = FLOPS_OF[report]
    ours = rows(reference)
    names = ours["name"]
    ours = ours[names.str.contains(part) & (names.str.contains(mark) == there)].copy()
    ours["key"] = [(flops,) for flops in ours["flops"]]
    assert calls(ours) == calls(theirs)


def measured(case: Case) -> Result:
    return case.result("roofline")


def test_coverage(case: Case) -> None:
    """At least 95 % counted or with a reason that lies in the trace; where the trace has what it takes, 90 %
    counted outright."""
    table = measured(case)["coverage"]
    share = table.groupby(["rank", table["status"].astype(str)])["fraction_of_gpu_time"].sum().unstack()
    assert (share["no cost model"] <= 0.05).all()
    counted = share["cost model"] + share["cost model, arguments of a repeat"]
    assert (counted >= (0.90 if case.name.startswith(COVERED) else 0)).all()


def test_coverage_and_uncovered_work_add_up(case: Case) -> None:
    result = measured(case)
    by_how = result["coverage"].groupby("rank")["dur_ns"].sum().to_dict()
    assert by_how == {rank: int(work.dur.sum()) for rank, _, work in case.each()}
    holes = result["uncovered"].groupby("rank")["dur_ns"].sum()
    table = result["coverage"]
    reasons = table[~table["status"].astype(str).str.startswith("cost model")]
    for rank, dur in reasons.groupby("rank")["dur_ns"].sum().items():
        assert holes.get(rank, 0) == dur


def test_every_hole_has_a_name_and_a_reason(case: Case) -> None:
    table = measured(case)["uncovered"]
    assert (table["name"].astype(str) != "").all()
    assert (table["reason"].astype(str) != "").all()


def test_no_call_is_faster_than_its_roofline_without_a_reason(case: Case) -> None:
    table = measured(case)["roofline"]
    beyond = table[table["efficiency"] > 1.05]
    assert beyond[beyond["note"].astype(str) == ""].empty


def test_arithmetic_of_the_table(case: Case) -> None:
    """Derived columns from the others, and no time lost or saved beyond what was measured."""
    table = measured(case)["roofline"]
    assert (table[["flops", "read_bytes", "write_bytes", "count"]] >= 0).all(axis=None)
    rate = table["flops"] * table["count"] / table["dur_ns"].clip(lower=1) * 1e9
    assert (abs(table["flops_per_s"] - rate) <= 1e-9 * rate.abs()).all()
    known = table[table["efficiency"] >= 0]
    moving = known["dur_ns"] - known["wait_ns"]
    assert (moving >= 0).all()
    assert (known["recoverable_ns"] == (moving - known["roofline_ns"]).clip(lower=0)).all()
    ratio = known["roofline_ns"] / moving.clip(lower=1)
    # Waiting is at most: a rank that is late may find some of its data moved.
    ratio = ratio.where(known["wait_ns"] == 0, ratio.clip(upper=1))
    assert (abs(known["efficiency"] - ratio) <= 1 / moving.clip(lower=1)).all()


def matrix_flops(trace: Path) -> float:
    """FLOPs of all matrix products and attention whose launch is in the trace."""
    table = tracelens.analyze(tracelens.load(trace), "roofline", scope="linked")["roofline"]
    chosen = table[table["name"].astype(str).str.contains("mm|attention")]
    return float((chosen["flops"] * chosen["count"]).sum())


@pytest.mark.parametrize("device", ["mi300x", "h100"])
def test_flops_of_a_dense_model_on_paper(corpus: Path, device: str) -> None:
    """Qwen1.5-0.5B without its head, forward: 24 layers of width 1024, 2816 inside, 16 x 559 tokens."""
    tokens, width, inner = 16 * 559, 1024, 2816
    products = 4 * 2 * tokens * width**2 + 3 * 2 * tokens * width * inner
    attention = 4 * 16 * 559**2 * width // 2
    rotary = 2 * 32 * 559  # angles: an outer product of 32 frequencies and 559 positions
    (trace,) = (corpus / device).glob("Qwen*.json.gz")
    assert matrix_flops(trace) == 24 * (products + attention) + rotary


def test_flops_of_a_model_with_experts_on_paper(corpus: Path) -> None:
    """DeepSeek-V2 of 5 layers, two training steps of 2 x 2048 tokens.

    Latent attention of 16 heads, 192 wide for queries and keys and 128 for values; one layer 10944 wide, four
    with 64 experts of 1408, 6 a token, and a shared one of 2816; a vocabulary of 32768.
    """
    tokens, width, heads = 4096, 2048, 16
    latent = (width * heads * 192, width * (512 + 64), 512 * heads * (128 + 128), heads * 128 * width)
    dense = 3 * width * 10944
    moe = 64 * width + 6 * 3 * width * 1408 + 3 * width * 2816
    weights = 5 * sum(latent) + dense + 4 * moe + width * 32768
    scores = 2 * heads * 2048**2 // 2
    forward, backward = 2 * scores * (192 + 128), 2 * scores * (3 * 192 + 2 * 128)
    step = 3 * 2 * tokens * weights + 5 * (forward + backward)
    found = matrix_flops(corpus / "nvidia-h100-hf" / "dsv2_grouped.json.gz")
    assert found == pytest.approx(2 * step, rel=1e-3)
