"""Adding an analyzer is adding one file: no other file is touched, and every command knows it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders import events, write

ROOT = Path(__file__).resolve().parents[1]

ANALYZER = '''
"""How many kernels there are."""

from tracelens.analysis import analyzer
from tracelens.table import Column, Result, Schema, result
from tracelens.trace import Run, gpu_work

COUNTS = Schema("Kernel counts", (Column("rank", "int64"), Column("kernels", "int64", "count")))


@analyzer("headcount", title="Head count")
def headcount(run: Run) -> Result:
    """How many kernels does each rank run?"""
    rows = [
        {"rank": [trace.meta.rank], "kernels": [int(gpu_work(trace).is_kernel.sum())]} for trace in run.traces
    ]
    return result({"counts": COUNTS.concat(rows)})
'''


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A trace of three kernels and a copy."""
    drawn = events("""
        launch  | abc
        s7 gemm |    aa bb cc
        s7 copy |             ==
    """)
    return write(tmp_path / "trace.json", drawn, rank=0)


def tracelens(plugins: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own: a plugin must not stay behind in this one."""
    return subprocess.run(
        [sys.executable, "-m", "tracelens", *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"TRACELENS_PLUGINS": str(plugins), "COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_one_file_is_an_analyzer_everywhere(tmp_path: Path, trace: Path) -> None:
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (plugins / "headcount.py").write_text(ANALYZER)

    listed = tracelens(plugins, "list", "analyzers")
    assert listed.returncode == 0, listed.stderr
    assert "How many kernels does each rank run?" in listed.stdout
    assert listed.stdout.split("\n")[0].startswith("findings"), "an analyzer without order comes last"

    analyzed = tracelens(plugins, "analyze", "headcount", trace, "--json")
    assert analyzed.returncode == 0, analyzed.stderr
    found = json.loads(analyzed.stdout)
    assert found["analyzer"] == "headcount"
    assert found["tables"] == {"counts": [{"rank": 0, "kernels": 3}]}

    page = tmp_path / "report.html"
    reported = tracelens(plugins, "report", trace, "-o", page)
    assert reported.returncode == 0, reported.stderr
    assert "Head count" in page.read_text(encoding="utf-8")


COST = '''
"""An op of one's own."""

from tracelens.costs import OpCall, OpCost, cost


@cost("mylib::scale*")
def scale(call: OpCall) -> OpCost:
    """x * factor."""
    x = call.tensor(0)
    return OpCost(flops=x.numel, read_bytes=x.bytes, write_bytes=x.bytes, dtype=x.dtype)
'''


def test_one_file_counts_an_op_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "scale.py").write_text(COST)
    drawn = events("""
        op mylib::scale_rows shapes=[[4,8]] types=["float"] | --
        launch                                              | a
        s7 k                                                |  aa
    """)
    path = write(tmp_path / "trace.json", drawn, rank=0)
    found = tracelens(tmp_path / "scale.py", "analyze", "roofline", path, "--json")
    assert found.returncode == 0, found.stderr
    (row,) = json.loads(found.stdout)["tables"]["roofline"]
    assert (row["name"], row["flops"], row["read_bytes"], row["write_bytes"]) == (
        "mylib::scale_rows", 32, 128, 128,
    )  # fmt: skip
    listed = tracelens(tmp_path / "scale.py", "list", "costs")
    assert "mylib::scale*" in listed.stdout


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (
            ANALYZER.replace('"headcount"', '"kernels"', 1),
            ["analyzer 'kernels' is defined in", " and in"],
        ),
        ("import no_such_library", ["extra.py", "does not import", "no_such_library"]),
        ("def broken(:", ["extra.py", "does not import", "SyntaxError"]),
        ("raise RuntimeError('boom')", ["extra.py", "does not import", "boom"]),
    ],
    ids=["duplicate", "missing library", "syntax", "raises"],
)
def test_a_bad_plugin_is_one_line_and_exit_code_2(tmp_path: Path, text: str, named: list[str]) -> None:
    plugin = tmp_path / "extra.py"
    plugin.write_text(text)
    found = tracelens(plugin, "list", "analyzers")
    assert found.returncode == 2
    assert found.stdout == ""
    assert len(found.stderr.splitlines()) == 1, found.stderr
    assert all(word in found.stderr for word in named), found.stderr


def test_a_plugin_that_is_not_there(tmp_path: Path) -> None:
    found = tracelens(tmp_path / "gone.py", "list", "analyzers")
    assert found.returncode == 2
    assert "gone.py does not exist" in found.stderr
