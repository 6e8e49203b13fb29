"""Random drawings: GPU work of all kinds, with and without calls, ops, modules, steps."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st

WIDTH = 40
KINDS = ("gemm", "ncclAllReduce", "copy", "fill")
"""In order of the breakdown's priority."""


class Work(NamedTuple):
    """One piece of GPU work: columns, and the letter of its call ("=": none)."""

    stream: int
    kind: int
    start: int
    length: int
    call: str


class Span(NamedTuple):
    """One event on the CPU."""

    row: str
    tid: int
    start: int
    length: int


class Drawing(NamedTuple):
    """What a drawing shows, and its text."""

    work: list[Work]
    calls: dict[str, tuple[int, int]]
    spans: list[Span]
    steps: list[int]

    @property
    def text(self) -> str:
        rows = [
            # What has no call has streams of its own: arrows find work by stream and time.
            (
                f"s{work.stream + 10 * (work.call == '=')} {KINDS[work.kind]} corr={work.call}",
                work.start,
                mark(work.length, "="),
            )
            for work in self.work
        ]
        rows += [(f"launch tid={tid}", start, call) for call, (start, tid) in self.calls.items()]
        rows += [(f"{span.row} tid={span.tid}", span.start, mark(span.length, "-")) for span in self.spans]
        begin = 0
        for number, length in enumerate(self.steps):
            rows.append((f"step {number}", begin, mark(length, "-")))
            begin += length
        width = max(len(label) for label, _, _ in rows)
        return "\n".join(f"{label:{width}} | {' ' * start}{line}" for label, start, line in rows)


def mark(length: int, character: str) -> str:
    return character * length or "!"


_COLUMN = st.integers(0, WIDTH)
_THREAD = st.integers(1, 2)
_WORK = st.builds(
    Work, st.integers(7, 9), st.integers(0, 3), _COLUMN, st.integers(0, 9), st.sampled_from("abcdef==")
)
_SPAN = st.builds(
    Span,
    st.sampled_from([
        "op f seq=1", "op g", "op h seq=1 fwd=1", "scope region", "python nn.Module: M_0", "python frame",
        "python Python GC", "launch cudaDeviceSynchronize",
    ]),
    _THREAD,
    _COLUMN,
    st.integers(0, 15),
)  # fmt: skip

drawings = st.builds(
    Drawing,
    st.lists(_WORK, min_size=1, max_size=10),
    st.dictionaries(st.sampled_from("abcdef"), st.tuples(_COLUMN, _THREAD), max_size=6),
    st.lists(_SPAN, max_size=8),
    st.lists(st.integers(0, 15), max_size=3),
)
