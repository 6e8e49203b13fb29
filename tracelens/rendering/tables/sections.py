"""Sections of the page: one line about each result, and findings as cards.

A card has what the finding saves, why it is believed, what to do, and what is one click away.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tracelens.arrays import unique
from tracelens.rendering.tables.rows import NAME_WIDTH, readable, skipped
from tracelens.rendering.tables.values import encodable, one_line, shorten
from tracelens.rendering.thresholds import DIVIDING_NAMES, PART_LEAST_SHARE
from tracelens.table import Report, Result, Table
from tracelens.units import duration, scale_of, size_text, three_digit_decimals

OUTSIDE = ("(before the first step)", "(after the last step)")
"""What tables by step call the stretches that are none."""

_WIDTH = 32
_PARTS = 3


_TELLING = {
    "collectives": ("ranks", "wait_ns", "kernel_ns"),
    "input": ("input", "events_kept"),
    "launches": ("launches", "metric", "fraction"),
    "moe": ("stages", "forward_ns", "backward_ns", "recompute_ns", "stage"),
    "overlap": ("overlap", "exposed_ns", "comm_ns"),
    "pipeline": ("bubble", "bubble_fraction", "expected_fraction"),
    "scaling": ("scaling", "tokens_per_s", "dispatch", "ep"),
    "serving": ("summary", "phase_mismatch_fraction", "padding_fraction", "engine", "steps"),
    "steps": ("steps", "rank", "step", "dur_ns"),
    "stragglers": ("stragglers", "rank", "others_wait_ns", "significant"),
    "timeline": ("timeline", "metric", "fraction_of_total"),
}
"""Analyzer whose first table does not begin with the most telling figure: the table that has it, and the
columns that it needs."""

_NEEDED = {"position", "finding", "additional_ns", "fraction_of_step", "saving_ns", "evidence", "remedy"}
_COMMANDS = (
    ("evidence_command", "Evidence", "evidence command"),
    ("replay_command", "Replay", "replay command"),
    ("whatif_command", "What-if", "what-if command"),
)
_POSITION = re.compile(r"Pan to timestamp, (\d+)$")
_WORD = re.compile(r"[a-z0-9]+")
_PLAIN = re.compile(r"[A-Za-z][A-Za-z _-]{3,}")
_NAMES = 30
"""A column with at most so many different names divides a whole: causes, stages, categories."""
_ROWS = {"launch_bound": "launch overhead"}
"""Detector to the row that it is about, where their names share too little."""


class Copied(Struct, frozen=True):
    """A button that copies a text."""

    label: str  # on the button
    what: str  # "evidence command"; for those who cannot see the button's place
    text: str  # that is copied
    shown: str  # on hover


class FindingCard(Struct, frozen=True):
    """One finding."""

    number: int  # its place in the ranking
    name: str  # what happens
    saving: str  # on top of the findings above: "29.6 ms", "up to" before an upper bound; "" for nothing
    share: float  # of the step, 0-1
    alone: str  # what it saves by itself, with its range: "142.8 ms (43.0 to 146.7 ms)"; "" where unknown
    confidence: str  # high, medium, low, or ""
    evidence: str  # the first sentence, and what follows it
    more_evidence: str  # the first sentence, and what follows it
    remedy: str  # likewise
    more_remedy: str  # likewise
    notes: list[tuple[str, str]]  # (label, text) of the details
    copied: list[Copied]  # buttons
    rank: int  # where it loses most, since the first event of that rank's trace; -1 where unknown
    ts_ns: int  # where it loses most, since the first event of that rank's trace; -1 where unknown
    section: str  # anchor of the tables that show it, "" for none
    row: tuple[str, str] | None  # (anchor of the table, text of the row) that it names, if any


def headline(result: Result) -> str:
    """The most telling fact of a result in a few words: what it found, else what it lists or lacks."""
    fact = _special(result)
    if not fact:
        fact = next(filter(None, (_listed(table) for table in readable(result).values() if len(table))), "")
    if not fact and result.skips:
        fact = skipped(result)[0][1]
    return shorten(one_line(fact), 160)


def _listed(table: Table) -> str:
    """What a table lists, with the names that take most of its time."""
    schema = table.schema
    names = next((c for c in schema.columns if c.is_text and not c.prose and not c.folded), None)
    if schema.kind == "entries" and names is not None:
        return f"{_counted(len(table), 'entry')}, first: {shorten(table.texts(names.name)[0], _WIDTH)}"
    if schema.kind == "tree":
        sizes = next((name for name in ("exclusive_ns", "subtree_ns", "sum_ns") if name in table.columns), "")
        if not sizes:
            return ""
        level = table.coded("level").equals("category") if "level" in table.columns else np.zeros(0, bool)
        top = table.take(level if level.any() else table.array("parent") < 0)
        return _shares(_totals(top, "name", sizes)[0])
    amounts = (c for c in schema.columns if c.unit in ("ns", "bytes"))
    # Time stamps are no amounts.
    amount = next((c for c in amounts if c.name != "ts_ns" and not c.name.endswith("_ts_ns")), None)
    if names is None or amount is None:
        return ""
    named, by, _ = one_line(schema.title).partition(" by ")
    noun = named.lower() if by and names.name == "name" else f"{names.name.replace('_', ' ')}s"
    total, count = _totals(table, names.name, amount.name)
    # Only shares of one whole add up; scenarios, schedules and the like stand side by side.
    divides = any(column.unit == "fraction" for column in schema.columns)
    if not divides:
        return f"{count:,} {noun}" if count > DIVIDING_NAMES else ""
    if count > DIVIDING_NAMES:
        shares = np.sort(list(total.values()))[::-1].cumsum() / max(sum(total.values()), 1)
        half = int(np.searchsorted(shares, 0.5)) + 1
        whole = "time" if amount.unit == "ns" else "bytes"
        take = "one takes" if half == 1 else f"{half:,} take"
        return f"{count:,} {noun}, {take} half of the {whole}"
    return _shares(total) if count > 1 else ""


def _special(result: Result) -> str:
    """The fact of analyzers whose first table does not begin with the most telling figure; "" for none."""
    parts: list[str] = []
    match result.analyzer:  # what meta tells, without a table as well
        case "diff":
            ends = [result.meta.get(key) for key in ("base_ns", "cand_ns")]
            if all(isinstance(end, int | float) and end > 0 for end in ends):
                base, cand = (float(str(end)) for end in ends)
                return f"{duration(base)} to {duration(cand)}, {cand / base - 1:+.1%}"
        case "not_in_these_traces":
            return ", ".join(skip.subject for skip in result.skips)
        case "memory":
            if worst_bytes := result.meta.get("worst_bytes"):
                return f"{size_text(worst_bytes)} on the fullest GPU"
        case "roofline":
            table = _part(result, "utilisation", "step", "mfu", "flops", "dur_ns")
            if table is not None:
                inside = np.array([step not in OUTSIDE for step in table.texts("step")], dtype=bool)
                known = table.take(inside & (table.array("mfu") >= 0) & (table.array("flops") > 0))
                dur = known.array("dur_ns")
                if dur.sum() > 0:
                    parts.append(f"MFU {(known.array('mfu') * dur).sum() / dur.sum():.1%}")
            counted = result.meta.get("coverage")
            if isinstance(counted, float):
                parts.append(f"{counted:.0%} of the GPU time counted")
    table = _part(result, *_TELLING.get(result.analyzer, ("",)))
    if table is None:
        return ", ".join(parts)
    numbers = {column.name: table.array(column.name) for column in table.schema.columns if not column.is_text}
    match result.analyzer:
        case "collectives" | "overlap":
            part, whole = (numbers[name] for name in _TELLING[result.analyzer][1:])
            if whole.sum() > 0 and (part >= 0).any():
                share = f"{int(np.maximum(part, 0).sum()) / int(whole.sum()):.0%}"
                if result.analyzer == "overlap":
                    return f"{share} of communication is exposed"
                return f"{share} of the communication kernels' time is waiting"
        case "input":
            lost = int(numbers["events_dropped"].sum()) if "events_dropped" in numbers else 0
            parts = [_counted(len(table), "trace"), _counted(int(numbers["events_kept"].sum()), "event")]
            parts += [f"{lost:,} dropped"] if lost else []
        case "launches":
            shares = numbers["fraction"][table.coded("metric").equals("launch bound")]
            parts = [f"the GPU waits for launches {_range(shares)} of the time"] if len(shares) else []
        case "moe":
            total: dict[str, float] = {}
            for phase in _TELLING["moe"][1:4]:
                for name, ns in _totals(table, "stage", phase)[0].items():
                    total[name] = total.get(name, 0) + ns
            return _shares(total)
        case "pipeline":
            parts = [f"bubble {_range(numbers['bubble_fraction'])}"]
            if (numbers["expected_fraction"] >= 0).all():
                parts.append(f"{_range(numbers['expected_fraction'])} expected of the schedule")
        case "scaling":
            best = int(numbers["tokens_per_s"].argmax())
            run = f"{table.texts('dispatch')[best]} with EP {numbers['ep'][best]}"
            return f"{run}: {numbers['tokens_per_s'][best]:,.0f} tokens/s per GPU"
        case "serving":
            steps = int(numbers["steps"][0])
            if steps < 0 and (kinds := _part(result, "ranks", "count")) is not None:
                steps = int(kinds.array("count").sum())  # of the only rank that labels its steps
            parts = [f"{table.texts('engine')[0]}: {_counted(steps, 'step')}"]
            for name in _TELLING["serving"][1:3]:
                if (numbers[name] >= 0).all():
                    parts.append(
                        f"{name.removesuffix('_fraction').replace('_', ' ')} {_range(numbers[name])}"
                    )
        case "steps":
            shortest, longest = (duration(float(end(numbers["dur_ns"]))) for end in (np.min, np.max))
            ranks = len(unique(numbers["rank"]))
            parts = [
                _counted(len(set(table.texts("step"))), "step") + (f" on {ranks} ranks" if ranks > 1 else "")
            ]
            parts.append(shortest if longest == shortest else f"{shortest} to {longest}")
        case "stragglers":
            significant = np.flatnonzero(numbers["significant"])
            if not len(significant):
                return "no significant straggler"
            worst = significant[np.argmax(numbers["others_wait_ns"][significant])]
            waited = duration(float(numbers["others_wait_ns"][worst]))
            return f"the others wait {waited} for rank {numbers['rank'][worst]}"
        case "timeline":
            for metric in ("computation", "exposed_comm", "idle"):
                shares = numbers["fraction_of_total"][table.coded("metric").equals(metric)]
                if len(shares) and shares.max() >= PART_LEAST_SHARE:
                    label = "exposed communication" if metric == "exposed_comm" else metric
                    parts.append(f"{label} {_range(shares)}")
    return ", ".join(parts)


def _totals(table: Table, names: str, amount: str) -> tuple[dict[str, float], int]:
    """The amounts of each name over all rows, absent ones left out, and the number of names."""
    coded = table.coded(names)
    amounts = np.maximum(table.array(amount).astype(np.float64), 0)
    sums = np.bincount(coded.codes, weights=amounts, minlength=len(coded.values))
    used = np.flatnonzero(np.bincount(coded.codes, minlength=len(coded.values)))
    return {str(coded.values[code]): float(sums[code]) for code in used.tolist()}, len(used)


def _shares(total: Mapping[str, float]) -> str:
    """The largest parts of a whole: 'experts 45%, router 20%'."""
    whole = sum(total.values())
    largest = sorted(total.items(), key=lambda item: -item[1])[:_PARTS]
    return ", ".join(
        f"{shorten(one_line(name).replace('_', ' ').strip('()'), _WIDTH) or 'unnamed'} {value / whole:.0%}"
        for name, value in largest
        if whole > 0 and value / whole >= PART_LEAST_SHARE
    )


def _counted(count: int, noun: str) -> str:
    plural = noun[:-1] + "ies" if noun.endswith("y") else noun + "s"
    return f"{count:,} {noun if count == 1 else plural}"


def _part(result: Result, name: str, *columns: str) -> Table | None:
    table = result.data.get(name)
    return table if table is not None and len(table) and set(columns) <= set(table.columns) else None


def _range(values: NDArray[np.number] | Sequence[float]) -> str:
    """Shares over ranks or steps: '20%' or '20% to 40%'."""
    low, high = f"{np.min(values):.0%}", f"{np.max(values):.0%}"
    return low if low == high else f"{low} to {high}"


def finding_cards(report: Report) -> list[FindingCard]:
    """The cards of a report's ranked findings, in order; empty where it has none."""
    table = _of_findings(report, "findings")
    if table is None or not set(table.columns) >= _NEEDED:
        return []
    sections = {result.analyzer: result for result in report.results}
    return [_card(table, row, sections) for row in range(len(table))]


