"""Every kind of loss on every recording, run and judged."""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import tracelens
from tests.conformance.losses import clocks, windows
from tests.conformance.losses.damage import Damage, RankDamage, Undetectable
from tests.conformance.losses.few import FEW_LOST, IN_FLIGHT
from tests.conformance.losses.harmless import HARMLESS
from tests.conformance.losses.kinds import KINDS, Absent
from tests.conformance.losses.recordings import Recording, located
from tracelens.errors import TracelensError
from tracelens.read import parse
from tracelens.trace import Trace, make_run

__all__ = ["RECORDINGS", "Excluded", "Outcome", "clocks", "outcomes", "windows"]

RECORDINGS = (
    "corpus/mi300x/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "corpus/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "corpus/mi300x/Falconsai_nsfw_image_detection__1016002.json.gz",
    "corpus/mi300x/gaunernst_bert-small-uncased__1016001.json.gz",
    "corpus/mi300x/resnet_act_checkpoint.json.gz",
    "corpus/misc/nccl_data.json.gz",
    "corpus/misc/hta_test.json.gz",
    "corpus/nvidia-h100-hf/dsv2_grouped.json.gz",
    "foreign/nvidia-h200-hf/dsv2_grouped_compile.json.zst",
    "foreign/mi300x-serving/vllm_prefilldecode_piecewise/graph_execution.json.gz",
    "foreign/mi300x-serving/sglang_decode/sglang_Qwen3-8B_decode.json.gz",
    "foreign/nvidia-h200-megatron/faults/control",
    "sample_traces/ladder/ep4/08_graph",
    "sample_traces/serving/delayer_on",
    "sample_traces/pipeline/plain",
    "sample_traces/one_gpu/grouped/rank0.json.gz",
    "sample_traces/toggles/baseline/rank0.json.zst",
)

Doubts = Mapping[tuple[int, str], tuple[int, int, str]]
"""By (rank, doubt): its time in ns, its count, its evidence."""


@dataclass(frozen=True)
class Outcome:
    """What the analyzer said of one case.

    Attributes:
        right: a right reason was raised, of the damaged rank or of the job, which the intact recording does
            not raise or raises of less; of a harmless change, that none was.
        raised: all new or larger doubts, as "rank: doubt".
    """

    recording: str
    kind: str
    seed: int
    says: str
    reasons: tuple[str, ...]
    ranks: tuple[int, ...]
    right: bool
    raised: tuple[str, ...]
    error: str = ""


@dataclass(frozen=True)
class Excluded:
    """A case that is none: nothing can be lost in this way, or nothing could show it."""

    recording: str
    kind: str
    seed: int
    undetectable: bool
    reason: str


def outcomes(
    recordings: tuple[str, ...] = RECORDINGS, kinds: tuple[str, ...] = (), times: int = 1
) -> Iterator[Outcome | Excluded]:
    """Run all cases, one recording after another; recordings that are not there are left out.

    Args:
        recordings: some of RECORDINGS.
        kinds: some of KINDS, HARMLESS or FEW_LOST; none for all of KINDS.
        times: multiplies the seeds of each kind.
    """
    for name in recordings:
        if located(name).exists():
            yield from _Bench(Recording.read(name)).outcomes(kinds or tuple(KINDS), times)


class _Bench:
    """The intact traces of a recording, of which a case replaces the damaged ones."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        with tempfile.TemporaryDirectory() as folder:
            self.traces = [
                self._parsed(Path(folder), index, RankDamage(rank))
                for index, rank in enumerate(recording.ranks)
            ]
        self.intact = doubts(self.traces)
        self.rank_of = make_run(self.traces).ranks

    def _parsed(self, folder: Path, index: int, edits: RankDamage) -> Trace:
        stem = self.recording.ranks[index].path.name.partition(".json")[0]
        path = folder / f"{stem}.json{'.gz' if edits.zipped else ''}"
        path.write_bytes(edits.text())
        (trace,) = parse(str(path))
        return trace

    def outcomes(self, kinds: tuple[str, ...], times: int) -> Iterator[Outcome | Excluded]:
        for name in kinds:
            kind = (KINDS | HARMLESS | FEW_LOST)[name]
            for seed in range(times * kind.seeds):
                key = zlib.crc32(f"{self.recording.name} {name} {seed}".encode())
                try:
                    damage = kind.inject(np.random.default_rng(key), self.recording)
                except (Undetectable, Absent) as reason:
                    yield Excluded(
                        self.recording.name, name, seed, isinstance(reason, Undetectable), str(reason)
                    )
                else:
                    yield self._outcome(name, seed, damage)

    def _outcome(self, kind: str, seed: int, damage: Damage) -> Outcome:
        ranks = tuple(self.rank_of[index] for index in damage.ranks)
        error, new = "", {}
        try:
            with tempfile.TemporaryDirectory() as folder:
                traces = list(self.traces)
                for index, edits in damage.ranks.items():
                    traces[index] = self._parsed(Path(folder), index, edits)
                if damage.alone:
                    traces = [traces[index] for index in damage.ranks]
                new = _grown(doubts(traces), self.intact)
        except TracelensError as problem:
            error = str(problem)
        right = any(doubt in damage.reasons and rank in (-1, *ranks) for rank, doubt in new)
        if not damage.reasons:
            harmless = damage.also | {IN_FLIGHT}
            right = not error and all(key in self.intact or key[1] in harmless for key in new)
        raised = tuple(f"{rank}: {doubt} ({told})" for (rank, doubt), (_, _, told) in sorted(new.items()))
        return Outcome(
            self.recording.name,
            kind,
            seed,
            damage.says,
            tuple(sorted(damage.reasons)),
            ranks,
            right,
            raised,
            error,
        )


def doubts(traces: list[Trace]) -> Doubts:
    """What the analyzer doubts of a run, and the launches that it says were in flight at the end."""
    result = tracelens.analyze(make_run(traces, partial=True), "completeness")
    summed: dict[tuple[int, str], tuple[int, int, str]] = {}
    for row in result["doubts"].to_dict("records"):
        key = (int(row["rank"]), str(row["doubt"]))
        dur_ns, count, told = summed.get(key, (0, 0, ""))
        told = f"{told}; {row['evidence']}".strip("; ")
        summed[key] = (dur_ns + int(row["dur_ns"]), count + int(row["count"]), told)
    for skip in result.skips:
        if skip.subject.endswith(IN_FLIGHT):
            summed[int(skip.subject.split()[1].rstrip(":")), IN_FLIGHT] = (0, int(skip.reason.split()[0]), "")
    return summed


def _grown(damaged: Doubts, intact: Doubts) -> dict[tuple[int, str], tuple[int, int, str]]:
    """Doubts that the intact recording does not raise, or raises of less."""
    return {
        key: value
        for key, value in damaged.items()
        if key not in intact or value[0] > intact[key][0] or value[1] > intact[key][1]
    }
