"""Losses injected into real recordings are noticed; harmless changes raise no alarm."""

from __future__ import annotations

from collections import defaultdict

import orjson
import pytest

from tests.conformance.losses.__main__ import summary
from tests.conformance.losses.cases import RECORDINGS, Excluded, Outcome, outcomes
from tests.conformance.losses.damage import RankDamage
from tests.conformance.losses.harmless import HARMLESS
from tests.conformance.losses.intact import DAMAGED, ORDINARY, figures, intact_runs
from tests.conformance.losses.recordings import RankRecording, located, unpacked
from tests.effort import THOROUGH, effort
from tests.reference.traces import ROOT

NOTICED, NOTICED_OF_A_KIND = 0.95, 0.8
OF_EACH_KIND = (
    "corpus/mi300x/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "corpus/misc/nccl_data.json.gz",
    "corpus/nvidia-h100-hf/dsv2_grouped.json.gz",
    "foreign/mi300x-serving/vllm_prefilldecode_piecewise/graph_execution.json.gz",
)
TRIED = effort(tuple(name for name in RECORDINGS if name in OF_EACH_KIND or "sample" in name), RECORDINGS)
CASES, RECORDED = effort(250, 300), 8
RANKS = effort(2, None)
README = ROOT / "README.md"


@pytest.mark.rare
def test_losses_are_noticed() -> None:
    missing = [name for name in TRIED if not located(name).exists()]
    if len(TRIED) - len(missing) < RECORDED:
        pytest.skip(f"no {', '.join(missing)}: set TRACELENS_CORPUS and TRACELENS_FOREIGN")
    results: list[Outcome | Excluded] = list(outcomes(TRIED))
    cases = [result for result in results if isinstance(result, Outcome)]
    kinds: dict[str, list[bool]] = defaultdict(list)
    for case in cases:
        kinds[case.kind].append(case.right)
    told = summary(results)
    print(told)
    assert len(cases) >= CASES, told
    assert len({case.recording for case in cases}) >= RECORDED, told
    weak = {
        kind: f"{sum(hits)} of {len(hits)}"
        for kind, hits in kinds.items()
        if sum(hits) < NOTICED_OF_A_KIND * len(hits)
    }
    assert not weak, told
    assert sum(case.right for case in cases) >= NOTICED * len(cases), told
    # What README.md says of the samples.
    of_samples = [case.right for case in cases if case.recording.startswith("sample_traces/")]
    assert f": {sum(of_samples)} of {len(of_samples)} detectable losses" in README.read_text(encoding="utf-8")


@pytest.mark.rare
def test_harmless_changes_raise_nothing() -> None:
    results = list(outcomes(TRIED[:: effort(2, 1)], tuple(HARMLESS)))
    cases = [result for result in results if isinstance(result, Outcome)]
    if not cases:
        pytest.skip("no recordings: set TRACELENS_CORPUS and TRACELENS_FOREIGN")
    wrong = [case for case in cases if not case.right]
    assert not wrong, summary(results)


# Those that are damaged, and those that losses are injected into.
JUDGED = [
    name
    for name in intact_runs()
    if THOROUGH or name in DAMAGED or any(tried.startswith(name) for tried in TRIED)
]


@pytest.mark.parametrize("name", JUDGED)
def test_json_of_recordings_shows_damage_where_it_is_listed(name: str) -> None:
    """By the events alone, without the analyzer: DAMAGED is right and complete."""
    path = located(name)
    if not path.exists():
        pytest.skip(f"no {path}: set TRACELENS_CORPUS and TRACELENS_FOREIGN")
    seen = figures(path, None if name in DAMAGED else RANKS)
    odd = {figure for figure, most in ORDINARY.items() if seen[figure] > most}
    assert odd == {DAMAGED[name]} if name in DAMAGED else not odd, seen


def test_a_recording_without_edits_stays_what_it_is() -> None:
    path = located("sample_traces/toggles/graph_step/rank0.json.zst")
    rank, document = RankRecording(path), orjson.loads(unpacked(path))
    assert orjson.loads(RankDamage(rank).text()) == document


def test_edits_drop_work_with_its_arrows_and_leave_launches() -> None:
    rank = RankRecording(located("sample_traces/ladder/ep4/08_graph/rank0.json.zst"))
    edits = RankDamage(rank)
    replay = rank.siblings[0][0]
    edits.drop_work(rank.gpu & (rank.correlation == replay.correlation))
    left = orjson.loads(edits.text())["traceEvents"]
    gone = [event for event, dropped in zip(rank.events, edits.drop, strict=True) if dropped]
    assert len(left) == len(rank.events) - len(gone)
    assert {event["ph"] for event in gone} == {"X", "f"}
    assert sum(event["ph"] == "X" for event in gone) == len(replay.rows)
    assert edits.bare_launches() == 1
    assert edits.orphans() == 0
    assert edits.uneven_replays()
