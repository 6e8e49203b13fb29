"""More ranks: transfers by closed forms, arrivals by order statistics."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from tests.what_if.replays import interval, run_of
from tracelens.analysis.comm import MatchedCollective, Participant, Record
from tracelens.devices import Bandwidth, Device, Measured, device
from tracelens.errors import TracelensError
from tracelens.opportunities import scaling
from tracelens.planner.step_time import Machine
from tracelens.table import Result
from tracelens.trace import Run
from tracelens.what_if import NotApplicable, whatif


def collective(
    name: str, members: Sequence[int], description: str = "dp", size: int = 0
) -> MatchedCollective:
    record = Record(0, "", name, "1", description, tuple(members), size or len(members), "Half", 1, 1, (), ())
    return MatchedCollective(name, "1", 0, tuple(Participant(rank, record, 0, 1) for rank in members))


def grown(recorded: MatchedCollective, times: int, there: Device | None) -> float:
    return scaling.transfer_ratio(recorded, there, there, Machine(), times).ratio


@pytest.mark.parametrize(
    ("name", "members", "times", "ratio"),
    [
        # Behind a switch, in a node of 8: 1/2 of the bytes leave a rank of two, 3/4 one of four.
        ("all_to_allv", (0, 1), 2, (3 / 4) / (1 / 2)),
        # 7/8 over 450 GB/s; then half of the bytes go to the other node at 50 GB/s.
        ("all_to_allv", range(8), 2, (8 / 16 / 50) / (7 / 8 / 450)),
        # A ring through all NICs of a node: 8 x 50 GB/s are less than the links in it for 4 nodes' bytes.
        ("_allgather_base", range(8), 4, max(31 / 32 / 450, 24 / 32 / 8 / 50) / (7 / 8 / 450)),
        ("allreduce", range(8), 2, max(15 / 16 / 450, 8 / 16 / 8 / 50) / (7 / 8 / 450)),
        # One rank of each node: all bytes go through its NIC before and after.
        ("reduce_scatter", (0, 8), 2, (3 / 4) / (1 / 2)),
        # Six ranks become eight on one node and four on the next, of whose bytes 8/12 leave it.
        ("all_to_allv", range(6), 2, (8 / 12 / 50) / (5 / 6 / 450)),
        # Every fourth rank: two of a group fit into a node.
        ("all_to_allv", (0, 4), 2, (2 / 4 / 50) / (1 / 2 / 450)),
    ],
)
def test_transfers_behind_a_switch(name: str, members: Sequence[int], times: int, ratio: float) -> None:
    change = grown(collective(name, members), times, device("h100"))
    assert change == pytest.approx(ratio)


def test_inside_a_node_measured_times_count() -> None:
    """1 MiB: 1/2 of it at 100 GB/s among two, 7/8 at 50 among eight; two nodes are not measured."""
    curves = tuple(
        Bandwidth("all_to_all", (1,), (rate,), ranks, ranks) for rate, ranks in ((100e9, 2), (50e9, 8))
    )
    measured = replace(device("h200"), measured=Measured(bandwidths=curves))
    pair = collective("all_to_all", (0, 1))
    assert grown(pair, 4, measured) == pytest.approx((7 / 8 / 50) / (1 / 2 / 100))
    modeled = grown(pair, 4, device("h100"))
    assert modeled == pytest.approx((7 / 8) / (1 / 2))
    for unmeasured in (grown(pair, 8, measured), grown(collective("allreduce", (0, 1)), 4, measured)):
        assert unmeasured in (
            grown(pair, 8, device("h100")), grown(collective("allreduce", (0, 1)), 4, device("h100"))
        )  # fmt: skip


def test_ranks_with_a_link_to_each_other_use_more_of_them() -> None:
    """Two of eight: half of the bytes over one link; four: a quarter over each of three."""
    change = grown(collective("all_to_all", (0, 1)), 2, device("mi300x"))
    assert change == pytest.approx((1 / 4) / (1 / 2))


def test_gathered_tokens_grow_with_the_ranks_and_parameters_do_not() -> None:
    same = [
        grown(collective("_allgather_base", (0, 1), group), 2, device("h100"))
        for group in ("dp_cp", "EXPERT_MODEL_PARALLEL_GROUP")
    ]
    assert same == pytest.approx([1.5, 3.0])


def test_a_group_that_leaves_its_node_needs_the_rate_of_the_links() -> None:
    inside = grown(collective("all_to_all", (0, 1)), 4, None)
    assert inside == pytest.approx((7 / 8) / (1 / 2))
    with pytest.raises(NotApplicable, match="give --device"):
        grown(collective("all_to_all", (0, 1)), 8, None)


RECORD = "op record_param_comms collective=all_to_all group=0 ranks=[0,1] size=2 in=4000 out=4000 dtype=Half"
EXCHANGE = """
    step 0 | --------
    {record} description={group} | -
    launch | a
    s9 ncclDevKernel | {kernel}
"""


def exchange(group: str) -> Run:
    """Ranks arrive at 2 and 6, and have their data at 14."""
    kernels = ("  aaaaaaaaaaaa", "      aaaaaaaa")
    return run_of(*(EXCHANGE.format(record=RECORD, group=group, kernel=kernel) for kernel in kernels))


def ranks(run: Run, scenario: str) -> Result:
    return whatif(run, [scenario], device="h100")


def test_the_last_of_more_ranks_comes_later() -> None:
    """8 us become 12. Arrivals lie sqrt(8) us apart; the last of 4 is 0.465 of that behind the last of 2."""
    result = ranks(exchange("ep"), "ranks=x2")
    later = np.sqrt(8) * (1.02938 - 0.56419)
    assert interval(result, "ranks=x2") == pytest.approx([6 + 12 + later] * 3, abs=0.002)
    (assumption,) = result["assumptions"]["assumption"]
    assert assumption.startswith("1 collectives over 2 ranks grow by 2x")


@pytest.mark.parametrize(
    "group", ["TENSOR_MODEL_PARALLEL_GROUP", "tp", "PIPELINE_MODEL_PARALLEL_GROUP", "cp_tp"]
)
def test_groups_inside_of_a_model_stay(group: str) -> None:
    (skip,) = [
        candidate for candidate in ranks(exchange(group), "ranks=x2").skips if "ranks=x2" in candidate.subject
    ]
    assert skip.reason == "no collective of a data or expert group recorded on several ranks"


@pytest.mark.parametrize(
    "group", ["dp_cp_tp", "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP", "default_pg", "moe_tp"]
)
def test_groups_over_data_or_experts_grow(group: str) -> None:
    result = ranks(exchange(group), "ranks=x2")
    assert interval(result, "ranks=x2")[1] > 18


@pytest.mark.parametrize("text", ["x1", "1", "2.5", "x", "many"])
def test_how_many_times(text: str) -> None:
    with pytest.raises(TracelensError, match=f"scenario ranks={text}: write ranks=x4"):
        ranks(exchange("ep"), f"ranks={text}")
    assert len(ranks(exchange("ep"), "ranks=3")["whatif"]) == 1
