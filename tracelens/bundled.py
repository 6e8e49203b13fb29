"""Data files of the package: TOML, parsed when the package is built.

Parsing the rules and rates that a report needs takes 10 ms. `hatch_build.py` writes the content of each file
as JSON to a folder, under a name with a digest of its text; a file that has changed since is parsed when it
is needed.

This module is run by the build hook, too, where the package is not installed: it imports nothing of it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from zlib import crc32

COMPILED = Path(__file__).with_name("compiled")


def bundled_toml(path: Path) -> dict[str, Any]:
    """The content of a data file of this package."""
    source = path.read_bytes()
    try:
        text = (COMPILED / _name(path, source)).read_bytes()
    except FileNotFoundError:
        import tomllib

        return tomllib.loads(source.decode())
    content: dict[str, Any] = json.loads(text)
    return content


def compile_into(folder: Path) -> None:
    """Write the content of each data file as JSON."""
    import tomllib

    folder.mkdir(parents=True)
    for path in Path(__file__).parent.rglob("*.toml"):
        source = path.read_bytes()
        text = json.dumps(tomllib.loads(source.decode()), ensure_ascii=False)
        (folder / _name(path, source)).write_text(text, encoding="utf-8")


def _name(path: Path, source: bytes) -> str:
    """File name of the compiled content."""
    return f"{path.stem}-{crc32(source):08x}.json"
