"""Real traces cut down to a few hundred events a rank, so that a mutant is checked in well under a second.

A cut keeps whole trees: an outermost op with everything below it, the calls it makes, the GPU work that they
launch and the arrows between them. Communication, the smallest tree of each scope and one of each op come
first, then what else has room.
"""

from __future__ import annotations

import gzip
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import zstandard

from tests.garbage import uncollected

Event = dict[str, Any]
Document = dict[str, Any]

ROOT = Path(__file__).resolve().parents[2]
_CALLS = ("cuda_runtime", "cuda_driver", "Runtime")
_OPS = ("cpu_op", "Operator")
_WORK = ("kernel", "gpu_memcpy", "gpu_memset", "Kernel")
_COMMUNICATION = ("record_param_comms", "c10d::", "gloo:", "nccl:", "_c10d_functional")


@dataclass(frozen=True)
class Source:
    """Where a real trace lies, and how much of it is kept.

    Attributes:
        name: of the source in failures and seeds.
        folder: "" for sample_traces, else the environment variable that names the collection.
        files: paths in it, one a rank.
        events: kept of each rank, about.
    """

    name: str
    files: tuple[str, ...]
    folder: str = ""
    events: int = 300

    @property
    def root(self) -> Path:
        if not self.folder:
            return ROOT / "sample_traces"
        return Path(
            os.environ.get(self.folder) or ROOT.parent / "shared" / self.folder.rpartition("_")[2].lower()
        )

    @property
    def missing(self) -> str:
        """Why the source cannot be read, "" where it can."""
        absent = next((name for name in self.files if not (self.root / name).is_file()), "")
        return (
            absent and f"no {absent} in {self.root}: set {self.folder or 'nothing; it is in the repository'}"
        )


def _ranks(folder: str, count: int, suffix: str = ".json.zst") -> tuple[str, ...]:
    return tuple(f"{folder}/rank{rank}{suffix}" for rank in range(count))


SOURCES = {
    source.name: source
    for source in (
        Source("one_gpu_loop", ("one_gpu/loop/rank0.json.gz",)),
        Source("one_gpu_grouped", ("one_gpu/grouped/rank0.json.gz",)),
        Source("ep4", _ranks("ladder/ep4/00_baseline", 4), events=400),
        Source("ep4_graph", _ranks("ladder/ep4/08_graph", 2), events=260),
        Source("pipeline", _ranks("pipeline/plain", 2), events=600),
        Source("interleaved", _ranks("pipeline/interleaved", 2), events=750),
        Source("serving", _ranks("serving/delayer_off", 2), events=300),
        Source("two_batches", _ranks("serving/tbo_token", 2), events=300),
        Source("faults", _ranks("faults/host_delay", 2), events=500),
        Source("gloo", _ranks("cpu/tiny", 2), events=300),
        Source("tensor", _ranks("toggles/tensor", 2), events=260),
        Source("graph_step", ("toggles/graph_step/rank0.json.zst",), events=260),
        Source("exchange", _ranks("toggles/exchange_1f1b", 2), events=300),
        Source("mi300x_dense", ("mi300x/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",), "TRACELENS_CORPUS"),
        Source("mi300x_recompute", ("mi300x/resnet_act_checkpoint.json.gz",), "TRACELENS_CORPUS"),
        Source("mi250", ("mi250/mi250_minitoy_train_ROCm6_2_kineto.json.gz",), "TRACELENS_CORPUS"),
        Source("h100_moe", ("nvidia-h100-hf/dsv2_grouped.json.gz",), "TRACELENS_CORPUS"),
        Source("old_names", ("misc/hta_test.json.gz",), "TRACELENS_CORPUS"),
        Source("nccl_data", ("misc/nccl_data.json.gz",), "TRACELENS_CORPUS"),
        Source(
            "megatron_pp",
            ("nvidia-h200-megatron/pp2ep4/rank0.json.gz", "nvidia-h200-megatron/pp2ep4/rank4.json.gz"),
            "TRACELENS_CORPUS",
        ),
        Source(
            "sglang",
            ("mi300x-serving/sglang_decode/capture_traces/bs_32_rank0.json.gz",),
            "TRACELENS_FOREIGN",
        ),
    )
}
IN_REPOSITORY = tuple(name for name, source in SOURCES.items() if not source.folder)


@cache
def _cut_texts(name: str) -> tuple[bytes, ...]:
    source = SOURCES[name]
    with uncollected():
        return tuple(
            json.dumps(cut(_read(source.root / file), source.events)).encode() for file in source.files
        )


def documents(name: str) -> list[Document]:
    """Fresh copies of the cut ranks of a source, as decoded JSON."""
    return [msgspec.json.decode(text) for text in _cut_texts(name)]


def _read(path: Path) -> Document:
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    elif path.suffix == ".zst":
        data = zstandard.ZstdDecompressor().decompressobj().decompress(data)
    document: Document = msgspec.json.decode(data)
    return document


