"""Cutting the text of a trace into chunks of whole events, without decoding it.

The separator between two events is learnt from the first two; a chunk ends at its last occurrence in a
block. A cut in the wrong place (the same text inside a nested list or a string) cannot go unnoticed:
`[` + chunk + `]` is valid JSON only if it starts and ends at event boundaries. Whoever decodes the
chunks verifies them that way (see salvage.py). What is no trace is named, with what to pass instead.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from tracelens.errors import Damage, DamageKind, ParseError
from tracelens.limits import limits
from tracelens.read import source as sources
from tracelens.read.json.text import (
    Effort,
    Text,
    ends_events,
    first_value,
    is_event,
    skip,
    value_end,
)

_EVENTS_KEY = re.compile(rb'(?<!\\)"traceEvents"\s*+:\s*+\[')
_BOUNDARY = re.compile(r'\}\s*+,\s*+\{(?:\s*+"[^"\\]{1,40}"\s*+:)?')
_FIRST_KEY = re.compile(r'\{\s*+("[^"\\]{1,40}"\s*+:)')
_ARRAY_END = re.compile(r"\s*+(?:,\s*+)?\]")
_STRUCTURE = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\Z)|[{}\[\]]', re.DOTALL)
_BRACE = re.compile(r"\{")
_DEPTH_OF_EVENTS = 2
_HEADER_LOST = "the keys before the events are not valid JSON and were left out"
_OPENING = b"\xef\xbb\xbf \t\r\n"
_PADDING = b" \t\r\n\0"
_LONGEST_KEY = 256
_SAMPLE_EVENTS = 64
_SAMPLE_BYTES = 4096
_ENOUGH = 8  # boundaries that look alike, before they count where no event is intact
_LEARNT_FROM_BYTES = 1 << 20
OVERSIZE = "larger than the limit for one event"
_UTF16 = (b"\xff\xfe", b"\xfe\xff", b"{\0", b"[\0", b"\0{", b"\0[")


class Chunk(NamedTuple):
    """A run of whole events."""

    # position among the chunks of this trace
    index: int  # type: ignore[assignment]  # a tuple has a method of this name
    offset: int  # byte offset of its first event in the decompressed input
    text: bytes  # the events as a JSON array
    is_rest: bool = False  # all that the input ends with, since no end of the list was found in it


class Drop(NamedTuple):
    """An event that could not be used: where it starts in the input, and why."""

    offset: int
    reason: str


class Splitter:
    """Header, chunks and tail of one trace, read front to back once."""

    def __init__(self, source: sources.Source) -> None:
        self.source = source
        self.header: dict[str, object] = {}  # keys before the events (array form: none)
        self.tail: dict[str, object] = {}  # keys after the events; complete once `chunks` is exhausted
        self.ended = False  # the end of the event array was seen; False for a cut-off trace
        self.end_offset = 0  # byte offset where the input ends
        self.drops: list[Drop] = []  # events that were left out unseen, for their size
        self._problems: list[str] = []
        self._array_form = False
        self._blocks = source.blocks()
        self._rest = self._open()
        while len(self._rest) < min(_SAMPLE_BYTES, sources.BLOCK) and (block := self._more()):
            self._rest += block

    @property
    def problems(self) -> list[str]:
        """What is wrong with header, tail or end, for people; final once all chunks are decoded."""
        return [*self._problems, *([str(self.damage)] if self.damage else [])]

    @property
    def damage(self) -> Damage | None:
        """Where the input ends though it should not; final likewise."""
        damage = self.source.damage(self.end_offset)
        # The array form may lack its bracket on purpose, so that a crashing program leaves a valid trace.
        if damage is None and not (self.ended or self._array_form):
            reason = "the file is cut off: the event list has no end"
            damage = Damage(DamageKind.TRUNCATED, reason, self.end_offset)
        return damage

    def head(self) -> bytes:
        """The first bytes of the events, for recognizing the kind of trace."""
        return self._rest[: 1 << 16]

    def chunks(self) -> Iterator[Chunk]:
        """Whole events, a block at a time; the last chunk holds whatever the input ends with.

        Raises:
            ParseError: an event is too large, and where the next one begins cannot be told.
        """
        offset, carry, index = self.end_offset - len(self._rest), bytearray(self._rest), 0
        separator = _separator(carry)
        learn_at = 2 * len(carry)
        most = limits()
        is_oversize = False
        for block in self._blocks:
            self.end_offset += len(block)
            cut = block.rfind(separator) if separator else -1
            if is_oversize and cut >= 0:  # what is carried is the rest of that event
                cut = block.find(separator)
            if cut >= 0:
                text = b"".join((b"[", carry, memoryview(block)[: cut + 1], b"]"))
                if not is_oversize:
                    yield Chunk(index, offset, text)
                    index += 1
                skipped = block.index(b"{", cut + 1) - cut - 1
                carry = bytearray(block[cut + 1 + skipped :])
                offset = self.end_offset - len(carry)
                is_oversize = False
            elif not is_oversize:
                carry += block
                if len(carry) >= learn_at:
                    separator, learn_at = _separator(carry) or separator, 2 * len(carry)
                if len(carry) > most.event_bytes:
                    if not separator:
                        problem = f"an event of over {most.event_bytes:,} bytes, or text without events"
                        problem = f"{problem}, begins here; {most.exceeded('event_bytes')}"
                        raise ParseError(self.source.path, problem, offset)
                    self.drops.append(Drop(offset, OVERSIZE))
                    is_oversize, carry = True, bytearray()
        if not is_oversize and (index == 0 or carry.strip()):
            last = bytes(carry)
            end, tail = array_end(last)
            events = last if end < 0 else last[:end]
            if events.strip():
                yield Chunk(index, offset, b"[" + events.rstrip().removesuffix(b",") + b"]", is_rest=end < 0)
            if end >= 0:
                self.close(last[tail:])

    def close(self, tail: bytes) -> None:
        """Take `tail`, the text after the array's closing bracket, as the keys after the events."""
        self.ended = True
        if len(tail) > limits().header_bytes:
            problem = f"the {len(tail):,} bytes after the events were left out"
            self._problems.append(f"{problem}: {limits().exceeded('header_bytes')}")
            return
        rest = tail.decode("utf-8", "replace")
        if not self._array_form:
            value, rest = _object(b"{" + tail.strip(_PADDING).removeprefix(b","))
            if value is None:
                self._problems.append("the keys after the events are not valid JSON and were left out")
                return
            if value.pop("traceEvents", None):
                self._problems.append('a second "traceEvents" list was left out')
            self.tail |= value
        if rest := rest.strip(_PADDING.decode()):
            self._problems.append(f"{len(rest)} characters after the end of the trace were left out")

    def _open(self) -> bytes:
        """Read up to the first event; returns the bytes from there on that were read already."""
        text = bytearray()
        head = b""
        while not (text := text.lstrip(_OPENING)) and (block := self._more()):
            text += block
            head = block
            self._check_header(self.end_offset)
        if not text:
            problem = self.source.cut or "it is empty"
            raise ParseError(self.source.path, f"nothing to read: {problem}; record or copy it again")
        if text[:2] in _UTF16:
            raise ParseError(self.source.path, "is UTF-16 text; run: iconv -f UTF-16 -t UTF-8 OLD > NEW", 0)
        if text[:1] == b"[":
            self._array_form = True
            return bytes(text[1:])
        if text[:1] != b"{":
            from tracelens.read.foreign import not_json  # a slip needs it, not a run

            raise ParseError(self.source.path, not_json(head, self.source.path), 0)
        # Read on until the outermost "traceEvents" list begins, and take the keys before it.
        searched, first = 0, -1
        measured, depth = 0, 0
        while True:
            for match in _EVENTS_KEY.finditer(text, searched):
                searched = match.end()
                # How many objects and lists have been opened since, outside of strings.
                count = Counter(token.group()[:1] for token in _STRUCTURE.finditer(text, measured, searched))
                depth += count[b"{"] + count[b"["] - count[b"}"] - count[b"]"]
                measured = searched
                if depth == _DEPTH_OF_EVENTS:
                    header, _ = _object(bytes(text[:searched]) + b"]}")
                    if header is None:
                        self._problems.append(_HEADER_LOST)
                    else:
                        header.pop("traceEvents", None)
                        self.header = header
                    return bytes(text[searched:])
                first = searched if first < 0 else first
            searched = max(searched, len(text) - _LONGEST_KEY)
            if not (block := self._more()):
                break
            text += block
            self._check_header(len(text))
        if first >= 0:
            self._problems.append(_HEADER_LOST)
            return bytes(text[first:])
        if self.source.cut:
            problem = f"ends before its first event: {self.source.cut}; record or copy it again"
            raise ParseError(self.source.path, problem)
        from tracelens.read.foreign import no_events

        raise ParseError(self.source.path, no_events(text))

    def _check_header(self, size: int) -> None:
        most = limits()
        if size > most.header_bytes:
            problem = f"no event begins in the first {most.header_bytes:,} bytes"
            raise ParseError(self.source.path, f"{problem}; {most.exceeded('header_bytes')}")

    def _more(self) -> bytes:
        """The next block, b"" at the end."""
        block = next(self._blocks, b"")
        self.end_offset += len(block)
        return block


