"""Matrix products before a reduction or behind a gather of the same tensor. A column is 1 us."""

from __future__ import annotations

import pytest

from tests.builders import aligned, draw
from tracelens.analysis.fusable.gemm_collectives import GATHER, REDUCE, SCATTER, fused_ns
from tracelens.costs import OpCall, OpCost, find
from tracelens.devices import Device
from tracelens.devices import device as device_named
from tracelens.findings import DETECTORS, Detection, Outcome, RankContext

gemm_collective = DETECTORS.get("gemm_collective")


MI300X = device_named("mi300x")
TENSOR = "TENSOR_MODEL_PARALLEL_GROUP"
TYPES = 'types=["c10::BFloat16","c10::BFloat16"]'
MM = f"op aten::mm shapes=[[1024,256],[256,512]] {TYPES}"
"""1024 x 512 elements are the result, 1024 x 256 the left operand."""

SCATTERED = """
    MM                            | -
    RECORD                        |   -
    launch                        | a b
    s7 Cijk_Ailk_Bljk             |    aaaaaaaaaa
    s9 ncclDevKernel_Generic      |              bbbbbb
"""
GATHERED = """
    RECORD                        | -
    MM                            |   -
    launch                        | a b
    s9 ncclDevKernel_Generic      |    aaaaaa
    s7 Cijk_Ailk_Bljk             |          bbbbbbbbbb
"""


def record(collective: str, elements: int, description: str = TENSOR) -> str:
    own = elements // 8 if "gather" in collective else elements
    out = elements // 8 if "scatter" in collective else elements
    return (
        f"op record_param_comms collective={collective} group=1 ranks=[0,1,2,3,4,5,6,7] size=8 in={own} "
        f"out={out} dtype=BFloat16 description={description}"
    )


SCATTER_OUT = record("_reduce_scatter_base", 1024 * 512)
GATHER_LEFT = record("_allgather_base", 1024 * 256)


def outcome(
    text: str, what: str = SCATTER_OUT, device: Device | None = None, ns_per_char: int = 1000
) -> Outcome:
    drawing = aligned(text.replace("RECORD", what).replace("MM ", f"{MM} "))
    return gemm_collective.of_rank(RankContext(draw(drawing, ns_per_char=ns_per_char), device))


def of(detection: Outcome, measure: str) -> float:
    assert isinstance(detection, Detection)
    (value,) = (quantity.value for quantity in detection.quantities if quantity.measure == measure)
    return value


def local(m: int, n: int, k: int) -> OpCost:
    """What one rank's product costs."""
    model = find("aten::mm")
    assert model is not None
    return model.function(OpCall("aten::mm", [[m, k], [k, n]], ["bf16", "bf16"]))


