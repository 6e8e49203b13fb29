"""Chunks of JSON text to `Event` objects, in four tiers.

1. Typed decoding of the whole chunk; only the fields that are used become Python objects.
2. The same with times kept as text, where floats would lose nanoseconds.
3. The same after tokens that are not JSON (`N/A`, `inf`, `: ,`) have been mended throughout the chunk.
4. `salvage`: runs of intact events at once, the others one by one, mending or dropping the broken ones.

Salvaging is linear in the text whatever it holds: `Effort` counts the characters that are looked at more than
once, and where they become too many what is left is cut at the heads of events and no longer mended.
"""

from __future__ import annotations

import re
from bisect import bisect_left

import msgspec
import numpy as np

from tracelens.arrays import Bool, unique
from tracelens.read.json.events import (
    BAD_JSON,
    Decoded,
    EventBatch,
    decode_one,
    decode_typed,
    error_offset,
    fits,
    is_unfinished,
)
from tracelens.read.json.mend import WORDS, repair_text
from tracelens.read.json.split import Drop
from tracelens.read.json.text import (
    Effort,
    ListDepth,
    Text,
    ends_events,
    is_event,
    skip,
    value_end,
)

NOT_JSON = "not valid JSON"
_MAX_TRIES = 24  # ends of a broken event that are tried
_SMALLEST_RUN, _LARGEST_RUN = 1 << 13, 1 << 18  # bytes that are decoded at once
_CLOSE = 1 << 10
_TAIL = 1 << 12
_WORTH_TRYING = 4  # runs that are mended in vain before it is given up
_FIRST_KEY = re.compile(r'\{\s*+"([^"\\]{1,40})"\s*+:')


def decode(text: bytes, offset: int = 0, last: bool = False) -> Decoded:
    """Decode a chunk: a JSON array of events whose first event stands at byte `offset` of the input.

    `last`: it is known to be the last chunk of the trace.
    """
    try:
        return Decoded(*decode_typed(text), drops=[])
    except msgspec.ValidationError:
        return salvage(text, offset, last)
    except BAD_JSON as error:
        if follows_string(text, error_offset(text, error)):
            return salvage(text, offset, last)
    mended, count = mend_tokens(text)
    try:
        if count:
            return Decoded(*decode_typed(mended), drops=[], mended=count)
    except BAD_JSON:
        pass
    return salvage(text, offset, last)


def salvage(text: bytes, offset: int = 0, last: bool = False) -> Decoded:
    """As `decode`, event by event; what cannot be mended is dropped with its byte offset."""
    return _Salvage(text, offset, last).run()


