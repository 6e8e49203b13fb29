"""Chunks as the native core reads them; without numpy, which is imported meanwhile."""

from __future__ import annotations

import os
from types import ModuleType

from msgspec import Struct


class ScannedChunk(Struct, frozen=True):
    """The events of one chunk, see Scanner.scan in _core.pyi."""

    codes: bytes
    numbers: bytes
    op_numbers: bytes
    op_codes: bytes
    special: list[int]  # rows of the events of which more is kept than their columns
    special_text: bytes  # the JSON of these, between commas
    bare_count: int
    other_count: int


class Scan:
    """Reads chunks of one trace in one walk over their text, without an object an event."""

    def __init__(self, native: ModuleType) -> None:
        # Seeded, so that nobody can write names that share one place in its tables.
        self.scanner = native.Scanner(int.from_bytes(os.urandom(8)))
        self.chunks: dict[int, ScannedChunk] = {}  # by index

    def take(self, index: int, text: bytes) -> bool:
        """Read a chunk; False, and nothing is kept, where its text must be decoded in Python."""
        scanned = self.scanner.scan(text)
        if scanned is None:
            return False
        codes, numbers, op_numbers, op_codes, special, bare_count, other_count = scanned
        rows = memoryview(special).cast("q").tolist()  # row, begin and end in the text of each
        self.chunks[index] = ScannedChunk(
            codes=codes,
            numbers=numbers,
            op_numbers=op_numbers,
            op_codes=op_codes,
            special=rows[::3],
            special_text=b",".join(
                text[begin:end] for begin, end in zip(rows[1::3], rows[2::3], strict=True)
            ),
            bare_count=bare_count,
            other_count=other_count,
        )
        return True
