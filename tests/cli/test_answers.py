"""`tracelens analyze NAME` answers first: one sentence with figures, then the table that proves it."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import tracelens
from tracelens.analysis import in_order
from tracelens.cli import run as run_cli
from tracelens.rendering.formats import answered
from tracelens.rendering.summary import answer
from tracelens.rendering.tables import column_formats, compared, leading_column, size_column
from tracelens.table import Report, Table

SAMPLES = Path(__file__).parents[2] / "sample_traces"
RUNS = ("ladder/ep4/00_baseline", "one_gpu/grouped", "cpu/tiny")
MORE = ("ladder/ep4/08_graph", "pipeline/interleaved", "serving/tbo_request", "faults/token_skew")
ALIKE = ("pipeline/plain", "one_gpu/loop", "serving/delayer_off", "faults/host_delay")
"""Of programs that one of the others is of, too."""
REAL = ("nvidia-h200-megatron/ep8", "mi250/mi250_minitoy_train_ROCm6_2_kineto.json.gz")
BASELINE = SAMPLES / RUNS[0]


@cache
def report(path: Path) -> Report:
    return tracelens.report_files(path)


def screen(whole: Report, name: str, width: int, table: str = "") -> list[str]:
    result = whole[name]
    alone = replace(whole, results=(result,), summary=None)
    return answered(alone, answer(result), width=width, table=table).splitlines()


def fits(whole: Report) -> None:
    for analyzer in in_order():
        result = whole[analyzer.name]
        for width, most in ((120, 25), (80, 40)):
            lines = screen(whole, analyzer.name, width)
            assert len(lines) <= most, f"{analyzer.name}, {width} columns: {len(lines)} lines"
            assert max(map(len, lines)) <= width
        text = answer(result)
        assert re.fullmatch(r"\S.*[.!?]", text), f"{analyzer.name}: {text}"
        assert any(map(len, compared(result).values())) == any(char.isdigit() for char in text), text


@pytest.mark.parametrize(
    "run",
    [
        *RUNS,
        *(pytest.param(run, marks=pytest.mark.slow) for run in MORE),
        *(pytest.param(run, marks=[pytest.mark.slow, pytest.mark.rare]) for run in ALIKE),
    ],
)
def test_every_answer_fits_one_screen(run: str) -> None:
    fits(report(SAMPLES / run))


@pytest.mark.slow
@pytest.mark.parametrize("run", REAL)
def test_every_answer_about_a_real_run_fits_one_screen(run: str, corpus: Path) -> None:
    fits(report(corpus / run))


def sorting(table: Table) -> set[str]:
    """Columns by which a table is sorted: as it declares; else those that fall over rows too many for chance.

    Nodes of a tree are sorted by their size.
    """
    leading = leading_column(table) if table.schema.descending else None
    if table.schema.kind == "tree":
        return {size_column(table)}
    if leading:
        return {leading.name}
    columns = {column.name: table.array(column.name) for column in table.schema.columns if column.unit}
    falls = {name for name, values in columns.items() if (np.diff(values) <= 0).all()}
    return {name for name in falls if len(np.unique(columns[name])) > 3}


@pytest.mark.parametrize("run", [*RUNS, *(pytest.param(run, marks=pytest.mark.slow) for run in MORE)])
def test_the_column_that_a_table_is_sorted_by_is_shown(run: str) -> None:
    seen = 0
    for result in report(SAMPLES / run).results:
        for name, table in compared(result).items():
            if not len(table) or table.schema.kind == "entries":
                continue
            columns = [column for column in table.schema.columns if column.name in sorting(table)]
            headers = [column_formats(table)[column.name].header for column in columns]
            for width in (80, 120):
                words = set(" ".join(screen(report(SAMPLES / run), result.analyzer, width, name)).split())
                is_shown = any({*header.split()} <= words for header in headers)
                assert is_shown or not headers, (result.analyzer, name, width, headers)
            seen += len(headers)
    assert seen > 10


@pytest.mark.parametrize("run", RUNS)
def test_times_of_a_table_have_one_unit_and_those_of_a_single_call_another(run: str) -> None:
    for result in report(SAMPLES / run).results:
        for name, table in compared(result).items():
            units: dict[bool, set[str]] = {True: set(), False: set()}
            for column in table.schema.columns:
                if column.unit == "ns" and not column.name.endswith("ts_ns"):
                    single = bool(re.search(r"(^|_)(median|mean|min|max|p\d+)_ns$", column.name))
                    units[single].add(column_formats(table)[column.name].unit)
            assert all(len(each) <= 1 for each in units.values()), (result.analyzer, name, units)


def test_what_is_not_of_one_step_says_so_in_its_title() -> None:
    of_step, summing = tracelens.report_files(BASELINE, step="25"), set()
    for result in report(BASELINE).results:
        of_steps = {name: table for name, table in compared(of_step[result.analyzer]).items() if len(table)}
        for name, table in compared(result).items():
            leading = leading_column(table)
            if name not in of_steps or not leading or leading.unit != "ns" or "step" in table.columns:
                continue
            ns, step_ns = (np.maximum(each.array(leading.name), 0).sum() for each in (table, of_steps[name]))
            if ns > 1.5 * step_ns:
                summing.add(result.analyzer)
                assert "covers" in result.meta or "Recorded" in table.schema.title, (result.analyzer, name)
    assert {"timeline", "step_timeline", "ops", "kernels", "idle", "collectives", "stragglers"} <= summing
    assert not [result.analyzer for result in of_step.results if "covers" in result.meta]
    assert report(BASELINE)["idle"].meta["covers"] == "whole recording, 2 steps"


def test_a_table_of_one_name_takes_the_place_of_the_first() -> None:
    lines = screen(report(BASELINE), "collectives", 120, "traffic")
    header = next(number for number, line in enumerate(lines) if line.startswith("group"))
    assert {"from", "to"} <= set(" ".join(lines[header - 1 : header + 1]).split())
    assert len(lines) <= 25


def test_the_command_prints_the_answer_first(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["analyze", "idle", str(BASELINE)]
    assert run_cli(words) == 0
    short = capsys.readouterr().out.splitlines()
    assert short[0].startswith(answer(report(BASELINE)["idle"])[:40])
    assert run_cli([*words, "--table", "gaps"]) == 0
    assert "cause" in capsys.readouterr().out
    assert run_cli([*words, "--full"]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 2 * len(short)
    assert run_cli([*words, "--table", "gap"]) == 2
    assert "gaps" in capsys.readouterr().err


TASKS = {
    "the worst rank's longest gap and its cause": ("idle", "", r"longest gap is [\d.]+ ms on rank \d: \w+"),
    "the GEMM that loses most, and how far it is from the roofline": (
        "roofline",
        "",
        r"GEMM: aten::\w+ \S+\[.*\d [mµ]s above its roofline",
    ),
    "bytes between two ranks": ("collectives", "traffic", r"from +to"),
    "which expert is hot": ("moe", "", r"hottest expert: \d+ of rank \d in layer \d"),
    "where in Perfetto": ("findings", "", r"rank +\(ms\)|worst +start"),
    "what was not recorded": ("completeness", "", r"missing or contradictory data"),
    "the shapes of one kernel": ("findings", "candidates", r"shapes"),
    "the share of waiting in communication": ("collectives", "", r"\d+% of it waiting for late ranks"),
    "the share of waiting in one collective": (
        "collectives",
        "summary",
        r"wait +.*fraction .*all_to_allv.* [\d.]+%",
    ),
    "the remedy of finding 1": ("findings", "", r"First row's remedy: \w+"),
}


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("task", TASKS)
def test_a_task_of_a_new_user_is_one_command(task: str, width: int) -> None:
    name, table, found = TASKS[task]
    lines = screen(report(BASELINE), name, width, table)
    assert re.search(found, " ".join(line.strip() for line in lines)), "\n".join(lines)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["diff", SAMPLES / "one_gpu/loop", SAMPLES / "one_gpu/grouped"], r"ms a recorded step"),
        (["project", "whatif", BASELINE, "--scenario", "launch_free"], r"ms"),
        (
            ["project", "memory", "--model", "deepseek_v3", "--gpus", "256", "--pp", "16", "--ep", "8"],
            r"GiB",
        ),
    ],
    ids=["what changed", "what launch-free would give", "memory headroom"],
)
def test_what_compares_or_projects_begins_with_the_answer(
    words: list[object],
    found: str,
    width: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert run_cli(list(map(str, words))) == 0
    assert re.search(found, "\n".join(capsys.readouterr().out.splitlines()[:8]))
