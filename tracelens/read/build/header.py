"""What the keys beside the events say of the trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tracelens.read.gloo import THREADS_KEY
from tracelens.read.json import integer


def distributed(keys: Mapping[str, Any]) -> dict[str, Any]:
    """The rank and its process groups, with what tracelens's recorder adds to them."""
    info, recorder = keys.get("distributedInfo"), keys.get("tracelens")
    threads = recorder.get(THREADS_KEY) if isinstance(recorder, dict) else None
    return {**(info if isinstance(info, dict) else {}), **({THREADS_KEY: threads} if threads else {})}


def device_names(keys: Mapping[str, Any]) -> dict[int, str]:
    """Names of the GPUs, by device index."""
    properties = keys.get("deviceProperties")
    return {
        integer(entry.get("id", index)): str(entry.get("name", ""))
        for index, entry in enumerate(properties if isinstance(properties, list) else [])
        if isinstance(entry, dict)
    }


def program(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Config and mesh of the program as tracelens's recorder wrote them."""
    recorder = keys.get("tracelens")
    written = recorder if isinstance(recorder, dict) else {}
    return {key: written[key] for key in ("config", "mesh") if isinstance(written.get(key), dict)}
