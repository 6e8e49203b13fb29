"""Serving ranks in different phases, padded to the largest, or with exposed communication."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tracelens.analysis.serving import LEAST_WORK
from tracelens.arrays import Int, lookup, unique
from tracelens.findings.detectors.detector import JOB, Detection, Detections, Quantity, detector, step_count
from tracelens.findings.thresholds import EXPOSED_SHARE, PADDED_SHARE
from tracelens.table import Result, Table
from tracelens.trace import Union, interval_of, union
from tracelens.units import duration

NO_LABELS = "no step labels of a serving engine"


@detector(
    "serving_phases",
    evidence="serving",
    scenario="prefill_delayer",
    title="Ranks prefill while others decode",
    fix="aligning the prefills",
    needs=("collectives", "serving"),
    measures={
        "phase mismatch, share of step time": "common steps with ranks in different phases, by time",
        "steps with ranks in different phases": "by number, / steps",
        "delay of decoding": "time beyond an all-decode step, per step",
        "avoidable delay: prefills at different times": "part that prefills at the same time would save",
        "eager decode, share of decode time": "decode time outside graph replays, where known",
    },
    threshold="one step in which a rank prefills while another decodes",
    limits="Latency of the prompts that wait is not part of the saving. Without an all-decode step, decoding "
    "ranks are compared with the least GPU work of one of them, as a graph would replay it.",
)
def serving_phases(results: Mapping[str, Result]) -> Detections:
    """Expert-parallel ranks are in different phases: decoding ranks wait for a prefill."""
    if isinstance(row := _summary(results), str):
        return row
    steps, aligned = step_count(results), results["serving"].data["alignment"]
    if not len(aligned):
        return "no two ranks' steps overlap in time"
    mismatch = aligned.array("mismatch")
    if not mismatch.any():
        return "all ranks with requests are in the same phase in every step"
    delay, alignable = row["delay_ns"], row["alignable_ns"]
    if delay < 0:
        return "ranks in different phases, but no all-decode step and no matched collective to compare with"
    start, dur = aligned.array("ts_ns")[mismatch], aligned.array("dur_ns")[mismatch]
    # Without an all-decode step what a decode takes is derived, not recorded.
    basis = (
        f"; compared with {duration(row['decode_ns'])}, the least GPU work of a decoding rank, since no "
        "all-decode step is recorded"
        if results["serving"].data["summary"].values("decode_source") == [LEAST_WORK]
        else ""
    )
    return {
        JOB: Detection(
            (
                Quantity("phase mismatch, share of step time", row["phase_mismatch_fraction"], "fraction"),
                Quantity("steps with ranks in different phases", row["mismatch_steps"] / steps, "count"),
                Quantity("delay of decoding", delay / steps, "ns"),
                Quantity("avoidable delay: prefills at different times", alignable / steps, "ns"),
                *_known("eager decode, share of decode time", row["eager_fraction"]),
            ),
            max(alignable, 0) / steps,
            union(start, start + dur),
            f"{row['mismatch_steps']:,.0f} of {row['steps']:,.0f} common steps "
            f"({row['phase_mismatch_fraction']:.0%} of their time) have ranks in different phases; this "
            f"delays decoding ranks by {duration(delay)}, {duration(alignable)} of that for prefills that "
            f"could have run together with another rank's{basis}",
            "low" if basis else "medium",
        )
    }


@detector(
    "serving_padding",
    evidence="serving",
    title="Ranks are padded to the rank with the most tokens",
    fix="balancing tokens over the ranks",
    needs=("collectives", "serving"),
    measures={
        "padding of the slots": "1 - tokens / slots",
        "tokens": "of requests, per step",
        "slots": "ranks x most tokens of a rank, per step",
        "padding of graphs": "1 - requests / captured batch size, where known",
    },
    threshold=f"{PADDED_SHARE:.0%} of the slots are padding",
    limits="Attention is not padded, so the saving is an upper bound.",
)
def serving_padding(results: Mapping[str, Result]) -> Detections:
    """Ranks that gather tokens for the experts pad them to the rank with the most tokens."""
    if isinstance(row := _summary(results), str):
        return row
    steps, aligned = step_count(results), results["serving"].data["alignment"]
    is_known = aligned.array("padding_fraction") >= 0
    if not is_known.any():
        return "no step in which all ranks label their tokens"
    share = row["padding_fraction"]
    if share < PADDED_SHARE:
        return f"{share:.0%} of the token slots are padding"
    tokens, most, ranks, dur, start = (
        aligned.array(name)[is_known] for name in ("tokens_sum", "tokens_max", "ranks", "dur_ns", "ts_ns")
    )
    slots = most * ranks
    # By how much steps get longer with each slot, by least squares, unless all have the same.
    apart = slots - slots.mean()
    if not apart.any():
        wasted = dur * (1 - tokens / np.maximum(slots, 1))
        basis = "all steps have the same number of slots, so step time is assumed proportional to it"
    else:
        slot_ns = max(float((apart * (dur - dur.mean())).sum() / (apart**2).sum()), 0.0)
        wasted = np.minimum(slot_ns * (slots - tokens), dur)
        basis = f"each additional slot takes {duration(slot_ns)}"
    padded = wasted > 0
    return {
        JOB: Detection(
            (
                Quantity("padding of the slots", share, "fraction"),
                Quantity("tokens", float(tokens.sum()) / steps, "count"),
                Quantity("slots", float(slots.sum()) / steps, "count"),
                *_known("padding of graphs", row["graph_padding_fraction"]),
            ),
            float(wasted.sum()) / steps,
            union(start[padded], start[padded] + dur[padded]),
            f"{tokens.sum():,} tokens in {slots.sum():,} slots, {share:.1%} padding; {basis}, including "
            "attention, which is not padded: an upper bound",
            "low",
            fact=f"{share:.0%} of the token slots are padding",
        )
    }


@detector(
    "serving_two_batch",
    evidence="serving",
    scenario="two_batch_overlap",
    title="Exposed communication in serving steps",
    fix="two-batch overlap",
    needs=("collectives", "serving"),
    measures={
        "exposed communication": "of the steps in question, per step",
        "exposed communication, share of step time": "the same / time of these steps",
        "overlap efficiency": "hidden / all communication of the steps run as two batches",
        "token imbalance of the halves": "|a - b| / (a + b) of their tokens",
    },
    threshold=f"{EXPOSED_SHARE:.0%} of the time of these steps is exposed communication",
    limits="Two small batches may be less efficient than a large one.",
)
def serving_two_batch(results: Mapping[str, Result]) -> Detections:
    """Serving steps with two-batch overlap, or prefills without it, keep communication exposed."""
    if isinstance(row := _summary(results), str):
        return row
    table = results["serving"].data["steps"]
    overlapped = table.array("tbo")
    # A decode that is split in two runs two small batches instead of one: only prefills have work to hide by.
    candidate = (
        overlapped if overlapped.any() else table.coded("kind").equals("prefill") & ~table.array("dummy")
    )
    if not candidate.any():
        return "no step with two-batch overlap, and no prefill to split"
    steps, detections = step_count(results), {}
    # What two-batch overlap does already, where steps have it.
    tbo, imbalance, efficiency = row["tbo_steps"] > 0, row["tbo_imbalance"], row["tbo_efficiency"]
    what = "prefill(s) without two-batch overlap"
    if tbo:
        halves = f", halves differ by {imbalance:.0%} of their tokens" if imbalance >= 0 else ""
        what = f"step(s) with two-batch overlap{halves}"
    batches = [
        *([Quantity("overlap efficiency", efficiency, "ratio")] if tbo and efficiency >= 0 else []),
        *([Quantity("token imbalance of the halves", imbalance, "ratio")] if imbalance >= 0 else []),
    ]
    for rank in unique(table.array("rank")[candidate]).tolist():
        of_rank = table.take(candidate & (table.array("rank") == rank))
        start, dur = of_rank.array("ts_ns"), of_rank.array("dur_ns")
        basis = "excluding waiting for other ranks"
        participants = results["collectives"].data["participants"]
        exposed, where = _exposed_without_waiting(participants, rank, start, dur)
        if exposed is None:
            # By the table of two-batch overlap; 0 where it has none.
            basis = "including waiting for other ranks"
            overlap = results["serving"].data["overlap"]
            overlap = overlap.take(overlap.array("rank") == rank)
            exposed_ns = (overlap.array("comm_ns") - overlap.array("hidden_ns")).tolist()
            of_step = dict(zip(overlap.values("index"), exposed_ns, strict=True))
            exposed = np.array([of_step.get(index, 0) for index in of_rank.values("index")], dtype=np.int64)
        exposed_total, total = exposed.sum(), dur.sum()
        # Something must be left to hide it under.
        lost = np.minimum(exposed, dur - exposed).sum()
        if lost < EXPOSED_SHARE * total:
            continue
        share = float(exposed_total) / max(float(total), 1)
        detections[rank] = Detection(
            (
                Quantity("exposed communication", float(exposed_total) / steps, "ns"),
                Quantity("exposed communication, share of step time", share, "fraction"),
                *batches,
            ),
            float(lost) / steps,
            where,
            f"{duration(exposed_total)} of exposed communication in {duration(total)} of {len(of_rank)} "
            f"{what}, {basis}; upper bound: all of it hidden under the rest of these steps",
            "low",
        )
    how = "two-batch overlap" if overlapped.any() else "prefill"
    return (
        detections
        or f"under {EXPOSED_SHARE:.0%} of the {how} time is exposed communication, as far as recorded"
    )


def _summary(results: Mapping[str, Result]) -> dict[str, float] | str:
    """Numbers of the summary's row, or why there is none."""
    table = results["serving"].data["summary"]
    if not len(table):
        return NO_LABELS
    names = [column.name for column in table.schema.columns if column.is_number]
    return {name: float(table.array(name)[0]) for name in names}


def _known(measure: str, share: float) -> tuple[Quantity, ...]:
    return (Quantity(measure, share, "fraction"),) if share >= 0 else ()


def _exposed_without_waiting(
    participants: Table, rank: int, start: Int, dur: Int
) -> tuple[Int | None, Union]:
    """Exposed communication of a rank in each step without waiting, and when; None if none is recorded."""
    kernels = participants.take(participants.array("rank") == rank)
    # A kernel that serves several messages is there with each of them.
    kernels = kernels.take(np.unique(kernels.array("local_ts_ns"), return_index=True)[1])
    begin = kernels.array("ts_ns")
    order = np.argsort(start, kind="stable")
    step = lookup(order, interval_of(start[order], (start + dur)[order], begin), -1)
    kernels, step = kernels.take(step >= 0), step[step >= 0]
    own_start = kernels.array("local_ts_ns")
    if not len(kernels):
        return None, union(own_start, own_start)
    total = np.zeros(len(start), dtype=np.int64)
    np.add.at(total, step, kernels.array("exposed_ns"))
    return np.minimum(total, dur), union(
        own_start + kernels.array("wait_ns"), own_start + kernels.array("dur_ns")
    )
