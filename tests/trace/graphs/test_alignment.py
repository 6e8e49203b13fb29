"""Alignment of a replay with a template: what is certain is paired, and nothing else."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.trace.graphs.alignment import Alignment, align, function, same_kernel
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


def aligned(template: str, replayed: str) -> list[int]:
    result = align(nodes(template.split()), replay(replayed.split()), {})
    return result.node.tolist()


def test_equal_sequences() -> None:
    assert aligned("a b a b", "a b a b") == [0, 1, 2, 3]


def test_a_missing_node_leaves_a_gap() -> None:
    assert aligned("a b c d e f g h", "a b c e f g h") == [0, 1, 2, 4, 5, 6, 7]


def test_a_node_of_the_replay_alone_has_no_partner() -> None:
    assert aligned("a b c d e f", "a b c x d e f") == [0, 1, 2, -1, 3, 4, 5]


def test_of_equal_neighbours_nobody_knows_which_one_is_missing() -> None:
    assert aligned("a b c m m d e f", "a b c m d e f") == [0, 1, 2, -1, 5, 6, 7]


def test_a_deleted_node_may_be_its_neighbour_renamed() -> None:
    """b m m m c without one m, or b renamed to m and m m deleted."""
    replayed = "a b m m c a b m m m c a b m m m c"
    node = aligned("a b m m m c a b m m m c a b m m m c", replayed)
    assert node == [0, 1, -1, -1, 5, *range(6, 18)]


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
    template = nodes(["a", "a", "a", "a", "b", "c", "d"], blocks=[1, 2, 3, 4, 5, 6, 7])
    graph = replay(["a", "a", "a", "b", "c", "d"], blocks=[2, 3, 4, 5, 6, 7])
    assert align(template, graph, {}).node.tolist() == [1, 2, 3, 4, 5, 6]


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


def edited(names: Sequence[str], edits: Sequence[tuple[str, int, int]]) -> Edited:
    """The nodes of a replay with the template's node that each truly is, -1 for none, after some edits."""
    sequence = [(name, node) for node, name in enumerate(names)]
    for kind, where, other in edits:
        row = where % len(sequence)
        if kind == "insert":
            sequence.insert(row, (f"foreign{other % 5}", -1))
        elif kind == "delete" and len(sequence) > 1:
            del sequence[row]
        elif kind == "rename":
            sequence[row] = (f"foreign{other % 5}", sequence[row][1])
        elif kind == "swap" and row + 1 < len(sequence) and sequence[row][0] != sequence[row + 1][0]:
            sequence[row], sequence[row + 1] = sequence[row + 1], sequence[row]
    return sequence


def align_edited(names: Sequence[str], sequence: Edited) -> tuple[Alignment, np.ndarray]:
    truth = np.array([node for _, node in sequence])
    return align(nodes(names), replay([name for name, _ in sequence]), {}), truth


EDITS = st.tuples(
    st.sampled_from(["insert", "delete", "rename", "swap"]), st.integers(0, 10_000), st.integers(0, 10)
)


@settings(max_examples=150, deadline=None)
@given(layer=st.sampled_from(sorted(LAYERS)), depth=st.integers(4, 24), data=st.data())
def test_no_edit_leads_to_a_wrong_op(layer: str, depth: int, data: st.DataObject) -> None:
    names = ["embed", *(LAYERS[layer] * depth), "head"]
    edits = data.draw(st.lists(EDITS, max_size=len(names) // 20))
    result, truth = align_edited(names, edited(names, edits))
    paired = result.node >= 0
    assert (np.array(names)[result.node[paired]] == np.array(names)[truth[paired]]).all()
    assert (truth[paired] >= 0).all()


@pytest.mark.parametrize("layer", sorted(LAYERS))
def test_recall_under_edits(layer: str) -> None:
    """Over many graphs with up to 5% of their nodes edited, 95% of those that are there are attributed."""
    random = np.random.default_rng(28)
    known = total = wrong = 0
    for _ in range(60):
        names = ["embed", *(LAYERS[layer] * int(random.integers(8, 30))), "head"]
        kinds = random.choice(
            ["insert", "delete", "rename", "swap"], size=random.integers(len(names) // 20 + 1)
        )
        edits = [(str(kind), int(random.integers(10_000)), int(random.integers(5))) for kind in kinds]
        result, truth = align_edited(names, edited(names, edits))
        known += int((result.node == truth)[truth >= 0].sum())
        paired = result.node >= 0
        # Of few names one edit may look like another; then the op is right, and not the place.
        seen = np.array(names) if layer == "few names" else np.arange(len(names))
        wrong += int((seen[result.node[paired]] != seen[truth[paired]]).sum())
        total += int((truth >= 0).sum())
    assert known / total >= 0.95
    assert wrong == 0
