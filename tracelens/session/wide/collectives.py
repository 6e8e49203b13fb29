"""Rows of the wide table of collectives: those that ranks share, and those of which one rank knows alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tracelens.analysis.comm import AlignedRun, RankCommunication, collective_kinds
from tracelens.analysis.common import distinct_names, group_kind
from tracelens.arrays import Int, lookup
from tracelens.dtypes import short_dtype
from tracelens.table import Coded, Table
from tracelens.trace import WORK_KINDS, Trace, Work, collectives

_OF_KERNEL = (
    *("rank", "step", "stage", "layer", "microbatch", "phase", "module", "source", "stream", "name"),
    *("dur_ns", "link_bytes", "roofline_ns", "kernel_id"),
)
_OF_COLLECTIVE = (
    "order",
    "latency_ns",
    "start_skew_ns",
    "algbw_bytes_per_s",
    "busbw_bytes_per_s",
    "last_rank",
)

Group = tuple[str, tuple[int, ...]]


class Matches(NamedTuple):
    """What the ranks of a run know of its collectives together.

    Attributes:
        aligned: the run.
        tables: of the analyzer `collectives` on it.
        collective: row of the table `collectives` by the identity of a record; matched records only.
        participant: row of the table `participants` by the same.
        group: name of each process group.
    """

    aligned: AlignedRun
    tables: Mapping[str, Table]
    collective: Mapping[int, int]
    participant: Mapping[int, int]
    group: Mapping[Group, str]


def matches(aligned: AlignedRun, tables: Mapping[str, Table]) -> Matches:
    """Find the rows of each record: `participants` are in order of rank, then of `collectives`."""
    records: dict[int, list[int]] = {rank.rank: [] for rank in aligned.ranks}
    collective: dict[int, int] = {}
    for row, matched in enumerate(aligned.collectives):
        for participant in matched.participants:
            records[participant.rank].append(id(participant.record))
            collective[id(participant.record)] = row
    in_order = [record for rank in sorted(records) for record in records[rank]]
    groups: dict[Group, str] = {}
    for record in (record for rank in aligned.ranks for record in rank.records):
        key = record.group, record.group_ranks
        groups[key] = groups.get(key) or record.description
    position = {record: row for row, record in enumerate(in_order)}
    return Matches(aligned, tables, collective, position, distinct_names(groups))


def collective_rows(trace: Trace, work: Work, kernels: Mapping[str, Any], matched: Matches) -> dict[str, Any]:
    """Columns of COLLECTIVES of one rank.

    Args:
        trace: of the rank.
        work: its work, of which `matched` knows the communication.
        kernels: columns of KERNELS of this work.
        matched: the collectives of the run.
    """
    own = next(rank for rank in matched.aligned.ranks if rank.rank == trace.meta.rank)
    silent = np.setdiff1d(np.arange(len(own.start)), [record.kernel for record in own.records])
    kernel = np.append([record.kernel for record in own.records], silent).astype(np.int64)
    order = np.argsort(kernel, kind="stable")
    row = np.flatnonzero(work.kind == WORK_KINDS.index("comm"))[kernel]
    texts = _texts(own, matched, _kinds(trace, work.event[row[len(own.records) :]]))
    columns = _numbers(own, matched, len(silent)) | {name: Coded.of(values) for name, values in texts.items()}
    columns |= {name: kernels[name].take(row) for name in _OF_KERNEL}
    start, end, wait = own.start[kernel], own.end[kernel], columns["wait_ns"]
    columns |= {
        "host": Coded(np.zeros(len(kernel), dtype=np.int64), [own.host]),
        "ts_ns": start + matched.aligned.shift[own.rank],
        "local_ts_ns": start,
        "comm_ns": np.where(wait >= 0, end - start - wait, -1),
        "exposed_ns": own.alone.covered(start, end),
    }
    return {name: values.take(order) for name, values in columns.items()}


def _kinds(trace: Trace, kernels: Int) -> list[str]:
    """The collectives that these event rows are by their names, "" where these do not tell."""
    names = (*collectives(), "")
    return [
        names[kind] for kind in trace.once(collective_kinds)[trace.arrays.places(trace.work.event)[kernels]]
    ]


def _texts(own: RankCommunication, matched: Matches, silent: list[str]) -> dict[str, list[str]]:
    """The text columns: one row a record, then one a kernel without a record, of these collectives."""
    records, shared = own.records, matched.tables["collectives"]
    names = shared.coded("collective")
    collective = [
        names.values[names.codes[row]]
        if (row := matched.collective.get(id(record), -1)) >= 0
        else record.collective
        for record in records
    ]
    texts = {
        "role": [group_kind(record.group, record.description, record.group_ranks) for record in records],
        "group": [matched.group[record.group, record.group_ranks] for record in records],
        "group_name": [record.group for record in records],
        "dtype": [short_dtype(record.dtype) for record in records],
    }
    return {"collective": collective + silent} | {
        name: values + [""] * len(silent) for name, values in texts.items()
    }


def _numbers(own: RankCommunication, matched: Matches, silent: int) -> dict[str, Any]:
    """The number columns: one row a record, then one for each of `silent` kernels without one."""
    shared, parts = matched.tables["collectives"], matched.tables["participants"]
    collective, participant = (
        np.array([*(row_of.get(id(record), -1) for record in own.records), *[-1] * silent], dtype=np.int64)
        for row_of in (matched.collective, matched.participant)
    )

    def recorded(name: str) -> Int:
        return np.array([*(getattr(record, name) for record in own.records), *[-1] * silent], dtype=np.int64)

    return {name: lookup(shared.array(name), collective, -1) for name in _OF_COLLECTIVE} | {
        "group_size": recorded("size"),
        "bytes": lookup(shared.array("bytes"), collective, recorded("bytes")),
        "sent_bytes": recorded("sent"),
        "received_bytes": recorded("received"),
        "wait_ns": lookup(parts.array("wait_ns"), participant, -1),
        "exposed_comm_ns": lookup(parts.array("exposed_ns"), participant, -1),
        "ranks": lookup(shared.array("ranks"), collective, 1),
    }
