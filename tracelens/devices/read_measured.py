"""The [measured] tables of a device file, checked: each entry of each curve."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_args

from tracelens.devices.measured import (
    AttentionCurve,
    Bandwidth,
    GemmCurve,
    GemmKind,
    LaunchCost,
    Measured,
    is_grid,
)
from tracelens.devices.spec import DTYPES
from tracelens.errors import TracelensError, UnknownName

Wrong = Callable[[str], TracelensError]
"""Makes the error of a problem; it knows the file."""

_CURVES = ("gemm", "attention", "bandwidth")
_COSTS = ("kernel_ns", "op_ns", "forward_ns", "backward_ns")
_MOST = 1e24


def read_measured(table: Mapping[str, Any], wrong: Wrong) -> Measured:
    """Check and read [measured]; `wrong` makes the TracelensError to raise."""
    reader = _Reader(wrong)
    about = {key: value for key, value in table.items() if key not in (*_CURVES, "launch")}
    for key, value in about.items():
        if not isinstance(value, str):
            raise wrong(f"measured.{key} must be text in quotes")
    gemms = tuple(map(reader.gemm, reader.entries(table, "gemm")))
    reader.grids(gemms)
    return Measured(
        gemms=gemms,
        attention=tuple(map(reader.attention, reader.entries(table, "attention"))),
        bandwidths=tuple(map(reader.bandwidth, reader.entries(table, "bandwidth"))),
        launch=reader.launch(table.get("launch", {})),
        about=about,
    )


class _Entry:
    """One table of an array of tables, with its name for errors."""

    def __init__(self, values: Mapping[str, Any], where: str, wrong: Wrong) -> None:
        self.values, self.where, self.wrong = values, where, wrong

    def known(self, keys: Iterable[str]) -> None:
        keys = tuple(keys)
        for key in self.values:
            if key not in keys:
                raise self.wrong(f"{self.where}: {UnknownName('key', key, keys)}")

    def text(self, key: str, choices: Iterable[str], default: str = "") -> str:
        value = self.values.get(key, default)
        choices = tuple(choices)
        if not isinstance(value, str) or value not in choices:
            raise self.wrong(f"{self.where}: {key} must be one of {', '.join(choices)}, in quotes")
        return value

    def count(self, key: str, default: int = 0) -> int:
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < _MOST:
            raise self.wrong(f"{self.where}: {key} must be a whole number of 1 or more")
        return value

    def numbers(self, key: str) -> tuple[float, ...]:
        values = self.values.get(key)
        if not isinstance(values, list) or not values or not all(map(_is_positive, values)):
            raise self.wrong(f"{self.where}: {key} must be a list of positive numbers")
        return tuple(float(value) for value in values)

    def sizes(self, sizes: str, *rates: str) -> tuple[int, ...]:
        """Ascending sizes; raises where there are not as many of each rate."""
        points = self.numbers(sizes)
        if list(points) != sorted(set(points)) or any(point != int(point) for point in points):
            raise self.wrong(f"{self.where}: {sizes} must be whole numbers in ascending order")
        for rate in rates:
            count = len(self.numbers(rate))
            if count != len(points):
                raise self.wrong(
                    f"{self.where}: {len(points)} {sizes} but {count} {rate}; list one rate for each size"
                )
        return tuple(int(point) for point in points)


class _Reader:
    """Reads entries of [measured]."""

    def __init__(self, wrong: Wrong) -> None:
        self.wrong = wrong

    def entries(self, table: Mapping[str, Any], key: str) -> list[_Entry]:
        values = table.get(key, [])
        if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
            raise self.wrong(f"measured.{key} must be tables: write [[measured.{key}]] for each")
        return [
            _Entry(value, f"[[measured.{key}]] number {number}", self.wrong)
            for number, value in enumerate(values, 1)
        ]

    def gemm(self, entry: _Entry) -> GemmCurve:
        entry.known(("dtype", "k", "n", "matrices", "kind", "rows", "flops_per_s"))
        kind: GemmKind = entry.text("kind", get_args(GemmKind), "output")  # type: ignore[assignment]
        return GemmCurve(
            dtype=entry.text("dtype", DTYPES),
            k=entry.count("k"),
            n=entry.count("n"),
            rows=entry.sizes("rows", "flops_per_s"),
            flops_per_s=entry.numbers("flops_per_s"),
            matrices=entry.count("matrices", 1),
            kind=kind,
        )

    def grids(self, gemms: Iterable[GemmCurve]) -> None:
        """Rates are interpolated in all sizes, which takes a rate for each combination."""
        points: dict[tuple[str, str, bool], list[tuple[int, int, int]]] = {}
        for curve in gemms:
            key = (curve.dtype, curve.kind, curve.matrices > 1)
            points.setdefault(key, []).append((curve.k, curve.n, curve.matrices))
        for (dtype, kind, _), grid in points.items():
            if not is_grid(grid) or len(set(grid)) < len(grid):
                raise self.wrong(
                    f"[[measured.gemm]] of {dtype} ({kind}): add a curve for each combination of k, n "
                    "and matrices, once"
                )

    def attention(self, entry: _Entry) -> AttentionCurve:
        rates = ("forward_flops_per_s", "backward_flops_per_s")
        entry.known(("dtype", "query_dim", "value_dim", "seq", *rates))
        return AttentionCurve(
            dtype=entry.text("dtype", DTYPES),
            query_dim=entry.count("query_dim"),
            value_dim=entry.count("value_dim"),
            seq=entry.sizes("seq", *rates),
            forward_flops_per_s=entry.numbers(rates[0]),
            backward_flops_per_s=entry.numbers(rates[1]),
        )

    def bandwidth(self, entry: _Entry) -> Bandwidth:
        entry.known(("name", "size_bytes", "bytes_per_s", "ranks", "ranks_per_node"))
        return Bandwidth(
            name=entry.text("name", BANDWIDTHS),
            size_bytes=entry.sizes("size_bytes", "bytes_per_s"),
            bytes_per_s=entry.numbers("bytes_per_s"),
            ranks=entry.count("ranks", 1),
            ranks_per_node=entry.count("ranks_per_node", 1),
        )

    def launch(self, table: object) -> LaunchCost:
        if not isinstance(table, dict):
            raise self.wrong("measured.launch must be a table: write [measured.launch]")
        for key, value in table.items():
            if key not in _COSTS:
                raise self.wrong(str(UnknownName("key in [measured.launch]:", key, _COSTS)))
            if not _is_positive(value):
                raise self.wrong(f"measured.launch.{key} must be a positive number of nanoseconds")
        return LaunchCost(**{key: float(value) for key, value in table.items()})


BANDWIDTHS = (
    "copy", "triad", "concat", "scatter", "to_device", "to_host", "all_reduce", "all_to_all", "send_recv",
)  # fmt: skip
"""Names of bandwidths, see `Bandwidth`."""


def _is_positive(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and 0 < value < _MOST
