"""The layouts of `layouts.toml` by name, read by who records them and by who tests them. No torch."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tracelens.planner.config import Config, override, preset

FILE = Path(__file__).with_name("layouts.toml")


def layouts(path: Path = FILE) -> dict[str, Config]:
    """Name of a run, `GROUP.RUN`, to its settings; rungs of a ladder add to those below."""
    return dict(_layouts(tomllib.loads(path.read_text())))


def _layouts(groups: dict[str, Any]) -> Iterator[tuple[str, Config]]:
    for group, content in groups.items():
        if "fields" not in content:
            continue
        base = override(preset(content["preset"]), content["fields"].split())
        for name, fields in content.get("runs", {}).items():
            yield f"{group}.{name}", override(base, fields.split())
        for rung in content.get("rung", ()):
            base = override(base, rung["adds"].split())
            yield f"{group}.{rung['name']}", base
