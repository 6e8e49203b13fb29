"""Captures without kernel names: what the replay's own kernels say about them."""

from collections.abc import Sequence

import numpy as np
import pytest

from tests.trace.graphs.test_alignment import Edited, nodes, replay
from tracelens.trace.graphs.alignment import align, inferred
from tracelens.trace.graphs.nodes import Content, Nodes

LAYER = [
    *(("aten::rms_norm", "norm"), ("aten::mm", "gemm_qkv"), ("aten::copy_", "copy"), ("aten::copy_", "copy")),
    *(("vllm::attention", "attention"), ("vllm::attention", "reduce"), ("aten::mm", "gemm_out")),
    *(("aten::add", "add"), ("aten::rms_norm", "norm"), ("aten::mm", "gemm_up"), ("aten::silu", "silu")),
    *(("aten::mm", "gemm_down"), ("aten::add", "add")),
]


class Capture:
    """Calls of a program of equal layers; an attention op launches two kernels."""

    def __init__(self, layers: int) -> None:
        calls = LAYER * layers
        self.kernels = [kernel for _, kernel in calls]
        self.nodes = nodes(["?"] * len(calls), ops=[op for op, _ in calls])
        starts = [row for row, kernel in enumerate(self.kernels) if kernel != "reduce"]
        self.op = np.searchsorted(starts, np.arange(len(calls)), side="right") - 1
        # A GEMM's op says by its shapes which of a layer's it is.
        self.contents: list[Content] = [(op, (kernel if "gemm" in kernel else "",)) for op, kernel in calls]

    def align(self, sequence: Edited) -> np.ndarray:
        graph = replay([name for name, _ in sequence])
        named = inferred(self.nodes, self.op, self.contents, graph.nodes)
        return np.full(len(sequence), -1) if named is None else align(named, graph, {}).node


def shifted(kernels: Sequence[str], inserted: int, deleted: int) -> Edited:
    """A replay of as many nodes: one kernel more before a node, and one less."""
    sequence = [(name, node) for node, name in enumerate(kernels)]
    del sequence[deleted]
    sequence.insert(inserted, ("foreign", -1))
    return sequence


def test_the_kernels_of_most_calls_name_a_capture() -> None:
    capture = Capture(6)
    graph = replay(capture.kernels)
    named = inferred(capture.nodes, capture.op, capture.contents, graph.nodes)
    assert isinstance(named, Nodes)
    assert named.name == capture.kernels


@pytest.mark.parametrize(("inserted", "deleted"), [(40, 44), (100, 90), (5, 5)])
def test_between_an_insertion_and_a_deletion_the_order_is_off_by_one(inserted: int, deleted: int) -> None:
    capture = Capture(20)
    sequence = shifted(capture.kernels, inserted, deleted)
    node, truth = capture.align(sequence), np.array([node for _, node in sequence])
    assert ((node == truth) | (node < 0)).all()
    assert (node == truth)[truth >= 0].mean() > 0.95


def test_a_graph_that_is_off_by_one_throughout_has_no_gemm_where_gemms_are() -> None:
    capture = Capture(20)
    assert (capture.align(shifted(capture.kernels, 2, len(capture.kernels) - 2)) == -1).all()


def test_random_shifts() -> None:
    random = np.random.default_rng(3)
    known = total = 0
    for _ in range(20):
        capture = Capture(int(random.integers(10, 20)))
        inserted = int(random.integers(len(capture.kernels) - 12))
        sequence = shifted(capture.kernels, inserted, inserted + int(random.integers(12)))
        node, truth = capture.align(sequence), np.array([node for _, node in sequence])
        assert ((node == truth) | (node < 0)).all()
        known, total = known + int((node == truth).sum()), total + int((truth >= 0).sum())
    assert known / total > 0.95
