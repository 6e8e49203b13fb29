"""Single edits of a real trace, and what a comparison has to say about each of them."""

from __future__ import annotations

import copy
import gzip
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Event = dict[str, Any]

SAMPLES = Path(__file__).parents[3] / "sample_traces"
NEW = "custom::new"
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_FIRST_FREE = 10**9


@dataclass(frozen=True)
class Edit:
    """What was done: the kind of change that a comparison names it, and the ops of both sides."""

    kind: str
    base: str
    cand: str
    events: list[Event]


class Program:
    """The events of a trace, with what lies in what.

    Args:
        name: of a sample trace.
    """

    def __init__(self, name: str) -> None:
        with gzip.open(SAMPLES / name / "rank0.json.gz", "rt", encoding="utf-8") as stream:
            whole = json.load(stream)
        self.events: list[Event] = whole.pop("traceEvents")
        self.header = {
            key: value for key, value in whole.items() if key not in ("schemaVersion", "distributedInfo")
        }
        steps = [event for event in self.events if str(event["name"]).startswith("ProfilerStep")]
        steps = [event for event in steps if event.get("cat") == "user_annotation"]
        begin = min(event["ts"] for event in steps)
        end = max(event["ts"] + event["dur"] for event in steps)
        self.ops = [
            event for event in self.events if event.get("cat") == "cpu_op" and begin < event["ts"] < end - 1
        ]
        self.scopes = [event for event in self.events if event.get("cat") == "user_annotation"]
        self._gpu = sorted(
            (event for event in self.events if event.get("cat") in _GPU), key=lambda event: event["ts"]
        )

    def inside(self, op: Event) -> list[Event]:
        """All host events of an op's extent on its thread, with itself."""
        begin, end = op["ts"], op["ts"] + op["dur"]
        return [
            event
            for event in self.events
            if event.get("ph") == "X"
            and event.get("tid") == op["tid"]
            and event.get("pid") == op["pid"]
            and begin <= event["ts"]
            and event["ts"] + event.get("dur", 0) <= end
            and (event.get("cat") in ("cpu_op", *_LAUNCHES) or event is op)
            and (event is op or event["dur"] < op["dur"] or event.get("cat") in _LAUNCHES)
        ]

    def launched(self, host: Sequence[Event]) -> list[Event]:
        """The GPU work that these launched."""
        ids = {event["args"].get("correlation") for event in host if event.get("cat") in _LAUNCHES} - {None}
        return [event for event in self._gpu if event["args"].get("correlation") in ids]

    def around(self, op: Event) -> bool:
        """Whether another op has the same extent: which is outside is a matter of order then."""
        same = [
            other
            for other in self.ops
            if other is not op and other["tid"] == op["tid"] and other["ts"] <= op["ts"]
            and other["ts"] + other["dur"] >= op["ts"] + op["dur"] and other["dur"] == op["dur"]
        ]  # fmt: skip
        return bool(same)

    def borders(self, op: Event) -> bool:
        """Whether a scope begins or ends in the op, as those of a backward pass do: no edit cuts one."""
        begin, end = op["ts"], op["ts"] + op["dur"]
        return any(
            begin < at < end
            for scope in self.scopes
            if scope["tid"] == op["tid"]
            for at in (scope["ts"], scope["ts"] + scope["dur"])
        )

    def free_after(self, work: Event) -> float:
        """Time without GPU work behind the end of this one, us."""
        end = work["ts"] + work["dur"]
        later = [event["ts"] for event in self._gpu if event["ts"] + event["dur"] > end and event is not work]
        return min((start - end for start in later), default=0.0)


def removed(program: Program, op: Event) -> Edit | None:
    """The op is gone with all that it calls and launches."""
    host = program.inside(op)
    gone = {id(event) for event in (*host, *program.launched(host))}
    ids = {event["args"].get("correlation") for event in host if event.get("cat") in _LAUNCHES}
    kept = [
        event
        for event in program.events
        if id(event) not in gone and not (event.get("ph") in "sf" and event.get("id") in ids)
    ]
    return Edit("removed", op["name"], "", kept)


