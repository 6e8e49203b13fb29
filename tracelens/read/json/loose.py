"""One event whose fields have types that no profiler documents: what fits is kept."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from msgspec import Raw

from tracelens.read.json.event import Args, ExactEvent
from tracelens.read.json.typed import BAD_JSON, EXACT

_FIELDS = msgspec.structs.fields(Args)
_NO_EVENT = ExactEvent()
"""Stands for each element that is no object: there may be one every other byte."""


def decode_one(text: bytes) -> list[ExactEvent]:
    """The event that a JSON text is, fields of unexpected types left out; [] where it is not valid JSON."""
    try:
        return EXACT.decode(b"[" + text + b"]")
    except msgspec.ValidationError:
        return _loose(text)
    except BAD_JSON:
        return []


def _loose(text: bytes) -> list[ExactEvent]:
    """Valid JSON whose fields have unexpected types: keep the fields that fit."""
    try:
        value = json.loads(text, parse_float=_Literal, parse_int=_integer)
    except (ValueError, RecursionError):
        return []
    if not isinstance(value, dict):
        return [_NO_EVENT]
    texts: dict[str, Any] = {
        key: _plain(value[key]) for key in ("ph", "cat", "name") if isinstance(value.get(key), str | int)
    }
    numbers = {key: value[key] for key in ("pid", "tid", "id") if isinstance(value.get(key), int | str)}
    times: dict[str, Any] = {
        key: Raw(str(value[key]).encode("ascii", "replace")) for key in ("ts", "dur") if key in value
    }
    return [ExactEvent(**texts, **numbers, **times, args=_loose_args(value.get("args")))]


class _Literal(float):
    """A float that remembers how it was written."""

    def __new__(cls, text: str) -> _Literal:
        self = super().__new__(cls, text)
        self.text = text
        return self

    text: str

    def __str__(self) -> str:
        return self.text


def _integer(digits: str) -> int | _Literal:
    """An integer; as a float where it is so long that `int` refuses it."""
    return int(digits) if len(digits) < 100 else _Literal(digits)


def _plain(value: object) -> str:
    """Text without halves of surrogate pairs, which could not be written anywhere."""
    return str(value).encode("utf-8", "replace").decode()


def _loose_args(args: Any) -> Args | None:
    if not isinstance(args, dict):
        return None
    fitting: dict[str, Any] = {}
    for info in _FIELDS:
        value = args.get(info.encode_name)
        if info.type is Raw and value is not None:
            fitting[info.name] = Raw(json.dumps(value).encode())
        elif info.name == "collective" and isinstance(value, str):
            fitting[info.name] = _plain(value)
        elif info.type is not Raw and isinstance(value, int | str) and info.name != "collective":
            fitting[info.name] = value
    return Args(**fitting)
