"""Names of process groups: by what they are for and which ranks they join, 'EP 0-3' and not '53'."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise

# Megatron-LM's descriptions, in an order in which the first that fits is right.
_PHRASES = (
    ("expert_tensor_model_pipeline_parallel", "ETP-EP-PP"),
    ("expert_tensor_and_model_parallel", "ETP-EP"),
    ("expert_tensor_parallel", "ETP"),
    ("expert_data_parallel", "EDP"),
    ("expert_(?:model_)?parallel", "EP"),
    ("tensor_and_data_parallel", "TP-DP"),
    ("tensor_and_context_parallel", "TP-CP"),
    ("tensor_(?:model_)?parallel", "TP"),
    ("pipeline_(?:model_)?parallel", "PP"),
    ("context_parallel", "CP"),
    ("sequence_parallel", "SP"),
    ("distributed_optimizer", "optimizer"),
    ("data_parallel", "DP"),
    ("model_parallel", "TP-PP"),
    ("^default_pg$|^world(?:_|$)", "world"),
)
# Dimensions of a device mesh (mesh_dp_shard_cp) and the groups of serving engines (tp:0).
_DIMENSIONS = ("pp", "tp", "cp", "sp", "dp", "ep", "etp", "edp", "fsdp", "hsdp")
_WORDS = {**{name: name.upper() for name in _DIMENSIONS}, "moe": "MoE", "shard": "shard", "replicate": "rep"}
_FILLERS = ("mesh", "group", "pg", "")
_LISTED = 4
"""Ranges of ranks that are listed; of more, the first ones."""

Group = tuple[str, tuple[int, ...]]
"""The name of a process group and its ranks; one name may stand for several groups."""


@cache
def role(description: str) -> str:
    """What a process group is for, by the description that the program gave it: 'EP'; '' if unknown."""
    text = re.sub(r"[\W_]+", "_", description.lower())
    for phrase, name in _PHRASES:
        if re.search(phrase, text):
            return name
    words = [word for word in re.split(r"_|\d+", text) if word not in _FILLERS]
    known = [_WORDS[word] for word in words if word in _WORDS]
    # Words that are no dimensions may say anything.
    return "-".join(known) if known and len(known) == len(words) else ""


def rank_ranges(ranks: Sequence[int]) -> str:
    """Ranks as text: '0-3', '0,4', '0,8…56', '0-3,8-11'."""
    ordered = sorted(ranks)
    steps = {after - before for before, after in pairwise(ordered)}
    if len(ordered) > _LISTED and len(steps) == 1 and steps != {1}:
        return f"{ordered[0]},{ordered[1]}…{ordered[-1]}"
    ranges: list[list[int]] = []
    for rank in ordered:
        if ranges and rank == ranges[-1][1] + 1:
            ranges[-1][1] = rank
        else:
            ranges.append([rank, rank])
    texts = [str(low) if low == high else f"{low}-{high}" for low, high in ranges]
    return ",".join(texts) if len(texts) <= _LISTED else f"{','.join(texts[:_LISTED])},…"


def group_name(name: str, description: str, ranks: Sequence[int]) -> str:
    """A process group as people know it: 'EP 0-3'; 'ranks 0-3' without a description; else its own name.

    Args:
        name: that the program numbers it by, such as '53'.
        description: of the program, may be ''.
        ranks: of the group; empty where they are not recorded.
    """
    what = role(description) or description
    if not ranks:
        return what or (f"group {name}" if name.isdigit() else name)
    return f"{what or 'ranks'} {rank_ranges(ranks)}"


def group_kind(name: str, description: str, ranks: Sequence[int]) -> str:
    """The same of all groups of one kind, such as 'EP', so that ranks can be compared."""
    return role(description) or description or group_name(name, "", ranks)


def distinct_names(groups: Mapping[Group, str]) -> dict[Group, str]:
    """A name of each process group that no other has.

    Args:
        groups: (name, ranks) to description.
    """
    names = {
        (name, ranks): group_name(name, description, ranks) for (name, ranks), description in groups.items()
    }
    shared = Counter(names.values())
    return {
        (name, ranks): f"{text} ({name})" if shared[text] > 1 and text != name else text
        for (name, ranks), text in names.items()
    }
