"""Scripts of real traces: how much of their GPU time they stand for, and that each of them runs."""

from __future__ import annotations

import json
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import tracelens
from tracelens.reproducers.make import replay
from tracelens.reproducers.verify.verify import BROKEN, verify
from tracelens.table.result import Result
from tracelens.trace.trace import Trace


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
COVERED = 0.95
SMALL = 1 << 16

every = pytest.mark.parametrize("name", TRACES)


@cache
def trace_of(path: Path) -> Trace:
    (trace,) = tracelens.load(path).traces
    return trace


def made(corpus: Path, name: str, folder: Path, **options: Any) -> Result:
    return replay(tracelens.load(corpus / TRACES[name].path), folder, top=None, **options)


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
    for kernel, op in zip(trace.links["kernel_id"].tolist(), trace.links["op_id"].tolist(), strict=True):
        if op in shaped:
            found[names[op]] = found.get(names[op], 0) + durations[kernel]
    return found


@every
def test_scripts_stand_for_the_time_of_ops_with_shapes(name: str, corpus: Path, tmp_path: Path) -> None:
    wanted = carrying(trace_of(corpus / TRACES[name].path))
    table = made(corpus, name, tmp_path)["scripts"]
    time: dict[str, int] = {}
    for row in table.itertuples():
        # The profiler's op around each collective.
        op = row.subject if "::" in row.subject else "record_param_comms"
        time[op] = time.get(op, 0) + row.total_ns
    covered = sum(min(ns, time.get(op, 0)) for op, ns in wanted.items())
    assert covered >= COVERED * sum(wanted.values())
    # What they stand for beyond that has tensors without dimensions only, which are little.
    assert sum(time.values()) <= 1.02 * sum(wanted.values())


@every
def test_the_rest_is_accounted_for(name: str, corpus: Path, tmp_path: Path) -> None:
    found = made(corpus, name, tmp_path)
    subjects = [skip.subject for skip in found.skips]
    assert len(subjects) == len(TRACES[name].skips)
    for subject, part in zip(subjects, TRACES[name].skips, strict=True):
        assert part in subject
    told = sum(float(share[1]) for subject in subjects if (share := re.match(r"([\d.]+)% of GPU", subject)))
    assert 100 * found.meta["fraction"] + told == pytest.approx(100, abs=0.3)


@every
def test_each_different_call_is_a_script(name: str, corpus: Path, tmp_path: Path) -> None:
    known, trace = TRACES[name], trace_of(corpus / TRACES[name].path)
    found = made(corpus, name, tmp_path)["scripts"]
    collective = ~found["subject"].str.contains("::")
    assert ((~collective).sum(), collective.sum()) == (known.ops, known.collectives)
    ops = trace.ops.set_index("event_id").loc[trace.links["op_id"].loc[lambda op: op >= 0].unique()]
    names = trace.events["name"].astype(str).to_numpy()[ops.index]
    texts = ops[["shapes", "dtypes", "strides", "values"]].astype(str)
    long = texts["dtypes"].str.contains("TensorList") & ~texts["shapes"].str.contains(r"\d")
    mine = (names != "record_param_comms") & ~long
    different = texts[mine].assign(name=names[mine]).drop_duplicates()
    # Of some the grid of the kernel tells more than the arguments.
    assert len(different) <= known.ops <= len(different) + 5


@every
def test_every_file_is_one_that_can_be_read(name: str, corpus: Path, tmp_path: Path) -> None:
    found = made(corpus, name, tmp_path)["scripts"]
    for file in found["file"]:
        text = (tmp_path / file).read_text(encoding="utf-8")
        compile(text, file, "exec")
        assert len(text.splitlines()) <= 148
        assert max(map(len, text.splitlines())) <= 110
    long = [file for file in found["file"] if len((tmp_path / file).read_text().splitlines()) >= 134]
    assert {re.sub(r"^\d+_|\.py$", "", file) for file in long} <= {
        "aten__cudnn_attention_backward",
        "aten_histc",
    }


def run(corpus: Path, name: str, folder: Path, of_three: int) -> None:
    """Run all scripts on the CPU, or one of three, with small tensors; none is wrong or fails."""
    files = made(corpus, name, folder, max_elements=SMALL)["scripts"]["file"].tolist()
    some = re.compile("|".join(f"^{re.escape(file)}$" for file in files[:: of_three or 1]))
    found = verify(folder, device="cpu", iters=1, python=sys.executable, only=some)
    table = found["scripts"]
    assert len(table) == len(files[:: of_three or 1])
    assert not set(table["status"]) & {*BROKEN, "skipped"}, found["notes"].to_string()
    assert set(table["check"]) == {"ok"}, found["notes"].to_string()


@pytest.mark.parametrize(
    ("name", "of_three"), [("qwen", 1), ("timesformer", 1), ("resnet", 3), ("dsv2_grouped", 3)]
)
def test_scripts_run_and_are_right(name: str, of_three: int, corpus: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    run(corpus, name, tmp_path, of_three)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet", "dsv2_grouped"])
def test_all_scripts_run_and_are_right(name: str, corpus: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    run(corpus, name, tmp_path, 1)
