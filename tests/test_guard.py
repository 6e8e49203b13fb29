"""A part that fails takes nothing else along: each kind of part is broken in turn."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import tracelens
from tests.builders import aligned, events, write
from tracelens.analysis import ANALYZERS
from tracelens.cli import run as run_cli
from tracelens.costs import COSTS, OpCall, Uncounted
from tracelens.errors import SchemaError, TracelensError
from tracelens.findings import DETECTORS
from tracelens.guard import DEBUG, Failure, banner, guard
from tracelens.rendering import RENDERERS
from tracelens.rendering.figures import FIGURES
from tracelens.rendering.formats import console_text, fragment
from tracelens.table import Report
from tracelens.what_if import SCENARIOS

STEP = aligned("""
    step 0   | --------------------
    op aten::mm shapes=[[64,32],[32,16]] types=["float","float"] | ---
    launch   |  a b
    s7 gemm  |     aaaaaa bbbbb
""")


@pytest.fixture(autouse=True)
def no_debugging(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard is closed, whatever the environment says."""
    monkeypatch.delenv(DEBUG, raising=False)


@pytest.fixture
def ranks(tmp_path: Path) -> Path:
    """Two ranks with the same step."""
    folder = tmp_path / "ranks"
    folder.mkdir()
    for rank in (0, 1):
        write(folder / f"rank{rank}.json", events(STEP, start_ns=1000 * rank), rank=rank)
    return folder


def stop(*_: Any, **__: Any) -> Any:
    """What is wrong with the parts of these tests."""
    return next(iter(()))


def put(monkeypatch: pytest.MonkeyPatch, registry: Any, name: str, **changes: Any) -> None:
    """Change an entry of a registry for one test."""
    registry.load()
    monkeypatch.setitem(registry._items, name, replace(registry.get(name), **changes))


def failed(report: Report) -> dict[str, str]:
    """Part to class of its error."""
    return {failure.part: failure.error for failure in report.failures}


# -- the guard -----------------------------------------------------------------------------------------


def test_a_failure_says_what_where_and_what_to_do() -> None:
    failure = guard("analyzer x", stop)
    assert isinstance(failure, Failure)
    assert (failure.part, failure.error) == ("analyzer x", "StopIteration")
    assert "test_guard.py:" in failure  # the innermost frame, as none is of the package
    assert "--debug" in failure
    assert len(failure.splitlines()) == 1


def test_a_failure_travels_between_processes() -> None:
    failure = pickle.loads(pickle.dumps(guard("x", stop), protocol=5))
    assert (failure.part, failure.error) == ("x", "StopIteration")


def test_errors_of_users_pass() -> None:
    def wrong() -> None:
        raise TracelensError("no such device")

    with pytest.raises(TracelensError, match="no such device"):
        guard("x", wrong)


@pytest.mark.parametrize("error", [SystemExit(0), type("Stop", (BaseException,), {})()])
def test_no_part_ends_the_command(error: BaseException) -> None:
    def ends() -> None:
        raise error

    failure = guard("analyzer x", ends)
    assert isinstance(failure, Failure)
    assert failure.error == type(error).__name__


def test_the_user_ends_any_part() -> None:
    def ends() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        guard("analyzer x", ends)


def test_a_table_that_does_not_fit_is_a_bug() -> None:
    def wrong() -> None:
        raise SchemaError("columns missing")

    failure = guard("x", wrong)
    assert isinstance(failure, Failure)
    assert "columns missing" in failure


def test_debugging_lets_everything_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DEBUG, "1")
    with pytest.raises(StopIteration):
        guard("x", stop)


def test_a_banner_names_each_part_once() -> None:
    failure = guard("analyzer x", stop)
    assert isinstance(failure, Failure)
    assert banner([failure, failure]).count("analyzer x (StopIteration)") == 1
    assert banner([]) == ""


