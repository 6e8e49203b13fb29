"""Device files: TOML to `Device`, checked, with errors that say which key of which file to change."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from tracelens.devices.read_measured import read_measured
from tracelens.devices.spec import DTYPES, Device
from tracelens.errors import TracelensError, UnknownName
from tracelens.limits import read_config_file

SECONDARY = "(secondary source)"
"""Ends the text of a source that is not the vendor's."""

_TEXTS = ("name", "title", "vendor")
_INTEGERS = ("units", "hbm_bytes", "cache_bytes")
_RATES = ("hbm_bytes_per_s", "gpu_link_bytes_per_s", "host_link_bytes_per_s")
_PEAKS = ("matrix", "vector", "maf")
_KEYS = (*_TEXTS, "aliases", *_INTEGERS, *_RATES, *_PEAKS, "source", "sources", "measured")
_SOURCE_KEYS = ("title", "url", "date", "secondary")

# No GPU has less memory or rates below this: the number was meant in GB, GB/s or TFLOP/s.
_LEAST = 1e9
_MOST = 1e24  # a whole number in TOML may be too large for a float
_MAY_BE_SMALL = ("units", "cache_bytes")


def read_device(path: str | PathLike[str]) -> Device:
    """Read a device file.

    It needs `name`, `hbm_bytes_per_s` and a peak in `[matrix]` or `[vector]`; everything else may be left
    out. Sizes are in bytes, rates in bytes or FLOPs per second.

    Raises:
        TracelensError: no such file, not TOML, or a key is missing, unknown or has no proper value.
    """
    return _File(fspath(path)).device()


def read_bundled(path: str | PathLike[str]) -> Device:
    """Read a device file in which every number must have a source; raises TracelensError as `read_device`."""
    device = read_device(path)
    missing = [key for key in numbers(device) if key not in device.sources]
    if missing:
        raise TracelensError(f"{fspath(path)}: no source for {', '.join(missing)}; add it to [source]")
    return device


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


class _File:
    """A device file while it is read: what is in it, and how to say what is wrong with it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.values = self._load()

    def device(self) -> Device:
        self._known(self.values, _KEYS, "key")
        for key in ("name", "hbm_bytes_per_s"):
            if key not in self.values:
                raise self._wrong(f"{key!r} is missing; add it")
        integers = {key: self._integer(key) for key in _INTEGERS}
        rates = {key: self._number(key, self.values[key]) for key in _RATES if key in self.values}
        peaks = {key: self._peaks(key) for key in _PEAKS}
        if not peaks["matrix"] and not peaks["vector"]:
            raise self._wrong("no peak; add one to [matrix] or [vector], such as bf16 = 1307.4e12")
        name = self._text(self.values, "name")
        return Device(
            name=name.lower(),
            title=self._text(self.values, "title") or name,
            vendor=self._text(self.values, "vendor"),
            aliases=self._aliases(),
            units=integers["units"],
            hbm_bytes=integers["hbm_bytes"],
            hbm_bytes_per_s=rates["hbm_bytes_per_s"],
            cache_bytes=integers["cache_bytes"],
            matrix=peaks["matrix"],
            vector=peaks["vector"],
            maf=peaks["maf"],
            gpu_link_bytes_per_s=rates.get("gpu_link_bytes_per_s", 0.0),
            host_link_bytes_per_s=rates.get("host_link_bytes_per_s", 0.0),
            sources=self._sources(
                {key for key in (*_INTEGERS, *_RATES) if key in self.values} | set(_flat(peaks))
            ),
            measured=read_measured(self._table("measured"), self._wrong),
        )

    def _load(self) -> dict[str, Any]:
        import tomllib  # a few ms that a caller who needs no device need not pay

        try:
            return tomllib.loads(read_config_file(Path(self.path)).decode("utf-8"))
        except FileNotFoundError:
            raise self._wrong("no such file") from None
        except OSError as error:
            raise self._wrong(f"cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise self._wrong("not a text file; a device file is TOML") from error
        except (ValueError, RecursionError) as error:
            raise self._wrong(f"not TOML: {error}") from error

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

    def _aliases(self) -> tuple[str, ...]:
        value = self.values.get("aliases", [])
        if not isinstance(value, list) or not all(isinstance(item, str) and item.strip() for item in value):
            raise self._wrong('aliases must be a list of texts, such as ["MI300X"]')
        return tuple(value)

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

    def _integer(self, key: str) -> int:
        if key not in self.values:
            return 0
        value = self._number(key, self.values[key])
        if value != int(value):
            raise self._wrong(f"{key} is {value}; it must be a whole number")
        return int(value)

    def _peaks(self, key: str) -> dict[str, float]:
        table = self._table(key)
        self._known(table, DTYPES, f"element type in [{key}]:")
        return {dtype: self._number(f"{key}.{dtype}", value) for dtype, value in table.items()}

    def _sources(self, known: set[str]) -> dict[str, str]:
        """Number to the text of its source."""
        texts = {key: self._source(key, entry) for key, entry in self._table("sources").items()}
        source_of = _flat(self._table("source"))
        self._known(source_of, known, "number in [source]:")
        for number, key in source_of.items():
            if not isinstance(key, str):
                raise self._wrong(f"source.{number} must be the name of a source in quotes")
            if key not in texts:
                raise self._wrong(f"the source {key!r} of {number} has no [sources.{key}]; add it")
        return {number: texts[key] for number, key in source_of.items()}

    def _source(self, key: str, entry: Any) -> str:
        if not isinstance(entry, dict) or "title" not in entry:
            raise self._wrong(f"sources.{key} needs a title: write [sources.{key}] and title = ... below")
        self._known(entry, _SOURCE_KEYS, f"key in [sources.{key}]:")
        secondary = entry.get("secondary", False)
        if not isinstance(secondary, bool):
            raise self._wrong(f"sources.{key}.secondary must be true or false")
        parts = [self._text(entry, name, f"sources.{key}.") for name in ("title", "date", "url")]
        return ", ".join(filter(None, parts)) + (f" {SECONDARY}" if secondary else "")
