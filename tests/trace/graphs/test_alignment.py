"""Alignment of a replay with a template: what is certain is paired, and nothing else."""

import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from tracelens.trace.graphs.alignment import align, function, same_kernel
from tracelens.trace.graphs.nodes import COPY, KERNEL, Nodes, Replay

LAYERS = {
    "dense": [
        *[
            "norm",
            "qkv",
            "copy",
            "q_norm",
            "copy",
            "k_norm",
            "rope",
            "cache",
            "attn",
            "reduce",
            "out",
            "add",
            "up",
            "act",
            "down",
        ]
    ],
    "moe": [
        *[
            "norm",
            "mm",
            "mm",
            "mm",
            "rope",
            "rope",
            "attn",
            "mm",
            "norm",
            "router",
            "topk",
            "sort",
            "up",
            "act",
            "down",
            "add",
        ]
    ],
    "few names": [*"abaacbab"],
}


def nodes(names: Sequence[str], blocks: Sequence[int] = (), ops: Sequence[str] = ()) -> Nodes:
    kind = np.array([COPY if name == "=" else KERNEL for name in names])
    grids = np.array([*blocks] or [-1] * len(names))
    return Nodes(kind, ["" if name in "=?" else name for name in names], grids, [*ops] or [""] * len(names))


def replay(names: Sequence[str], blocks: Sequence[int] = (), stream: Sequence[int] = ()) -> Replay:
    count = len(names)
    start = np.arange(count) * 10
    streams = np.array([*stream] or [0] * count)
    return Replay(0, np.arange(count), streams, start, start + 9, nodes(names, blocks))


REST = [f"k{number}" for number in range(100)]
"""What surrounds an edit: in a graph of a few nodes, one edit makes others likely."""


def aligned(template: str, replayed: str) -> list[int]:
    """Pairs of the first nodes of two graphs that end alike."""
    count = len(replayed.split())
    result = align(nodes([*template.split(), *REST]), replay([*replayed.split(), *REST]), {})
    return result.node[:count].tolist()


def test_equal_sequences() -> None:
    assert aligned("a b a b", "a b a b") == [0, 1, 2, 3]


def test_a_missing_node_leaves_a_gap() -> None:
    assert aligned("a b c d e f g h", "a b c e f g h") == [0, 1, 2, 4, 5, 6, 7]


def test_a_node_of_the_replay_alone_has_no_partner() -> None:
    assert aligned("a b c d e f", "a b c x d e f") == [0, 1, 2, -1, 3, 4, 5]


def test_of_equal_neighbours_nobody_knows_which_one_is_missing() -> None:
    assert aligned("a b c m m d e f", "a b c m d e f") == [0, 1, 2, -1, 5, 6, 7]


def test_a_deleted_node_may_be_its_neighbour_renamed() -> None:
    """Without x the graph looks as if b were renamed to x and the x behind it deleted, where x is common."""
    layer = "a x b x "
    assert aligned(layer * 10, "a x b " + layer * 9)[:4] == [0, -1, -1, -1]


def test_names_that_are_rare_need_no_neighbours() -> None:
    assert aligned("a b c x y d e f", "a b c p x y q d e f") == [0, 1, 2, -1, 3, 4, -1, 5, 6, 7]


def test_copies_and_kernels_are_never_the_same() -> None:
    assert aligned("a b c = d e f", "a b c k d e f") == [0, 1, 2, -1, 4, 5, 6]


def test_calls_without_names_are_aligned_by_number_and_kind() -> None:
    template = nodes(["?", "?", "=", "?", "?"])
    assert align(template, replay(["a", "b", "=", "c", "d"]), {}).node.tolist() == [0, 1, 2, 3, 4]
    assert (align(template, replay(["a", "b", "c", "d"]), {}).node == -1).all()


def test_an_op_that_others_launch_the_kernel_of_speaks_against_a_call_without_name() -> None:
    template = nodes(["?", "?", "?", "?", "?", "?", "?"], ops=["mm", "mm", "mm", "add", "mm", "mm", "mm"])
    graph = replay(["g", "g", "g", "g", "g", "g", "g"])
    assert align(template, graph, {"g": frozenset({"mm"})}).node[3] == -1


def test_grids_weigh_more_than_names() -> None:
    template = nodes([*"aaaabcd", *REST], blocks=[*range(107)])
    graph = replay([*"aaabcd", *REST], blocks=[*range(1, 107)])
    assert align(template, graph, {}).node.tolist() == [*range(1, 107)]


def test_streams_are_followed_in_the_order_of_the_program() -> None:
    template = nodes(["a", "b", "s", "t", "u", "m", "n", "o", "p", "z"])
    graph = replay(["a", "b", "m", "s", "n", "t", "o", "u", "p", "z"], stream=[1, 1, 2, 1, 2, 1, 2, 1, 2, 1])
    result = align(template, graph, {})
    assert result.node.tolist() == [0, 1, 5, 2, 6, 3, 7, 4, 8, 9]
    assert result.is_whole


def test_equal_branches_at_one_time_stay_unattributed() -> None:
    template = nodes([*"abcstustuxyz"])
    graph = replay([*"abcssttuuxyz"], stream=[1, 1, 1, 2, 3, 2, 3, 2, 3, 1, 1, 1])
    overlapping = graph._replace(end=graph.start + 15)
    node = align(template, overlapping, {}).node
    assert (node[3:9] == -1).all()
    assert node[[0, 1, 2, 9, 10, 11]].tolist() == [0, 1, 2, 9, 10, 11]


