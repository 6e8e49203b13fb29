"""`import tracelens`: its names, their signatures, wrong options, and what its objects show of themselves."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import tracelens
from tests.builders import aligned, draw, draw_run, events, write
from tracelens.errors import TracelensError, UnknownName, WrongOption
from tracelens.trace import make_run

ROOT = Path(__file__).parents[1]
NAMES = {
    "analyze", "diff", "fuse", "gate", "load", "project_bounds", "project_bubble", "project_memory",
    "project_pipeline", "project_published", "project_scaling", "record", "render", "replay", "report",
    "report_files", "search_layouts", "whatif",
}  # fmt: skip
TYPES = {"Report", "Result", "Run", "TracelensError", "Verdict"}
RANK = aligned("""
    step 7      | ----------
    step 8      |           ----------
    op aten::mm shapes=[[2,3],[3,4]] types=["float","float"] |  --        --
    launch      |  a         b
    s7 gemm     |   aaa       bbb
""")


def printed(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


def test_every_name_is_listed_and_there() -> None:
    assert NAMES | TYPES | {"__version__"} == set(tracelens.__all__)
    assert tracelens.TracelensError is TracelensError
    assert set(dir(tracelens)) >= NAMES | TYPES
    assert all(isinstance(getattr(tracelens, name), type) for name in TYPES)
    for name in NAMES:
        assert callable(getattr(tracelens, name)), name
    with pytest.raises(AttributeError, match="nothing_of_this_name"):
        tracelens.nothing_of_this_name  # noqa: B018


def test_names_are_listed_before_anything_is_imported() -> None:
    code = "import sys, tracelens; print(*dir(tracelens), *(m for m in sys.modules if 'tracelens.' in m))"
    found = set(printed(code).split())
    assert found >= NAMES
    assert {name for name in found if "." in name} == {"tracelens.lazy", "tracelens.version"}


@pytest.mark.parametrize("name", [*sorted(NAMES), "Run.collectives", "Run.kernels", "Run.ops"])
def test_signatures_are_typed(name: str) -> None:
    function = attrgetter(name)(tracelens)
    signature = inspect.signature(function)
    assert signature.return_annotation is not inspect.Signature.empty
    for parameter in signature.parameters.values():
        assert parameter.name == "self" or parameter.annotation is not inspect.Parameter.empty, parameter
    text = inspect.getdoc(function) or ""
    for parameter in signature.parameters.keys() - {"self"}:
        assert f"    {parameter}: " in text, f"{name}: {parameter} is not told"


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_import_the_package_alone(path: Path) -> None:
    cells = json.loads(path.read_text())["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    assert "from tracelens" not in code
    assert "import tracelens." not in code


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "kernels",
            {"scop": "linked"},
            "analyzer 'kernels' has no option 'scop'; did you mean 'scope'? (it has: scope, step)",
        ),
        ("kernels", {"device": "mi300x"}, "analyzer 'kernels' has no option 'device' (it has: scope, step)"),
        ("input", {"scope": "linked"}, "analyzer 'input' has no option 'scope' (it has: step)"),
        (
            "kernels",
            {"scope": "lnked"},
            "analyzer 'kernels': scope must be 'all' or 'linked', not 'lnked'; did you mean 'linked'?",
        ),
        ("kernels", {"scope": 1}, "analyzer 'kernels': scope must be 'all' or 'linked', not 1"),
        ("roofline", {"device": "mi30x"}, "unknown device 'mi30x'; did you mean 'mi350x'?"),
        ("roofline", {"device": 300}, "analyzer 'roofline': device must be str, not 300"),
        (
            "roofline",
            {"device_file": "none.toml"},
            "none.toml: no such file",
        ),
        ("kernls", {}, "unknown analyzer 'kernls'; did you mean 'kernels'?"),
    ],
)
def test_wrong_options_are_one_line(name: str, options: dict[str, Any], message: str) -> None:
    run = draw_run(RANK)
    for ask in (
        lambda: tracelens.analyze(run, name, **options),
        lambda: tracelens.report(run, [name], **options),
        lambda: tracelens.report_files("missing.json", names=[name], **options),
    ):
        with pytest.raises(TracelensError) as found:
            ask()
        assert str(found.value) == message


def test_a_step_is_obeyed_or_refused() -> None:
    run = draw_run(RANK)
    found = [tracelens.analyze(run, "kernels", step=step)["kernels"] for step in ("7", 7, "ProfilerStep#7")]
    assert found[0].equals(found[1])
    assert found[0].equals(found[2])
    whole, one = (tracelens.analyze(run, "kernels", step=step)["kernels"] for step in (None, "8"))
    assert whole["count"].sum() == 2 * one["count"].sum() == 2
    same = tracelens.report(run, ["kernels"], step="8")["kernels"]["kernels"]
    assert one.equals(same)
    for call in (tracelens.analyze, lambda *args, **more: tracelens.report(args[0], [args[1]], **more)):
        with pytest.raises(TracelensError, match=r"no step '24' \(has: ProfilerStep#7, ProfilerStep#8\)"):
            call(run, "kernels", step="24")


def test_an_option_goes_to_the_analyzers_that_have_it() -> None:
    run = draw_run(RANK)
    report = tracelens.report(run, ["input", "kernels", "roofline"], scope="linked", device="mi300x")
    assert report["kernels"].meta["scope"] == report["roofline"].meta["scope"] == "linked"
    assert report["roofline"].meta["device"] == "mi300x"
    assert "scope" not in report["input"].meta
    assert report.meta["options"] == {"scope": "linked", "device": "mi300x"}
    # What some analyzer has by default asks the others for nothing.
    assert tracelens.analyze(run, "input", scope="all", device=None).analyzer == "input"
    with pytest.raises(
        WrongOption, match="no analyzer of this report has an option 'devcie'; did you mean 'device'"
    ):
        tracelens.report(run, ["kernels", "roofline"], devcie="mi300x")
    # An analyzer that reads the results of others has their options.
    assert tracelens.analyze(run, "findings", scope="linked").analyzer == "findings"


def test_one_name_is_no_list_of_letters() -> None:
    assert [result.analyzer for result in tracelens.report(draw_run(RANK), "kernels").results] == ["kernels"]
    with pytest.raises(UnknownName):
        tracelens.report(draw_run(RANK), "kernel_s")


def test_reprs_are_one_short_line(tmp_path: Path) -> None:
    run = draw_run(*[RANK] * 12)
    trace, result, report = run.traces[0], tracelens.analyze(run, "kernels"), tracelens.report(run)
    table = result.data["kernels"]
    shown = [run, trace, trace.meta, result, report, table, table.schema, trace.tables["events"].schema]
    for value in shown:
        assert "\n" not in repr(value)
        assert len(repr(value)) < 250, repr(value)
    assert repr(run) == "Run(12 ranks: 0-11; steps 7, 8; 96 events)"
    assert repr(trace).endswith("kineto: 8 events)")
    assert repr(trace).startswith("Trace(rank 0 of ")
    assert repr(result) == "Result('kernels': rows of tables: kernels 12; 0 skips)"
    assert repr(table).startswith("Table('Kernels by name': 12 rows, ")
    assert repr(report).startswith("Report('tracelens report': ")
    path = write(tmp_path / "rank3.json", events(RANK))
    verdict = tracelens.gate(path, path, "kernel.count<=1")
    assert repr(verdict) == (
        f"Verdict(pass: 0 failed, 0 inconclusive of 1 rules, {str(path)!r} against {str(path)!r})"
    )


def test_the_repr_of_part_of_a_run() -> None:
    traces = [draw(RANK) for _ in range(4)]
    metas = [replace(trace.meta, rank=rank) for trace, rank in zip(traces, (0, 1, 3, 9), strict=True)]
    ranks = [replace(trace, meta=meta) for trace, meta in zip(traces, metas, strict=True)]
    assert repr(make_run(ranks, partial=True)).startswith("Run(4 ranks: 0-1, 3, 9; steps 7, 8; ")


def test_the_session_imports_nothing_before_it_is_used() -> None:
    listed = "m for m in sys.modules if m.startswith('tracelens.session.')"
    code = f"import sys, tracelens.session; print(*({listed}))"
    assert printed(code).split() == []
