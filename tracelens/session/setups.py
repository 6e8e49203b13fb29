"""What a run was, as far as its traces and the file that the recorder writes beside them say."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import orjson

from tracelens.filenames import SIDECAR

if TYPE_CHECKING:
    from tracelens.analysis.common import Setup
    from tracelens.trace import TraceMeta

_LARGEST = 64 * 2**20
"""Bytes of a run.json that is read; it grows with what the program adds."""


def setup_of(metas: Sequence[TraceMeta], ranks: Sequence[int]) -> Setup:
    """The setup of a run from its traces' headers and its run.json.

    Args:
        metas: of its traces.
        ranks: those that were read.
    """
    from tracelens.analysis.common import Setup, device_names

    facts: dict[str, Any] = {}
    if metas:
        beside = _sidecar(metas[0].path)
        software = {**metas[0].software, **_mapping(beside.get("software"))}
        facts = {
            **beside,
            **metas[0].program,
            "software": {key: text for key, text in software.items() if text},
        }
    world_size = max((meta.world_size for meta in metas), default=-1)
    return Setup.of(device_names(metas), world_size if world_size > 0 else len(set(ranks)), facts)


def _sidecar(path: str) -> dict[str, Any]:
    """The run.json beside a trace; empty where there is none that can be read."""
    beside = os.path.join(os.path.dirname(path), SIDECAR)
    try:
        if not os.path.isfile(path) or os.path.getsize(beside) > _LARGEST:
            return {}
        with open(beside, "rb") as file:
            return _mapping(orjson.loads(file.read()))
    except (OSError, ValueError):
        return {}


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
