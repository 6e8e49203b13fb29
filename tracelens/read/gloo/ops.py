"""The ops that start communication (c10d), and the recorded arguments of ops and annotations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from tracelens.dtypes import scalar_type
from tracelens.limits import LARGEST_COUNT
from tracelens.trace import decoded


class GlooKind(NamedTuple):
    """How to read one c10d op.

    Attributes:
        mark: what gloo calls it.
        name: what the profiler calls it where it records collectives.
        input, output: indices of the arguments that go in and come out, one tensor or a list of them.
        input_per_rank, output_per_rank: whether that side holds as much again for each rank of the group.
    """

    mark: str
    name: str
    input: int
    output: int
    input_per_rank: bool = False
    output_per_rank: bool = False


OPS: Mapping[str, GlooKind] = {
    "c10d::allreduce_": GlooKind("all_reduce", "allreduce", 0, 0),
    "c10d::allreduce_coalesced_": GlooKind("all_reduce", "allreduce_coalesced", 0, 0),
    "c10d::allgather_": GlooKind("all_gather", "allgather", 1, 1, output_per_rank=True),
    "c10d::_allgather_base_": GlooKind("all_gather", "_allgather_base", 1, 0),
    "c10d::allgather_coalesced_": GlooKind("all_gather", "allgather_coalesced", 1, 1, output_per_rank=True),
    "c10d::allgather_into_tensor_coalesced_": GlooKind("all_gather", "allgather_into_tensor_coalesced", 1, 0),
    "c10d::reduce_scatter_": GlooKind("reduce_scatter", "reduce_scatter", 0, 0, input_per_rank=True),
    "c10d::_reduce_scatter_base_": GlooKind("all_reduce", "_reduce_scatter_base", 1, 0),
    "c10d::reduce_scatter_tensor_coalesced_": GlooKind("all_reduce", "reduce_scatter_tensor_coalesced", 1, 0),
    "c10d::alltoall_base_": GlooKind("all_to_all", "all_to_all", 1, 0),
    "c10d::alltoall_": GlooKind("all_to_all", "all_to_all", 1, 0),
    "c10d::broadcast_": GlooKind("broadcast", "broadcast", 0, 0),
    "c10d::reduce_": GlooKind("reduce", "reduce", 0, 0),
    "c10d::gather_": GlooKind("gather", "gather", 1, 1, output_per_rank=True),
    "c10d::scatter_": GlooKind("scatter", "scatter", 0, 0, input_per_rank=True),
    "c10d::send": GlooKind("send", "send", 0, 0),
    "c10d::recv_": GlooKind("recv", "recv", 0, 0),
    "c10d::recv_any_source_": GlooKind("recv", "recv_any_source", 0, 0),
    "c10d::barrier": GlooKind("barrier", "barrier", -1, -1),
}


class Arguments:
    """The recorded arguments of events: decoded when asked for.

    Args:
        texts: of an event row, the JSON texts of dims, types and values.
    """

    def __init__(self, texts: Mapping[int, tuple[str, str, str]]) -> None:
        self._texts = texts

    def dims(self, row: int, index: int) -> list[list[int]]:
        """Dimensions of the tensors in one argument, [] where they are not recorded."""
        dims = _at(decoded(self._texts[row][0]), index) if row in self._texts else None
        if not isinstance(dims, list):
            return []
        if dims and all(isinstance(tensor_dims, list) for tensor_dims in dims):
            return dims if all(_are_sizes(tensor_dims) for tensor_dims in dims) else []
        listed = _at(decoded(self._texts[row][1]), index)
        is_tensor = listed not in ("", "TensorList", "Scalar", "ScalarList", "GenericList", None)
        return [dims] if is_tensor and _are_sizes(dims) else []

    def dtype(self, row: int) -> str:
        """Element type of the first argument that has one."""
        types = decoded(self._texts[row][1]) if row in self._texts else []
        names = (
            text.removeprefix("c10::") if text.startswith("c10::") else scalar_type(text)
            for text in map(str, types)
        )
        return next(filter(None, names), "")

    def value(self, row: int, index: int) -> str:
        text = _at(decoded(self._texts[row][2]), index) if row in self._texts else ""
        return text if isinstance(text, str) else ""


def _are_sizes(dims: Sequence[Any]) -> bool:
    """Whether these are the dimensions of a tensor that can be: no size is negative, none fills 64 bits."""
    return all(type(size) is int and size >= 0 for size in dims) and prod(dims) <= LARGEST_COUNT


def _at(values: Sequence[Any], index: int) -> Any:
    return values[index] if 0 <= index < len(values) else None