def cut(document: Document, budget: int) -> Document:
    """The trace with about `budget` of its events beside names of processes and threads."""
    events: list[Event] = [event for event in document["traceEvents"] if isinstance(event, dict)]
    slices = [event for event in events if event.get("ph") == "X"]
    work: dict[Any, list[Event]] = defaultdict(list)
    for event in slices:
        if event.get("cat") not in (*_OPS, *_CALLS, "python_function", "user_annotation"):
            work[event.get("args", {}).get("correlation", event.get("args", {}).get("External id"))].append(
                event
            )
    trees = list(_trees(slices, work))
    kept = [event for event in events if event.get("ph") == "M"]
    notes = [event for event in slices if event.get("cat") in ("user_annotation", "gpu_user_annotation")]
    steps = [event for event in notes if str(event["name"]).startswith("ProfilerStep")]
    kept += steps
    scopes = [event for event in notes if not str(event["name"]).startswith("ProfilerStep")][: budget // 3]
    frames = sorted(
        (event for event in slices if event.get("cat") == "python_function"), key=lambda e: e["ts"]
    )
    kept += [*scopes, *frames[: budget // 10]]
    used = 0
    taken: set[int] = set()
    for tree in _by_interest(trees, scopes):
        if used >= budget:
            break
        if len(tree) < budget // 3 and id(tree) not in taken:
            taken.add(id(tree))
            kept += tree
            used += len(tree)
    kept += [event for event in slices if event.get("cat") == "cpu_instant_event"][: budget // 20]
    ids = {id(event) for event in kept}
    order = {id(event): number for number, event in enumerate(events)}
    kept += list(_flows([event for event in events if id(event) in ids], events))
    unique = {id(event): event for event in kept}
    return {**document, "traceEvents": sorted(unique.values(), key=lambda event: order[id(event)])}


def _trees(slices: Sequence[Event], work: Mapping[Any, Sequence[Event]]) -> Iterator[list[Event]]:
    """Each outermost op or call with all below it and the GPU work that it launches."""
    threads: dict[Any, list[Event]] = defaultdict(list)
    for event in slices:
        if event.get("cat") in (*_OPS, *_CALLS):
            threads[event.get("pid"), event.get("tid")].append(event)
    for thread in threads.values():
        thread.sort(key=lambda event: (event["ts"], -event["dur"]))
        tree: list[Event] = []
        end = float("-inf")
        for event in thread:
            if event["ts"] >= end and tree:
                yield _with_work(tree, work)
                tree = []
            tree.append(event)
            end = max(end, event["ts"] + event["dur"])
        if tree:
            yield _with_work(tree, work)
    for event in work.get(None, ()):
        yield [event]


def _with_work(tree: list[Event], work: Mapping[Any, Sequence[Event]]) -> list[Event]:
    keys = {event.get("args", {}).get("correlation") for event in tree if event.get("cat") in _CALLS} - {
        None,
        0,
    }
    return tree + [event for key in sorted(keys, key=str) for event in list(work.get(key, ()))[:40]]


def _by_interest(trees: Sequence[list[Event]], scopes: Sequence[Event]) -> Iterator[list[Event]]:
    """Trees in the order in which they are kept: communication and the least of each scope, then the rest."""
    launching = [tree for tree in trees if any(event.get("cat") in _WORK for event in tree)]
    talks = {id(tree): tree for tree in launching if any(_is_communication(event) for event in tree)}
    talks |= {id(tree): tree for tree in trees if any(_is_communication(event) for event in tree)}
    by_size = sorted(launching, key=len)
    begins = np.array([tree[0]["ts"] for tree in by_size])
    of_scope = []
    for scope in sorted(scopes, key=lambda scope: -scope["dur"]):
        # On any thread: autograd has its own.
        inside = (scope["ts"] <= begins) & (begins < scope["ts"] + scope["dur"])
        if inside.any():
            of_scope.append(by_size[int(inside.argmax())])
    first: dict[str, list[Event]] = {}
    for tree in launching:
        first.setdefault(str(tree[0]["name"]), tree)
    lists = [iter(of_scope), iter(talks.values()), iter(first.values())]
    yield from _in_turn(lists)
    yield from trees


def _in_turn(lists: list[Iterator[list[Event]]]) -> Iterator[list[Event]]:
    while lists:
        for source in tuple(lists):
            tree = next(source, None)
            if tree is None:
                lists.remove(source)
            else:
                yield tree


def _is_communication(event: Event) -> bool:
    return "Collective name" in event.get("args", {}) or str(event["name"]).startswith(_COMMUNICATION)


def _flows(kept: Sequence[Event], events: Iterable[Event]) -> Iterator[Event]:
    """Both ends of the arrows that begin and end with an op, a call or GPU work that is kept."""
    starts = {
        (event.get("pid"), event.get("tid"), event["ts"])
        for event in kept
        if event.get("ph") == "X" and event.get("cat") not in ("user_annotation", "gpu_user_annotation")
    }
    ends: dict[Any, list[Event]] = defaultdict(list)
    for event in events:
        if event.get("ph") in ("s", "f") and (event.get("pid"), event.get("tid"), event["ts"]) in starts:
            ends[event["cat"], event.get("id")].append(event)
    for pair in ends.values():
        if {event["ph"] for event in pair} == {"s", "f"}:
            yield from pair
