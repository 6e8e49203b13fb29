"""An installed distribution with an entry point is a plugin: every command and every process knows it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.builders import events, write
from tests.distribution.environment import Environment, project
from tracelens.version import DISTRIBUTION

ANALYZER = '''
"""How many kernels there are."""

import os

from tracelens.analysis import analyzer
from tracelens.table import Column, Result, Schema, result
from tracelens.trace import Run, gpu_work

COUNTS = Schema(
    "Kernel counts",
    (Column("rank", "int64"), Column("kernels", "int64", "count"), Column("process", "int64")),
)


@analyzer("headcount", title="Head count")
def headcount(run: Run) -> Result:
    """How many kernels does each rank run, and which process counted them?"""
    rows = [
        {
            "rank": [trace.meta.rank],
            "kernels": [int(gpu_work(trace).is_kernel.sum())],
            "process": [os.getpid()],
        }
        for trace in run.traces
    ]
    return result({"counts": COUNTS.concat(rows)})
'''
COST = '''
"""An op of one's own."""

from tracelens.costs import OpCall, OpCost, cost


@cost("mylib::scale*")
def scale(call: OpCall) -> OpCost:
    """x * factor."""
    x = call.tensor(0)
    return OpCost(flops=x.numel, read_bytes=x.bytes, write_bytes=x.bytes, dtype=x.dtype)
'''
RENDERER = '''
"""The names of the analyzers, one a line."""

from tracelens.rendering import renderer
from tracelens.table import Report


@renderer("names", suffix=".names", doc="Names of analyzers")
def names(report: Report) -> dict[str, bytes]:
    return {"report.names": "".join(f"{found.analyzer}\\n" for found in report.results).encode()}
