"""Scenarios of pipelines: chunks and equal stages. A column is 1 us."""

from __future__ import annotations

from pathlib import Path

import pytest

import tracelens
from tests.what_if.replays import assert_identity, run_of
from tracelens.errors import TracelensError
from tracelens.trace import Run
from tracelens.what_if import whatif

SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"

# Each stage computes 8 columns, one behind the other; the message takes 1.
FIRST = """
    step 0 | --------
    op aten::mm seq=1 | --
    RECORD |     -
    launch |  a  b
    s7 gemm |   AAAAAAAA
    s9 ncclDevKernel_SendRecv |           b
"""
SECOND = """
    step 0 | --------
    RECORD |  -
    op aten::mm seq=1 |    --
    launch |  b  a
    s9 ncclDevKernel_SendRecv |   bbbbbbbbb
    s7 gemm |            AAAAAAAA
"""


def record(collective: str) -> str:
    return (
        f"op record_param_comms collective={collective} group=PIPE ranks=[0,1] size=2 in=8 out=8 "
        "dtype=BFloat16 description=PIPELINE_MODEL_PARALLEL_GROUP"
    )


def pipeline(first: int = 8, second: int = 8) -> Run:
    """Two stages of one forward each, of so many columns."""
    return run_of(
        FIRST.replace("RECORD", record("send"))
        .replace("AAAAAAAA", "a" * first)
        .replace("           b", " " * (3 + first) + "b"),
        SECOND.replace("RECORD", record("recv"))
        .replace("bbbbbbbbb", "b" * (first + 1))
        .replace("            AAAAAAAA", " " * (4 + first) + "a" * second),
    )


def reason(run: Run, scenario: str) -> str:
    """Why a scenario is not applicable."""
    return next(
        skip.reason for skip in whatif(run, [scenario]).skips if skip.subject == f"scenario {scenario}"
    )


@pytest.mark.parametrize(("chunks", "earlier"), [(2, 4), (4, 0)])
def test_a_message_leaves_with_the_first_chunk(chunks: int, earlier: int) -> None:
    """The second stage begins when 1 / chunks of the 8 columns are done; its work stays.

    The host takes 1 column for a message. With 4 chunks there are 7 instead of 1: the second stage's host
    launches its work at 11 instead of 5, and wins nothing.
    """
    run = pipeline()
    assert_identity(run)
    ranks = whatif(run, [f"vpp={chunks}"])["ranks"]
    before, after = ranks["base_ns"].tolist()[1], ranks["projected_ns"].tolist()[1]
    assert before - after == earlier * 1_000


def test_equal_stages() -> None:
    """Of 12 and 4 columns the first stage takes 8: a third less, as does its host before its launch at 1."""
    run = pipeline(12, 4)
    ranks = whatif(run, ["balanced_stages"])["ranks"]
    assert (ranks["base_ns"] - ranks["projected_ns"]).tolist() == [4_333, 4_333]
    assert reason(pipeline(), "balanced_stages") == "all stages have equal work"


def test_without_a_pipeline() -> None:
    run = run_of("step 0 | ----\nlaunch |  a\ns7 k |   aa")
    for scenario in ("vpp=2", "balanced_stages"):
        assert reason(run, scenario) == "no pipeline of which several stages are in the run"
    with pytest.raises(TracelensError, match="number of chunks"):
        whatif(run, ["vpp=1"])


def test_two_chunks_are_what_a_run_with_two_measured() -> None:
    """Recorded on H200s: 112.8 ms with one chunk, 97.9 with two, 110.3 projected: 13% too many.

    Both hosts together take 3.8 ms longer for their messages; 3.9 are projected.
    """
    plain = whatif(tracelens.load(SAMPLES / "pipeline" / "plain"), ["vpp=2"])
    interleaved = tracelens.load(SAMPLES / "pipeline" / "interleaved")
    measured = whatif(interleaved, ["identity"]).meta["base_ns"]
    after = int(plain["whatif"]["projected_ns"][0])
    assert measured < after < plain.meta["base_ns"]
    assert after / measured == pytest.approx(1, abs=0.13)
    assert "already" in reason(interleaved, "vpp=2")