@pytest.mark.parametrize(
    ("m", "n", "k", "us"),
    [
        (64, 7168, 18432, 6.43),
        (512, 4096, 12288, 8.19),
        (2048, 2880, 2880, 23.04),
        (4096, 4096, 4096, 65.54),
        (8192, 4096, 14336, 131.07),
        (8192, 8192, 29568, 379.43),
    ],
)
def test_speed_of_light_of_gemm_and_reduce_scatter(m: int, n: int, k: int, us: float) -> None:
    """The table of the AMD Developer Challenge 2025: K is split over 8 MI300X, the result of M x N summed."""
    ns = fused_ns(local(m, n, k // 8), SCATTER, 2 * m * n, 8, MI300X)
    assert round(ns / 1000, 2) == us


@pytest.mark.parametrize(
    ("m", "n", "k", "us"),
    [
        (64, 18432, 7168, 6.43),
        (512, 12288, 4096, 8.19),
        (2048, 2880, 2880, 23.04),
        (4096, 4096, 4096, 65.54),
        (8192, 14336, 4096, 131.07),
        (8192, 29568, 8192, 379.43),
    ],
)
def test_speed_of_light_of_all_gather_and_gemm(m: int, n: int, k: int, us: float) -> None:
    """The same table: N is split over 8 MI300X, the left operand of M x K gathered."""
    ns = fused_ns(local(m, n // 8, k), GATHER, 2 * m * k, 8, MI300X)
    assert round(ns / 1000, 2) == us


def test_an_all_reduce_sends_twice_as_much() -> None:
    cost = local(2048, 2880, 360)
    twice = 2 * fused_ns(cost, SCATTER, 2 * 2048 * 2880, 8, MI300X)
    assert fused_ns(cost, REDUCE, 2 * 2048 * 2880, 8, MI300X) == twice


def test_the_shorter_of_the_two_could_hide_in_the_longer() -> None:
    detection = outcome(SCATTERED, device=MI300X)
    assert isinstance(detection, Detection)
    assert detection.saving_ns == 6_000
    assert [part.tolist() for part in detection.where] == [[13_000], [19_000]]
    assert of(detection, "pairs per step") == 1
    assert of(detection, "serialized time") == 16_000
    assert of(detection, "with perfect overlap") == 10_000
    # 7/8 of 1 MiB at 448 GB/s; compute takes 0.21 us, memory 0.35.
    assert of(detection, "speed of light") == pytest.approx(7 / 8 * 2**20 / 448)
    assert of(detection, "speed of light / time") == pytest.approx(7 / 8 * 2**20 / 448 / 16_000)
    assert detection.confidence == "medium"
    assert "1 of 1 GEMMs" in detection.evidence
    assert "1 reduce-scatter" in detection.evidence


def test_a_gather_before_the_product() -> None:
    detection = outcome(GATHERED, GATHER_LEFT, MI300X)
    assert isinstance(detection, Detection)
    assert detection.saving_ns == 6_000
    assert of(detection, "speed of light") == pytest.approx(7 / 8 * 2**19 / 448)


def test_an_all_reduce_of_a_group_without_a_name() -> None:
    detection = outcome(SCATTERED, record("allreduce", 1024 * 512, "undefined"))
    assert isinstance(detection, Detection)
    assert detection.saving_ns == 6_000
    # Nothing is known of the device.
    assert detection.confidence == "low"
    assert "speed of light" not in detection.evidence


def test_nothing_is_faster_than_light() -> None:
    # 1.0 + 0.6 us; 2.05 us are the least that the links need.
    detection = outcome(SCATTERED, device=MI300X, ns_per_char=100)
    assert isinstance(detection, Detection)
    assert detection.saving_ns == 0
    # 2.0 + 1.2 us: all but 2.05 of it.
    detection = outcome(SCATTERED, device=MI300X, ns_per_char=200)
    assert isinstance(detection, Detection)
    assert detection.saving_ns == pytest.approx(3_200 - 7 / 8 * 2**20 / 448)


def test_what_other_computation_hides_is_not_lost() -> None:
    # Of the reduce-scatter from 13 to 19 another kernel hides 17 to 19: 14 us, best 10.
    detection = outcome(SCATTERED + "    s8 softmax |                  ====\n")
    assert isinstance(detection, Detection)
    assert detection.saving_ns == 4_000
    assert [part.tolist() for part in detection.where] == [[13_000], [17_000]]


def test_a_collective_beside_other_computation_is_overlapped() -> None:
    text = SCATTERED + "    s8 softmax |               =====\n"
    assert str(outcome(text)).startswith("the collectives of all 1 tensor-parallel GEMMs are overlapped")


def test_one_that_begins_before_the_product_ends_is_overlapped() -> None:
    text = SCATTERED.replace("|              bbbbbb", "|           bbbbbb")
    assert str(outcome(text)).startswith("the collectives of all 1 tensor-parallel GEMMs are overlapped")


def test_savings_are_of_one_step() -> None:
    text = """
    step 1                        | -------------------
    step 2                        |                    --------------------
    MM                            | -                  -
    RECORD                        |   -                  -
    launch                        | a b                c d
    s7 Cijk_Ailk_Bljk             |    aaaaaaaaaa         cccccccccc
    s9 ncclDevKernel_Generic      |              bbbbbb             dddddd
    """
    detection = outcome(text)
    assert isinstance(detection, Detection)
    assert detection.saving_ns == 6_000
    assert of(detection, "pairs per step") == 1
    assert detection.where.total == 12_000


@pytest.mark.parametrize(
    "description",
    [
        "EXPERT_MODEL_PARALLEL_GROUP",
        "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP",
        "DATA_PARALLEL_GROUP_WITH_CP",
        "mesh_dp",
        "mesh_fsdp",
    ],
)
def test_other_groups(description: str) -> None:
    why = "no all-reduce, reduce-scatter or all-gather of a tensor-parallel group"
    assert outcome(SCATTERED, record("_reduce_scatter_base", 1024 * 512, description)) == why


def test_other_collectives() -> None:
    why = "no all-reduce, reduce-scatter or all-gather of a tensor-parallel group"
    assert outcome(SCATTERED, record("all_to_allv", 1024 * 512)) == why


def test_a_message_of_another_size() -> None:
    why = "no GEMM next to a collective has its message as result or operand"
    assert outcome(SCATTERED, record("_reduce_scatter_base", 4096)) == why


def test_gathered_weights_look_like_an_operand_where_groups_have_no_names() -> None:
    right = 256 * 512
    assert isinstance(outcome(GATHERED, record("_allgather_base", right)), Detection)
    why = "no GEMM next to a collective has its message as result or operand"
    assert outcome(GATHERED, record("_allgather_base", right, "undefined")) == why


def test_computation_between_them() -> None:
    text = """
    MM                            | -
    RECORD                        |     -
    launch                        | a c b
    s7 Cijk_Ailk_Bljk             |    aaaaaaaaaa
    s7 softmax                    |              c
    s9 ncclDevKernel_Generic      |               bbbbbb
    """
    assert str(outcome(text)).startswith("no GEMM directly before a reduction")


def test_a_pair_among_collectives_that_are_none() -> None:
    text = """
    RECORD                        | -     -   -
    MM                            |     -
    launch                        | z   a b c d
    s9 ncclDevKernel_Generic      |  zz
    s7 Cijk_Ailk_Bljk             |       aaaaaaaaaa
    s9 ncclDevKernel_Generic      |                 bbbbbb
    s7 softmax                    |                       ccc
    s9 ncclDevKernel_Generic      |                          dddddd
    """
    detection = outcome(text)
    assert isinstance(detection, Detection)
    assert of(detection, "pairs per step") == 1
    assert [part.tolist() for part in detection.where] == [[16_000], [22_000]]


def test_a_reduction_before_the_product() -> None:
    assert str(outcome(GATHERED, SCATTER_OUT)).startswith("no GEMM directly before a reduction")


def test_no_shapes() -> None:
    text = SCATTERED.replace("MM ", "op aten::mm ")
    assert outcome(text) == "no GEMM next to a collective has its message as result or operand"


@pytest.mark.parametrize("text", ["s7 gemm | ===", "op f | ==", "s9 ncclDevKernel_Generic | ==="])
def test_no_collective(text: str) -> None:
    assert outcome(text) == "no all-reduce, reduce-scatter or all-gather of a tensor-parallel group"


def test_work_without_launch_calls() -> None:
    text = "\n".join(line for line in SCATTERED.splitlines() if "launch" not in line)
    assert isinstance(outcome(text), str)
