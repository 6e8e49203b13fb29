"""Pipelines drawn as text, one line a stage, and schedules played through by the clock.

    stages("0011..aa..bb", "..00aa11bb..")

One column is a microsecond of the GPU. `0`, `1`, ...: forward of that micro-batch; `a`, `b`, ...: backward
of micro-batch 0, 1, ...; `~`: a send/receive kernel; `=`: gradient sync; `.`: nothing. The host is a little
ahead of the GPU, and asks for each message that a span needs or makes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

from tests.builders import read
from tracelens.trace.run import Run, make_run

Event = dict[str, Any]
_RUN = re.compile(r"([0-9a-z~=])\1*")


class Piece(NamedTuple):
    """GPU work of one kind: F, B, ~, = or N, an op that autograd does not know."""

    kind: str
    start: int
    end: int
    microbatch: int = 0
    chunk: int = 0


class Style(NamedTuple):
    """How the pieces are recorded.

    Attributes:
        messages: whether sends and receives are.
        ranks: those of the pipeline's group, as text; "" for 0, 1, ...
        graph: whether autograd's marks are.
        recompute: whether the backward recomputes the forward: a node of autograd around ops without one.
        scopes: format of a scope around each forward and backward, with {kind}, {stage}, {microbatch}; "" for
            none.
        steps: (name, start, end) of annotations.
        shift_ns: added to all times.
        description: of the pipeline's group.
        world: whether gradients go through the group of all eight ranks.
    """

    messages: bool = True
    ranks: str = ""
    graph: bool = True
    recompute: bool = False
    scopes: str = ""
    steps: Sequence[tuple[str, float, float]] = ()
    shift_ns: int = 0
    description: str = "PIPELINE_MODEL_PARALLEL_GROUP"
    world: bool = False


def pieces(line: str) -> list[Piece]:
    """What a line draws."""
    pieces = []
    for match in _RUN.finditer(line):
        mark, (start, end) = match[1], match.span()
        if mark.isdigit():
            pieces.append(Piece("F", start, end, int(mark)))
        elif mark.isalpha():
            pieces.append(Piece("B", start, end, ord(mark) - ord("a")))
        else:
            pieces.append(Piece(mark, start, end))
    return pieces


def stages(*lines: str | Sequence[Piece], chunks: int = 1, **style: Any) -> Run:
    """A run of one rank a line."""
    return make_run(stage(line, rank, len(lines), chunks, **style) for rank, line in enumerate(lines))


def stage(line: str | Sequence[Piece], rank: int, size: int, chunks: int = 1, **style: Any) -> Any:
    """The trace of one stage."""
    drawn = pieces(line) if isinstance(line, str) else line
    header = {key: value for key, value in style.items() if key not in Style._fields}
    look = Style(**{key: value for key, value in style.items() if key in Style._fields})
    return read(_events(drawn, rank, size, chunks, look), rank=rank, **header)


def _events(drawn: Sequence[Piece], rank: int, size: int, chunks: int, style: Style) -> Iterable[Event]:
    number = count(1)
    group = style.ranks or str(list(range(size)))
    last = size * chunks - 1
    seen: Counter[Piece] = Counter()
    shift = style.shift_ns / 1000
    for name, start, end in style.steps:
        yield _host("user_annotation", name, start + shift, end + shift)
    for piece in drawn:
        start, end, call = piece.start + shift, piece.end + shift, next(number)
        virtual = piece.chunk * size + rank
        if piece.kind in "FB":
            receives, sends = (virtual, last - virtual) if piece.kind == "F" else (last - virtual, virtual)
            where = (group, style.description)
            if style.world and piece.kind == "B":
                where = (str(list(range(8))), "default_pg")
            if style.messages and receives:
                yield _record("recv", start - 0.3, *where)
            if style.messages and sends:
                yield _record("send", end - 0.4, *where)
            if style.scopes:
                name = style.scopes.format(stage=virtual, **piece._asdict())
                yield _host("user_annotation", name, start - 0.2, start)
            same = piece._replace(start=0, end=0)
            yield from _op(piece, start, style, seen[same])
            seen[same] += 1
            kernel, stream = f"gemm_{piece.kind}", 7
        elif piece.kind == "N":
            kernel, stream = "norm", 7
        else:
            kernel, stream = "ncclDevKernel_SendRecv", 9
            if piece.kind == "~":
                yield _record("recv", start - 0.35, group, style.description)
            else:  # asked for by a hook of the backward
                kernel = "ncclDevKernel_ReduceScatter"
                name = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
                yield _host("cpu_op", name, start - 0.38, start - 0.28, 2)
                yield _record("_reduce_scatter_base", start - 0.35, group, "DATA_PARALLEL_GROUP", 2)
        called = start - 0.1 if piece.kind in "FB" else start - 0.32
        tid = 2 if piece.kind in "B=" else 1
        yield _host("cuda_runtime", "cudaLaunchKernel", called, called + 0.01, tid, correlation=call)
        args = {"correlation": call, "device": 0, "stream": stream}
        yield {
            "ph": "X", "cat": "kernel", "name": kernel, "pid": 0, "tid": stream,
            "ts": start, "dur": end - start, "args": args,
        }  # fmt: skip


def _op(piece: Piece, start: float, style: Style, step: int) -> Iterable[Event]:
    """The op that launches a span's kernel."""
    graph = style.graph
    sequence = {"Sequence number": piece.microbatch + 100 * piece.chunk + 1000 * step} if graph else {}
    tid = 1 if piece.kind == "F" else 2
    if style.recompute:
        yield _host("cpu_op", "aten::mm", start - 0.13, start - 0.07, tid)
    if piece.kind == "F":
        name = "CheckpointFunction" if style.recompute else "aten::mm"
        yield _host("cpu_op", name, start - 0.15, start - 0.05, **sequence)
        return
    name = "autograd::engine::evaluate_function: MmBackward0"
    yield _host("cpu_op", name if graph else "aten::mm", start - 0.16, start - 0.04, 2)
    if graph:
        yield _host(
            "cpu_op", "MmBackward0", start - 0.15, start - 0.05, 2, **sequence, **{"Fwd thread id": 1}
        )


