"""`Device` as a device file, which `read_device` reads back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from tracelens.devices.measured import Measured
from tracelens.devices.spec import Device

_PLAIN = (
    "units", "hbm_bytes", "hbm_bytes_per_s", "cache_bytes", "gpu_link_bytes_per_s", "host_link_bytes_per_s",
)  # fmt: skip
_PEAKS = ("matrix", "vector", "maf")


def device_toml(device: Device) -> str:
    """The text of a device file: figures, their sources, and what was measured."""
    lines = [f"{key} = {_value(getattr(device, key))}" for key in ("name", "title")]
    lines += [f"vendor = {_value(device.vendor)}"] if device.vendor else []
    lines += [f"aliases = {_value(list(device.aliases))}"] if device.aliases else []
    lines += [f"{key} = {_value(number)}" for key in _PLAIN if (number := getattr(device, key))]
    for part in _PEAKS:
        lines += _table(part, getattr(device, part))
    lines += _sources(device.sources)
    return "\n".join([*lines, *measured_lines(device.measured)]) + "\n"


def measured_lines(measured: Measured) -> list[str]:
    """The [measured] tables of a device file."""
    if not measured:
        return []
    lines = _table("measured", measured.about) or ["", "[measured]"]
    launch = measured.launch
    costs = {key: getattr(launch, key) for key in ("kernel_ns", "op_ns", "forward_ns", "backward_ns")}
    lines += _table("measured.launch", {key: value for key, value in costs.items() if value})
    for bandwidth in measured.bandwidths:
        ranks = {} if bandwidth.ranks == 1 else {
            "ranks": bandwidth.ranks, "ranks_per_node": bandwidth.ranks_per_node,
        }  # fmt: skip
        lines += _entry(
            "bandwidth",
            {"name": bandwidth.name, **ranks, "size_bytes": bandwidth.size_bytes,
             "bytes_per_s": bandwidth.bytes_per_s},
        )  # fmt: skip
    for head in measured.attention:
        keys = (
            "dtype", "query_dim", "value_dim", "seq", "forward_flops_per_s", "backward_flops_per_s",
        )  # fmt: skip
        lines += _entry("attention", {key: getattr(head, key) for key in keys})
    for curve in measured.gemms:
        entry: dict[str, object] = {"dtype": curve.dtype, "k": curve.k, "n": curve.n}
        entry |= {"matrices": curve.matrices} if curve.matrices > 1 else {}
        entry |= {"kind": curve.kind} if curve.kind != "output" else {}
        lines += _entry("gemm", entry | {"rows": curve.rows, "flops_per_s": curve.flops_per_s})
    return lines


def _sources(sources: Mapping[str, str]) -> list[str]:
    """Each text of a source once, under a short name."""
    names = {text: f"source-{number}" for number, text in enumerate(dict.fromkeys(sources.values()), 1)}
    tables: dict[str, dict[str, str]] = {}
    for key, text in sources.items():
        table, _, number = key.rpartition(".")
        tables.setdefault(table, {})[number] = names[text]
    lines = []
    for table, entries in tables.items():
        lines += _table(f"source.{table}" if table else "source", entries)
    for text, name in names.items():
        lines += _table(f"sources.{name}", {"title": text})
    return lines


def _table(name: str, entries: Mapping[str, object]) -> list[str]:
    if not entries:
        return []
    return ["", f"[{name}]", *(f"{key} = {_value(value)}" for key, value in entries.items())]


def _entry(name: str, entries: Mapping[str, object]) -> list[str]:
    return ["", f"[[measured.{name}]]", *(f"{key} = {_value(value)}" for key, value in entries.items())]


def _value(value: object) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)  # a TOML string has the escapes of JSON
    if isinstance(value, Iterable):
        return f"[{', '.join(map(_value, _sequence(value)))}]"
    if isinstance(value, float):
        return f"{value:.5g}" if "e" in f"{value:.5g}" or value < 1e5 else f"{value:.6e}"
    return str(value)


def _sequence(values: Iterable[object]) -> Sequence[object]:
    return list(values)
