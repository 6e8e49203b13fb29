"""Cutting the text of a trace into chunks of whole events, without decoding it.

The separator between two events is learnt from the first two; a chunk ends at its last occurrence in a
block. A cut in the wrong place (the same text inside a nested list or a string) cannot go unnoticed:
`[` + chunk + `]` is valid JSON only if it starts and ends at event boundaries. Whoever decodes the
chunks verifies them that way (see decode.py).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from tracelens.errors import ParseError
from tracelens.parsers.repair import repair_text
from tracelens.parsers.source import Source

MAX_HEADER = 256 << 20
"""A trace whose events begin later than this (bytes) is not recognised as one."""

_EVENTS_KEY = re.compile(rb'(?<!\\)"traceEvents"\s*:\s*\[')
_BOUNDARY = re.compile(rb'\}\s*,\s*\{(?:\s*"[^"\\]{1,40}"\s*:)?')
_ARRAY_END = re.compile(rb"\s*,?\s*\]")
_RELEARN_AFTER = 8 << 20


class Chunk(NamedTuple):
    """A run of whole events.

    Attributes:
        index: position among the chunks of this trace.
        offset: byte offset of its first event in the decompressed input.
        text: the events as a JSON array.
    """

    index: int
    offset: int
    text: bytes


class Splitter:
    """Header, chunks and tail of one trace, read front to back once.

    Attributes:
        header: keys before the events (array form: none).
        tail: keys after the events; complete once `chunks` is exhausted.
        ended: the end of the event array was seen; False for a cut-off trace.
        end_offset: byte offset where the input ends.
        problems: what was wrong with header or tail, for people.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.header: dict[str, object] = {}
        self.tail: dict[str, object] = {}
        self.ended = False
        self.end_offset = 0
        self.problems: list[str] = []
        self._array_form = False
        self._blocks = source.blocks()
        self._rest = self._open()

    def head(self) -> bytes:
        """The first bytes of the events, for recognising the kind of trace."""
        return self._rest[: 1 << 16]

    def chunks(self) -> Iterator[Chunk]:
        """Whole events, a block at a time; the last chunk holds whatever the input ends with."""
        offset, carry, index = self.end_offset - len(self._rest), self._rest, 0
        separator = _separator(carry)
        for block in self._blocks:
            self.end_offset += len(block)
            cut = block.rfind(separator)
            if cut >= 0:
                text = b"".join((b"[", carry, block[: cut + 1], b"]"))
                yield Chunk(index, offset, text)
                offset += len(text) - 2
                skipped = block.index(b"{", cut + 1) - cut - 1
                offset += skipped
                carry = block[cut + 1 + skipped :]
                index += 1
            else:
                carry += block
                if len(carry) % _RELEARN_AFTER < len(block):
                    separator = _separator(carry, common=True)
        if index == 0 or carry.strip():
            yield from self._last(carry, offset, index)
        self._check_end()

    def _last(self, carry: bytes, offset: int, index: int) -> Iterator[Chunk]:
        end, tail = array_end(carry)
        events = carry if end < 0 else carry[:end]
        if events.strip():
            yield Chunk(index, offset, b"[" + events.rstrip().removesuffix(b",") + b"]")
        if end >= 0:
            self.close(carry[tail:])

    def close(self, tail: bytes) -> None:
        """Take `tail`, the text after the array's closing bracket, as the keys after the events."""
        self.ended = True
        if self._array_form:
            return
        text = b"{" + tail.strip().removeprefix(b",") + (b"" if tail.rstrip().endswith(b"}") else b"}")
        self.tail = self._object(text, "after the events")

    def _check_end(self) -> None:
        if self.source.damage:
            self.problems.append(f"{self.source.damage} at byte {self.end_offset} of its contents")
        elif not self.ended and not self._array_form:
            # The array form may lack its bracket on purpose, so that a crashing program leaves a valid trace.
            self.problems.append(f"the file is cut off at byte {self.end_offset}: the event list has no end")

    def _open(self) -> bytes:
        """Read up to the first event; returns the bytes from there on that were read already."""
        text = b""
        for block in self._blocks:
            self.end_offset += len(block)
            text += block
            start = text.lstrip(b"\xef\xbb\xbf \t\r\n")
            if not start:
                continue
            if start[:1] == b"[":
                self._array_form = True
                return start[1:]
            if start[:1] != b"{":
                raise ParseError(self.source.path, "not a JSON trace: it starts with neither { nor [", 0)
            if found := _EVENTS_KEY.search(text):
                header = text[: found.end()].lstrip(b"\xef\xbb\xbf \t\r\n")
                self.header = self._object(header + b"]}", "before the events")
                self.header.pop("traceEvents", None)
                return text[found.end() :]
            if len(text) > MAX_HEADER:
                break
        if not text.strip():
            what = self.source.damage or "it is empty"
            raise ParseError(self.source.path, f"nothing to read: {what}")
        why = f" ({self.source.damage})" if self.source.damage else ""
        raise ParseError(self.source.path, f'JSON without a "traceEvents" list is not a profiler trace{why}')

    def _object(self, text: bytes, where: str) -> dict[str, object]:
        for candidate in (text, repair_text(text)):
            try:
                value = json.loads(candidate)
            except (ValueError, RecursionError):
                continue
            return value if isinstance(value, dict) else {}
        self.problems.append(f"the keys {where} are not valid JSON and were left out")
        return {}


def array_end(text: bytes) -> tuple[int, int]:
    """Find the end of the event array by walking over whole events.

    Returns:
        (end of the last event, start of what follows the bracket), or (-1, -1) when the array does not
        end in `text` or an event before its end is not valid JSON.
    """
    source = text.decode("latin-1")
    scan = json.JSONDecoder().raw_decode
    pos = 0
    while True:
        if found := _ARRAY_END.match(text, pos):
            return pos, found.end()
        start = _skip(source, pos, " \t\r\n,")
        if start == len(source):
            return -1, -1
        try:
            _, pos = scan(source, start)
        except (ValueError, RecursionError):
            return _guess_end(text, start)


def _guess_end(text: bytes, start: int) -> tuple[int, int]:
    """Behind a damaged event: the last bracket after which nothing but keys of the outer object follow."""
    for found in reversed(list(re.finditer(rb'\}\s*\](?=\s*(?:\}\s*$|,\s*"[^"\\]*"\s*:|$))', text[start:]))):
        tail = text[start + found.end() :].strip()
        if not tail or _balanced(b"{" + tail.removeprefix(b",")):
            return start + found.start() + 1, start + found.end()
    return -1, -1


def _balanced(text: bytes) -> bool:
    try:
        json.loads(repair_text(text))
    except (ValueError, RecursionError):
        return False
    return True


def _skip(source: str, pos: int, characters: str) -> int:
    while pos < len(source) and source[pos] in characters:
        pos += 1
    return pos


def _separator(text: bytes, common: bool = False) -> bytes:
    """The bytes from the end of one event to the first key of the next one."""
    if not common:
        try:
            source = text.decode("latin-1")
            _, end = json.JSONDecoder().raw_decode(source, _skip(source, 0, " \t\r\n"))
        except (ValueError, RecursionError):
            end = -1
        if end > 0 and (found := _BOUNDARY.match(text, end - 1)):
            return found.group()
    seen = Counter(_BOUNDARY.findall(text))
    return seen.most_common(1)[0][0] if seen else b"},{"
