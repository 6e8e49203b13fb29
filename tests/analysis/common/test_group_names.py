"""Names of process groups by what they are for and which ranks they join."""

from __future__ import annotations

import pytest

from tracelens.analysis.common import distinct_names, group_kind
from tracelens.analysis.common.setup import group_name, rank_ranges, role


@pytest.mark.parametrize(
    ("description", "expected"),
    [
        ("EXPERT_MODEL_PARALLEL_GROUP", "EP"),
        ("EXPERT_DATA_PARALLEL_GROUP", "EDP"),
        ("EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP", "ETP-EP"),
        ("TENSOR_MODEL_PARALLEL_GROUP", "TP"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "PP"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "DP"),
        ("CONTEXT_PARALLEL_GROUP", "CP"),
        ("MODEL_PARALLEL_GROUP", "TP-PP"),
        ("INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP", "optimizer"),
        ("default_pg", "world"),
        ("ep", "EP"),
        ("dp_cp_tp", "DP-CP-TP"),
        ("mesh_dp_shard_cp", "DP-shard-CP"),
        ("moe_tp", "MoE-TP"),
        ("tp:0", "TP"),
        # What is no dimension may mean anything.
        ("tp_of_something", ""),
        ("checkpoint", ""),
        ("mesh", ""),
        ("", ""),
    ],
)
def test_roles(description: str, expected: str) -> None:
    assert role(description) == expected


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([0, 1, 2, 3], "0-3"),
        ([3, 2], "2-3"),
        ([0, 4], "0,4"),
        ([0, 8, 16, 24], "0,8,16,24"),
        (range(0, 64, 8), "0,8…56"),
        ([0, 1, 4, 5], "0-1,4-5"),
        ([0, 2, 5, 9, 14, 20], "0,2,5,9,…"),
        ([7], "7"),
    ],
)
def test_ranges_of_ranks(ranks: list[int], expected: str) -> None:
    assert rank_ranges(ranks) == expected


def test_a_group_has_its_role_and_ranks_or_what_is_known() -> None:
    assert group_name("53", "EXPERT_MODEL_PARALLEL_GROUP", (0, 1, 2, 3)) == "EP 0-3"
    assert group_name("53", "my_group", (0, 4)) == "my_group 0,4"
    assert group_name("53", "", (0, 4)) == "ranks 0,4"
    assert group_name("53", "ep", ()) == "EP"
    assert group_name("53", "", ()) == "group 53"
    assert group_name("mine", "", ()) == "mine"


def test_groups_of_one_kind_have_one_name_on_all_ranks() -> None:
    assert group_kind("53", "EXPERT_MODEL_PARALLEL_GROUP", (0, 1)) == "EP"
    assert group_kind("54", "EXPERT_MODEL_PARALLEL_GROUP", (2, 3)) == "EP"
    assert group_kind("54", "", (2, 3)) == "ranks 2-3"


def test_two_groups_have_two_names() -> None:
    names = distinct_names(
        {
            ("1", (0, 1)): "DATA_PARALLEL_GROUP",
            ("2", (0, 1)): "DATA_PARALLEL_GROUP_WITH_CP",
            ("3", (2, 3)): "DATA_PARALLEL_GROUP",
        }
    )
    assert list(names.values()) == ["DP 0-1 (1)", "DP 0-1 (2)", "DP 2-3"]
