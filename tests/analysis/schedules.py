"""Pipelines drawn as text, one line a stage, and schedules played through by the clock.

    stages("0011..aa..bb", "..00aa11bb..")

One column is a microsecond of the GPU. `0`, `1`, ...: forward of that micro-batch; `a`, `b`, ...: backward
of micro-batch 0, 1, ...; `~`: a send/receive kernel; `=`: gradient sync; `.`: nothing. The host is a little
ahead of the GPU, and asks for each message that a span needs or makes: see `messages_of`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, count, pairwise
from typing import Any, NamedTuple

from tests.builders import read
from tracelens.trace import Run, Trace, make_run

Event = dict[str, Any]
_OPS = 3
"""That make nodes in a forward."""
_RING = (("send", 1), ("recv", -1))
_RUN = re.compile(r"([0-9a-z~=])\1*")


class Piece(NamedTuple):
    """GPU work: F, B, ~ or =; W: weight gradients by autograd; N and D: a norm and a GEMM of the host."""

    kind: str
    start: int
    end: int
    micro_batch: int = 0
    chunk: int = 0


class Style(NamedTuple):
    """How the pieces are recorded.

    Attributes:
        messages: whether sends and receives are.
        p2p: "" for messages beside the passes that make and need them; "overlap" for receives that are asked
            for before the pass before; "batch" for sends that wait for the backward behind a forward.
        ring: kinds of passes that also send and receive, as attention over several ranks does: forwards
            between their ops, backwards inside a node.
        peers: whether messages say who is at the other end.
        scaled: whether the host scales the loss when its backward begins, behind the messages.
        ranks: those of the pipeline's group, as text; "" for 0, 1, ...
        graph: whether autograd's marks are.
        recompute: whether the backward recomputes the forward: a node of autograd around ops without one.
        scopes: format of a scope around each forward and backward, with {kind}, {stage}, {micro_batch}; ""
            for none.
        steps: (name, start, end) of annotations.
        shift_ns: added to all times.
        description: of the pipeline's group.
        world_size: ranks of the job, 0 where the trace does not say.
        world: whether gradients go through the group of all eight ranks.
        slow_host: ranks whose host launches a forward in two halves, so that the GPU idles half of it.
    """

    messages: bool = True
    p2p: str = ""
    peers: bool = True
    scaled: bool = False
    ranks: str = ""
    graph: bool = True
    recompute: bool = False
    scopes: str = ""
    steps: Sequence[tuple[str, float, float]] = ()
    shift_ns: int = 0
    description: str = "PIPELINE_MODEL_PARALLEL_GROUP"
    world_size: int = 0
    world: bool = False
    ring: str = ""
    slow_host: Sequence[int] = ()


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
    return make_run(drawn_stages(*lines, chunks=chunks, **style))


def drawn_stages(*lines: str | Sequence[Piece], chunks: int = 1, **style: Any) -> list[Trace]:
    """The traces of such a run."""
    drawn = [pieces(line) if isinstance(line, str) else list(line) for line in lines]
    messages = messages_of(drawn, chunks, style.get("p2p", ""))
    size = len(drawn)
    return [stage(line, rank, size, chunks, messages[rank], **style) for rank, line in enumerate(drawn)]


def stage(
    line: str | Sequence[Piece],
    rank: int,
    size: int,
    chunks: int = 1,
    mail: Sequence[Message] | None = None,
    **style: Any,
) -> Trace:
    """The trace of one stage, with messages of `messages_of`; without, as if all others were idle."""
    drawn = pieces(line) if isinstance(line, str) else line
    header = {key: value for key, value in style.items() if key not in Style._fields}
    look = Style(**{key: value for key, value in style.items() if key in Style._fields})
    if mail is None and look.messages:
        alone: list[Sequence[Piece]] = [[] for _ in range(size)]
        alone[rank] = drawn
        mail = messages_of(alone, chunks, look.p2p)[rank]
    if look.world_size:
        header["distributedInfo"] = {"rank": rank, "world_size": look.world_size}
    return read(_events(drawn, rank, size, chunks, look, mail or ()), rank=rank, **header)


class Message(NamedTuple):
    """A send or receive of one rank: when the host asks for it, us, and whether a gradient travels."""

    time: float
    collective: str
    peer: int
    gradient: bool


_Output = tuple[str, int, int, int]
"""Phase, stage in the whole model, micro-batch, and how many of the same come before."""


def messages_of(lanes: Sequence[Sequence[Piece]], chunks: int, p2p: str) -> list[list[Message]]:
    """What each rank sends and receives; what one rank sends to another arrives in the order of the sends."""
    size, last = len(lanes), len(lanes) * chunks - 1
    messages: list[list[Message]] = [[] for _ in lanes]
    sent: dict[tuple[int, int], list[tuple[float, _Output]]] = {}
    needed: dict[tuple[int, int], dict[_Output, float]] = {}
    for rank, lane in enumerate(lanes):
        passes = [piece for piece in lane if piece.kind in "FB"]
        kernel = {after: wait for wait, after in pairwise(lane) if wait.kind == "~"}
        seen: Counter[tuple[str, int, int]] = Counter()
        for before, piece, after in zip([None, *passes], passes, [*passes[1:], None], strict=False):
            virtual, ahead = piece.chunk * size + rank, 1 if piece.kind == "F" else -1
            key = piece.kind, virtual, piece.micro_batch
            if 0 <= virtual - ahead <= last:
                time = before.start if before and p2p == "overlap" else piece.start
                time = kernel[piece].start - 0.05 if piece in kernel else time
                link = needed.setdefault(((virtual - ahead) % size, rank), {})
                link[piece.kind, virtual - ahead, piece.micro_batch, seen[key]] = time - 0.3
            if 0 <= virtual + ahead <= last:
                # In a batch the gradient goes first.
                waits = p2p == "batch" and piece.kind == "F" and after is not None and after.kind == "B"
                time = after.end - 0.35 if waits and after else piece.end - 0.4
                peer = (virtual + ahead) % size
                messages[rank].append(Message(time, "send", peer, piece.kind == "B"))
                sent.setdefault((rank, peer), []).append((time, (*key, seen[key])))
            seen[key] += 1
    for (source, target), receives in needed.items():
        arriving = [key for _, key in sorted(sent.get((source, target), [])) if key in receives]
        arriving += [key for key in receives if key not in arriving]
        # The host asks in the order of arrival, and for each before it is needed.
        times = list(accumulate((receives[key] for key in arriving[::-1]), min))[::-1]
        for number, (key, time) in enumerate(zip(arriving, times, strict=True)):
            messages[target].append(Message(time + number * 1e-4, "recv", source, key[0] == "B"))
    return [sorted(of_rank) for of_rank in messages]


def _events(
    drawn: Sequence[Piece], rank: int, size: int, chunks: int, style: Style, messages: Sequence[Message]
) -> Iterable[Event]:
    number = count(1)
    group = style.ranks or str(list(range(size)))
    last = size * chunks - 1
    shift = style.shift_ns / 1000
    for name, start, end in style.steps:
        yield _host("user_annotation", name, start + shift, end + shift)
    for message in messages if style.messages else ():
        where = (group, style.description)
        if style.world and message.gradient:
            where = (str(list(range(8))), "default_pg")
        peer = {f"{'Dst' if message.collective == 'send' else 'Src'} Rank": message.peer}
        time = message.time + shift
        yield _record(message.collective, time, *where, **(peer if style.peers else {}))
    graph = _Graph()
    for piece in drawn:
        start, end, call = piece.start + shift, piece.end + shift, next(number)
        virtual = piece.chunk * size + rank
        if piece.kind in "FBW":
            if style.scopes:
                name = style.scopes.format(stage=virtual, **piece._asdict())
                yield _host("user_annotation", name, start - 0.2, start)
            yield from _ops(piece, start, style, graph, scaled=style.scaled and virtual == last)
            for collective, step in _RING if piece.kind in style.ring else ():
                args = {f"{'Dst' if collective == 'send' else 'Src'} Rank": (rank + step) % size}
                tid = 1 if piece.kind == "F" else 2
                yield _record(collective, start - 0.1145, group, "undefined", tid, 0.003, **args)
            kernel, stream = f"gemm_{piece.kind}", 7
        elif piece.kind == "D":
            kernel, stream = "gemm_weights", 7
        elif piece.kind == "N":
            kernel, stream = "norm", 7
        else:
            kernel, stream = "ncclDevKernel_SendRecv", 9
            if piece.kind == "=":  # asked for by a hook of the backward
                kernel = "ncclDevKernel_ReduceScatter"
                name = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
                yield _host("cpu_op", name, start - 0.38, start - 0.28, 2)
                yield _record("_reduce_scatter_base", start - 0.35, group, "DATA_PARALLEL_GROUP", 2)
        called = start - 0.1 if piece.kind in "FBWD" else start - 0.32
        tid = 2 if piece.kind in "BW=" else 1
        parts = [(called, start, end)]
        if piece.kind == "F" and rank in style.slow_host:
            quarter = (end - start) / 4
            parts = [(called, start, start + quarter), (end - quarter - 0.1, end - quarter, end)]
        for launched, begun, ended in parts:
            yield _host("cuda_runtime", "cudaLaunchKernel", launched, launched + 0.01, tid, correlation=call)
            args = {"correlation": call, "device": 0, "stream": stream}
            yield {
                "ph": "X", "cat": "kernel", "name": kernel, "pid": 0, "tid": stream,
                "ts": begun, "dur": ended - begun, "args": args,
            }  # fmt: skip
            call = next(number)


class _Graph:
    """Numbers of the nodes of each forward, in the order in which its ops made them."""

    def __init__(self) -> None:
        self._next = count(100)
        self._nodes: dict[tuple[int, int], list[list[int]]] = {}

    def made(self, piece: Piece, ops: int) -> list[int]:
        numbers = [next(self._next) for _ in range(ops)]
        self._nodes.setdefault((piece.chunk, piece.micro_batch), []).append(numbers)
        return numbers

    def run(self, piece: Piece) -> list[int]:
        """The nodes of the earliest forward whose weights have no gradient yet; a B may be all of it."""
        forwards = self._nodes.get((piece.chunk, piece.micro_batch), [])
        return forwards[-1] if forwards else [next(self._next) for _ in range(_OPS)]

    def scaled(self) -> int:
        return next(self._next)


def _ops(piece: Piece, start: float, style: Style, graph: _Graph, scaled: bool) -> Iterable[Event]:
    """The ops that make a span's nodes or run them; the last of them launches its kernel."""
    tid = 1 if piece.kind == "F" else 2
    if style.recompute:
        yield _host("cpu_op", "aten::mm", start - 0.105, start - 0.075, tid)
    if piece.kind == "F":
        name = "CheckpointFunction" if style.recompute else "aten::mm"
        for op, sequence in enumerate(graph.made(piece, 1 if style.recompute else _OPS)):
            begin = start - 0.11 - 0.01 * op
            args = {"Sequence number": sequence} if style.graph else {}
            yield _host("cpu_op", name, begin, begin + 0.05 if not op else begin + 0.009, **args)
        return
    if not style.graph:
        yield _host("cpu_op", "aten::mm", start - 0.11, start - 0.04, 2)
        return
    nodes = graph.run(piece)
    if scaled and piece.kind == "B":
        sequence = graph.scaled()
        yield _host("cpu_op", "aten::mul", start - 0.25, start - 0.2, **{"Sequence number": sequence})
        nodes = [*nodes, sequence]
    for op, sequence in enumerate(sorted(nodes)):
        begin = start - 0.11 - 0.01 * op
        end = begin + 0.05 if not op else begin + 0.009
        name = "autograd::engine::evaluate_function: MmBackward0"
        yield _host("cpu_op", name, begin, end, 2)
        args = {"Sequence number": sequence, "Fwd thread id": 1}
        yield _host("cpu_op", "MmBackward0", begin + 0.001, end - 0.001, 2, **args)