def array_end(text: bytes) -> tuple[int, int]:
    """Find the end of the event array by walking over whole events.

    Returns:
        (end of the last event, start of what follows the bracket), or (-1, -1) when the array does not
        end in `text` or an event before its end is not valid JSON.
    """
    source = Text(text.decode("latin-1"))
    effort = Effort(len(text))
    pos = 0
    while True:
        match = _ARRAY_END.match(source, pos)
        if match and ends_events(source, match.end() - 1, len(source), True, effort):
            return pos, match.end()
        start = skip(source, pos)
        pos = value_end(source, start)
        if pos < 0:
            return -1, -1


def _object(text: bytes) -> tuple[dict[str, object] | None, str]:
    """(object at the start of `text`, what follows it); mended where needed, None if that is in vain."""

    def readings() -> Iterator[bytes]:
        """The text as it stands, with the brace that a cut may have cost it, and both again mended."""
        yield text
        yield text + b"}"
        from tracelens.read.json.mend import repair_text  # few traces are broken

        repaired = repair_text(text)
        yield repaired
        yield repaired + b"}"

    for candidate in readings():
        try:
            value, rest = first_value(candidate.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            continue
        return (value, rest) if isinstance(value, dict) else (None, "")
    return None, ""


def _separator(head: bytearray) -> bytes:
    """The bytes from the end of one event to the first key of the next one, b"" if `head` does not tell.

    Learnt by walking from event to event, so that objects inside of events have no say.
    """
    source = Text(head[:_LEARNT_FROM_BYTES].decode("latin-1"))
    start = skip(source, 0)
    if value_end(source, start) < 0:
        braces = islice(_BRACE.finditer(source, start), _SAMPLE_EVENTS)
        start = next((brace.start() for brace in braces if is_event(source, brace.start())), -1)
    seen: Counter[str] = Counter()
    for _ in range(_SAMPLE_EVENTS):
        end = value_end(source, start)
        match = _BOUNDARY.match(source, end - 1) if 0 <= start < end else None
        if not match:
            break
        seen[match.group()] += 1
        start = source.index("{", end)
    if seen:
        return seen.most_common(1)[0][0].encode("latin-1")
    # Where no intact event follows upon another: what often stands before the first event's key.
    first = _FIRST_KEY.search(source)
    seen = Counter(match.group() for match in _BOUNDARY.finditer(source) if first)
    alike = [text for text, count in seen.items() if first and count >= _ENOUGH and text.endswith(first[1])]
    return max(alike, key=seen.__getitem__, default="").encode("latin-1")