class _Salvage:
    """The state of one call of `salvage`."""

    def __init__(self, text: bytes, offset: int, last: bool) -> None:
        self.text, self.offset, self.last = text, offset, last
        self.source = Text(text.decode("latin-1"))
        self.stop = len(text) - text.endswith(b"]")
        self.effort = Effort(len(text))
        self.batch = EventBatch()
        self.drops: list[Drop] = []
        self.mended = 0
        self.uncertain = False
        self.run_size, self.singly_to = _SMALLEST_RUN, 0
        self.mending_helped = self.mending_failed = 0
        key = _FIRST_KEY.search(self.source, 1, 1 + _TAIL)
        head = rf'\{{(?=\s*+"{re.escape(key[1])}"\s*+:)' if key else r"(?!)"
        self.head = re.compile(head)
        # Where a broken event may end: an object begins behind another one (group 1), a list ends (group 2:
        # behind an object), or something begins as the first event does. That all of them start with one of
        # three characters makes the search fast.
        heads = [head] if key else []
        self.edge = re.compile("|".join([r"\}(?:[\s,]*+(\{)|\s*+(\]))", r"\]", *heads]))
        behind = head if key else r"\{"
        self.border = re.compile(rf"\}}(?=\s*+,\s*+{behind})".encode("latin-1"))

    def run(self) -> Decoded:
        pos = skip(self.source, 1)
        while pos < self.stop and self.effort:
            if self.source[pos] == "]":
                if ends_events(self.source, pos, self.stop, self.last, self.effort):
                    return self._decoded(pos + 1)
                self.uncertain = True
            end = self._run(pos) if pos >= self.singly_to else pos
            if end <= pos:  # take or drop the element there
                end = value_end(self.source, pos, self.effort)
                if pos < end <= self.stop:
                    count = self._take(self.text[pos:end])
                    if not count:
                        count = self._take(repair_text(self.text[pos:end]))
                        self.mended += count
                else:
                    end, count = self._mend(pos)
                    self.mended += count
                if not count:
                    self._drop(pos, end)
            pos = skip(self.source, end)
        # What is left when the effort is spent: what decodes between the heads of events.
        starts = [match.start() for match in self.head.finditer(self.source, pos + 1, self.stop)]
        for start, end in zip([pos, *starts], [*starts, self.stop], strict=True):
            if not self._take(self.text[start:end].rstrip(b" \t\r\n,")) and start < end:
                self._drop(start, end)
        return self._decoded(-1)

    def _decoded(self, end: int) -> Decoded:
        events, ts_ns, dur_ns = self.batch.timed()
        return Decoded(events, ts_ns, dur_ns, self.drops, self.mended, end=end, uncertain=self.uncertain)

    def _run(self, pos: int) -> int:
        """Take the next events at once, up to the first broken one; where they end, `pos` if none do."""
        end = self._border(pos, min(pos + self.run_size, self.stop))
        try:
            self.batch.add(self.text[pos:end])
        except BAD_JSON as error:
            array = b"[" + self.text[pos:end] + b"]"
            broken = error_offset(array, error)
            self.run_size = _SMALLEST_RUN
            is_syntax = not isinstance(error, msgspec.ValidationError)
            is_worth_mending = self.mending_failed <= _WORTH_TRYING + self.mending_helped
            if is_syntax and is_worth_mending and not follows_string(array, broken):
                mended, count = mend_tokens(array)
                if count > 0 and self._add(mended[1:-1]):
                    self.mending_helped += 1
                    self.mended += count
                    return end
                self.mending_failed += 1
            return self._intact(pos, end, pos + broken - 1)
        if end == pos:
            self.run_size, self.singly_to = _SMALLEST_RUN, pos + self.run_size
        else:
            self.run_size = min(2 * self.run_size, _LARGEST_RUN)
        return end

    def _border(self, pos: int, limit: int) -> int:
        """The end of the last event before `limit` that another one follows; `pos` where there is none."""
        start, size = limit, _CLOSE
        while start > pos:
            start = max(limit - size, pos)
            if borders := list(self.border.finditer(self.text, start, limit)):
                return borders[-1].end()
            size *= 4
        return pos

    def _intact(self, pos: int, stop: int, broken: int) -> int:
        """Take the events before a broken one; where they end.

        Args:
            pos: the first event.
            stop: where the run ends.
            broken: the decoder was stopped there, which lies in the broken one unless it swallowed others, or
                before `pos` where that is not known.
        """
        end = self._border(pos, broken) if broken >= pos else stop
        if end == pos:
            self.singly_to = min(pos + _CLOSE, stop)
        elif end < stop and self._add(self.text[pos:end]):
            self.singly_to = skip(self.source, end) + 1
        else:
            ends = [border.end() for border in self.border.finditer(self.text, pos, stop)]
            valid = bisect_left(ends, True, key=lambda end: not fits(self.text[pos:end]))
            end = ends[valid - 1] if valid and self._add(self.text[pos : ends[valid - 1]]) else pos
            self.singly_to = stop
        return end

    def _add(self, text: bytes) -> bool:
        try:
            return self.batch.add(text) > 0
        except BAD_JSON:
            return False

    def _take(self, text: bytes) -> int:
        """Take the event that a text is; returns how many that were."""
        try:
            return self.batch.add(text)
        except BAD_JSON:
            return self.batch.add_exact(decode_one(text))

    def _drop(self, pos: int, end: int) -> None:
        # In a chunk that is cut inside a list, the first and the last element go on in its neighbors.
        if end >= self.stop or not (self.batch.events or self.drops):
            element = self.text[pos:end]
            self.uncertain |= element.count(b"[") != element.count(b"]") or is_unfinished(element)
        self.drops.append(Drop(self.offset + pos - 1, NOT_JSON))

    def _mend(self, pos: int) -> tuple[int, int]:
        """Take the broken element at `pos` if it can be mended; where it ends, and how many events that were.

        It ends where the next event begins or where the list ends, at the latest; before that, wherever an
        object follows upon an object (either may lie in a list inside the element) it is tried.
        """
        tries = 0
        lists = ListDepth(self.source, pos, self.effort)
        for edge in self.edge.finditer(self.source, pos + 1, self.stop):
            if not self.effort:
                return edge.start(), 0
            position = edge.end() - 1
            if self.source[position] == "]":
                # One that is broken behind its last brace can be told only where all of the text is there.
                is_end = (
                    (self.last or edge.lastindex == 2)
                    and not lists.inside_at(position)
                    and ends_events(self.source, position, self.stop, self.last, self.effort)
                )
            elif edge.lastindex is None:  # a head: of an event, unless it is a value
                before = self.source[max(pos, position - _TAIL) : position].rstrip()
                is_end = not before.endswith((":", "["))
            else:
                is_end = self.head.match(self.source, position) is not None
                is_end = is_end or is_event(self.source, position, self.effort)
            if not is_end and edge.lastindex != 1:
                continue
            end = edge.start() + (edge.lastindex is not None)
            self.effort.spend(2 * (end - pos))
            if count := self._take(repair_text(self.text[pos:end].rstrip(b" \t\r\n,"))):
                return end, count
            tries += 1
            if is_end or tries == _MAX_TRIES:
                return end, 0
        return self.stop, self._take(repair_text(self.text[pos : self.stop]))