def _record(collective: str, start: float, group: str, description: str, tid: int = 1) -> Event:
    return _host(
        "cpu_op",
        "record_param_comms",
        start,
        start + 0.05,
        tid,
        **{
            "Collective name": collective,
            "Process Group Name": description[:4],
            "Process Group Description": description,
            "Process Group Ranks": group,
            "Group size": group.count(",") + 1,
            "dtype": "BFloat16",
            "In msg nelems": 8,
            "Out msg nelems": 8,
        },
    )


def _host(category: str, name: str, start: float, end: float, tid: int = 1, **args: Any) -> Event:
    where = {"pid": 100, "tid": tid, "ts": round(start, 3), "dur": round(end - start, 3)}
    return {"ph": "X", "cat": category, "name": name, **where, "args": args}


def played(
    size: int,
    microbatches: int,
    chunks: int,
    forward: int = 1,
    backward: int = 1,
    group: int = 0,
    late: Mapping[tuple[str, int, int], int] | None = None,
) -> list[list[Piece]]:
    """Each stage's pieces in interleaved 1F1B: every pass as early as what it needs allows.

    Args:
        size: number of stages.
        microbatches: in the step.
        chunks: of the model on each stage.
        forward: us of a forward.
        backward: us of a backward.
        group: micro-batches a turn; one a stage by default.
        late: (kind, stage in the whole model, micro-batch) to us that the message with its result takes; with
            it, stages wait in a send/receive kernel.
    """
    orders = [_order(rank, size, microbatches, chunks, group or size) for rank in range(size)]
    done: dict[tuple[str, int, int], int] = {}
    lanes: list[list[Piece]] = [[] for _ in range(size)]
    places, free, last = [0] * size, [0] * size, size * chunks - 1
    while any(position < len(order) for position, order in zip(places, orders, strict=True)):
        for rank in range(size):
            if places[rank] == len(orders[rank]):
                continue
            kind, chunk, microbatch = orders[rank][places[rank]]
            virtual = chunk * size + rank
            before = ("F", virtual - 1) if kind == "F" else ("B", virtual + 1)
            if kind == "B" and virtual == last:
                before = ("F", virtual)
            ready = 0 if before == ("F", -1) else done.get((*before, microbatch))
            if ready is None:
                continue
            start = max(ready + (late or {}).get((*before, microbatch), 0), free[rank])
            if late and start > free[rank]:
                lanes[rank].append(Piece("~", free[rank], start))
            free[rank] = done[kind, virtual, microbatch] = start + (forward if kind == "F" else backward)
            lanes[rank].append(Piece(kind, start, free[rank], microbatch, chunk))
            places[rank] += 1
    return lanes


def _order(rank: int, size: int, microbatches: int, chunks: int, group: int) -> list[tuple[str, int, int]]:
    """(kind, chunk, micro-batch) in the order in which a stage runs them."""
    turns = [
        (chunk, first + number)
        for first in range(0, microbatches, group)
        for chunk in range(chunks)
        for number in range(min(group, microbatches - first))
    ]
    forwards = [("F", chunk, microbatch) for chunk, microbatch in turns]
    backwards = [("B", chunks - 1 - chunk, microbatch) for chunk, microbatch in turns]
    ahead = size - rank if chunks == 1 else 2 * (size - rank - 1) + (chunks - 1) * group + 1
    ahead = min(ahead, len(turns))
    order = forwards[:ahead]
    for number, item in enumerate(backwards):
        order.append(item)
        order += forwards[ahead + number : ahead + number + 1]
    return order