def fact_lines(report: Report) -> list[str]:
    """What a report says to be wrong whatever it costs, as sentences."""
    table = _of_findings(report, "facts")
    if table is None or "fact" not in table.columns:
        return []
    texts = (one_line(str(text)).strip() for text in table.values("fact"))
    return [f"{text[:1].upper()}{text[1:]}." for text in texts if text]


def _of_findings(report: Report, name: str) -> Table | None:
    """A table of the findings; None where the report has none."""
    result = next((result for result in report.results if result.analyzer == "findings"), None)
    return result.data.get(name) if result else None


def _card(table: Table, row: int, sections: dict[str, Result]) -> FindingCard:
    def text(name: str) -> str:
        return one_line(str(table.values(name)[row])).strip() if name in table.columns else ""

    def number(name: str) -> float:
        return float(table.array(name)[row]) if name in table.columns else -1.0

    saving_ns, additional_ns = number("saving_ns"), number("additional_ns")
    low_ns, high_ns = number("low_ns"), number("high_ns")
    bound = "up to " if text("basis") == "upper bound" else ""
    # One unit for all times of a card, or "37 ms of 0.09 s" would have to be compared in the head.
    scale = scale_of("ns", max(saving_ns, additional_ns, high_ns) * 10)

    def time(ns: float) -> str:
        value = ns / scale.size
        if value < 0.005:
            return "0"
        return f"{value:,.{three_digit_decimals(value)}f}"

    alone = f"{bound}{time(saving_ns)} {scale.name}"
    if 0 <= low_ns < high_ns and not bound:
        alone += f" ({time(low_ns)} to {time(high_ns)} {scale.name})"
    evidence, more_evidence = _first_sentence(text("evidence"))
    remedy, more_remedy = _first_sentence(text("remedy"))
    location = text("location")
    position = _POSITION.search(location)
    copied = [
        Copied(label, what, encodable(text(column)), encodable(text(column)))
        for column, label, what in _COMMANDS
        if text(column)
    ]
    if location:
        copied.append(
            Copied("Perfetto", "Perfetto position", position[1] if position else location, location)
        )
    section = text("evidence_command").split(" ")[2:3]
    shown = sections.get(section[0]) if section else None
    return FindingCard(
        number=int(number("position")),
        name=shorten(text("finding"), NAME_WIDTH) or "-",
        saving=f"{bound}{time(additional_ns)} {scale.name}" if time(additional_ns) != "0" else "",
        share=min(max(number("fraction_of_step"), 0.0), 1.0),
        alone=alone,
        confidence=text("confidence"),
        evidence=evidence,
        more_evidence=more_evidence,
        remedy=remedy,
        more_remedy=more_remedy,
        notes=[
            (label, text(column))
            for label, column in (("Upper bound because", "upper_bound"), ("Scenario", "scenario"))
            if text(column)
        ],
        copied=copied,
        rank=int(number("worst_rank")),
        ts_ns=int(table.array("ts_ns")[row]) if "ts_ns" in table.columns else -1,
        section=shown.analyzer if shown else "",
        row=_row(shown, *map(text, ("detector", "finding", "evidence"))) if shown else None,
    )


