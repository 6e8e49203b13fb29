"""Seeded mutations of decoded traces: each changes values, keys or events and leaves valid JSON.

A mutant is a source and a list of mutations, each with a seed of its own. Leaving out one of them leaves the
others what they are, which is what minimising needs.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.fuzz.sources import Document, Event, documents
from tests.fuzz.values import (
    CATEGORIES,
    COLLECTIVES,
    EXTREME,
    GROUPS,
    MESSAGE_TYPES,
    NAMES,
    SIZES,
    SPLITS,
    TEXTS,
    TYPES,
    broken_list,
    like,
    number,
    odd,
)

Mutation = Callable[[random.Random, list[Document]], None]
MUTATIONS: dict[str, tuple[int, Mutation]] = {}


@dataclass(frozen=True)
class Mutant:
    """One trace of a job that never ran.

    Attributes:
        source: name in SOURCES.
        steps: (name in MUTATIONS, seed) in the order in which they are applied.
    """

    source: str
    steps: tuple[tuple[str, int], ...]

    def documents(self) -> list[Document]:
        """The traces of all ranks."""
        found = documents(self.source)
        for name, seed in self.steps:
            MUTATIONS[name][1](random.Random(seed), found)
        return found


def mutant(seed: int, number: int, sources: Sequence[str]) -> Mutant:
    """The mutant of this number; the same arguments make the same one on every machine."""
    rng = random.Random(seed * 1_000_003 + number)
    names = list(MUTATIONS)
    weights = [MUTATIONS[name][0] for name in names]
    count = rng.choice((1, 1, 1, 2, 2, 3, 4, 6))
    chosen = rng.choices(names, weights, k=count)
    return Mutant(sources[number % len(sources)], tuple((name, rng.getrandbits(48)) for name in chosen))


def dumps(document: Document) -> bytes:
    """The file of a rank."""
    return json.dumps(document).encode()


def mutation(weight: int) -> Callable[[Mutation], Mutation]:
    def keep(function: Mutation) -> Mutation:
        MUTATIONS[function.__name__] = (weight, function)
        return function

    return keep


# -- which events --------------------------------------------------------------------------------------


def _ranks(rng: random.Random, traces: list[Document]) -> list[Document]:
    """One rank or all of them."""
    return traces if rng.random() < 0.5 else [rng.choice(traces)]


def _events(document: Document) -> list[Event]:
    events: list[Event] = document["traceEvents"]
    return events


def _pool(document: Document) -> list[Event]:
    return [event for event in _events(document) if isinstance(event, dict)]


def _chosen(
    rng: random.Random, traces: list[Document], wanted: Callable[[Event], bool] = bool
) -> list[Event]:
    """Events of one or all ranks: one, a few, those of one name or category, or all."""
    how = rng.randrange(6)
    key = rng.choice(("name", "cat"))
    share = rng.choice((0.02, 0.2, 0.7))
    value: Any = None
    found: list[Event] = []
    for document in _ranks(rng, traces):
        pool = [event for event in _pool(document) if event.get("ph") != "M" and wanted(event)]
        if not pool:
            continue
        if how <= 1:
            found.append(rng.choice(pool))
        elif how == 2:
            found += [event for event in pool if rng.random() < share]
        elif how <= 4:
            value = value if value is not None else rng.choice(pool).get(key)
            found += [event for event in pool if event.get(key) == value]
        else:
            found += pool
    return found


def _args(event: Event) -> dict[str, Any]:
    args = event.get("args")
    return args if isinstance(args, dict) else {}


def _has(*keys: str) -> Callable[[Event], bool]:
    return lambda event: any(key in _args(event) for key in keys)


def _is_slice(event: Event) -> bool:
    return event.get("ph") == "X"


def _fields(event: Event) -> Iterator[tuple[dict[str, Any], str]]:
    for key in event:
        yield event, key
    for key in _args(event):
        yield _args(event), key


def _set(events: list[Event], key: str, values: Callable[[Any], Any], *, in_args: bool = True) -> None:
    for event in events:
        place = _args(event) if in_args else event
        if key in place:
            place[key] = values(place[key])


# -- any field -----------------------------------------------------------------------------------------


@mutation(8)
def change_field(rng: random.Random, traces: list[Document]) -> None:
    events = _chosen(rng, traces)
    if not events:
        return
    keys = sorted({key for event in events for _, key in _fields(event)} - {"traceEvents"})
    key = rng.choice(keys)
    same = like(rng, next(place[name] for event in events for place, name in _fields(event) if name == key))
    alike = rng.random() < 0.5
    for event in events:
        for place, name in list(_fields(event)):
            if name == key:
                place[name] = same if alike else like(rng, place[name])


@mutation(3)
def drop_key(rng: random.Random, traces: list[Document]) -> None:
    events = _chosen(rng, traces)
    keys = sorted({key for event in events for _, key in _fields(event)})
    if keys:
        key = rng.choice(keys)
        for event in events:
            event.pop(key, None)
            _args(event).pop(key, None)


@mutation(3)
def swap_keys(rng: random.Random, traces: list[Document]) -> None:
    events = _chosen(rng, traces)
    keys = sorted({key for event in events for _, key in _fields(event)})
    if len(keys) > 1:
        one, two = rng.sample(keys, 2)
        for event in events:
            fields = {name: place for place, name in _fields(event)}
            if one in fields and two in fields:
                fields[one][one], fields[two][two] = fields[two][two], fields[one][one]


@mutation(2)
def repeat_key_in_other_case(rng: random.Random, traces: list[Document]) -> None:
    for event in _chosen(rng, traces):
        place, key = rng.choice(list(_fields(event)))
        other = rng.choice((key.lower(), key.upper(), key.title(), f" {key}"))
        if other != key:
            place[other] = odd(rng)


@mutation(2)
def replace_args(rng: random.Random, traces: list[Document]) -> None:
    events = _chosen(rng, traces)
    value = rng.choice((None, [], "", 7, {}, [{}], {"args": {}}))
    for event in events:
        event["args"] = copy.deepcopy(value)


@mutation(3)
def args_of_another(rng: random.Random, traces: list[Document]) -> None:
    events = _chosen(rng, traces)
    pool = [event for document in traces for event in _pool(document) if _args(event)]
    if pool:
        for event in events[:200]:
            event["args"] = copy.deepcopy(rng.choice(pool)["args"])


@mutation(2)
def events_that_are_none(rng: random.Random, traces: list[Document]) -> None:
    for document in _ranks(rng, traces):
        for _ in range(rng.choice((1, 5))):
            _events(document).insert(rng.randrange(len(_events(document)) + 1), odd(rng))


# -- times ---------------------------------------------------------------------------------------------


@mutation(6)
def change_times(rng: random.Random, traces: list[Document]) -> None:
    events = _chosen(rng, traces, _is_slice)
    key = rng.choice(("ts", "dur"))
    value, alike = rng.choice(EXTREME), rng.random() < 0.5
    _set(events, key, lambda now: value if alike else number(rng, now), in_args=False)


@mutation(2)
def no_durations(rng: random.Random, traces: list[Document]) -> None:
    kind = rng.choice((None, None, "kernel", "cpu_op", "user_annotation", "cuda_runtime"))
    for document in _ranks(rng, traces):
        _set([e for e in _pool(document) if kind in (None, e.get("cat"))], "dur", lambda _: 0, in_args=False)


@mutation(2)
def one_moment(rng: random.Random, traces: list[Document]) -> None:
    value = rng.choice((0, 1.5, 4436870200019.181, 1.7e15, -5))
    for document in _ranks(rng, traces):
        _set(_pool(document), "ts", lambda _: value, in_args=False)


@mutation(3)
def other_units(rng: random.Random, traces: list[Document]) -> None:
    factor = rng.choice((1000, 1e-3, 1e6, 1e9, -1))
    keys = rng.choice((("ts", "dur"), ("ts",), ("dur",)))
    kind = rng.choice((None, "kernel", "cpu_op", "user_annotation"))
    for document in _ranks(rng, traces):
        events = [event for event in _pool(document) if kind in (None, event.get("cat"))]
        for key in keys:
            _set(
                events, key, lambda now: now * factor if isinstance(now, int | float) else now, in_args=False
            )


@mutation(3)
def shift_times(rng: random.Random, traces: list[Document]) -> None:
    shift = rng.choice((1e3, -1e3, 1e6, -1e6, 1e9, 1e13, -1e14, 9e15))
    events = _chosen(rng, traces)
    _set(events, "ts", lambda now: now + shift if isinstance(now, int | float) else now, in_args=False)


@mutation(3)
def shuffle_times(rng: random.Random, traces: list[Document]) -> None:
    events = [event for event in _chosen(rng, traces, _is_slice) if "ts" in event]
    times = [event["ts"] for event in events]
    rng.shuffle(times)
    for event, ts in zip(events, times, strict=True):
        event["ts"] = ts


# -- which events there are ----------------------------------------------------------------------------


@mutation(4)
def repeat_events(rng: random.Random, traces: list[Document]) -> None:
    events = _chosen(rng, traces)[:300]
    times = rng.choice((1, 1, 2, 4))
    for document in _ranks(rng, traces):
        _events(document).extend(copy.deepcopy(event) for event in events for _ in range(times))


@mutation(4)
def delete_events(rng: random.Random, traces: list[Document]) -> None:
    gone = {id(event) for event in _chosen(rng, traces)}
    for document in traces:
        document["traceEvents"] = [event for event in _events(document) if id(event) not in gone]


@mutation(2)
def reorder_events(rng: random.Random, traces: list[Document]) -> None:
    for document in _ranks(rng, traces):
        rng.choice((rng.shuffle, list.reverse))(_events(document))


@mutation(3)
def delete_kind(rng: random.Random, traces: list[Document]) -> None:
    name = rng.choice(
        (
            "cuda_runtime",
            "kernel",
            "cpu_op",
            "user_annotation",
            "ac2g",
            "fwdbwd",
            "ProfilerStep",
            "record_param_comms",
        )
    )
    for document in _ranks(rng, traces):
        document["traceEvents"] = [
            event
            for event in _events(document)
            if not isinstance(event, dict)
            or (event.get("cat") != name and not str(event.get("name")).startswith(name))
        ]


@mutation(2)
def events_of_another_rank(rng: random.Random, traces: list[Document]) -> None:
    if len(traces) > 1:
        one, two = rng.sample(traces, 2)
        one["traceEvents"] = copy.deepcopy(_events(two))


@mutation(3)
def change_phase(rng: random.Random, traces: list[Document]) -> None:
    value = rng.choice(("X", "B", "E", "b", "e", "n", "i", "I", "C", "s", "t", "f", "M", "P", "", None, 7))
    _set(_chosen(rng, traces), "ph", lambda _: value, in_args=False)


@mutation(4)
def change_category(rng: random.Random, traces: list[Document]) -> None:
    value = rng.choice(CATEGORIES)
    _set(_chosen(rng, traces), "cat", lambda _: value, in_args=False)


# -- ids -----------------------------------------------------------------------------------------------

_IDS = (
    "correlation",
    "External id",
    "Ev Idx",
    "Python id",
    "Python parent id",
    "Sequence number",
    "Fwd thread id",
)


@mutation(4)
def link_across(rng: random.Random, traces: list[Document]) -> None:
    key = rng.choice(_IDS)
    events = _chosen(rng, traces, _has(key))
    if events:
        ids = [_args(event)[key] for event in events]
        alike, value = rng.random() < 0.4, rng.choice((rng.choice(ids), 0, -1, 2**63 - 1))
        rng.shuffle(ids)
        for event, other in zip(events, ids, strict=True):
            _args(event)[key] = value if alike else other


@mutation(3)
def link_flows_across(rng: random.Random, traces: list[Document]) -> None:
    events = _chosen(rng, traces, lambda event: "id" in event)
    ids = [event["id"] for event in events]
    rng.shuffle(ids)
    value, alike = rng.choice((*ids[:1], 0, "a", 2**64)), rng.random() < 0.4
    for event, other in zip(events, ids, strict=True):
        event["id"] = value if alike else other


@mutation(3)
def change_thread(rng: random.Random, traces: list[Document]) -> None:
    events = _chosen(rng, traces)
    key = rng.choice(("pid", "tid"))
    value, alike = rng.choice((*EXTREME, "", "stream 7", None)), rng.random() < 0.6
    _set(events, key, lambda now: value if alike else number(rng, now), in_args=False)


@mutation(3)
def change_stream(rng: random.Random, traces: list[Document]) -> None:
    key = rng.choice(("stream", "device", "bytes", "grid", "block", "context"))
    events = _chosen(rng, traces, _has(key))
    value, alike = rng.choice((*EXTREME, "0x7", "", None, [2**62, 2**62, 4])), rng.random() < 0.5
    _set(events, key, lambda now: value if alike else like(rng, now))


@mutation(2)
def python_frames(rng: random.Random, traces: list[Document]) -> None:
    for event in _chosen(rng, traces, _is_slice)[:100]:
        event["cat"] = "python_function"
        event["args"] = {
            "Python id": rng.randrange(20),
            "Python parent id": rng.choice((None, rng.randrange(20))),
        }


# -- names ---------------------------------------------------------------------------------------------


@mutation(5)
def rename(rng: random.Random, traces: list[Document]) -> None:
    events = _chosen(rng, traces)
    value, alike = rng.choice((*NAMES, *NAMES, *TEXTS)), rng.random() < 0.7
    _set(events, "name", lambda _: value if alike else rng.choice(NAMES), in_args=False)


@mutation(3)
def swap_names(rng: random.Random, traces: list[Document]) -> None:
    events = _chosen(rng, traces, _is_slice)
    pool = [event.get("name") for document in traces for event in _pool(document) if _is_slice(event)]
    if pool:
        value, alike = rng.choice(pool), rng.random() < 0.5
        _set(events, "name", lambda _: value if alike else rng.choice(pool), in_args=False)


@mutation(4)
def relabel_steps(rng: random.Random, traces: list[Document]) -> None:
    value = rng.choice(
        ("ProfilerStep#77", "ProfilerStep#", "ProfilerStep#1", "step", "", "ProfilerStep#9" * 99, None)
    )
    for document in _ranks(rng, traces):
        steps = [event for event in _pool(document) if str(event.get("name")).startswith("ProfilerStep")]
        for event in steps if rng.random() < 0.5 else steps[:1]:
            event["name"] = value if value is not None else f"ProfilerStep#{rng.randrange(200)}"


@mutation(3)
def rename_scopes(rng: random.Random, traces: list[Document]) -> None:
    def scope(event: Event) -> bool:
        return event.get("cat") == "user_annotation"

    events = _chosen(rng, traces, scope)
    pool = [str(event.get("name")) for document in traces for event in _pool(document) if scope(event)] or [
        "x"
    ]
    value = rng.choice((*pool[:50], *NAMES))
    how = rng.randrange(3)
    _set(
        events,
        "name",
        lambda now: (
            value if how == 0 else rng.choice(pool) if how == 1 else f"{str(now)[:5]}{rng.choice(TEXTS)[:40]}"
        ),
        in_args=False,
    )


# -- arguments of ops ----------------------------------------------------------------------------------


@mutation(8)
def break_arguments(rng: random.Random, traces: list[Document]) -> None:
    key = rng.choice(("Input Dims", "Input Dims", "Input type", "Input Strides", "Concrete Inputs"))
    events = _chosen(rng, traces, _has(key))
    values: dict[str, Callable[[Any], Any]] = {
        "Input Dims": lambda now: _broken_dims(rng, now),
        "Input Strides": lambda now: _broken_dims(rng, now),
        "Input type": lambda now: [rng.choice(TYPES) for _ in now] if isinstance(now, list) else now,
        "Concrete Inputs": lambda now: (
            [
                rng.choice(("", "1", "-1", "True", "None", "[1, 2]", "[]", "1e308", "x", str(2**64), 3, None))
                for _ in now
            ]
            if isinstance(now, list)
            else now
        ),
    }
    if rng.random() < 0.6:
        _set(events, key, values[key])
    else:
        _set(events, key, lambda now: like(rng, now))


def _broken_dims(rng: random.Random, now: Any) -> Any:
    if not isinstance(now, list) or not now:
        return [[rng.choice(SIZES)] for _ in range(3)]
    how = rng.randrange(4)
    if how == 0:
        return [[rng.choice(SIZES) for _ in item] if isinstance(item, list) else item for item in now]
    if how == 1:
        return rng.choice(
            ([5, []], [[5], [[]]], [[[2, 3], [4]], []], [[2**62, 2**62]], [[0]], [[-4, 4]], [[[]]])
        )
    return broken_list(rng, now)


@mutation(4)
def swap_arguments(rng: random.Random, traces: list[Document]) -> None:
    keys = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
    events = _chosen(rng, traces, _has(*keys))
    pool = [event for document in traces for event in _pool(document) if _has(*keys)(event)]
    for event in events[:300]:
        other = _args(rng.choice(pool))
        for key in keys if rng.random() < 0.5 else (rng.choice(keys),):
            if key in other:
                _args(event)[key] = copy.deepcopy(other[key])


# -- communication -------------------------------------------------------------------------------------

_MESSAGE = ("Collective name", "Process Group Name", "In msg nelems")


@mutation(8)
def change_message(rng: random.Random, traces: list[Document]) -> None:
    choices: dict[str, tuple[Any, ...]] = {
        "Collective name": COLLECTIVES,
        "Process Group Name": ("0", "1", "2", "", "default", 7, None, "x" * 300),
        "Process Group Description": ("pp", "ep", "tp", "default_pg", "", "undefined", None, 3),
        "Process Group Ranks": GROUPS,
        "Group size": (0, 1, 2, -1, 3, 4096, 2**31, 2**63 - 1, "4", None, 1.5),
        "In msg nelems": (*EXTREME, "7", None),
        "Out msg nelems": (*EXTREME, "7", None),
        "In split size": SPLITS,
        "Out split size": SPLITS,
        "dtype": MESSAGE_TYPES,
        "Rank": (0, 1, 5, -1, 2**31, 2**63 - 1, "1", None),
        "Src Rank": (0, 1, 5, -1, 2**31, 2**63 - 1, "1", None),
        "Dst Rank": (0, 1, 5, -1, 2**31, 2**63 - 1, "1", None),
        "Seq": (0, 1, -1, 2**63 - 1, "1", None),
    }
    key = rng.choice(list(choices))
    events = _chosen(rng, traces, _has(*_MESSAGE))
    value, alike, add = rng.choice(choices[key]), rng.random() < 0.6, rng.random() < 0.3
    for event in events:
        if key in _args(event) or add:
            _args(event)[key] = value if alike else rng.choice(choices[key])


@mutation(3)
def no_messages(rng: random.Random, traces: list[Document]) -> None:
    for document in _ranks(rng, traces):
        for event in _pool(document):
            if _has(*_MESSAGE)(event):
                event["args"] = {key: value for key, value in event["args"].items() if key == "correlation"}


@mutation(3)
def gloo_arguments(rng: random.Random, traces: list[Document]) -> None:
    def talks(event: Event) -> bool:
        return str(event.get("name")).startswith(("gloo:", "c10d::", "nccl:"))

    value = rng.choice(([], [[]], [[1]], [[2**62, 4]], [[[3], [4]]], [5, []], "x", None, [[-1]], [["a"]]))
    key = rng.choice(("Input Dims", "Input type", "Concrete Inputs"))
    for event in _chosen(rng, traces, talks):
        if isinstance(event.get("args"), dict):
            event["args"][key] = copy.deepcopy(value)


# -- header --------------------------------------------------------------------------------------------


@mutation(5)
def change_header(rng: random.Random, traces: list[Document]) -> None:
    for document in _ranks(rng, traces):
        keys = [key for key in document if key != "traceEvents"]
        if keys:
            key = rng.choice(keys)
            document[key] = like(rng, document[key])


@mutation(5)
def change_job(rng: random.Random, traces: list[Document]) -> None:
    key = rng.choice(("rank", "world_size", "pg_config", "backend", "pg_count"))
    for document in _ranks(rng, traces):
        info = document.get("distributedInfo")
        if isinstance(info, dict):
            small = (0, 1, 2, 3, 5, -1, "1", None, 1.5, 2**31, 2**63 - 1, 2**64)
            info[key] = rng.choice(small) if key in ("rank", "world_size") else like(rng, info.get(key))


@mutation(4)
def change_groups(rng: random.Random, traces: list[Document]) -> None:
    for document in _ranks(rng, traces):
        info = document.get("distributedInfo")
        groups = info.get("pg_config") if isinstance(info, dict) else None
        for group in groups if isinstance(groups, list) else ():
            if isinstance(group, dict) and group and rng.random() < 0.6:
                key = rng.choice(list(group))
                lists: tuple[Any, ...] = (
                    [],
                    [0],
                    [0, 0],
                    [5, 6],
                    [-1],
                    list(range(3000)),
                    [2**63],
                    "x",
                    [0, "1"],
                )
                group[key] = rng.choice(lists) if key == "ranks" else like(rng, group[key])


@mutation(3)
def change_devices(rng: random.Random, traces: list[Document]) -> None:
    for document in _ranks(rng, traces):
        devices = document.get("deviceProperties")
        for device in devices if isinstance(devices, list) else ():
            if isinstance(device, dict) and device:
                key = rng.choice(("id", "name", *device))
                names = ("", "AMD Instinct MI300X", "NVIDIA H100", "NVIDIA A100-SXM4-40GB", None, 7)
                device[key] = rng.choice(names) if key == "name" else like(rng, device.get(key))


@mutation(2)
def change_epoch(rng: random.Random, traces: list[Document]) -> None:
    value = rng.choice((*EXTREME, 10**18, 10**19, "7", None))
    for document in _ranks(rng, traces):
        document["baseTimeNanoseconds"] = value