'''
FILES = {
    "headcount/__init__.py": "",
    "headcount/analyzer.py": ANALYZER,
    "headcount/cost.py": COST,
    "headcount/renderer.py": RENDERER,
}
POINTS = """
[project.entry-points."tracelens.plugins"]
counting = "headcount.analyzer"
scaling = "headcount.cost"
names = "headcount.renderer"
"""
DRAWN = """
    op mylib::scale_rows shapes=[[4,8]] types=["float"] | --
    launch                                              | ab c
    s7 k                                                |  aa bb cc
"""


@pytest.fixture(scope="module")
def headcount(installed: Environment, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with tracelens and a plugin of three modules."""
    installed.install(project(tmp_path_factory.mktemp("plugin") / "headcount", "my-headcount", FILES, POINTS))
    return installed


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write(tmp_path / "trace.json", events(DRAWN), rank=0)


@pytest.fixture
def ranks(tmp_path: Path) -> Path:
    """Three ranks; their files are so large that processes are started for them."""
    folder = tmp_path / "ranks"
    folder.mkdir()
    for rank in range(3):
        file = write(folder / f"rank{rank}.json", events(DRAWN, start_ns=1000 * rank), rank=rank)
        file.write_text(file.read_text().replace("{", "{" + " " * 400_000, 1))
    return folder


def test_lists_have_what_it_brings(headcount: Environment) -> None:
    assert "headcount" in headcount.tracelens("list", "analyzers").stdout
    assert ["mylib::scale*", "headcount.cost", "x * factor."] in [
        line.split(maxsplit=2) for line in headcount.tracelens("list", "costs").stdout.splitlines()
    ]
    assert "Names of analyzers" in headcount.tracelens("list", "renderers").stdout


def test_analyzer_cost_and_renderer_work(headcount: Environment, trace: Path, tmp_path: Path) -> None:
    found = headcount.tracelens("analyze", "headcount", trace, "--json")
    (row,) = json.loads(found.stdout)["tables"]["counts"]
    assert (row["rank"], row["kernels"]) == (0, 3)

    found = headcount.tracelens("analyze", "roofline", trace, "--json")
    rows = json.loads(found.stdout)["tables"]["roofline"]
    assert [(row["name"], row["flops"], row["read_bytes"], row["write_bytes"]) for row in rows] == [
        ("mylib::scale_rows", 32, 128, 128)
    ]

    target = tmp_path / "report.names"
    found = headcount.tracelens("report", trace, "--only", "ops", "--only", "headcount", "-o", target)
    assert found.returncode == 0, found.stderr
    assert target.read_text() == "ops\nheadcount\n"


def counted(environment: Environment, ranks: Path, *options: str) -> set[int]:
    """The processes that counted the kernels of three ranks."""
    found = environment.tracelens(
        "analyze", "headcount", ranks, "--partial", "--json", *options, TRACELENS_JOBS="3"
    )
    assert found.returncode == 0, found.stderr
    rows = json.loads(found.stdout)["tables"]["counts"]
    assert [(row["rank"], row["kernels"]) for row in rows] == [(0, 3), (1, 3), (2, 3)]
    return {row["process"] for row in rows}


def test_it_runs_in_the_processes_of_many_ranks(headcount: Environment, ranks: Path) -> None:
    assert len(counted(headcount, ranks)) > 1


DASK = """
import sys
from distributed import LocalCluster
from tracelens.cli import run

if __name__ == "__main__":
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, memory_limit=0
    ) as cluster:
        code = run([*sys.argv[1:], "--dask", cluster.scheduler_address])
    sys.exit(code)
"""


@pytest.mark.slow
@pytest.mark.rare
def test_it_runs_on_the_workers_of_a_cluster(headcount: Environment, ranks: Path, tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="the extra dask is not installed")
    script, target = tmp_path / "cluster.py", tmp_path / "report.json"
    script.write_text(DASK)
    found = headcount.run(
        headcount.python, script, "report", ranks, "--partial", "--only", "headcount", "-o", target
    )
    assert found.returncode == 0, found.stderr
    rows = json.loads(target.read_text())["results"]["headcount"]["tables"]["counts"]
    assert [(row["rank"], row["kernels"]) for row in rows] == [(0, 3), (1, 3), (2, 3)]


@pytest.mark.rare
@pytest.mark.slow
def test_an_editable_plugin_runs_in_all_processes(
    environment: Environment, wheel: Path, ranks: Path, tmp_path: Path
) -> None:
    pytest.importorskip("editables", reason="hatchling needs editables for it")
    exact = f"{POINTS}\n[tool.hatch.build]\ndev-mode-exact = true\n"
    source = project(tmp_path / "source", "my-headcount", FILES, exact)
    environment.install(wheel)
    environment.install("-e", source)
    assert not (environment.site / "headcount").exists()
    assert len(counted(environment, ranks)) > 1


@pytest.fixture
def copy(installed: Environment, tmp_path: Path) -> Environment:
    """An environment with tracelens, for tests that break it."""
    made = Environment(tmp_path / "copy")
    for part in ("tracelens", f"{DISTRIBUTION.replace('-', '_')}-*.dist-info"):
        for path in installed.site.glob(part):
            shutil.copytree(path, made.site / path.name)
    shutil.copy(installed.bin / "tracelens", made.bin)
    return made


def point(value: str) -> str:
    return f'[project.entry-points."tracelens.plugins"]\nextra = "{value}"\n'


def test_a_plugin_that_does_not_import_is_one_line(copy: Environment, tmp_path: Path) -> None:
    copy.install(project(tmp_path / "mine", "My.Plugin", {"mine/__init__.py": ""}, point("mine")))
    (points,) = copy.site.glob("*lugin-1.2.dist-info/entry_points.txt")
    for text, value, reason in (
        ("import no_such_library", "mine", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("def broken(:", "mine", "SyntaxError"),
        ("raise RuntimeError('boom\\nand more')", "mine", "RuntimeError: boom"),
        ("", "mine.gone", "ModuleNotFoundError: No module named 'mine.gone'"),
        ("", "mine:gone", "AttributeError"),
    ):
        (copy.site / "mine" / "__init__.py").write_text(text)
        points.write_text(f"[tracelens.plugins]\nextra = {value}\n")
        found = copy.run(copy.python, "-m", "tracelens", "list", "analyzers")
        assert (found.returncode, found.stdout) == (2, "")
        (line,) = found.stderr.splitlines()
        said = f"tracelens: plugin 'extra' of My.Plugin 1.2 does not import: {reason}"
        assert line.startswith(said), line
        assert line.endswith("; upgrade or uninstall My.Plugin")


def test_a_name_taken_twice_names_both(copy: Environment, tmp_path: Path) -> None:
    copy.install(
        *(
            project(tmp_path / name, name, {f"{name}_counts/__init__.py": ANALYZER}, point(f"{name}_counts"))
            for name in ("first", "second")
        )
    )
    found = copy.run(copy.python, "-m", "tracelens", "list", "analyzers")
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr == (
        "tracelens: plugin 'extra' of second 1.2: analyzer 'headcount' is defined in first_counts and in "
        "second_counts\n"
    )


def test_broken_metadata_of_others_is_one_line(copy: Environment) -> None:
    broken = copy.site / "broken-1.0.dist-info"
    broken.mkdir()
    (broken / "METADATA").write_text("Name: broken\nVersion: 1.0\n")
    program = "import tracelens.analysis as room; room.ANALYZERS.load()"
    # Without a plugin of ours in it, what is broken does not matter.
    (broken / "entry_points.txt").write_bytes(b"[\xff]\n")
    assert not copy.run(copy.python, "-c", program).stderr
    (broken / "entry_points.txt").write_bytes(b"[tracelens.plugins]\n\xff = x\n")
    found = copy.run(copy.python, "-c", program)
    assert found.stderr.splitlines()[-1].startswith(
        "tracelens.errors.TracelensError: entry points of installed distributions cannot be read: Unicode"
    )