def _first_sentence(text: str) -> tuple[str, str]:
    """The text up to the first semicolon or full stop outside of brackets, and the rest."""
    depth = 0
    for index, char in enumerate(text):
        depth += (char in "([") - (char in ")]")
        if depth <= 0 and char in ";." and text[index + 1 : index + 2] == " ":
            return text[:index] + "." * (char == "."), text[index + 2 :]
    return text, ""


def _row(result: Result, detector: str, finding: str, evidence: str) -> tuple[str, str] | None:
    """The table and the row that a finding is about, by the names that divide the result's tables.

    A name all of whose words are the finding's own comes first; else that which its evidence mentions first.
    """
    own = set(_words(f"{detector} {finding}"))
    said = " ".join(["", *_words(evidence), ""])
    best: tuple[float, str, str] | None = None
    for name, table in readable(result).items():
        for column in table.schema.columns:
            if not column.is_text or column.prose or column.folded:
                continue
            names = table.distinct_texts(column.name)
            for text in names if len(names) <= _NAMES else ():
                words = _words(text)
                if not words or not _PLAIN.fullmatch(text):
                    continue
                if text == _ROWS.get(detector):
                    rank = -2.0
                elif own >= set(words):
                    rank = -1.0
                else:
                    rank = float(said.find(f" {' '.join(words)} "))
                    if rank < 0:
                        continue
                if best is None or rank < best[0]:
                    best = rank, f"{result.analyzer}-{name}", one_line(text)
    return best[1:] if best else None


def _words(text: str) -> list[str]:
    words = _WORD.findall(text.lower())
    return [word[:-1] if word.endswith("s") and len(word) > 3 else word for word in words]