def added(program: Program, op: Event) -> Edit | None:
    """A new op stands in front of the first thing that the op calls, or in it where it calls nothing."""
    new = {**op, "name": NEW, "ts": op["ts"] + op["dur"] * 0.001, "dur": 0, "args": {}}
    first = min((event["ts"] for event in program.inside(op) if event is not op), default=new["ts"] + 1)
    if op["dur"] < 1 or first <= new["ts"]:
        return None
    return Edit("added", "", NEW, [*program.events, new])


def renamed(program: Program, op: Event) -> Edit | None:
    """The op has another name."""
    return Edit(
        "renamed",
        op["name"],
        NEW,
        [{**event, "name": NEW} if event is op else event for event in program.events],
    )


def slowed(program: Program, op: Event) -> Edit | None:
    """The op's own GPU work takes 10% longer, where there is room for it."""
    host = program.inside(op)
    if any(event.get("cat") == "cpu_op" and event is not op for event in host):
        return None
    work = program.launched(host)
    if (
        not work
        or any(program.free_after(event) < 0.1 * event["dur"] for event in work)
        or sum(e["dur"] for e in work) < 2
    ):
        return None
    slow = {id(event) for event in work}
    events = [
        {**event, "dur": round(event["dur"] * 1.1, 3)} if id(event) in slow else event
        for event in program.events
    ]
    return Edit("slower", op["name"], op["name"], events)


def wrapped(program: Program, op: Event) -> Edit | None:
    """Another op has been put around it."""
    wrapper = {**op, "name": NEW, "args": {}}
    at = next(place for place, event in enumerate(program.events) if event is op)
    return Edit("wrapper added", "", NEW, [*program.events[:at], wrapper, *program.events[at:]])


def duplicated(program: Program, op: Event) -> Edit | None:
    """The op runs twice, each time in half of its time on the host; the GPU runs the second where idle."""
    host = program.inside(op)
    work = program.launched(host)
    if op["dur"] < 2 or any(event.get("cat") not in ("cpu_op", *_LAUNCHES) for event in host):
        return None
    if any(program.free_after(event) < 0.02 for event in work) or len(work) > 1:
        return None
    inner = {id(event) for event in host}
    begin, half = op["ts"], op["dur"] / 2
    events, fresh = [], {}
    for event in program.events:
        if id(event) not in inner:
            events.append(event)
            continue
        short = {**event, "ts": begin + (event["ts"] - begin) / 2, "dur": event["dur"] / 2}
        again = copy.deepcopy(short)
        again["ts"] += half
        number = again["args"].get("correlation")
        if number is not None and event.get("cat") in _LAUNCHES:
            again["args"]["correlation"] = fresh.setdefault(number, _FIRST_FREE + len(fresh))
        for key in ("External id", "Ev Idx"):
            if key in again["args"]:
                again["args"][key] += _FIRST_FREE
        events += [short, again]
    for event in work:
        again = copy.deepcopy(event)
        again["args"]["correlation"] = fresh[event["args"]["correlation"]]
        again["ts"], again["dur"] = event["ts"] + event["dur"] + 0.01, 0.01
        events.append(again)
    flows = [
        {**event, "id": fresh[event["id"]]}
        for event in program.events
        if event.get("ph") in "sf" and event.get("id") in fresh
    ]
    return Edit("duplicated", "", op["name"], [*events, *_moved(flows, program, fresh, half)])


def _moved(flows: list[Event], program: Program, fresh: dict[int, int], half: float) -> list[Event]:
    """Arrows of the copies: they start and end where the copies do."""
    old = {new: number for number, new in fresh.items()}
    work = {event["args"].get("correlation"): event for event in program._gpu}
    found = []
    for flow in flows:
        event = dict(flow)
        if event["ph"] == "f" and old[event["id"]] in work:
            target = work[old[event["id"]]]
            event["ts"] = target["ts"] + target["dur"] + 0.01
        found.append(event)
    return found


EDITS: tuple[Callable[[Program, Event], Edit | None], ...] = (
    removed,
    added,
    renamed,
    slowed,
    wrapped,
    duplicated,
)


def random_edit(program: Program, seed: int) -> Edit:
    """An edit of a random op that allows it."""
    draw = random.Random(seed)
    make = EDITS[seed % len(EDITS)]
    while True:
        op = draw.choice(program.ops)
        if not program.around(op) and not program.borders(op) and (edit := make(program, op)) is not None:
            return edit
