"""Mutants of real traces, the same ones every time, and what the fuzzer itself promises.

`python -m tests.fuzz` tries more.
"""

from __future__ import annotations

import json
import random
from itertools import product

import pytest

from tests.effort import effort
from tests.fuzz.check import REPLAYS, STAGES, Failure, check, rotated
from tests.fuzz.minimise import least
from tests.fuzz.mutate import MUTATIONS, mutant
from tests.fuzz.sources import IN_REPOSITORY, SOURCES, documents

SEED, MUTANTS = 20, effort(len(IN_REPOSITORY), 240)
"""One of each source; that each mutation does something and leaves JSON is tested below."""


@pytest.mark.rare
@pytest.mark.parametrize("source", IN_REPOSITORY)  # each source is read by one worker
def test_mutants_come_out_as_results_or_as_one_line(source: str) -> None:
    failures: list[tuple[int, Failure]] = []
    for number in range(IN_REPOSITORY.index(source), MUTANTS, len(IN_REPOSITORY)):
        one = mutant(SEED, number, IN_REPOSITORY)
        assert one.source == source
        checker = check(one.documents(), one.source, rotated(random.Random(number)))
        failures += [(number, failure) for failure in checker.failures]
    assert not failures, "\n".join(f"mutant {number}: {failure}" for number, failure in failures)


EVERY = effort(3, 1)
"""Of the stages; each trace in turn takes other ones."""


def test_the_intact_traces_hold() -> None:
    stages = ("json", "markdown", "fuse", *REPLAYS, "diff", "gate", "whatif")
    for turn, name in enumerate(IN_REPOSITORY):
        checker = check(documents(name), name, stages[turn % EVERY :: EVERY])
        assert not checker.failures, name
        assert not [text for text in checker.refused if not text.startswith("replay sequence")], name


def test_there_are_ten_sources_of_every_kind() -> None:
    assert len(IN_REPOSITORY) >= 10
    assert {len(SOURCES[name].files) for name in IN_REPOSITORY} >= {1, 2, 4}


@pytest.mark.rare
@pytest.mark.parametrize("name", [name for name in SOURCES if name not in IN_REPOSITORY])
def test_sources_beside_the_repository_hold(name: str) -> None:
    if SOURCES[name].missing:
        pytest.skip(SOURCES[name].missing)
    stages = ("json", "diff", "fuse", *REPLAYS)
    turn = list(SOURCES).index(name)
    assert not check(documents(name), name, stages[turn % EVERY :: EVERY]).failures


def test_a_cut_keeps_what_analyzers_read() -> None:
    for name in IN_REPOSITORY:
        events = [event for trace in documents(name) for event in trace["traceEvents"]]
        assert len(events) < 4000
        assert any(str(event["name"]).startswith("ProfilerStep") for event in events), name
        assert any("Input Dims" in event.get("args", {}) for event in events), name
        if len(SOURCES[name].files) > 1 and name != "gloo":
            assert any("Collective name" in event.get("args", {}) for event in events), name
            kernels = {event["args"]["correlation"] for event in events if event.get("cat") == "kernel"}
            calls = {event["args"]["correlation"] for event in events if event.get("cat") == "cuda_runtime"}
            assert len(kernels & calls) > 10, name


def test_the_same_seed_makes_the_same_mutant() -> None:
    one, other = mutant(3, 7, IN_REPOSITORY), mutant(3, 7, IN_REPOSITORY)
    assert one == other != mutant(4, 7, IN_REPOSITORY)
    assert json.dumps(one.documents()) == json.dumps(other.documents())


@pytest.mark.parametrize("name", MUTATIONS)
def test_each_mutation_changes_something_and_leaves_json(name: str) -> None:
    changed = 0
    for source, seed in product(("ep4_graph", "one_gpu_loop", "gloo"), range(6)):
        before, traces = documents(source), documents(source)
        MUTATIONS[name][1](random.Random(seed), traces)
        after = json.dumps(traces)
        assert len(json.loads(after)) == len(traces)
        changed += after != json.dumps(before)
        if changed == 3:
            return
    pytest.fail(f"{changed} of 18 changed anything")


def test_stages_take_turns() -> None:
    seen = [set(rotated(random.Random(number))) for number in range(200)]
    assert set().union(*seen) == set(STAGES)
    assert all(len(stages) < len(STAGES) for stages in seen)


def test_the_least_that_fails_is_found() -> None:
    items = list(range(100))
    assert least(items, lambda some: {17, 63} <= set(some)) == [17, 63]
