"""Reductions and gathers across hosts in one flat ring."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tracelens.analysis.comm import HostSpans, Part, host_spans
from tracelens.arrays import Float, Int
from tracelens.findings.detectors.detector import Confidence, Detection, Quantity, detector
from tracelens.findings.step_counts import in_steps, step_count
from tracelens.table import Result, Table, codes
from tracelens.trace import union
from tracelens.units import duration


@detector(
    "hierarchical_all_reduce",
    scenario="hierarchical_all_reduce",
    title="Collectives across hosts use one flat ring",
    needs=("collectives",),
    measures={
        "collectives per step": "those in flat rings over hosts",
        "bus bandwidth": "of their transfers, without waiting",
        "bytes sent per host, flat ring": "bytes that cross hosts, per step",
        "bytes sent per host, hierarchical": "the same with a reduction within each host first",
        "time without waiting": "of their transfers, per step",
        "expected time, hierarchical": "the same with a reduction within each host first",
        "hosts": "most hosts of one collective",
    },
    threshold="equal numbers of ranks on several hosts, more than one each, in a kernel not named a tree",
    limits="Needs traces that name their hosts.",
)
def hierarchical_all_reduce(results: Mapping[str, Result]) -> Mapping[int, Detection] | str:
    """All-reduce, reduce-scatter or all-gather over hosts with several ranks each, as one flat ring."""
    participants = results["collectives"].data["participants"]
    if not len(participants):
        return "no collective is recorded on several ranks"
    hosts = set(participants.texts("host"))
    if "" in hosts or len(hosts) == 1:
        return "the traces do not name their hosts" if "" in hosts else "all ranks are on one host"
    spans, of_row = _spans(participants)
    if reason := spans.reason():
        return reason
    flat = spans.divisible & spans.flat
    expected, inside_known = spans.expected()
    gain = spans.gain()
    steps = step_count(results)
    counted = in_steps(participants) & (spans.hosts[of_row] > 0) & flat[of_row]
    ranks = np.unique(participants.array("rank")[counted]).tolist()
    confidence: Confidence = "medium" if inside_known and spans.ring[flat].all() else "low"
    return {
        rank: _detection(
            participants,
            np.flatnonzero(counted & (participants.array("rank") == rank)),
            (spans, of_row),
            (gain, expected),
            steps,
            confidence,
        )
        for rank in ranks
    } or "no such collective lies in a step"


def _spans(participants: Table) -> tuple[HostSpans, Int]:
    """The collectives in a table of participants, and the number of each row's."""
    first, order, size, message, dur = (
        participants.array(name) for name in ("first_rank", "order", "group_size", "bytes", "dur_ns")
    )
    group = np.unique(np.array(participants.texts("group")), return_inverse=True)[1]
    names, name = np.unique(np.array(participants.texts("collective")), return_inverse=True)
    number, keys = codes(group.ravel(), first, name.ravel(), order)
    part = Part(number, participants.texts("host"), participants.texts("kernel"), message, dur, size)
    return host_spans(part, [names[code] for code in keys[2].tolist()]), number


def _detection(
    participants: Table,
    rows: Int,
    known: tuple[HostSpans, Int],
    model: tuple[Float, Float],
    steps: int,
    confidence: Confidence,
) -> Detection:
    """What one rank loses; `model`: share of its time that each collective saves, and ns that remain."""
    spans, of_row = known
    index = of_row[rows]
    gain, expected = (values[index] for values in model)
    exposed, wait = participants.array("exposed_ns")[rows], participants.array("wait_ns")[rows]
    start, dur = participants.array("local_ts_ns")[rows], participants.array("dur_ns")[rows]
    n, hosts, sent = (
        spans.ranks[index],
        spans.hosts[index],
        spans.rounds[index] * spans.bytes[index],
    )
    flat, levels = float((sent * (n - 1) / n).sum()), float((sent * (hosts - 1) / hosts).sum())
    latency = spans.latency[index]
    rate = float(sent.dot((n - 1) / n) / max(int(latency.sum()), 1)) * 1e9
    lost = (exposed > 0) & (gain > 0)
    saving = float((gain * exposed).sum()) / steps
    return Detection(
        (
            Quantity("collectives per step", len(rows) / steps, "count"),
            Quantity("bus bandwidth", rate, "bytes/s"),
            Quantity("bytes sent per host, flat ring", flat / steps, "bytes"),
            Quantity("bytes sent per host, hierarchical", levels / steps, "bytes"),
            Quantity("time without waiting", float(latency.sum()) / steps, "ns"),
            Quantity("expected time, hierarchical", float(expected.sum()) / steps, "ns"),
            Quantity("hosts", float(hosts.max()), "count"),
        ),
        saving,
        union((start + wait)[lost], (start + dur)[lost]),
        f"{len(rows) / steps:,.0f} collectives per step across {hosts.max()} hosts with "
        f"{(n // hosts).max()} ranks each spend {duration(latency.sum() / steps)} transferring, at "
        f"{rate / 1e9:,.2f} GB/s; a hierarchical algorithm sends {levels / max(flat, 1):.0%} of the bytes "
        f"per host: {duration(expected.sum() / steps)} expected",
        confidence,
    )
