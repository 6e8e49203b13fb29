"""Scripts of real traces: how much of their GPU time they stand for, and that each of them runs."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import tracelens
from tests.effort import THOROUGH, effort
from tracelens.reproducers import replay
from tracelens.reproducers.verify.verify import BROKEN, verify
from tracelens.table import Result
from tracelens.trace import Run, Trace


class Known(NamedTuple):
    """What is known of a trace.

    Attributes:
        path: in the corpus.
        ops, collectives: how many scripts of each.
        skips: parts of what is said of the rest, in order.
    """

    path: str
    ops: int
    collectives: int
    skips: tuple[str, ...]


_BEFORE, _LONG = "launched before the recording", "a list of more than 30 tensors"
TRACES = {
    "qwen": Known("mi300x/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz", 36, 0, (_BEFORE,)),
    "timesformer": Known("mi300x/facebook_timesformer-base-finetuned-k400__1016002.json.gz", 44, 0, ()),
    "resnet": Known(
        "mi300x/resnet_act_checkpoint.json.gz", 101, 4, ("5 communication kernel(s)", _BEFORE, _LONG)
    ),
    "dsv2_grouped": Known("nvidia-h100-hf/dsv2_grouped.json.gz", 191, 0, (_LONG, _BEFORE)),
}
OFTEN = ("dsv2_grouped",)
"""Their scripts run in every build."""
COVERED = 0.95
SMALL = 1 << 14
MOST = 30


class Replayed(NamedTuple):
    """A trace with the scripts made of it, and their folder."""

    known: Known
    run: Run
    folder: Path
    result: Result


@pytest.fixture(scope="module", params=TRACES)
def replayed(
    request: pytest.FixtureRequest, corpus: Path, tmp_path_factory: pytest.TempPathFactory
) -> Replayed:
    known = TRACES[request.param]
    run, folder = tracelens.load(corpus / known.path), tmp_path_factory.mktemp(request.param)
    return Replayed(known, run, folder, replay(run, folder, top=None))


def carrying(trace: Trace) -> dict[str, int]:
    """GPU time by op of those with a shape that is not empty, ns: kernel by kernel, from the raw tables."""
    events, ops = trace.events, trace.ops
    names, durations = events["name"].astype(str).tolist(), events["dur_ns"].tolist()
    shaped = {
        event
        for event, text in zip(ops["event_id"].tolist(), ops["shapes"].astype(str).tolist(), strict=True)
        if text and any(isinstance(shape, list) and shape for shape in json.loads(text))
    }
    found: dict[str, int] = {}
    for kernel, op in zip(
        trace.links["kernel_id"].tolist(), trace.tables["links"].array("op_id").tolist(), strict=True
    ):
        if op in shaped:
            found[names[op]] = found.get(names[op], 0) + durations[kernel]
    return found


def test_scripts_stand_for_the_time_of_ops_with_shapes(replayed: Replayed) -> None:
    wanted = carrying(replayed.run.traces[0])
    time: dict[str, int] = {}
    for row in replayed.result["scripts"].itertuples():
        # The profiler's op around each collective.
        op = row.subject if "::" in row.subject else "record_param_comms"
        time[op] = time.get(op, 0) + row.total_ns
    covered = sum(min(ns, time.get(op, 0)) for op, ns in wanted.items())
    assert covered >= COVERED * sum(wanted.values())
    # What they stand for beyond that has tensors without dimensions only, which are little.
    assert sum(time.values()) <= 1.02 * sum(wanted.values())


def test_the_rest_is_accounted_for(replayed: Replayed) -> None:
    found = replayed.result
    subjects = [skip.subject for skip in found.skips]
    assert len(subjects) == len(replayed.known.skips)
    for subject, part in zip(subjects, replayed.known.skips, strict=True):
        assert part in subject
    told = sum(float(share[1]) for subject in subjects if (share := re.match(r"([\d.]+)% of GPU", subject)))
    assert 100 * found.meta["fraction_of_gpu_time"] + told == pytest.approx(100, abs=0.3)


def test_each_different_call_is_a_script(replayed: Replayed) -> None:
    known, trace = replayed.known, replayed.run.traces[0]
    found = replayed.result["scripts"]
    collective = ~found["subject"].str.contains("::")
    assert ((~collective).sum(), collective.sum()) == (known.ops, known.collectives)
    ops = trace.ops.set_index("event_id").loc[trace.links["op_id"].dropna().unique()]
    names = trace.events["name"].astype(str).to_numpy()[ops.index]
    texts = ops[["shapes", "dtypes", "strides", "values"]].astype(str)
    long = texts["dtypes"].str.contains("TensorList") & ~texts["shapes"].str.contains(r"\d")
    mine = (names != "record_param_comms") & ~long
    different = texts[mine].assign(name=names[mine]).drop_duplicates()
    # Of some the grid of the kernel tells more than the arguments.
    assert len(different) <= known.ops <= len(different) + 5


def test_every_file_is_one_that_can_be_read(replayed: Replayed) -> None:
    long = set()
    for file in replayed.result["scripts"]["file"]:
        text = (replayed.folder / file).read_text(encoding="utf-8")
        compile(text, file, "exec")
        lines = text.splitlines()
        assert len(lines) <= 148
        assert max(map(len, lines)) <= 110
        if len(lines) >= 134:
            long.add(re.sub(r"^\d+_|\.py$", "", file))
    assert long <= {
        "aten__cudnn_attention_backward",
        "aten_histc",
    }


@pytest.mark.torch
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.rare] * (name not in OFTEN)) for name in TRACES],
)
def test_scripts_run_and_are_right(name: str, corpus: Path, tmp_path: Path) -> None:
    """All scripts on the CPU, with small tensors; of many, those of the calls that take longest.

    Collectives start processes: tests/reproducers/test_collectives.py runs one of every kind.
    """
    known = TRACES[name]
    top = effort(MOST, None) if known.ops > MOST else None
    made = replay(tracelens.load(corpus / known.path), tmp_path, top=top, max_elements=SMALL)["scripts"]
    chosen = made if THOROUGH else made[made["subject"].str.contains("::")]
    only = effort(re.compile("::"), None)
    found = verify(tmp_path, device="cpu", iters=1, python=sys.executable, only=only)
    table = found["scripts"]
    assert len(table) == len(chosen) > 0
    assert not set(table["status"]) & {*BROKEN, "skipped"}, found["notes"].to_string()
    # Where an op has no kernel here, its reference runs alone.
    instead = found["notes"].loc[found["notes"]["note"].str.startswith("stand-in for"), "file"]
    checked = table[~table["file"].isin(instead)]
    assert set(checked["check"]) == {"ok"}, found["notes"].to_string()