def _record(
    collective: str, start: float, group: str, description: str, tid: int = 1, dur: float = 0.05, **args: Any
) -> Event:
    return _host(
        "cpu_op",
        "record_param_comms",
        start,
        start + dur,
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
            **args,
        },
    )


def _host(category: str, name: str, start: float, end: float, tid: int = 1, **args: Any) -> Event:
    where = {"pid": 100, "tid": tid, "ts": round(start, 3), "dur": round(end - start, 3)}
    return {"ph": "X", "cat": category, "name": name, **where, "args": args}


def played(
    size: int,
    micro_batches: int,
    chunks: int,
    forward: int = 1,
    backward: int = 1,
    group: int = 0,
    late: Mapping[tuple[str, int, int], int] | None = None,
    sizes: Sequence[int] = (),
) -> list[list[Piece]]:
    """Each stage's pieces in interleaved 1F1B: every pass as early as what it needs allows.

    Args:
        size: number of stages.
        micro_batches: in the step.
        chunks: of the model on each stage.
        forward: us of a forward.
        backward: us of a backward.
        group: micro-batches a turn; one a stage by default.
        late: (kind, stage in the whole model, micro-batch) to us that the message with its result takes; with
            it, stages wait in a send/receive kernel.
        sizes: layers of each chunk in model order; by default all have one.
        sizes: of the chunks in model order, that is their layers; all alike by default.
    """
    orders = [_order(rank, size, micro_batches, chunks, group or size) for rank in range(size)]
    done: dict[tuple[str, int, int], int] = {}
    lanes: list[list[Piece]] = [[] for _ in range(size)]
    places, free, last = [0] * size, [0] * size, size * chunks - 1
    while any(position < len(order) for position, order in zip(places, orders, strict=True)):
        for rank in range(size):
            if places[rank] == len(orders[rank]):
                continue
            kind, chunk, micro_batch = orders[rank][places[rank]]
            virtual = chunk * size + rank
            before = ("F", virtual - 1) if kind == "F" else ("B", virtual + 1)
            if kind == "B" and virtual == last:
                before = ("F", virtual)
            ready = 0 if before == ("F", -1) else done.get((*before, micro_batch))
            if ready is None:
                continue
            start = max(ready + (late or {}).get((*before, micro_batch), 0), free[rank])
            if late and start > free[rank]:
                lanes[rank].append(Piece("~", free[rank], start))
            layers = sizes[virtual] if sizes else 1
            end = start + layers * (forward if kind == "F" else backward)
            free[rank] = done[kind, virtual, micro_batch] = end
            lanes[rank].append(Piece(kind, start, free[rank], micro_batch, chunk))
            places[rank] += 1
    return lanes


def _order(rank: int, size: int, micro_batches: int, chunks: int, group: int) -> list[tuple[str, int, int]]:
    """(kind, chunk, micro-batch) in the order in which a stage runs them."""
    turns = [
        (chunk, first + number)
        for first in range(0, micro_batches, group)
        for chunk in range(chunks)
        for number in range(min(group, micro_batches - first))
    ]
    forwards = [("F", chunk, micro_batch) for chunk, micro_batch in turns]
    backwards = [("B", chunks - 1 - chunk, micro_batch) for chunk, micro_batch in turns]
    ahead = size - rank if chunks == 1 else 2 * (size - rank - 1) + (chunks - 1) * group + 1
    ahead = min(ahead, len(turns))
    order = forwards[:ahead]
    for number, item in enumerate(backwards):
        order.append(item)
        order += forwards[ahead + number : ahead + number + 1]
    return order
