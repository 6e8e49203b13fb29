"""One rank as trace events in text: its processes and rows, everything on them, and the arrows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import orjson

from tracelens.merge.arguments import Arrows, arguments, find_arrows
from tracelens.merge.layout import Layout
from tracelens.merge.text import microseconds, process, quote, thread
from tracelens.merge.tracks import Track, numbered
from tracelens.trace import Trace

_AT_ONCE = 1 << 14
"""Events whose text is made in one go."""

_ID_BLOCK = 1000
_BLOCKS = (1 << 30) // _ID_BLOCK


class Writer:
    """Turns one rank after the other into events; process, thread and arrow numbers are unique over all.

    Attributes:
        devices: process number to GPU name, of the GPUs that have one.
    """

    def __init__(self) -> None:
        self.devices: dict[int, str] = {}
        self._next_id = _ID_BLOCK
        self._next_flow = 1

    def rank(
        self, trace: Trace, layout: Layout, tracks: Sequence[Track], shift_ns: int
    ) -> Iterator[list[str]]:
        """The events of a rank, batch by batch; `shift_ns` leads from its clock to that of the fused file."""
        rank = trace.meta.rank
        if rank < _BLOCKS:  # of higher ranks the ids only follow on, for viewers keep 31 bits of them
            self._next_id = max((rank + 1) * _ID_BLOCK, self._next_id)
        yield self._tracks(rank, tracks, shift_ns)
        names, row_ids = self._rows(trace, layout)
        yield names
        hosts = any(not row.on_gpu for row in layout.rows)
        arrows = find_arrows(trace, self._next_flow, hosts)
        self._next_flow = arrows.free
        yield from _slices(trace, layout, row_ids, arguments(trace, arrows), shift_ns)
        yield from _flows(trace, layout, row_ids, arrows, shift_ns)

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    def _tracks(self, rank: int, tracks: Sequence[Track], shift_ns: int) -> list[str]:
        """The rank's first process: a row for each track."""
        if not tracks:
            return []
        pid = self._new_id()
        events = process(pid, f"rank {rank}: overview")
        for track in tracks:
            tid = self._new_id()
            events += thread(pid, tid, track.name)
            start = np.array([piece.start_ns for piece in track.slices], dtype=np.int64) + shift_ns
            length = np.array([max(piece.dur_ns, 0) for piece in track.slices], dtype=np.int64)
            for piece, ts, dur in zip(track.slices, microseconds(start), microseconds(length), strict=True):
                args_text = f',"args":{orjson.dumps(dict(piece.args)).decode()}' if piece.args else ""
                events.append(
                    f'{{"ph":"X","cat":"track","name":{quote(piece.label)},"pid":{pid},"tid":{tid},'
                    f'"ts":{ts},"dur":{dur}{args_text}}}'
                )
        return events

    def _rows(self, trace: Trace, layout: Layout) -> tuple[list[str], list[str]]:
        """(Metadata, the place of each row as members of an event)."""
        meta, row_ids = [], []
        pids: dict[tuple[bool, int], int] = {}
        for key in dict.fromkeys((row.on_gpu, row.device) for row in layout.rows):
            pid = pids[key] = self._new_id()
            on_gpu, device = key
            name = "host" if not on_gpu else f"GPU {device}" if device >= 0 else "GPU"
            label = trace.meta.devices.get(device, "") if on_gpu else ""
            if label:
                self.devices[pid] = label
            meta += process(pid, f"rank {trace.meta.rank}: {name}", label)
        for row in layout.rows:
            pid, tid = pids[row.on_gpu, row.device], self._new_id()
            meta += thread(pid, tid, numbered(row.name, row.lane))
            row_ids.append(f'"pid":{pid},"tid":{tid}')
        return meta, row_ids


def _slices(
    trace: Trace, layout: Layout, row_ids: Sequence[str], args: Sequence[str], shift_ns: int
) -> Iterator[list[str]]:
    """A complete event for each event of the layout."""
    table = trace.tables["events"]
    name, category = table.columns["name"], table.columns["category"]
    names = [quote(text) for text in name.values]
    categories = [f'"cat":{quote(text)},' if text else "" for text in category.values]
    recorded = table.array("dur_ns")[layout.event]
    duration = layout.end - layout.start
    cut = np.flatnonzero(duration != recorded)
    for low in range(0, len(layout.event), _AT_ONCE):
        part = slice(low, low + _AT_ONCE)
        event = layout.event[part]
        args_texts = [args[row] for row in event.tolist()]
        for index in cut[(cut >= low) & (cut < low + _AT_ONCE)].tolist():
            args_texts[index - low] += f',"recorded dur_ns":{recorded[index]}'
        yield [
            f'{{"ph":"X",{categories[cat]}"name":{names[text]},{row_ids[row]},"ts":{ts},"dur":{dur}'
            + (f',"args":{{{arg[1:]}}}}}' if arg else "}")
            for cat, text, row, ts, dur, arg in zip(
                category.codes[event].tolist(),
                name.codes[event].tolist(),
                layout.row[part].tolist(),
                microseconds(layout.start[part] + shift_ns),
                microseconds(duration[part]),
                args_texts,
                strict=True,
            )
        ]


def _flows(
    trace: Trace, layout: Layout, row_ids: Sequence[str], arrows: Arrows, shift_ns: int
) -> Iterator[list[str]]:
    """Both ends of each arrow; they bind to the event that runs there then."""
    row = np.full(len(trace.arrays.start), -1, dtype=np.int64)
    row[layout.event] = layout.row
    start = trace.arrays.start + shift_ns
    for low in range(0, len(arrows.flow), _AT_ONCE):
        part = slice(low, low + _AT_ONCE)
        numbers = arrows.flow[part].tolist()
        events = []
        for phase, ends in (('"s"', arrows.launch[part]), ('"f","bp":"e"', arrows.kernel[part])):
            events += [
                f'{{"ph":{phase},"id":{number},{row_ids[row_index]},"ts":{ts},"cat":"ac2g","name":"ac2g"}}'
                for number, row_index, ts in zip(
                    numbers, row[ends].tolist(), microseconds(start[ends]), strict=True
                )
            ]
        yield events
