"""One rank's host threads and GPU work from the JSON: who called what, and which call launched which work."""

import gc
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.reference.raw import STEP, WORK, nanoseconds, text_of

_KIND_OF = {
    "cpu_op": "op", "operator": "op",
    "cuda_runtime": "launch", "cuda_driver": "launch", "runtime": "launch", "driver": "launch",
    "user_annotation": "annotation", "python_function": "python", "overhead": "overhead",
}  # fmt: skip

Thread = tuple[str, str]
Lane = tuple[str, str]


class HostEvent(NamedTuple):
    """Something on a host thread; `order` is its position in the file; `is_sized`: shapes are recorded."""

    name: str
    kind: str
    start: int
    end: int
    thread: Thread
    order: int
    arguments: str = ""
    is_sized: bool = False


class GpuWork(NamedTuple):
    """A kernel, copy or memset, and the call that launched it if that is recorded."""

    name: str
    start: int
    end: int
    lane: Lane
    call: HostEvent | None
    order: int
    is_copy: bool


@dataclass
class Recorded:
    """What one rank's trace holds, as far as idle time is concerned.

    Attributes:
        work: by start, then by position in the file.
        host: events of each thread, in the order of the file.
        overhead: what held threads up without being on one, of unknown threads.
    """

    work: list[GpuWork] = field(default_factory=list)
    host: dict[Thread, list[HostEvent]] = field(default_factory=lambda: defaultdict(list))
    overhead: list[HostEvent] = field(default_factory=list)

    def events(self) -> Iterator[HostEvent]:
        for events in self.host.values():
            yield from events


def recorded_of(path: Path) -> Recorded:
    """One rank's trace."""
    gc.disable()  # a hundred thousand small objects, none of which is garbage
    try:
        return recorded(json.loads(text_of(path), parse_float=str))
    finally:
        gc.enable()


def recorded(data: Any) -> Recorded:
    """The trace as read from JSON, with times of fractional digits left as text."""
    events = data["traceEvents"] if isinstance(data, dict) else data
    complete = [event for event in events if event.get("ph") == "X"]
    result = Recorded()
    calls: dict[str, list[HostEvent]] = defaultdict(list)
    for order, event in enumerate(complete):
        kind = _KIND_OF.get(str(event.get("cat", "")).lower())
        if kind is None:
            continue
        host = _host_event(event, kind, order)
        if kind == "overhead":
            result.overhead.append(host)
            continue
        result.host[host.thread].append(host)
        correlation = (event.get("args") or {}).get("correlation")
        if kind == "launch" and correlation is not None:
            calls[str(correlation)].append(host)
    by_arrow = _calls_by_arrow(events, result)
    for order, event in enumerate(complete):
        if str(event.get("cat", "")).lower() in WORK:
            result.work.append(_gpu_work(event, order, calls, by_arrow))
    result.work.sort(key=lambda work: (work.start, work.order))
    return result


def _host_event(event: dict[str, Any], kind: str, order: int) -> HostEvent:
    start = nanoseconds(event["ts"])
    name = str(event["name"])
    if kind == "op" and STEP.fullmatch(name):
        kind = "annotation"  # how torch 1.x wrote the marks of steps
    end = start + nanoseconds(event.get("dur", 0))
    thread = str(event.get("pid")), str(event.get("tid"))
    args = event.get("args") or {}
    dims = args.get("Input Dims") or []
    arguments = str((dims, args.get("Input type")))
    return HostEvent(name, kind, start, end, thread, order, arguments, any(dims))


def _gpu_work(
    event: dict[str, Any], order: int, calls: dict[str, list[HostEvent]], by_arrow: dict[Any, HostEvent]
) -> GpuWork:
    args = event.get("args") or {}
    start = nanoseconds(event["ts"])
    correlation = args.get("correlation")
    if correlation is None or int(correlation) <= 0:
        call = by_arrow.get((str(event.get("pid")), str(event.get("tid")), start))
    else:
        call = _launch_call(calls.get(str(correlation), []), start)
    lane = str(args.get("device", event.get("pid"))), str(args.get("stream", event.get("tid")))
    end = start + nanoseconds(event.get("dur", 0))
    # ROCm copies with kernels, too.
    is_copy = str(event["cat"]).lower() in ("gpu_memcpy", "memcpy") or (
        call is not None and "emcpy" in call.name
    )
    return GpuWork(str(event["name"]), start, end, lane, call, order, is_copy)


def _launch_call(calls: list[HostEvent], start: int) -> HostEvent | None:
    """Of the calls with the number of some work: the last to begin before it, or the call around that."""
    if not calls:
        return None
    earlier = [call for call in calls if call.start <= start]
    call = max(earlier, key=innermost) if earlier else min(calls, key=innermost)
    around = [
        outer
        for outer in calls
        if outer.thread == call.thread and outer.start <= call.start and call.end <= outer.end
    ]
    return min(around, key=innermost)


def _calls_by_arrow(events: list[Any], result: Recorded) -> dict[Any, HostEvent]:
    """The launch call of work that has no number of its own, by thread and time of the arrow to it."""
    places: dict[str, dict[str, tuple[str, str, int]]] = {"s": {}, "f": {}}
    for event in events:
        if event.get("ph") in places and event.get("cat") in ("ac2g", "async_cpu_to_gpu"):
            place = str(event.get("pid")), str(event.get("tid")), nanoseconds(event["ts"])
            places[event["ph"]][str(event.get("id"))] = place
    calls = {(*call.thread, call.start): call for call in result.events() if call.kind == "launch"}
    starts = ((places["s"].get(number), place) for number, place in places["f"].items())
    return {place: calls[start] for start, place in starts if start in calls}


def innermost(event: HostEvent) -> tuple[int, int, int]:
    """Greatest for the innermost of nested events."""
    return event.start, -event.end, event.order
