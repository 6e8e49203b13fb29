"""What all tests share: the corpus of real traces, and how hard hypothesis tries."""

import gc
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.effort import effort
from tracelens.native import PURE, core

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
SLOW = (
    "conformance/",  # real traces
    "reference/",
    "hostile/",  # attacks
    "fuzz/",  # mutants
    "stress/",  # growth
    "distribution/",  # wheels
    "notebooks/",
    # What readers see: it needs a browser, or runs what a page says.
    "browser/",
    "docs/",
    "test_action.py",
    "test_readme.py",
    "test_reports.py",
    # Processes: how they end, what they are told and how often they read.
    "cli/test_process.py",
    "reproducers/test_counters.py",
    "reproducers/test_verify.py",
    "session/test_one_read.py",
    # Hundreds of drawn runs, to count false alarms and what is found.
    "analysis/stragglers/test_false_alarms.py",
    "compare/diff/test_edits.py",
    "compare/diff/test_noise.py",
    "compare/diff/test_wrappers.py",
    "compare/gate/test_noise.py",
    # Against what was recorded, run by run.
    "contracts/test_tables.py",
    "merge/test_conformance.py",
    "planner/memory/test_megatron_measured.py",
    "planner/memory/test_megatron_published.py",
    "planner/memory/test_memory_measured.py",
    "planner/pipeline/test_measured.py",
    "planner/published/test_published.py",
    "planner/step_time/test_network_measured.py",
    "summary/test_samples.py",
    "opportunities/test_whatif_grouped.py",
    "what_if/test_whatif_recorded.py",
    "what_if/test_whatif_shared.py",
    "workers/test_dask.py",  # a cluster
    "workload/test_faults_on_gpus.py",
    "workload/test_visible_on_gpus.py",
)
"""Tests that are all marked slow: beginnings of paths below tests/."""

REST = ("slow", "torch", "more_with_torch")
"""Marks of the tests that `make test` leaves out, or runs without torch.

Those that are marked `rare`, too, take long and break rarely: `make test-slow` and `make test-workload` run
them, `make test-rest`, and with it `.ci/run`, does not.
"""

LONG = (
    "conformance/test_losses.py",
    "conformance/test_many_ranks.py",
    "stress/",
    "fuzz/test_fuzz.py",
    "docs/test_site.py",
    "distribution/",
    "planner/expected/test_expected_ranks.py",
)
"""Files with tests, or shared fixtures, of many seconds: they begin first.

In the end no core waits for one of them, nor does each worker make such a fixture for the few tests it got.
"""

REREADERS = (
    "cli/",
    "conformance/test_actions.py",
    "docs/",
    "summary/",
    "test_readme.py",
    "test_reports.py",
)
"""Tests of what commands and pages show of the same few samples, which a process reads once for them."""

# Models of tests are tiny, and tests run side by side: a second thread for each would only wait for a core.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# So would a second process for each trace that a test reads. Tests of several processes say how many.
os.environ.setdefault("TRACELENS_JOBS", "1")

# No deadlines: a shared machine is slow at times. The examples are the same every time, so that a red run is
# about the change; TRACELENS_TESTS=thorough looks further.
settings.register_profile(
    "default",
    deadline=None,
    max_examples=20,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "thorough", parent=settings.get_profile("default"), max_examples=1000, derandomize=False
)
settings.load_profile(effort("default", "thorough"))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`make test` does not even import files of slow tests alone, nor `make test-rest` files without any."""
    chosen = config.option.markexpr
    if chosen == "not slow":
        return True if _slow(collection_path) else None
    is_rest = chosen.lstrip("(").startswith("slow") and collection_path.name.startswith("test_")
    return True if is_rest and collection_path.is_file() and not _in_rest(collection_path) else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Iterator[object]:
    """What collecting makes stays: the garbage collector looks at none of it, then or later.

    Nor does it walk as often as usual through the traces that tests keep: that took a tenth of their time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000, 20, 20)
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Let REREADERS share what they read."""
    if _below_tests(item.path).startswith(REREADERS):
        from tests.shared_reading import reading_once

        with reading_once():
            return (yield)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Mark the slow tests, left to `make test-slow`, and all of a file that needs torch; LONG ones begin."""
    for item in items:
        if _slow(item.path):
            item.add_marker(pytest.mark.slow)
        if _needs_torch(item.path):
            item.add_marker(pytest.mark.torch)
        if any(map(item.get_closest_marker, REST)) and not _in_rest(item.path):
            raise pytest.UsageError(f"{item.nodeid}: write its mark in this file; make test-rest looks there")
    yield  # pytest chooses by mark, and brings those together that share a fixture
    items.sort(key=lambda item: not _below_tests(item.path).startswith(LONG))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before its fixtures are made."""
    if item.get_closest_marker("torch"):
        pytest.importorskip("torch", reason="needs torch")


_NEEDS_TORCH = re.compile(r'^(\w+ = )?pytest\.importorskip\("torch', re.MULTILINE)


@cache
def _needs_torch(path: Path) -> bool:
    return bool(_NEEDS_TORCH.search(path.read_text(encoding="utf-8")))


@cache
def _in_rest(path: Path) -> bool:
    """Whether a file has tests that `make test` leaves out."""
    text = path.read_text(encoding="utf-8")
    return _slow(path) or _needs_torch(path) or any(f"mark.{name}" in text for name in REST)


@cache
def _below_tests(path: Path) -> str:
    return path.relative_to(TESTS).as_posix() if path.is_relative_to(TESTS) else ""


@cache
def _slow(path: Path) -> bool:
    """Whether all tests of a file or folder are."""
    return f"{_below_tests(path)}/".startswith(SLOW)


@pytest.fixture(scope="session")
def corpus() -> Path:
    """The folder of real traces: TRACELENS_CORPUS, or shared/corpus beside the checkout."""
    named = os.environ.get("TRACELENS_CORPUS")
    path = Path(named) if named else ROOT.parent / "shared" / "corpus"
    if not path.is_dir():
        pytest.skip(f"no corpus of real traces at {named or '../shared/corpus'}: set TRACELENS_CORPUS")
    return path


@pytest.fixture(params=["native", "pure"], scope="module")
def each_core(request: pytest.FixtureRequest) -> Iterator[str]:
    """Tests that use this run with the native core and in pure Python."""
    name: str = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PURE, "" if name == "native" else "1")
        if name == "native" and core() is None:
            pytest.skip("the native core is not built")
        yield name
