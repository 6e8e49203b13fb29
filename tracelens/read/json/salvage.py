"""Events out of text that is not valid JSON: runs of intact ones at once, the others one by one.

The work is linear in the text whatever it holds: `Effort` counts the characters that are looked at more
than once, and where they become too many what is left is cut at the heads of events and no longer mended.
"""

from __future__ import annotations

import re
from bisect import bisect_left

import msgspec

from tracelens.read.json.event import Decoded, Drop
from tracelens.read.json.loose import decode_one
from tracelens.read.json.repair import repair_text
from tracelens.read.json.scan import BLANK, Effort, ListDepth, Text, ends_events, is_event, skip, value_end
from tracelens.read.json.tokens import follows_string, mend_tokens
from tracelens.read.json.typed import BAD_JSON, Batch, error_offset, fits, is_unfinished

NOT_JSON = "not valid JSON"

_MAX_TRIES = 24
_SMALLEST_RUN, _LARGEST_RUN = 1 << 13, 1 << 18
_CLOSE = 1 << 10
_TAIL = 1 << 12
_WORTH_TRYING = 4
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
        self.batch = Batch()
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
        pos = skip(self.source, 1, BLANK + ",")
        while pos < self.stop and self.effort:
            if self.source[pos] == "]":
                if ends_events(self.source, pos, self.stop, self.last, self.effort):
                    return self._decoded(pos + 1)
                self.uncertain = True
            end = self._run(pos) if pos >= self.singly_to else pos
            pos = skip(self.source, end if end > pos else self._single(pos), BLANK + ",")
        self._coarse(pos)
        return self._decoded(-1)

    def _decoded(self, end: int) -> Decoded:
        return Decoded(*self.batch.timed(), self.drops, self.mended, end, self.uncertain)

    def _run(self, pos: int) -> int:
        """Take the next events at once, up to the first broken one; where they end, `pos` if none do."""
        end = self._border(pos, min(pos + self.run_size, self.stop))
        try:
            self.batch.add(self.text[pos:end])
        except BAD_JSON as error:
            array = b"[" + self.text[pos:end] + b"]"
            broken = error_offset(array, error)
            self.run_size = _SMALLEST_RUN
            if not isinstance(error, msgspec.ValidationError) and self._mend_run(array, broken):
                return end
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

    def _mend_run(self, array: bytes, broken: int) -> bool:
        """Take a run mended, where that has proved to be worth trying."""
        if self.mending_failed > _WORTH_TRYING + self.mending_helped or follows_string(array, broken):
            return False
        mended, count = mend_tokens(array)
        helped = count > 0 and self._add(mended[1:-1])
        self.mending_helped += helped
        self.mending_failed += not helped
        self.mended += count if helped else 0
        return helped

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
            self.singly_to = skip(self.source, end, BLANK + ",") + 1
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

    def _single(self, pos: int) -> int:
        """Take or drop the element at `pos`; where it ends."""
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
        return end

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
            is_end = self._is_end(edge, pos, lists)
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

    def _is_end(self, edge: re.Match[str], pos: int, lists: ListDepth) -> bool:
        position = edge.end() - 1
        if self.source[position] == "]":
            # One that is broken behind its last brace can be told only where all of the text is there.
            if not (self.last or edge.lastindex == 2) or lists.inside_at(position):
                return False
            return ends_events(self.source, position, self.stop, self.last, self.effort)
        if edge.lastindex is None:  # a head: of an event, unless it is a value
            before = self.source[max(pos, position - _TAIL) : position].rstrip()
            return not before.endswith((":", "["))
        return self.head.match(self.source, position) is not None or is_event(
            self.source, position, self.effort
        )

    def _coarse(self, pos: int) -> None:
        """Take what decodes between the heads of events from `pos` on, drop the rest."""
        starts = [match.start() for match in self.head.finditer(self.source, pos + 1, self.stop)]
        for start, end in zip([pos, *starts], [*starts, self.stop], strict=True):
            if not self._take(self.text[start:end].rstrip(b" \t\r\n,")) and start < end:
                self._drop(start, end)