# -- what runs behind it -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, _ in ANALYZERS.items()])
@pytest.mark.parametrize(
    "load",
    [
        tracelens.report_files,
        pytest.param(lambda path: tracelens.report(tracelens.load(path)), marks=pytest.mark.slow),
    ],
)
def test_one_analyzer(
    name: str, load: Callable[[Path], Report], ranks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = ANALYZERS.get(name)
    put(monkeypatch, ANALYZERS, name, function=stop, part=item.part and stop)
    monkeypatch.setenv("TRACELENS_JOBS", "1")
    report = load(ranks)
    assert set(failed(report).values()) == {"StopIteration"}
    assert all(part.startswith(f"analyzer {name}") for part in failed(report))
    assert not report[name].data
    others = [result for result in report.results if result.analyzer != name]
    assert len(others) == len(list(ANALYZERS.items())) - 1
    assert all(result.data or result.skips for result in others)


def test_one_rank_of_an_analyzer(ranks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    function = ANALYZERS.get("timeline").function

    def picky(run: Any, **options: Any) -> Any:
        return stop() if 1 in run.ranks else function(run, **options)

    put(monkeypatch, ANALYZERS, "timeline", function=picky)
    report = tracelens.report(tracelens.load(ranks), ["timeline"])
    assert set(report["timeline"].data["timeline"].array("rank").tolist()) == {0}
    assert failed(report) == {"analyzer timeline, rank 1": "StopIteration"}


def test_a_detector_does_not_take_the_findings_along(ranks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, DETECTORS, "small_kernels", function=stop)
    put(monkeypatch, DETECTORS, "stragglers", function=stop)
    report = tracelens.report(tracelens.load(ranks), ["findings"])
    assert failed(report) == {
        "detector small_kernels": "StopIteration",
        "detector stragglers": "StopIteration",
    }
    checked = report["findings"]["checks"]
    assert set(checked["detector"]) == {name for name, _ in DETECTORS.items()}


def test_a_detector_is_not_blamed_for_an_analyzer(ranks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, ANALYZERS, "stragglers", function=stop)
    report = tracelens.report(tracelens.load(ranks), ["findings"])
    checked = report["findings"]["checks"].set_index("detector")["verdict"]
    assert checked["stragglers"] == "needs stragglers, which failed"


def test_a_cost_model(ranks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = next(name for name, _ in COSTS.items() if name == "aten::mm")
    put(monkeypatch, COSTS, model, function=stop)
    from tracelens.costs import find
    from tracelens.costs.model import _models

    for cache in (_models, find):
        cache.cache_clear()
    try:
        with pytest.raises(Uncounted) as caught:
            COSTS.get(model).count(OpCall(model))
        assert isinstance(caught.value.reason, Failure)
        report = tracelens.report(tracelens.load(ranks), ["roofline"])
    finally:
        monkeypatch.undo()
        for cache in (_models, find):
            cache.cache_clear()
    assert failed(report) == {f"cost model {model}": "StopIteration"}
    assert "StopIteration" in " ".join(report["roofline"]["uncovered"]["reason"])


def test_a_scenario(ranks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, SCENARIOS, "no_blocking", change=stop)
    result = tracelens.whatif(tracelens.load(ranks))
    assert {failure.part for failure in result.failures} == {"scenario no_blocking"}
    assert len(result["whatif"]) > 0


def test_figures(ranks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = tracelens.report(tracelens.load(ranks), ["timeline", "idle"])
    FIGURES.load()
    monkeypatch.setitem(FIGURES._items, "timeline", stop)
    page = RENDERERS.get("html").files(report)["report.html"].decode()
    assert 'role="alert"' in page
    assert "figures of timeline (StopIteration)" in page
    assert 'id="figure-0"' in page  # that of idle


# -- what readers see ----------------------------------------------------------------------------------


class Unshowable:
    """A table that no format can write."""

    schema = property(stop)
    columns = property(stop)

    def __len__(self) -> int:
        return 1


@pytest.mark.parametrize("name", ["html", "markdown", "console", "json", "csv", "xlsx"])
def test_one_section(name: str, ranks: Path, tmp_path: Path) -> None:
    report = tracelens.report(tracelens.load(ranks), ["timeline", "idle"])
    broken = replace(report["idle"], data={"idle": Unshowable()})
    report = replace(report, results=(report["timeline"], broken))
    suffix = RENDERERS.get(name).suffix
    tracelens.render(report, tmp_path / f"out{suffix}")
    text = "".join(
        path.read_text(errors="replace") for path in sorted(tmp_path.rglob("out*")) if path.is_file()
    ) or "".join(path.read_text() for path in sorted((tmp_path / "out").iterdir()))
    if name != "xlsx":  # which is compressed
        assert "rendering idle" in text
        assert "timeline" in text.lower()
    assert len(text) > 100


def test_every_format_for_people_says_so_on_top(ranks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, ANALYZERS, "timeline", function=stop)
    report = tracelens.report(tracelens.load(ranks), ["timeline", "idle"])
    said = banner(report.failures)
    assert said in " ".join(console_text(report, width=4000).splitlines()[:5])
    markdown = RENDERERS.get("markdown").files(report)["report.md"].decode()
    assert "> **Incomplete" in markdown[:200]
    page = RENDERERS.get("html").files(report)["report.html"].decode()
    assert 'role="alert"' in page[: page.index("<section")]
    saved = json.loads(RENDERERS.get("json").files(report)["report.json"])
    assert saved["meta"]["failures"]["analyzer timeline, rank 0"] == "StopIteration"
    assert "StopIteration" in fragment(report["timeline"])


def test_a_whole_report_has_no_banner(ranks: Path) -> None:
    report = tracelens.report(tracelens.load(ranks))
    assert not report.failures
    assert "Incomplete" not in console_text(report)


# -- the command line ----------------------------------------------------------------------------------


def test_the_rest_is_told_with_exit_code_0(
    ranks: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    put(monkeypatch, ANALYZERS, "timeline", function=stop)
    assert run_cli(["report", str(ranks), "--only", "timeline", "--only", "idle"]) == 0
    captured = capfd.readouterr()
    assert "analyzer timeline, rank 0 (StopIteration)" in captured.err
    assert "Traceback" not in captured.err
    assert "Idle" in captured.out


@pytest.mark.parametrize("command", [["analyze", "timeline"], ["report", "--only", "timeline"]])
def test_nothing_told_is_exit_code_2(
    command: list[str], ranks: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    put(monkeypatch, ANALYZERS, "timeline", function=stop)
    assert run_cli([*command, str(ranks)]) == 2
    assert len(capfd.readouterr().err.splitlines()) == 1


def test_debug_stops_at_the_first(
    ranks: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    put(monkeypatch, ANALYZERS, "timeline", function=stop)
    monkeypatch.setenv(DEBUG, "0")  # restored after the test
    with pytest.raises(StopIteration):
        run_cli(["analyze", "timeline", str(ranks / "rank0.json"), "--debug"])


def test_a_gate_without_figures_is_no_verdict(
    ranks: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    put(monkeypatch, ANALYZERS, "steps", function=stop)
    assert run_cli(["gate", str(ranks), str(ranks)]) == 2
    assert "analyzer steps" in capfd.readouterr().err


def test_a_missing_package_is_named() -> None:
    def call() -> None:
        raise ModuleNotFoundError("No module named 'absent'", name="absent")

    failure = guard("the command", call)
    assert isinstance(failure, Failure)
    assert "No module named 'absent'" in failure