def test_without_names_several_streams_cannot_be_followed() -> None:
    graph = replay(["a", "b", "c", "d"], stream=[1, 2, 1, 2])
    assert (align(nodes(["?", "?", "?", "?"]), graph, {}).node == -1).all()


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("_ZN5aiter11norm_kernelIfLi8EEEvPT_", "void aiter::norm_kernel<float, 8>(float*)"),
        ("_ZN2at6native12_GLOBAL__N_14copyEv", "void at::native::(anonymous namespace)::copy()"),
        ("gemm", "gemm"),
    ],
)
def test_mangled_names(name: str, other: str) -> None:
    assert same_kernel(name, other)
    assert function(name) == function(other)


def test_names_in_one_form_differ_by_their_arguments() -> None:
    assert not same_kernel("void copy<float>(float*)", "void copy<int>(int*)")


Edited = list[tuple[str, int]]
"""Nodes of a replay, as name and the template's node that each truly is, -1 for none."""


def edited(names: Sequence[str], share: float, own: float, random: np.random.Generator) -> Edited:
    """A replay with some nodes inserted, deleted, renamed, swapped with the next or a far one.

    Each node is edited once, and a swap edits two.

    Args:
        names: of the template.
        share: of the nodes, at most.
        own: share of new names that are those of another node of the template.
        random: where, how, and how many.
    """
    cells = [[(name, node)] for node, name in enumerate(names)]
    untouched = [True] * len(names)
    budget = int(random.integers(int(share * len(names)) + 1))
    for node in random.permutation(len(names)).tolist():
        kind = random.choice(["insert", "delete", "rename", "swap", "far swap"])
        is_own = random.random() < own
        new = names[random.integers(len(names))] if is_own else f"foreign{random.integers(5)}"
        other = node + 1 if kind == "swap" else int(random.integers(len(names)))
        if budget < 1:
            break
        if not untouched[node] or (kind == "rename" and new == names[node]):
            continue
        if kind in ("swap", "far swap"):
            if other == len(names) or not untouched[other] or names[other] == names[node]:
                continue
            cells[node], cells[other] = cells[other], cells[node]
            untouched[other] = False
            budget -= 1
        else:
            own_cell = (new if kind == "rename" else names[node], node)
            cells[node] = {"insert": [(new, -1), own_cell], "delete": []}.get(kind, [own_cell])
        untouched[node] = False
        budget -= 1
    return [node for cell in cells for node in cell]


def unseen(names: Sequence[str], sequence: Edited) -> np.ndarray:
    """The template's node of each of the replay's where edits between two others cancel out.

    Of m m m without the first and with another at the end, m m m is left: no edit, for all that can be known.
    """
    truth = [-1, *(node for _, node in sequence), len(names)]
    replayed = ["", *(name for name, _ in sequence), ""]
    keeps = [
        0 <= node < len(names) and names[node] == name for node, name in zip(truth, replayed, strict=True)
    ]
    keeps[0] = keeps[-1] = True
    seen = np.array(truth)
    for first in np.flatnonzero(keeps).tolist():
        for last in range(first + 2, min(first + 8, len(truth))):
            size = last - first - 1
            expected = list(names[truth[first] + 1 : truth[first] + 1 + size])
            if (
                keeps[last]
                and truth[last] - truth[first] == size + 1
                and replayed[first + 1 : last] == expected
            ):
                seen[first + 1 : last] = np.arange(truth[first] + 1, truth[last])
    return seen[1:-1]


class Score(NamedTuple):
    """Nodes that are attributed rightly, wrongly, and that should be."""

    right: int
    wrong: int
    total: int


def score(names: Sequence[str], sequence: Edited) -> Score:
    node = align(nodes(names), replay([name for name, _ in sequence]), {}).node
    truth = np.array([node for _, node in sequence])
    is_right = (node == truth) | (node == unseen(names, sequence))
    is_known = truth >= 0
    return Score(int((is_right & is_known).sum()), int((~is_right & (node >= 0)).sum()), int(is_known.sum()))


def graph(layer: str, depth: int) -> list[str]:
    return ["embed", *(LAYERS[layer] * depth), "head"]


@settings(max_examples=effort(30, 200), deadline=None)
@given(
    st.sampled_from(sorted(LAYERS)), st.integers(3, 12), st.sampled_from([0.0, 0.5]), st.integers(0, 10**9)
)
def test_no_edit_leads_to_a_wrong_op(layer: str, depth: int, own: float, seed: int) -> None:
    names = graph(layer, depth)
    assert score(names, edited(names, 0.05, own, np.random.default_rng(seed))).wrong == 0


GRAPHS = int(os.environ.get("TRACELENS_EDITED_GRAPHS", effort("6", "12")))
"""Random graphs of each kind; a night's run takes thousands."""


@pytest.mark.slow
@pytest.mark.parametrize(("own", "least"), [(0.0, 0.95), (1.0, 0.9)])
def test_recall_under_edits(own: float, least: float) -> None:
    """Of graphs with up to 5% of their nodes edited 95% of the nodes that are there are attributed.

    Less where all new names are the graph's own and a few names make it: then a missing node's neighbours
    may be that node as well.
    """
    random = np.random.default_rng(28)
    scores = []
    for layer in sorted(LAYERS):
        for _ in range(GRAPHS):
            names = graph(layer, int(random.integers(8, 30)))
            scores.append(score(names, edited(names, 0.05, own, random)))
    right, wrong, total = (sum(column) for column in zip(*scores, strict=True))
    assert wrong == 0
    assert right / total >= least


@pytest.mark.slow
def test_a_long_graph() -> None:
    """5,000 or 20,000 nodes, of which 3% are edited."""
    random = np.random.default_rng(5)
    names = graph("dense", effort(333, 1333))
    sequence = edited(names, 0.03, 0.0, random)
    right, wrong, total = score(names, sequence)
    assert wrong == 0
    assert right / total >= 0.95
