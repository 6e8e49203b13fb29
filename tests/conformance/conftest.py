"""Traces of the corpus, each loaded once: pytest groups tests by the parameter of a session fixture."""

from pathlib import Path

import pytest

import tracelens
from tests.conformance.corpus import Case, Reference, report_params, run_params, trace_of
from tests.effort import THOROUGH


@pytest.fixture(scope="session", params=run_params())
def case(request: pytest.FixtureRequest) -> Case:
    """Every run of the corpus in turn, or those of a mark; dropped with the last test that uses it."""
    name = request.param
    path = name if isinstance(name, Path) else request.getfixturevalue("corpus") / name
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACELENS_JOBS", "2")  # real traces go the way between processes once
        return Case(str(name), path, tracelens.load(path))


@pytest.fixture
def small(case: Case) -> Case:
    """A run of the corpus that is read fast: there is one of every kind, and larger ones when thorough."""
    if not case.is_small and not THOROUGH:
        pytest.skip("large: with TRACELENS_TESTS=thorough")
    return case


@pytest.fixture(scope="session", params=report_params())
def reference(request: pytest.FixtureRequest, corpus: Path) -> Reference:
    """Every trace that another tool has reported on."""
    report = corpus / request.param
    path = trace_of(report)
    return Reference(report, Case(path.name, path, tracelens.load(path)))
