"""Device files: TOML to `Device`, checked, with errors that say which key to change; and `Device` to TOML."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any, get_args

from tracelens.bundled import bundled_toml
from tracelens.config_files import read_toml
from tracelens.devices.spec import (
    COLLECTIVES,
    DTYPES,
    AttentionCurve,
    Bandwidth,
    Device,
    GemmCurve,
    GemmKind,
    LaunchCost,
    Measured,
    Modeled,
    is_grid,
)
from tracelens.errors import TracelensError, UnknownName

SECONDARY = "(secondary source)"
"""Ends the text of a source that is not the vendor's."""

_TEXTS = ("name", "title", "vendor")
_INTEGERS = ("units", "hbm_bytes", "cache_bytes")
_RATES = ("hbm_bytes_per_s", "gpu_link_bytes_per_s", "host_link_bytes_per_s")
_PEAKS = ("matrix", "sparse", "vector", "maf")
_KEYS = (*_TEXTS, "aliases", *_INTEGERS, *_RATES, *_PEAKS, "source", "sources", "measured", "modeled")
_SOURCE_KEYS = ("title", "url", "date", "secondary")
_WRITTEN = (
    "units", "hbm_bytes", "hbm_bytes_per_s", "cache_bytes", "gpu_link_bytes_per_s", "host_link_bytes_per_s",
)  # fmt: skip
"""Plain numbers, in the order in which they are written."""

_SHARES = ("matrix_share", "hbm_share", "memory_share")
_MODELED = (
    "matrix_share", "load_bytes_per_s", "hbm_share", "start_ns", "tile_ns", "fill_depth", "narrow",
    "memory_share",
)  # fmt: skip
"""Numbers of `Modeled`."""

_CURVES = ("gemm", "attention", "bandwidth")
_COSTS = ("kernel_ns", "op_ns", "forward_ns", "backward_ns")
_ATTENTION_RATES = ("forward_flops_per_s", "backward_flops_per_s")
_BANDWIDTHS = (
    "copy", "triad", "concat", "scatter", "to_device", "to_host", *COLLECTIVES,
)  # fmt: skip
"""Names of bandwidths, see `Bandwidth`."""
_BANDWIDTH_KEYS = ("name", "ranks", "ranks_per_node", "skew", "size_bytes", "bytes_per_s")

_EVIDENCE = ("source", "sources", "measured")
"""Tables that a rated device does without: what its numbers rest on, and what was measured."""
_LEAST = 1e9
"""In bytes, bytes/s or FLOP/s: no GPU has less, so the number was meant in GB, GB/s or TFLOP/s."""
_MAY_BE_SMALL = ("units", "cache_bytes")
_MOST = 1e24
"""Above all rates of computers. A whole number in TOML may be too large for a float."""


def read_device(path: str | PathLike[str]) -> Device:
    """Read a device file.

    It needs `name`, `hbm_bytes_per_s` and a peak in `[matrix]` or `[vector]`; everything else may be left
    out. Sizes are in bytes, rates in bytes or FLOPs per second.

    Raises:
        TracelensError: no such file, not TOML, or a key is missing, unknown or has no proper value.
    """
    path = fspath(path)
    return _DeviceFile(path, read_toml(Path(path))).device()


def read_bundled(path: Path) -> Device:
    """A bundled device, of which every number must have a source; raises TracelensError as `read_device`."""
    device = _DeviceFile(fspath(path), bundled_toml(path)).device()
    missing = [key for key in numbers(device) if key not in device.sources]
    if missing:
        raise TracelensError(f"{path}: no source for {', '.join(missing)}; add it to [source]")
    return device


def read_peaks(path: Path) -> Device:
    """A bundled device without sources and what was measured, which take most of the time."""
    values = bundled_toml(path)
    return _DeviceFile(
        fspath(path), {key: value for key, value in values.items() if key not in _EVIDENCE}
    ).device()


def numbers(device: Device) -> dict[str, float]:
    """Every number that is known of a device, by its key in the file ("units", "matrix.bf16")."""
    plain = {key: getattr(device, key) for key in (*_INTEGERS, *_RATES) if getattr(device, key)}
    return plain | _flat({part: getattr(device, part) for part in _PEAKS})


def _flat(tables: dict[str, Any]) -> dict[str, Any]:
    """Nested tables as one, the keys joined by dots; one level deep, as [matrix] and [source.matrix] are."""
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        flat |= (
            {f"{key}.{name}": item for name, item in value.items()}
            if isinstance(value, dict)
            else {key: value}
        )
    return flat