_ESCAPE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # a pair of surrogates is one character
    rb"|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
    rb'|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})'
    rb"|\\"
)
_HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}\Z")
_WORD = re.compile(rb"0[xX][0-9a-fA-F]+|-?[A-Za-z_][\w/]*")
_VALID = (b"true", b"false", b"null")
_NO_CHARACTER = "\ufffd".encode()
_BLANKS = 64

_LETTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"


def _bytes_mask(characters: bytes) -> Bool:
    mask = np.zeros(256, dtype=bool)
    mask[list(characters)] = True
    return mask


_IS_LETTER = _bytes_mask(_LETTERS)
_GOES_ON = _bytes_mask(_LETTERS + b"0123456789.+-")
_IS_BLANK = _bytes_mask(b" \t\r\n")
_CLOSES = _bytes_mask(b"}]")
_ENDS_VALUE = _bytes_mask(b",}]")
_FOLLOWS_STRING = _bytes_mask(b":,}]")
_NESTING = np.zeros(256, dtype=np.int64)
_NESTING[list(b"{[")] = 1
_NESTING[list(b"}]")] = -1


def mend_tokens(text: bytes) -> tuple[bytes, int]:
    """A JSON array of events with its broken tokens mended.

    Bare words, missing values, trailing commas, bad escapes, control bytes and invalid UTF-8 leave quotes in
    pairs, so that the structure of the text is known without walking over it token by token.

    Args:
        text: the array; strings whose quotes are broken make the answer useless, though not the call fail.

    Returns:
        (the mended text, number of events that were changed); the text need not be valid JSON.
    """
    edits: list[tuple[int, int, bytes]] = []  # start and end of what is replaced, and by what
    if not text.isascii():
        decoded = text.decode("utf-8", "replace").encode()
        if decoded != text:
            text = decoded
            edits += [(match.start(), match.start(), b"") for match in re.finditer(_NO_CHARACTER, text)]
    escaped_quotes: list[int] = []
    for match in _ESCAPE.finditer(text) if b"\\" in text else ():
        escape = match.group()
        if escape == b"\\":
            edits.append((*match.span(), b"\\\\"))
        elif escape == b'\\"':
            escaped_quotes.append(match.start() + 1)
        elif len(escape) == 6 and _HALF_PAIR.match(escape):
            edits.append((*match.span(), b"\\ufffd"))
    data = np.frombuffer(text, dtype=np.uint8)
    quote = data == ord('"')
    quote[escaped_quotes] = False
    inside = (np.cumsum(quote, dtype=np.uint8) & 1).astype(bool)
    position = np.flatnonzero(~inside & ~_IS_BLANK[data])  # of all that is neither blank nor in a string
    char = data[position]
    depth = np.cumsum(_NESTING[char])
    if inside[-1] or depth[-1] != 0 or ((char[:-1] == ord('"')) & ~_FOLLOWS_STRING[char[1:]]).any():
        return text, 0  # quotes or brackets are broken, too
    for control in np.flatnonzero(inside & (data < 0x20)).tolist():
        edits.append((control, control + 1, b"\\u%04x" % text[control]))
    current, after = char[:-1], char[1:]
    trailing = position[:-1][(current == ord(",")) & _CLOSES[after]].tolist()
    missing = position[:-1][(current == ord(":")) & _ENDS_VALUE[after]].tolist()
    edits += [(start, start + 1, b"") for start in trailing]
    edits += [(start, start + 1, b": null") for start in missing]
    before = np.concatenate(([0], data[:-1]))[position]
    behind = np.concatenate((data[1:], [0]))[position]
    is_word = _IS_LETTER[char] | ((char == ord("-")) & _IS_LETTER[behind])
    is_word |= (char == ord("0")) & ((behind | 0x20) == ord("x"))
    for start in position[is_word & ~_GOES_ON[before]].tolist():
        word = _WORD.match(text, start)
        if word and word.group() not in _VALID:
            # A hexadecimal number is an id, most others are no value.
            is_id = word.group().startswith(b"0")
            value = b'"%s"' % word.group() if is_id else WORDS.get(word.group().decode(), "null").encode()
            edits.append((*word.span(), value))
    # Commas in the outermost list lie between events.
    borders = position[(char == ord(",")) & (depth == 1)]
    changed = unique(np.searchsorted(borders, [start for start, *_ in edits]))
    parts: list[bytes] = []
    pos = 0
    for start, end, replacement in sorted(edits):
        if start >= pos:
            parts += (text[pos:start], replacement)
            pos = end
    return b"".join([*parts, text[pos:]]), len(changed)


def follows_string(text: bytes, pos: int) -> bool:
    """Whether what stands at `pos` follows a string and must not: quotes are broken, beyond `mend_tokens`.

    All before `pos` is valid JSON.
    """
    before = text[max(pos - _BLANKS, 0) : max(pos, 0)].rstrip(b" \t\r\n")
    return before.endswith(b'"') and text[pos] >= 0x20 and text[pos] not in b":,}]\\"
