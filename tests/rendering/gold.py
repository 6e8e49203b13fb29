"""Comparison with files under gold/; UPDATE_GOLD=1 writes them anew, for review in the diff."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).with_name("gold")


def check(name: str, text: str) -> None:
    """Fail unless `text` is the gold file of that name."""
    path = FOLDER / name
    if os.environ.get("UPDATE_GOLD"):
        path.write_bytes(text.encode())
    assert path.is_file(), f"no gold file {name}: make it with UPDATE_GOLD=1"
    assert text == path.read_bytes().decode(), f"{name} differs; if meant, UPDATE_GOLD=1"
