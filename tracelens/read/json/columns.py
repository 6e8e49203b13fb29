"""`Event` objects to numpy columns with dictionary codes, so that no Python object per event remains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import compress
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tracelens.arrays import Int
from tracelens.limits import limits
from tracelens.native import core
from tracelens.read.json.events import (
    NO_TEXT,
    Decoded,
    Event,
    blocks,
    decode_events,
    identity,
    integer,
    integers,
    json_values,
)
from tracelens.read.json.scan import Scan, ScannedChunk
from tracelens.read.json.split import Drop

_ASYNC_PHASES = frozenset("be")
_KEPT_PHASES = _ASYNC_PHASES | {"M"}
_PHASES = frozenset("XiIRBEbesftM")

_ARGUMENTS = ("dims", "types", "strides", "values")
_SEPARATOR = b"\x1f"
"""Between the four arguments of an op; no JSON text holds it."""
OUT_OF_RANGE = "number out of range, left out"
NO_PHASE = "no phase: not a trace event"
OTHER_PHASE = "kind of event that is not analyzed (counter, object, ...)"
_CODED = ("phase", "category", "name", "pid", "tid", "kernel")
"""Columns whose values are codes into dictionaries."""


class ValueCodes(dict[Hashable, int]):
    """Value to small integer, numbered in order of first use."""

    def __missing__(self, key: Hashable) -> int:
        self[key] = code = len(self)
        return code


class Columns(NamedTuple):
    """One row an event, in file order.

    `phase, category, name, pid, tid, kernel` are codes into the dictionaries of the same name; `kernel` is
    what a launch call launches, as ROCm records it; `correlation` of a flow is its id; `blocks` is the
    product of a launch grid; absent integers are -1, absent times MISSING.
    """

    phase: np.ndarray
    category: np.ndarray
    name: np.ndarray
    pid: np.ndarray
    tid: np.ndarray
    ts_ns: np.ndarray
    dur_ns: np.ndarray
    correlation: np.ndarray
    external_id: np.ndarray
    stream: np.ndarray
    device: np.ndarray
    bytes: np.ndarray
    blocks: np.ndarray
    kernel: np.ndarray


class OpRows(Struct, frozen=True):
    """One row an event of a chunk that has operator arguments; `event` is its row in Columns."""

    event: np.ndarray
    blob: np.ndarray  # code of its arguments
    sequence: np.ndarray
    forward_thread: np.ndarray


class OpColumns(NamedTuple):
    """The same with the arguments as codes into the dictionaries of the same name."""

    event: np.ndarray
    sequence: np.ndarray
    forward_thread: np.ndarray
    dims: np.ndarray
    types: np.ndarray
    strides: np.ndarray
    values: np.ndarray


class CollectiveRow(NamedTuple):
    """What a profiler wrote about one collective, texts as JSON."""

    event: int
    collective: str
    group: bytes
    description: bytes
    ranks: bytes
    size: int
    dtype: bytes
    in_elements: int
    out_elements: int
    in_split: bytes
    out_split: bytes
    # rank that a send goes to or a receive comes from, in the job; -1 where it is not recorded
    peer: int = -1
    peer_in_group: int = -1  # the same as position in the process group; of other collectives the root


class Encoded(Struct):
    """All events of one trace as columns, with the dictionaries of their codes."""

    columns: Columns
    ops: OpColumns
    phases: list[str]
    categories: list[str]
    names: list[str]
    pids: list[int | str]
    tids: list[int | str]
    kernels: list[str]
    # distinct operator arguments as JSON text, "" for those that an op lacks
    dims: list[str]
    types: list[str]
    strides: list[str]
    values: list[str]
    collectives: list[CollectiveRow]
    # (ph-M event name, pid, tid, args name or labels) of every metadata event
    metadata: list[tuple[str, int | str, int | str, str]]
    async_ids: dict[int, str]  # row -> id of async begin/end events, as written
    drops: list[Drop]
    repaired: Counter[str]  # what was mended in events that were kept, to how many
    unused: Counter[str]  # events that no analysis reads, by why: they have no row


class Part:
    """What one process encoded: blocks of rows by chunk index, and its dictionaries."""

    def __init__(self) -> None:
        self.blocks: dict[int, tuple[Columns, OpRows | OpColumns]] = {}
        self.dictionaries = {key: ValueCodes() for key in (*_CODED, "blob")}
        self.collectives: dict[int, list[CollectiveRow]] = {}
        self.metadata: dict[int, list[tuple[str, int | str, int | str, str]]] = {}
        self.async_ids: dict[int, dict[int, str]] = {}
        self.drops: list[Drop] = []
        self.repaired: Counter[str] = Counter()
        self.unused: dict[int, Counter[str]] = {}

    def add(self, index: int, decoded: Decoded) -> None:
        """Encode the events of chunk `index`; those whose phase is not analyzed are only counted."""
        if not {event.ph for event in decoded.events} <= _PHASES:
            used = [event.ph in _PHASES for event in decoded.events]
            bare_count = sum(not event.ph for event in decoded.events)
            self.unused[index] = +Counter(
                {NO_PHASE: bare_count, OTHER_PHASE: len(used) - sum(used) - bare_count}
            )
            decoded = decoded._replace(
                events=list(compress(decoded.events, used)),
                ts_ns=decoded.ts_ns[used],
                dur_ns=decoded.dur_ns[used],
            )
        events = decoded.events
        self.drops += decoded.drops
        self.repaired["text repaired"] += decoded.mended
        args = [event.args for event in events]
        # Ops, which are most events, carry shapes and never GPU fields; flows and the like carry an id.
        ops, non_ops, bare = [], [], []
        for row, arg in enumerate(args):
            if arg is None:
                bare.append(row)
            elif arg.dims is not NO_TEXT or arg.sequence != -1:
                ops.append(row)
            else:
                non_ops.append(row)
        columns = self._columns(decoded, args, (ops, non_ops, bare))
        op_args: list[Any] = [args[row] for row in ops]
        blobs, join = self.dictionaries["blob"], _SEPARATOR.join
        texts = [blobs[join((arg.dims, arg.types, arg.strides, arg.values))] for arg in op_args]
        op_rows = OpRows(
            event=np.array(ops, dtype=np.int64),
            blob=np.array(texts, dtype=np.int32),
            sequence=self._numbers([arg.sequence for arg in op_args]),
            forward_thread=self._numbers([arg.forward_thread for arg in op_args]),
        )
        self.blocks[index] = (columns, op_rows)
        codes = self.dictionaries["phase"]
        kept = np.isin(columns.phase, [code for name, code in codes.items() if name in _KEPT_PHASES])
        rows = {row for row, arg in enumerate(args) if arg is not None and arg.collective is not None}
        rows.update(np.flatnonzero(kept).tolist())
        self._keep(index, ((row, events[row]) for row in sorted(rows)))

    def distinct(self) -> Mapping[str, Iterable[Hashable]]:
        """The values of coded columns, in order of their codes; of `blob` see `arguments`."""
        return {key: values for key, values in self.dictionaries.items() if key != "blob"}

    def arguments(self) -> list[list[bytes]]:
        """The texts of the four arguments in order of their codes, which all ops have from now on."""
        blobs = [value for value in self.dictionaries["blob"] if isinstance(value, bytes)]
        texts = _SEPARATOR.join(blobs).split(_SEPARATOR) if blobs else []
        codes = np.empty((len(blobs), len(_ARGUMENTS)), dtype=np.int32)
        dictionaries = [ValueCodes() for _ in _ARGUMENTS]
        for column, code_of in enumerate(dictionaries):
            parts = texts[column :: len(_ARGUMENTS)]
            codes[:, column] = np.fromiter(map(code_of.__getitem__, parts), np.int32, len(parts))
        for index, (columns, ops) in self.blocks.items():
            if isinstance(ops, OpRows):
                arguments = codes[ops.blob].T
                self.blocks[index] = (
                    columns,
                    OpColumns(ops.event, ops.sequence, ops.forward_thread, *arguments),
                )
        return [[*code_of] for code_of in dictionaries]

    def _keep(self, index: int, events: Iterable[tuple[int, Event]]) -> None:
        """Keep what events of a chunk tell besides their columns; only few do: of collectives, names, ids.

        `events` are pairs of row and event.
        """
        for row, event in events:
            arg = event.args
            if arg is not None and arg.collective is not None:
                self.collectives.setdefault(index, []).append(
                    CollectiveRow(
                        event=row,
                        collective=arg.collective,
                        group=bytes(arg.group),
                        description=bytes(arg.group_description),
                        ranks=bytes(arg.group_ranks),
                        size=integer(arg.group_size),
                        dtype=bytes(arg.dtype),
                        in_elements=integer(arg.in_elements),
                        out_elements=integer(arg.out_elements),
                        in_split=bytes(arg.in_split),
                        out_split=bytes(arg.out_split),
                        peer=integer(arg.destination_rank if arg.collective == "send" else arg.source_rank),
                        peer_in_group=integer(arg.rank_in_group),
                    )
                )
            if event.ph == "M" and arg is not None:
                label = arg.name if arg.name is not NO_TEXT else arg.labels
                self.metadata.setdefault(index, []).append(
                    (event.name or "", identity(event.pid), identity(event.tid), plain_text(label))
                )
            elif event.ph in _ASYNC_PHASES:
                self.async_ids.setdefault(index, {})[row] = str(event.id)

    def _columns(
        self, decoded: Decoded, args: list[Any], rows: tuple[list[int], list[int], list[int]]
    ) -> Columns:
        events = decoded.events
        ops, non_ops, bare = (np.array(part, dtype=np.int64) for part in rows)
        present = [args[row] for row in rows[1]]

        def column(values: list[Any], where: Int = non_ops) -> Int:
            array = np.full(len(events), -1, dtype=np.int64)
            array[where] = self._numbers(values)
            return array

        correlation = column([arg.correlation for arg in present])
        # Flows carry their id beside the arguments, which they mostly lack.
        flows = np.concatenate((bare, non_ops[correlation[non_ops] == -1]))
        correlation[flows] = self._numbers([events[row].id for row in flows.tolist()])
        external_id = column([arg.external_id for arg in present])
        external_id[ops] = self._numbers([args[row].external_id for row in rows[0]])
        # What a memory event says is allocated counts on a device, not on the host (type 0).
        sizes = [
            arg.bytes if arg.allocated == -1 else arg.allocated if integer(arg.device_type) > 0 else -1
            for arg in present
        ]
        # Few launch calls name what they launch; all other events share one code.
        kernels = self.dictionaries["kernel"]
        kernel = np.full(len(events), kernels[b""], dtype=np.int32)
        named = [number for number, arg in enumerate(present) if arg.kernel is not NO_TEXT]
        kernel[non_ops[named]] = [kernels[bytes(present[number].kernel)] for number in named]
        return Columns(
            phase=self._code("phase", [event.ph for event in events]),
            category=self._code("category", [event.cat for event in events]),
            name=self._code("name", [event.name for event in events]),
            pid=self._code("pid", [event.pid for event in events]),
            tid=self._code("tid", [event.tid for event in events]),
            ts_ns=decoded.ts_ns,
            dur_ns=decoded.dur_ns,
            correlation=correlation,
            external_id=external_id,
            stream=column([arg.stream for arg in present]),
            device=column([arg.device for arg in present]),
            bytes=np.maximum(column(sizes), -1),
            blocks=column([-1 if arg.grid is NO_TEXT else blocks(bytes(arg.grid)) for arg in present]),
            kernel=kernel,
        )

    def _numbers(self, values: list[Any]) -> Int:
        column, beyond = integers(values)
        self.repaired[OUT_OF_RANGE] += beyond
        return column

    def _code(self, key: str, values: Sequence[Hashable]) -> NDArray[Any]:
        return np.fromiter(map(self.dictionaries[key].__getitem__, values), np.int32, len(values))


class ScannedPart(Part):
    """What the native core read of some chunks; the scan is over."""

    def __init__(self, scan: Scan) -> None:
        super().__init__()
        self._scanner = scan.scanner
        self._arguments: list[list[bytes]] = []
        for index, chunk in scan.chunks.items():
            self._take(index, chunk)

    def _take(self, index: int, scanned: ScannedChunk) -> None:
        codes = np.frombuffer(scanned.codes, dtype=np.int32)
        phase, category, name, pid, tid, grid, kernel = codes.reshape(7, -1)
        numbers = np.frombuffer(scanned.numbers, dtype=np.int64)
        ts_ns, dur_ns, correlation, external_id, stream, device, size = numbers.reshape(7, -1)
        columns = Columns(
            phase=phase,
            category=category,
            name=name,
            pid=pid,
            tid=tid,
            ts_ns=ts_ns,
            dur_ns=dur_ns,
            correlation=correlation,
            external_id=external_id,
            stream=stream,
            device=device,
            bytes=size,
            blocks=grid,  # codes, until the dictionary is complete
            kernel=kernel,
        )
        event, sequence, forward_thread = np.frombuffer(scanned.op_numbers, dtype=np.int64).reshape(3, -1)
        ops = OpColumns(
            event, sequence, forward_thread, *np.frombuffer(scanned.op_codes, dtype=np.int32).reshape(4, -1)
        )
        self.blocks[index] = (columns, ops)
        if scanned.bare_count or scanned.other_count:
            self.unused[index] = +Counter({NO_PHASE: scanned.bare_count, OTHER_PHASE: scanned.other_count})
        if scanned.special:
            events = decode_events(scanned.special_text)
            self._keep(index, zip(scanned.special, events, strict=True))

    def distinct(self) -> Mapping[str, Iterable[Hashable]]:
        """As of any part; once all chunks are read."""
        phases, categories, names, pids, tids, kernels, grids, *self._arguments = self._scanner.dictionaries()
        count = np.array([blocks(grid) if grid else -1 for grid in grids], dtype=np.int64)
        self.blocks = {
            index: (columns._replace(blocks=count.take(columns.blocks)), ops)
            for index, (columns, ops) in self.blocks.items()
        }
        return {
            "phase": json_values(phases),
            "category": json_values(categories),
            "name": json_values(names),
            "pid": json_values(pids),
            "tid": json_values(tids),
            "kernel": kernels,
        }

    def arguments(self) -> list[list[bytes]]:
        """As of any part; after `distinct`."""
        return self._arguments


def merge(parts: list[Part]) -> Encoded:
    """Join what several processes encoded, in order of the chunks."""
    merged = {key: ValueCodes() for key in (*_CODED, *_ARGUMENTS)}
    # of each part the new codes of a column, None where they are the old ones
    maps: list[dict[str, NDArray[np.int32] | None]] = [
        {
            key: _renumbered(merged[key], [*values])
            for key, values in [*part.distinct().items(), *zip(_ARGUMENTS, part.arguments(), strict=True)]
        }
        for part in parts
    ]
    owner = {index: number for number, part in enumerate(parts) for index in part.blocks}
    columns: list[Columns] = []
    ops: list[OpColumns] = []
    collectives: list[CollectiveRow] = []
    async_ids: dict[int, str] = {}
    metadata: list[tuple[str, int | str, int | str, str]] = []
    start = 0
    for index in sorted(owner):
        part, new_codes = parts[owner[index]], maps[owner[index]]
        block, block_ops = part.blocks.pop(index)
        assert isinstance(block_ops, OpColumns)
        columns.append(_recoded(block, new_codes))
        ops.append(_recoded(block_ops, new_codes)._replace(event=block_ops.event + start))
        for row in part.collectives.get(index, ()):
            collectives.append(row._replace(event=row.event + start))
        metadata += part.metadata.get(index, [])
        async_ids |= {row + start: value for row, value in part.async_ids.get(index, {}).items()}
        start += len(block.phase)
    table, op_table = _concatenate(Columns, columns), _concatenate(OpColumns, ops)
    # Which process met a value first is a matter of luck, and must not decide the order of any table.
    pid, pids = _by_appearance(table.pid, list(merged["pid"]))
    tid, tids = _by_appearance(table.tid, list(merged["tid"]))
    category, categories = _by_appearance(table.category, list(merged["category"]))
    name, names = _by_appearance(table.name, list(merged["name"]))
    kernel, kernels = _by_appearance(table.kernel, list(merged["kernel"]))
    repaired = sum((part.repaired for part in parts), Counter())
    most = limits().text_bytes
    bounded_names = [_bounded_name(str(value or ""), most, repaired) for value in names]
    dictionaries = [merged[name] for name in _ARGUMENTS]
    op_table, argument_texts = _bounded_arguments(op_table, dictionaries, most, repaired)
    return Encoded(
        columns=table._replace(pid=pid, tid=tid, category=category, name=name, kernel=kernel),
        ops=op_table,
        phases=[str(value) for value in merged["phase"]],
        categories=[str(value or "")[:most] for value in categories],
        names=bounded_names,
        pids=[identity(value) for value in pids],
        tids=[identity(value) for value in tids],
        kernels=[_bounded_name(plain_text(value), most, repaired) for value in kernels],
        dims=argument_texts[0],
        types=argument_texts[1],
        strides=argument_texts[2],
        values=argument_texts[3],
        collectives=collectives,
        metadata=metadata,
        async_ids=async_ids,
        drops=sorted(drop for part in parts for drop in part.drops),
        repaired=+repaired,
        unused=sum((counts for part in parts for counts in part.unused.values()), Counter()),
    )


def _renumbered(code_of: ValueCodes, values: list[Hashable]) -> NDArray[np.int32] | None:
    """New codes of the values of a part; None where these are their positions, as in the first part."""
    if not code_of:
        code_of.update(zip(values, range(len(values)), strict=True))
        if len(code_of) == len(values):
            return None
        code_of.clear()
    return np.fromiter(map(code_of.__getitem__, values), np.int32, len(values))


def _recoded(block: Any, new_codes: Mapping[str, NDArray[np.int32] | None]) -> Any:
    """Columns of one part with the codes of all."""
    return block._replace(
        **{
            key: new.take(getattr(block, key))
            for key, new in new_codes.items()
            if new is not None and key in block._fields
        }
    )


def _bounded_arguments(
    ops: OpColumns, dictionaries: list[ValueCodes], most: int, repaired: Counter[str]
) -> tuple[OpColumns, list[list[str]]]:
    """Ops without arguments of over `most` bytes, numbered as they appear; and the texts of all arguments."""
    codes = [getattr(ops, name) for name in _ARGUMENTS]
    between = len(_ARGUMENTS) - 1
    sizes = [np.array([*map(len, texts)], dtype=np.int64) for texts in dictionaries]  # type: ignore[arg-type]
    if sum(of_texts.max(initial=0) for of_texts in sizes) + between > most:
        size = np.full(len(ops.event), between)
        for column, of_texts in zip(codes, sizes, strict=True):
            size += of_texts[column]
        oversize = size > most
        repaired["arguments of an op over the limit, left out"] += len(
            {*zip(*(column[oversize].tolist() for column in codes), strict=True)}
        )
        codes = [
            np.where(oversize, texts[b""], column) if oversize.any() else column
            for column, texts in zip(codes, dictionaries, strict=True)
        ]
    decoded = []
    for name, column, dictionary in zip(_ARGUMENTS, codes, dictionaries, strict=True):
        ordered, values = _by_appearance(column, list(dictionary))
        used = values[: int(ordered.max(initial=-1)) + 1]
        decoded.append(
            _SEPARATOR.join(used).decode("utf-8", "replace").split(_SEPARATOR.decode()) if used else []
        )
        ops = ops._replace(**{name: ordered})
    return ops, decoded


def _bounded_name(name: str, most: int, repaired: Counter[str]) -> str:
    if len(name) <= most:
        return name
    repaired["name over the limit, cut there"] += 1
    return name[:most]


def _by_appearance(codes: NDArray[Any], values: list[Any]) -> tuple[NDArray[Any], list[Any]]:
    """The same column with its values numbered in the order in which they appear."""
    new_code = np.full(len(values), -1, dtype=codes.dtype)
    if (native := core()) and codes.dtype == np.int32:
        codes = codes.copy()
        native.renumber(codes, new_code)
        unused = new_code < 0
        new_code[unused] = np.arange(len(values) - unused.sum(), len(values))
        order = np.argsort(new_code)
        return codes, list(map(values.__getitem__, order.tolist()))
    first = np.full(len(values), len(codes))
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)  # of several rows the last assignment stays
    order = np.argsort(first, kind="stable")
    new_code[order] = np.arange(len(values))
    return new_code[codes], [values[row] for row in order.tolist()]


def _concatenate(make: Callable[..., Any], blocks: list[Any]) -> Any:
    """One table of the columns of all blocks, of which nothing is left."""
    if not blocks:
        return make(*(np.empty(0, dtype=np.int64) for _ in make._fields))  # type: ignore[attr-defined]
    by_column = [list(arrays) for arrays in zip(*blocks, strict=True)]
    blocks.clear()
    joined = []
    for arrays in by_column:  # let go of one after the other, so that few are there twice
        joined.append(np.concatenate(arrays))
        arrays.clear()
    return make(*joined)


def plain_text(raw: Any) -> str:
    """JSON text of an argument as plain text: a string without its quotes, anything else as it stands."""
    text = bytes(raw).strip()
    if text.startswith(b'"'):
        try:
            return msgspec.json.decode(text, type=str)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            text = text.strip(b'"')
    return text.decode("utf-8", "replace")
