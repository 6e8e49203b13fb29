"""The examples of docs/how-to/extend.md: each by itself, as its user runs it, with its numbers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import tracelens

ROOT = Path(__file__).parents[2]
PLUGINS = ROOT / "examples" / "plugins"
PAGE = ROOT / "docs" / "how-to" / "extend.md"
LOOP, GROUPED = ROOT / "sample_traces/one_gpu/loop", ROOT / "sample_traces/one_gpu/grouped"
NPU = PLUGINS / "npuprof.json"
LINES, COLUMNS = 50, 90
"""An example is read in a minute, without scrolling sideways."""


def run(plugins: str, *words: str | Path) -> str:
    """What `tracelens` prints in a process of its own with these plugins, separated by blanks."""
    paths = os.pathsep.join(str(PLUGINS / name) for name in plugins.split())
    done = subprocess.run(
        [sys.executable, "-m", "tracelens", *map(str, words)],
        cwd=ROOT,
        env=os.environ | {"TRACELENS_PLUGINS": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def tables(plugins: str, *words: str | Path) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = json.loads(run(plugins, *words, "--json"))["tables"]
    return found


def kernels(path: Path) -> pd.DataFrame:
    """The kernels of a recording, by name."""
    return tracelens.analyze(tracelens.load(path), "kernels")["kernels"]


def test_the_analyzer() -> None:
    short, long = tables("kernel_lengths.py", "analyze", "kernel_lengths", LOOP)["lengths"]
    every = kernels(LOOP)
    assert (short["length"], long["length"]) == ("up to 10 µs", "longer")
    assert short["kernels"] + long["kernels"] == every["count"].sum()
    assert short["dur_ns"] + long["dur_ns"] == every["sum_ns"].sum()
    assert short["fraction_of_kernel_time"] + long["fraction_of_kernel_time"] == pytest.approx(1)
    assert 0 < short["dur_ns"] <= short["kernels"] * 10_000
    assert long["dur_ns"] > long["kernels"] * 10_000


def test_the_analyzer_from_python() -> None:
    code = f"""
import tracelens
from tracelens.analysis import ANALYZERS
from tracelens.rendering.figures import drawn
run = tracelens.load({str(LOOP)!r})
results = [tracelens.analyze(run, "kernel_lengths", limit_us=us) for us in (10, 50)]
declared = ANALYZERS.get("kernel_lengths").tables
assert all(declared[name] == table.schema for name, table in results[0].data.items())
assert all(column.doc for schema in declared.values() for column in schema.columns)
print(*(result["lengths"]["kernels"][0] for result in results))
print(*(bar["name"] + "=" + str(sum(bar["x"])) for bar in drawn(results[0])[0][0]["data"]), sep=";")
try:
    tracelens.analyze(run, "kernel_lengths", limit_us="ten")
except tracelens.TracelensError as error:
    print(error)