class _DeviceFile:
    """A device file while it is read: what is in it, and how to say what is wrong with it."""

    def __init__(self, path: str, values: dict[str, Any]) -> None:
        self.path, self.values = path, values

    def device(self) -> Device:
        self._known(self.values, _KEYS, "key")
        for key in ("name", "hbm_bytes_per_s"):
            if key not in self.values:
                raise self._wrong(f"{key!r} is missing; add it")
        integers: dict[str, int] = {}
        for key in _INTEGERS:
            value = self._number(key, self.values[key]) if key in self.values else 0
            if value != int(value):
                raise self._wrong(f"{key} is {value}; it must be a whole number")
            integers[key] = int(value)
        rates = {key: self._number(key, self.values[key]) for key in _RATES if key in self.values}
        peaks: dict[str, dict[str, float]] = {}
        for key in _PEAKS:
            table = self._table(key)
            self._known(table, DTYPES, f"element type in [{key}]:")
            peaks[key] = {dtype: self._number(f"{key}.{dtype}", value) for dtype, value in table.items()}
        if not peaks["matrix"] and not peaks["vector"]:
            raise self._wrong("no peak; add one to [matrix] or [vector], such as bf16 = 1307.4e12")
        name, title, vendor = (self._text(self.values, key) for key in _TEXTS)
        aliases = self.values.get("aliases", [])
        is_list = isinstance(aliases, list)
        if not is_list or not all(isinstance(item, str) and item.strip() for item in aliases):
            raise self._wrong('aliases must be a list of texts, such as ["MI300X"]')
        return Device(
            name=name.lower(),
            title=title or name,
            vendor=vendor,
            aliases=tuple(aliases),
            units=integers["units"],
            hbm_bytes=integers["hbm_bytes"],
            hbm_bytes_per_s=rates["hbm_bytes_per_s"],
            cache_bytes=integers["cache_bytes"],
            matrix=peaks["matrix"],
            sparse=peaks["sparse"],
            vector=peaks["vector"],
            maf=peaks["maf"],
            gpu_link_bytes_per_s=rates.get("gpu_link_bytes_per_s", 0.0),
            host_link_bytes_per_s=rates.get("host_link_bytes_per_s", 0.0),
            sources=self._sources(
                {key for key in (*_INTEGERS, *_RATES) if key in self.values} | set(_flat(peaks))
            ),
            measured=_read_measured(self._table("measured"), self._wrong),
            modeled=self._modeled(),
        )

    def _wrong(self, problem: str) -> TracelensError:
        return TracelensError(f"{self.path}: {problem}")

    def _known(self, names: Iterable[str], known: Iterable[str], kind: str) -> None:
        known = tuple(known)
        for name in names:
            if name not in known:
                raise self._wrong(str(UnknownName(kind, name, known)))

    def _table(self, key: str) -> dict[str, Any]:
        value = self.values.get(key, {})
        if not isinstance(value, dict):
            raise self._wrong(f"{key} must be a table: write [{key}] and its entries below")
        return value

    def _text(self, table: dict[str, Any], key: str, where: str = "") -> str:
        value = table.get(key, "")
        if not isinstance(value, str) or (key in table and not value.strip()):
            raise self._wrong(f"{where}{key} must be text in quotes")
        return value

    def _modeled(self) -> Modeled | None:
        """The table [modeled], of which all numbers must be there; None without it."""
        table = self._table("modeled")
        if not table:
            return None
        self._known(table, (*_MODELED, "tested"), "key in [modeled]:")
        for key in _MODELED:
            most = 1 if key in _SHARES else _MOST
            if not _is_positive(table.get(key)) or table[key] > most:
                limit = "of at most 1" if key in _SHARES else "without quotes"
                raise self._wrong(f"modeled.{key} must be a positive number {limit}")
        numbers = {key: float(table[key]) for key in _MODELED}
        return Modeled(**numbers, tested=self._text(table, "tested", "modeled."))

    def _number(self, key: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(f"{key} must be a number, without quotes")
        if not 0 < value <= _MOST:
            shown = str(value)[:20]
            raise self._wrong(f"{key} is {shown}; it must be positive and finite (leave out what is unknown)")
        if value < _LEAST and key not in _MAY_BE_SMALL:
            unit = "bytes" if key == "hbm_bytes" else "bytes/s" if key in _RATES else "FLOP/s"
            raise self._wrong(
                f"{key} is {value} {unit}: write {value}e12 for {value} tera, {value}e9 for giga"
            )
        return float(value)

    def _sources(self, known: set[str]) -> dict[str, str]:
        """Number to the text of its source."""
        texts: dict[str, str] = {}
        for key, entry in self._table("sources").items():
            if not isinstance(entry, dict) or "title" not in entry:
                raise self._wrong(f"sources.{key} needs a title: write [sources.{key}] and title = ... below")
            self._known(entry, _SOURCE_KEYS, f"key in [sources.{key}]:")
            secondary = entry.get("secondary", False)
            if not isinstance(secondary, bool):
                raise self._wrong(f"sources.{key}.secondary must be true or false")
            parts = [self._text(entry, name, f"sources.{key}.") for name in ("title", "date", "url")]
            texts[key] = ", ".join(filter(None, parts)) + (f" {SECONDARY}" if secondary else "")
        source_of = _flat(self._table("source"))
        self._known(source_of, known, "number in [source]:")
        for number, key in source_of.items():
            if not isinstance(key, str):
                raise self._wrong(f"source.{number} must be the name of a source in quotes")
            if key not in texts:
                raise self._wrong(f"the source {key!r} of {number} has no [sources.{key}]; add it")
        return {number: texts[key] for number, key in source_of.items()}


def _read_measured(table: Mapping[str, Any], wrong: Callable[[str], TracelensError]) -> Measured:
    """Check and read [measured]; `wrong` makes the TracelensError to raise."""
    about = {key: value for key, value in table.items() if key not in (*_CURVES, "launch")}
    for key, value in about.items():
        if not isinstance(value, str):
            raise wrong(f"measured.{key} must be text in quotes")

    def entries(kind: str, *keys: str) -> Iterator[_MeasuredEntry]:
        values = table.get(kind, [])
        if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
            raise wrong(f"measured.{kind} must be tables: write [[measured.{kind}]] for each")
        for number, value in enumerate(values, 1):
            yield _MeasuredEntry(value, keys, f"[[measured.{kind}]] number {number}", wrong)

    gemms = []
    for entry in entries("gemm", "dtype", "k", "n", "matrices", "kind", "rows", "flops_per_s"):
        kind: GemmKind = entry.text("kind", get_args(GemmKind), "output")  # type: ignore[assignment]
        gemms.append(
            GemmCurve(
                dtype=entry.text("dtype", DTYPES),
                k=entry.count("k"),
                n=entry.count("n"),
                rows=entry.sizes("rows", "flops_per_s"),
                flops_per_s=entry.numbers("flops_per_s"),
                matrices=entry.count("matrices", 1),
                kind=kind,
            )
        )
    # Rates are interpolated in all sizes, which takes a rate for each combination.
    sizes: dict[tuple[str, str, bool], list[tuple[int, int, int]]] = {}
    for curve in gemms:
        grid = sizes.setdefault((curve.dtype, curve.kind, curve.matrices > 1), [])
        grid.append((curve.k, curve.n, curve.matrices))
    for (dtype, curve_kind, _), grid in sizes.items():
        if not is_grid(grid) or len(set(grid)) < len(grid):
            raise wrong(
                f"[[measured.gemm]] of {dtype} ({curve_kind}): add a curve for each combination of k, n "
                "and matrices, once"
            )
    attention = [
        AttentionCurve(
            dtype=entry.text("dtype", DTYPES),
            query_dim=entry.count("query_dim"),
            value_dim=entry.count("value_dim"),
            seq=entry.sizes("seq", *_ATTENTION_RATES),
            forward_flops_per_s=entry.numbers(_ATTENTION_RATES[0]),
            backward_flops_per_s=entry.numbers(_ATTENTION_RATES[1]),
        )
        for entry in entries("attention", "dtype", "query_dim", "value_dim", "seq", *_ATTENTION_RATES)
    ]
    bandwidths = [
        Bandwidth(
            name=entry.text("name", _BANDWIDTHS),
            size_bytes=entry.sizes("size_bytes", "bytes_per_s"),
            bytes_per_s=entry.numbers("bytes_per_s"),
            ranks=entry.count("ranks", 1),
            ranks_per_node=entry.count("ranks_per_node", 1),
            skew=entry.number("skew", 1.0),
        )
        for entry in entries("bandwidth", *_BANDWIDTH_KEYS)
    ]
    for (named, ranks, *_), times in Counter(curve.measurement for curve in bandwidths).items():
        if times > 1:
            raise wrong(f"[[measured.bandwidth]]: {named} (ranks = {ranks}) is there twice; keep one")
    launch = table.get("launch", {})
    if not isinstance(launch, dict):
        raise wrong("measured.launch must be a table: write [measured.launch]")
    for key, value in launch.items():
        if key not in _COSTS:
            raise wrong(str(UnknownName("key in [measured.launch]:", key, _COSTS)))
        if not _is_positive(value):
            raise wrong(f"measured.launch.{key} must be a positive number of nanoseconds")
    return Measured(
        gemms=tuple(gemms),
        attention=tuple(attention),
        bandwidths=tuple(bandwidths),
        launch=LaunchCost(**{key: float(value) for key, value in launch.items()}),
        about=about,
    )


class _MeasuredEntry:
    """One table of an array of tables, with its name for errors; it has no other keys than these."""

    def __init__(
        self, values: Mapping[str, Any], keys: tuple[str, ...], where: str, wrong: Callable[[str], Exception]
    ) -> None:
        self.values, self.where, self.wrong = values, where, wrong
        for key in values:
            if key not in keys:
                raise wrong(f"{where}: {UnknownName('key', key, keys)}")

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

    def number(self, key: str, default: float) -> float:
        value = self.values.get(key, default)
        if not _is_positive(value) or value < 1:
            raise self.wrong(f"{self.where}: {key} must be a number of 1 or more")
        return float(value)

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


def _is_positive(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and 0 < value < _MOST


def device_toml(device: Device) -> str:
    """The text of a device file, which `read_device` reads back: figures, sources, and what was measured."""
    lines = [f"{key} = {_value(getattr(device, key))}" for key in ("name", "title")]
    lines += [f"vendor = {_value(device.vendor)}"] if device.vendor else []
    lines += [f"aliases = {_value(list(device.aliases))}"] if device.aliases else []
    lines += [f"{key} = {_value(number)}" for key in _WRITTEN if (number := getattr(device, key))]
    for part in _PEAKS:
        lines += _lines(f"[{part}]", getattr(device, part))
    # Each text of a source stands once, under a short name.
    names = {
        text: f"source-{number}" for number, text in enumerate(dict.fromkeys(device.sources.values()), 1)
    }
    source_of: dict[str, dict[str, str]] = {}
    for key, text in device.sources.items():
        part, _, number = key.rpartition(".")
        source_of.setdefault(part, {})[number] = names[text]
    for part, entries in source_of.items():
        lines += _lines(f"[source.{part}]" if part else "[source]", entries)
    for text, name in names.items():
        lines += _lines(f"[sources.{name}]", {"title": text})
    if device.modeled is not None:
        entries = {key: getattr(device.modeled, key) for key in _MODELED}
        tested = {"tested": device.modeled.tested} if device.modeled.tested else {}
        lines += _lines("[modeled]", entries | tested)
    return "\n".join([*lines, *measured_lines(device.measured)]) + "\n"


def measured_lines(measured: Measured) -> list[str]:
    """The [measured] tables of a device file."""
    if not measured:
        return []
    lines = _lines("[measured]", measured.about) or ["", "[measured]"]
    costs = {key: getattr(measured.launch, key) for key in _COSTS}
    lines += _lines("[measured.launch]", {key: value for key, value in costs.items() if value})
    for curve in measured.bandwidths:
        entry: dict[str, object] = {"name": curve.name}
        entry |= {"ranks": curve.ranks, "ranks_per_node": curve.ranks_per_node} if curve.ranks != 1 else {}
        entry |= {"skew": curve.skew} if curve.skew != 1 else {}
        entry |= {"size_bytes": curve.size_bytes, "bytes_per_s": curve.bytes_per_s}
        lines += _lines("[[measured.bandwidth]]", entry)
    for head in measured.attention:
        keys = ("dtype", "query_dim", "value_dim", "seq", *_ATTENTION_RATES)
        lines += _lines("[[measured.attention]]", {key: getattr(head, key) for key in keys})
    for gemm in measured.gemms:
        entry = {"dtype": gemm.dtype, "k": gemm.k, "n": gemm.n}
        entry |= {"matrices": gemm.matrices} if gemm.matrices > 1 else {}
        entry |= {"kind": gemm.kind} if gemm.kind != "output" else {}
        lines += _lines("[[measured.gemm]]", entry | {"rows": gemm.rows, "flops_per_s": gemm.flops_per_s})
    return lines


def _lines(heading: str, entries: Mapping[str, object]) -> list[str]:
    """A table; nothing for an empty one."""
    return ["", heading, *(f"{key} = {_value(value)}" for key, value in entries.items())] if entries else []


def _value(value: object) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)  # a TOML string has the escapes of JSON
    if isinstance(value, Iterable):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, float):
        return f"{value:.5g}" if "e" in f"{value:.5g}" or value < 1e5 else f"{value:.6e}"
    return str(value)
