"""Events out of text that is not valid JSON: runs of intact ones at once, the others one by one.

The work is linear in the text whatever it holds: `Effort` counts the characters that are looked at more
than once, and where they become too many what is left is cut at the heads of events and no longer mended.
"""

from __future__ import annotations

import re

import msgspec
import numpy as np

from tracelens.read.json.event import Decoded, Drop, ExactEvent
from tracelens.read.json.loose import decode_one
from tracelens.read.json.repair import repair_text
from tracelens.read.json.scan import BLANK, Effort, ListDepth, Text, ends_events, is_event, skip, value_end
from tracelens.read.json.tokens import mend_tokens
from tracelens.read.json.typed import BAD_JSON, Timed, decode_typed, timed

NOT_JSON = "not valid JSON"

_MAX_TRIES = 24
_SMALLEST_RUN, _LARGEST_RUN = 1 << 13, 1 << 18
_TAIL = 1 << 12
_WORTH_TRYING = 4
_NO_TIMES = np.empty(0, dtype=np.int64)
_FIRST_KEY = re.compile(r'\{\s*+"([^"\\]{1,40})"\s*+:')


def salvage(text: bytes, offset: int = 0, last: bool = False) -> Decoded:
    """Decode a chunk event by event; what cannot be mended is dropped with its byte offset.

    Args:
        text: the chunk.
        offset: byte of the input where its first event starts.
        last: whether it is the last one of the trace.
    """
    return _Salvage(text, offset, last).run()


class _Salvage:
    """The state of one call of `salvage`."""

    def __init__(self, text: bytes, offset: int, last: bool) -> None:
        self.text, self.offset, self.last = text, offset, last
        self.source = Text(text.decode("latin-1"))
        self.stop = len(text) - text.endswith(b"]")
        self.effort = Effort(len(text))
        self.runs: list[Timed] = []
        self.singles: list[ExactEvent] = []
        self.drops: list[Drop] = []
        self.mended = 0
        self.uncertain = False
        self.mending_helped = self.mending_failed = 0
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
        self._close_run()
        events = [event for run in self.runs for event in run.events]
        ts_ns = np.concatenate([_NO_TIMES, *(run.ts_ns for run in self.runs)])
        dur_ns = np.concatenate([_NO_TIMES, *(run.dur_ns for run in self.runs)])
        return Decoded(events, ts_ns, dur_ns, self.drops, self.mended, end, self.uncertain)

    def _close_run(self) -> None:
        """What was taken singly becomes a run like those that were decoded at once."""
        if self.singles:
            self.runs.append(timed(self.singles))
            self.singles = []

    def _intact(self, pos: int, limit: int) -> int:
        """Take the events from `pos` to the last border before `limit` at once; where they end, or -1."""
        borders = list(self.border.finditer(self.text, max(pos, limit - _TAIL), limit))
        run = self._decode_run(b"[" + self.text[pos : borders[-1].end()] + b"]") if borders else None
        if run is None:
            return -1
        self._close_run()
        self.runs.append(run)
        return borders[-1].end()

    def _decode_run(self, text: bytes) -> Timed | None:
        """Decode a run of events, mended where that has proved to be worth trying."""
        try:
            return decode_typed(text)
        except msgspec.ValidationError:
            return None
        except BAD_JSON:
            if self.mending_failed > _WORTH_TRYING + self.mending_helped:
                return None
        mended, count = mend_tokens(text)
        try:
            run = decode_typed(mended) if count else None
        except BAD_JSON:
            run = None
        self.mending_helped += run is not None
        self.mending_failed += run is None
        self.mended += count if run else 0
        return run

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
        self.singles += events
        return end

    def _drop(self, pos: int, end: int) -> None:
        # The first and the last element may go on in the neighbouring chunks.
        self.uncertain |= not (self.runs or self.singles or self.drops) or end >= self.stop
        self.drops.append(Drop(self.offset + pos - 1, NOT_JSON))

    def _mend(self, pos: int) -> tuple[int, list[ExactEvent]]:
        """Find the end of the broken element at `pos`, and the event in it if it can be mended.

        It ends where the next event begins or where the list ends, at the latest; before that, wherever an
        object follows upon an object (either may lie in a list inside the element) it is tried.
        """
        tries = 0
        lists = ListDepth(self.source, pos, self.effort)
        for edge in self.edge.finditer(self.source, pos + 1, self.stop):
            if not self.effort:
                return edge.start(), []
            is_end = self._is_end(edge, pos, lists)
            if not is_end and edge.lastindex != 1:
                continue
            end = edge.end(edge.lastindex) if edge.lastindex else edge.start()
            self.effort.spend(2 * (end - pos))
            if events := decode_one(repair_text(self.text[pos:end].rstrip(b" \t\r\n,"))):
                return end, events
            tries += 1
            if is_end or tries == _MAX_TRIES:
                return end, []
        return self.stop, decode_one(repair_text(self.text[pos : self.stop]))

    def _is_end(self, edge: re.Match[str], pos: int, lists: ListDepth) -> bool:
        at = edge.end() - 1
        if self.source[at] == "]":
            # One that is broken behind its last brace can be told only where all of the text is there.
            if not (self.last or edge.lastindex == 2) or lists.inside_at(at):
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
                self.singles += events
            elif start < end:
                self._drop(start, end)
