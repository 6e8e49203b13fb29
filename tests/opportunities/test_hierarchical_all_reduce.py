"""All-reduces over two hosts of two ranks each. A column is 1 us."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.builders import aligned, draw, draw_run
from tracelens import analyze
from tracelens.findings import DETECTORS, Detection
from tracelens.trace import Run, make_run

hierarchical_all_reduce = DETECTORS.get("hierarchical_all_reduce")


RING = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
HOSTS = ("a", "a", "b", "b")
SIZE = 1_000_000


def record(name: str, ranks: str, collective: str = "allreduce") -> str:
    size = ranks.count(",") + 1
    what = f"in={SIZE} out={SIZE} dtype=Byte"
    return f"op record_param_comms collective={collective} group={name} ranks={ranks} size={size} {what}"


def rank(
    number: int,
    across: str = "               bbbbbbbbbbbb",
    collective: str = "allreduce",
    kernel: str = RING,
    inside: str = "    aa",
    beside: str = "",
) -> str:
    """A rank with an all-reduce inside its host and one over all hosts."""
    own = "[0,1]" if number < 2 else "[2,3]"
    return aligned(f"""
        {record("1", own)} | -
        {record("0", "[0,1,2,3]", collective)} |   -
        launch  | a b
        s9 {kernel} | {inside}
        s9 {kernel}  | {across}
        s7 gemm | {beside}
    """)


def run_of(texts: Sequence[str], hosts: Sequence[str] = HOSTS) -> Run:
    return make_run(
        draw(text, rank=number, **({"host_name": host} if host else {}))
        for number, (text, host) in enumerate(zip(texts, hosts, strict=True))
    )


def outcome(run: Run) -> Any:
    return hierarchical_all_reduce.of_run({"collectives": analyze(run, "collectives")})


def of(detection: Detection, measure: str) -> float:
    (value,) = (quantity.value for quantity in detection.quantities if quantity.measure == measure)
    return value


def test_an_all_reduce_by_levels() -> None:
    """12 us for S over 4 ranks: each host sends 2 x 3/4 S. By levels it sends 2 x 1/2 S, 8 us, and its ranks
    exchange 2 x 1/2 S at the rate of the all-reduce inside, 2 x 1/2 S in 2 us: 2 us. 12 - 10 are saved."""
    detections = outcome(run_of([rank(number) for number in range(4)]))
    assert {rank: detection.saving_ns for rank, detection in detections.items()} == pytest.approx(
        dict.fromkeys(range(4), 2_000)
    )
    detection = detections[3]
    assert [part.tolist() for part in detection.where] == [[15_000], [27_000]]
    assert of(detection, "collectives per step") == 1
    assert of(detection, "bus bandwidth") == pytest.approx(1.5 * SIZE / 12e-6)
    assert of(detection, "bytes sent per host, flat ring") == 1.5 * SIZE
    assert of(detection, "bytes sent per host, hierarchical") == SIZE
    assert of(detection, "time without waiting") == 12_000
    assert of(detection, "expected time, hierarchical") == pytest.approx(10_000)
    assert of(detection, "hosts") == 2
    assert detection.confidence == "medium"
    assert "67% of the bytes per host: 10.0 µs expected" in detection.evidence


def test_a_reduce_scatter_goes_round_once() -> None:
    # 8 us as before, and 1/2 S inside at S in 2 us: 1 us.
    detections = outcome(run_of([rank(number, collective="_reduce_scatter_base") for number in range(4)]))
    assert detections[0].saving_ns == pytest.approx(3_000)


def test_waiting_and_what_is_hidden_are_not_saved() -> None:
    # Rank 1 is there 4 us before the others, and computes from 19 to 25: of 12 us 6 are exposed.
    texts = [rank(number) for number in range(4)]
    texts[1] = rank(1, across="           " + "b" * 16, beside=" " * 19 + "======")
    detections = outcome(run_of(texts))
    assert detections[0].saving_ns == pytest.approx(2_000)
    assert detections[1].saving_ns == pytest.approx(1_000)
    assert [part.tolist() for part in detections[1].where] == [[15_000], [27_000]]


def test_without_a_collective_inside_a_host_it_is_an_upper_bound() -> None:
    texts = [
        aligned(f"{record('0', '[0,1,2,3]')} | -\nlaunch | b\ns9 {RING} |    bbbbbbbbbbbb") for _ in range(4)
    ]
    detections = outcome(run_of(texts))
    assert detections[0].saving_ns == pytest.approx(4_000)
    assert detections[0].confidence == "low"


def test_kernels_that_do_not_tell_their_algorithm() -> None:
    detections = outcome(run_of([rank(number, kernel="ncclDevKernel_Generic_4") for number in range(4)]))
    assert detections[0].confidence == "low"


def test_trees_are_not_flat() -> None:
    texts = [rank(number, kernel=RING.replace("RING", "TREE")) for number in range(4)]
    assert outcome(run_of(texts)) == "kernels across hosts are not flat rings by their names"


def test_trees_beside_rings_are_not_counted() -> None:
    repeated = f"""
    {record("0", "[0,1,2,3]")} |       -
    launch |       c
    s5 {RING.replace("RING", "TREE")} | {" " * 30}cccccccccccc"""
    texts = [aligned(rank(number) + repeated) for number in range(4)]
    detections = outcome(run_of(texts))
    assert detections[0].saving_ns == pytest.approx(2_000)
    assert of(detections[0], "collectives per step") == 1
    assert [part.tolist() for part in detections[0].where] == [[15_000], [27_000]]


def test_slow_links_inside_a_host() -> None:
    # 8 us as before, and 2 x 1/2 S inside at that in 5 us: more than 12.
    texts = [rank(number, inside="    aaaaa") for number in range(4)]
    assert outcome(run_of(texts)).startswith("a hierarchical algorithm saves no time")


def test_one_host() -> None:
    assert outcome(run_of([rank(number) for number in range(4)], "aaaa")) == "all ranks are on one host"


def test_hosts_without_a_name() -> None:
    assert outcome(run_of([rank(number) for number in range(4)], ("a", "a", "b", ""))) == (
        "the traces do not name their hosts"
    )


def test_one_rank_on_each_host() -> None:
    texts = [rank(number) for number in range(4)]
    assert outcome(run_of(texts, "abcd")).startswith("groups that span hosts have one rank per host")


def test_uneven_hosts() -> None:
    texts = [rank(number) for number in range(4)]
    assert outcome(run_of(texts, "aaab")).startswith("groups that span hosts have one rank per host")


def test_a_rank_that_is_missing() -> None:
    texts = [rank(number) for number in range(3)]
    assert outcome(run_of(texts, "aab")).startswith(
        "no fully recorded all-reduce, reduce-scatter or all-gather"
    )


def test_collectives_of_another_kind() -> None:
    texts = [rank(number, collective="broadcast") for number in range(4)]
    assert outcome(run_of(texts)).startswith("no fully recorded all-reduce, reduce-scatter or all-gather")


@pytest.mark.parametrize("text", ["s7 gemm | ===", "op f | ==", rank(0)])
def test_one_rank_alone(text: str) -> None:
    assert outcome(draw_run(text)) == "no collective is recorded on several ranks"