"""
    env = os.environ | {"TRACELENS_PLUGINS": str(PLUGINS / "kernel_lengths.py")}
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, check=True)
    counts, bars, error = done.stdout.decode().splitlines()
    fewer, more = map(int, counts.split())
    assert 0 < fewer < more
    times_ms = {name: float(ms) for name, ms in (bar.split("=") for bar in bars.split(";"))}
    assert list(times_ms) == ["up to 10 µs", "longer"]
    assert sum(times_ms.values()) == pytest.approx(kernels(LOOP)["sum_ns"].sum() / 1e6)
    assert "limit_us must be int, not 'ten'" in error


def test_the_skip_of_the_analyzer(tmp_path: Path) -> None:
    nothing = tmp_path / "no_kernels.json"
    args = {"device": 0, "stream": 7, "bytes": 64}
    copy = {
        "ph": "X",
        "cat": "gpu_memcpy",
        "name": "Memcpy",
        "pid": 0,
        "tid": 7,
        "ts": 1,
        "dur": 2,
        "args": args,
    }
    nothing.write_text(json.dumps({"traceEvents": [copy]}))
    skips = json.loads(run("kernel_lengths.py", "analyze", "kernel_lengths", nothing, "--json"))["skips"]
    assert [skip["reason"] for skip in skips] == ["no kernels in the trace"]


def test_the_detector() -> None:
    found = tables("elementwise.py", "analyze", "findings", GROUPED)
    measured = {
        row["measure"]: row["value"] for row in found["measurements"] if row["detector"] == "elementwise"
    }
    of_classes = kernels(GROUPED).query("category in ('elementwise', 'activation')")
    steps = len(tracelens.analyze(tracelens.load(GROUPED), "steps")["steps"])
    assert measured["elementwise kernels"] * steps == of_classes["count"].sum()
    (finding,) = [row for row in found["findings"] if row["detector"] == "elementwise"]
    assert finding["basis"] == "replayed"
    projected = tables("", "project", "whatif", GROUPED, "--scenario", finding["scenario"])["whatif"][0]
    assert finding["saving_ns"] == projected["base_ns"] - projected["projected_ns"] > 0
    text = PAGE.read_text()
    assert f"estimates {measured['estimate'] / 1e6:.2f} ms per step" in text
    assert f"replay saves {finding['saving_ns'] / 1e6:.2f} ms" in text
    assert f"and {finding['additional_ns'] / 1e6:.2f} ms on top of" in text


def test_the_remedy() -> None:
    def remedy(plugins: str) -> str:
        found = tables(plugins, "analyze", "findings", LOOP)["findings"]
        return next(row["remedy"] for row in found if row["detector"] == "expert_loop")

    bundled = remedy("")
    assert remedy("cluster_remedies.py") == (
        f"{bundled} On our cluster: start the job with `--moe-impl grouped`, see the wiki."
    )


def test_the_scenario() -> None:
    found = tables("without.py", "project", "whatif", GROUPED, "--scenario", "without=Optimizer*")
    (row,) = found["whatif"]
    (assumed,) = found["assumptions"]
    removed = int(re.match(r"[\d,]+", assumed["assumption"])[0].replace(",", ""))  # type: ignore[index]
    optimizer = kernels(GROUPED).query("category == 'optimizer'")
    assert removed >= optimizer["count"].sum() > 0
    assert row["base_ns"] - row["projected_ns"] >= optimizer["max_ns"].max() * 0.5


def test_the_cost_model_and_the_device() -> None:
    device = PLUGINS / "mychip.toml"
    found = tables("npuprof.py int4_gemm.py", "analyze", "roofline", NPU, "--device-file", device)
    (row,) = found["roofline"]
    m, n, k = 512, 4096, 4096
    assert row["flops"] == 2 * m * n * k
    assert row["read_bytes"] == m * k * 2 + n * k // 2 + n * 2
    assert row["write_bytes"] == m * n * 2
    assert row["roofline_ns"] == pytest.approx(2 * m * n * k / 800e12 * 1e9, abs=1)
    assert row["efficiency"] == pytest.approx(2 * m * n * k / 800e12 / 40e-6)
    assert (row["bound"], row["dims"]) == ("compute", "M=512 N=4096 K=4096")


def test_without_the_cost_model_the_call_is_not_counted() -> None:
    device = PLUGINS / "mychip.toml"
    found = tables("npuprof.py", "analyze", "roofline", NPU, "--device-file", device)
    assert "mylib::int4_gemm" in {row["name"] for row in found["uncovered"]}


def test_the_parser() -> None:
    found = tables("npuprof.py", "analyze", "kernels", NPU)["kernels"]
    assert [(row["name"], row["sum_ns"]) for row in found] == [
        ("matmul_bf16_int4", 40_000),
        ("softmax", 10_000),
    ]
    launched = tables("npuprof.py", "analyze", "launches", NPU)["calls"]
    assert [(row["name"], row["count"]) for row in launched] == [("npuLaunch", 1)]


def test_the_parser_is_tried_before_the_bundled_ones(tmp_path: Path) -> None:
    trace = json.loads(NPU.read_text())
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"schemaVersion": 1, **trace}))  # Kineto's sign
    (row, *_) = tables("npuprof.py", "analyze", "input", path)["input"]
    assert row["format"] == "npuprof"


def test_the_output_format(tmp_path: Path) -> None:
    path = tmp_path / "report.prom"
    run("prometheus.py", "report", GROUPED, "-o", path)
    head, *lines = path.read_text().splitlines()
    assert head == "# TYPE tracelens_headline gauge"
    values = {
        match["name"]: float(match["value"])
        for line in lines
        if (
            match := re.fullmatch(
                r'tracelens_headline\{name="(?P<name>\w+)",unit="[^"]*"\} (?P<value>\S+)', line
            )
        )
    }
    assert len(values) == len(lines)
    tiles = {tile.name: tile.value for tile in tracelens.report_files(GROUPED).summary.tiles}  # type: ignore[union-attr]
    assert values == {
        name: pytest.approx(value, rel=1e-5) for name, value in tiles.items() if value is not None
    }


def test_every_example_is_on_the_page_and_short() -> None:
    shown = set(re.findall(r"^\[`(.+)`\]\(\.\./\.\./\1\)$", PAGE.read_text(), re.MULTILINE))
    files = {str(path.relative_to(ROOT)) for path in PLUGINS.iterdir() if path.is_file()}
    assert shown == files
    for name in files:
        lines = (ROOT / name).read_text().splitlines()
        assert len(lines) <= LINES, name
        assert max(map(len, lines)) <= COLUMNS, name


def test_examples_import_what_packages_export() -> None:
    for path in PLUGINS.glob("*.py"):
        for name in re.findall(r"^from (tracelens[\w.]*) import", path.read_text(), re.MULTILINE):
            package = ROOT / Path(*name.split("."))
            is_base = name.count(".") == 1 and package.with_suffix(".py").is_file()
            assert (package / "__init__.py").is_file() or is_base, f"{path.name}: {name} is internal"
