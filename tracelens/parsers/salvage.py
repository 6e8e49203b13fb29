"""Events out of text that is not valid JSON: runs of intact ones at once, the others one by one.

The work is linear in the text whatever it holds: `Effort` counts the characters that are looked at more
than once, and where they become too many what is left is cut at the heads of events and no longer mended.
"""

from __future__ import annotations

import re

import numpy as np

from tracelens.parsers.event import Decoded, Drop, ExactEvent
from tracelens.parsers.loose import BAD_JSON, EXACT, decode_one
from tracelens.parsers.repair import repair_text
from tracelens.parsers.scan import BLANK, Effort, Text, ends_events, inside_list, is_event, skip, value_end
from tracelens.parsers.times import exact_ns
from tracelens.parsers.tokens import mend_tokens

NOT_JSON = "not valid JSON"

_MAX_TRIES = 24
_SMALLEST_RUN, _LARGEST_RUN = 1 << 13, 1 << 18
_TAIL = 1 << 12
_FIRST_KEY = re.compile(r'\{\s*+"([^"\\]{1,40})"\s*+:')


def salvage(text: bytes, offset: int = 0, last: bool = False) -> Decoded:
    """Decode a chunk event by event; what cannot be mended is dropped with its byte offset.

    Args:
        text: the chunk.
        offset: byte of the input where its first event starts.
        last: whether it is the last one of the trace.
    """
    return _Salvage(text, offset, last).run()


def with_exact_times(
    events: list[ExactEvent], drops: list[Drop], mended: int = 0, end: int = -1, uncertain: bool = False
) -> Decoded:
    """Decoded events with their times read from text; the arguments are the fields of `Decoded`."""
    ts = np.array([exact_ns(event.ts) for event in events], dtype=np.int64)
    dur = np.array([exact_ns(event.dur) for event in events], dtype=np.int64)
    return Decoded(list(events), ts, dur, drops, mended, end, uncertain)


class _Salvage:
    """The state of one call of `salvage`."""

    def __init__(self, text: bytes, offset: int, last: bool) -> None:
        self.text, self.offset, self.last = text, offset, last
        self.source = Text(text.decode("latin-1"))
        self.stop = len(text) - text.endswith(b"]")
        self.effort = Effort(len(text))
        self.events: list[ExactEvent] = []
        self.drops: list[Drop] = []
        self.mended = 0
        self.uncertain = False
        key = _FIRST_KEY.search(self.source, 1, 1 + _TAIL)
        head = rf'\{{(?=\s*+"{re.escape(key[1])}"\s*+:)' if key else r"(?!)"
        self.head = re.compile(head)
        # Where a broken event may end: an object begins behind another one (group 1), a list ends (group 2:
        # behind an object), or something begins as the first event does.
        self.edge = re.compile(rf"(\}})[\s,]*+\{{|(\}})\s*+\]|\]|{head}")
        behind = head if key else r"\{"
        self.border = re.compile(rf"\}}(?=\s*+,\s*+{behind})".encode("latin-1"))

    def run(self) -> Decoded:
        pos = skip(self.source, 1, BLANK + ",")
        size, singly_to = _SMALLEST_RUN, -1
        while pos < self.stop and self.effort:
            if self.source[pos] == "]":
                if ends_events(self.source, pos, self.stop, self.last, self.effort):
                    return self._decoded(pos + 1)
                self.uncertain = True
            if pos > singly_to:
                end = self._intact(pos, min(pos + size, self.stop))
                singly_to = pos + size if end < 0 else -1
                size = _SMALLEST_RUN if end < 0 else min(2 * size, _LARGEST_RUN)
                if end >= 0:
                    pos = skip(self.source, end, BLANK + ",")
                    continue
            pos = skip(self.source, self._single(pos), BLANK + ",")
        self._coarse(pos)
        return self._decoded(-1)

    def _decoded(self, end: int) -> Decoded:
        return with_exact_times(self.events, self.drops, self.mended, end, self.uncertain)

    def _intact(self, pos: int, limit: int) -> int:
        """Take the events from `pos` to the last border before `limit` at once; where they end, or -1."""
        borders = list(self.border.finditer(self.text, max(pos, limit - _TAIL), limit))
        if not borders:
            return -1
        end = borders[-1].end()
        run = b"[" + self.text[pos:end] + b"]"
        count = 0
        try:
            events = EXACT.decode(run)
        except BAD_JSON:
            run, count = mend_tokens(run)
            try:
                events = EXACT.decode(run) if count else []
            except BAD_JSON:
                return -1
        self.events += events
        self.mended += count
        return end if events else -1

    def _single(self, pos: int) -> int:
        """Take or drop the element at `pos`; where it ends."""
        end = value_end(self.source, pos, self.effort)
        if pos < end <= self.stop:
            events = decode_one(self.text[pos:end])
            if not events:
                events = decode_one(repair_text(self.text[pos:end]))
                self.mended += len(events)
        else:
            end, events = self._mend(pos)
            self.mended += len(events)
        if not events:
            self._drop(pos, end)
        self.events += events
        return end

    def _drop(self, pos: int, end: int) -> None:
        # The first and the last element may go on in the neighbouring chunks.
        self.uncertain |= not (self.events or self.drops) or end >= self.stop
        self.drops.append(Drop(self.offset + pos - 1, NOT_JSON))

    def _mend(self, pos: int) -> tuple[int, list[ExactEvent]]:
        """Find the end of the broken element at `pos`, and the event in it if it can be mended.

        It ends where the next event begins or where the list ends, at the latest; before that, wherever an
        object follows upon an object (either may lie in a list inside the element) it is tried.
        """
        tries = 0
        for edge in self.edge.finditer(self.source, pos + 1, self.stop):
            is_end = self._is_end(edge, pos)
            if not is_end and edge.lastindex != 1:
                continue
            end = edge.end(edge.lastindex) if edge.lastindex else edge.start()
            self.effort.spend(2 * (end - pos))
            if events := decode_one(repair_text(self.text[pos:end].rstrip(b" \t\r\n,"))):
                return end, events
            tries += 1
            if is_end or tries == _MAX_TRIES or not self.effort:
                return end, []
        return self.stop, decode_one(repair_text(self.text[pos : self.stop]))

    def _is_end(self, edge: re.Match[str], pos: int) -> bool:
        at = edge.end() - 1
        if self.source[at] == "]":
            # One that is broken behind its last brace can be told only where all of the text is there.
            if not (self.last or edge.lastindex == 2) or inside_list(self.source, pos, at, self.effort):
                return False
            return ends_events(self.source, at, self.stop, self.last, self.effort)
        if edge.lastindex is None:  # a head: of an event, unless it is a value
            before = self.source[max(pos, at - _TAIL) : at].rstrip()
            return not before.endswith((":", "["))
        return self.head.match(self.source, at) is not None or is_event(self.source, at, self.effort)

    def _coarse(self, pos: int) -> None:
        """Take what decodes between the heads of events from `pos` on, drop the rest."""
        starts = [found.start() for found in self.head.finditer(self.source, pos + 1, self.stop)]
        for start, end in zip([pos, *starts], [*starts, self.stop], strict=True):
            if events := decode_one(self.text[start:end].rstrip(b" \t\r\n,")):
                self.events += events
            elif start < end:
                self._drop(start, end)
