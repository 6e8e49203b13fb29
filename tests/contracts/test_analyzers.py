"""What every registered analyzer promises, whatever it is given. A new analyzer is tested by being there."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from tests.builders import aligned, draw, draw_run
from tracelens import analyze, report
from tracelens.analysis import ANALYZERS, SHARED, in_order
from tracelens.analysis.common import noted
from tracelens.errors import WrongOption
from tracelens.rendering import RENDERERS
from tracelens.table import Coded, Report, Result, Table
from tracelens.trace import Run, make_run
from tracelens.trace.activities import SCOPES

ORDINARY = """
                                                             | 0    5    10   15   20   25   30   35   40
    step 1                                                   | --------------------
    step 2                                                   |                     --------------------
    python train.py(12): step                                | ---------------------------------------
    python nn.Module: MoE_0                                  |  -----------          ----------
    scope experts                                            |   --------              ------
    op aten::linear seq=1 shapes=[[4,8],[8,2]] types=["float","float"] |   ---                  ---
    op aten::addmm shapes=[[4,8],[8,2]] types=["float","float"]        |    -                    -
    op record_param_comms collective=all_to_allv group=0 ranks=[0,1] size=2 in=8 out=8 dtype=Half |         --
    op AddmmBackward0 seq=1 fwd=3 tid=2                      |               ----
    launch                                                   |    a    b              c   d
    launch tid=2                                             |                e
    launch cudaStreamSynchronize                             |                              ----
    s7 ampere_sgemm_128x64_nn                                |      aaaa      eee       ccc
    s9 ncclDevKernel_SendRecv                                |          bbbbbbb
    s7 copy bytes=64                                         |                               dd
    s7 fill                                                  | ==
    s7 vectorized_elementwise_kernel                         |                                     ==
"""


def _without(*words: str) -> str:
    return "\n".join(line for line in aligned(ORDINARY).splitlines() if line.split()[0] not in words)


def _plain(text: str) -> str:
    """The drawing without its op arguments."""
    return text.replace("shapes=[[4,8],[8,2]]", " " * 20).replace('types=["float","float"]', " " * 23)


def _both_ranks() -> Run:
    return draw_run(aligned(ORDINARY), _without("step", "scope"), ns_per_char=5000)


def _one(text: str, **options: Any) -> Run:
    return make_run([draw(text, **{"ns_per_char": 5000, **options})])


# Two steps on a host without a GPU: a linear layer forward and backward, an exchange, and a value read.
HOST = """
                                                             | 0    5    10   15   20   25   30   35   40
    step 1                                                   | --------------------
    step 2                                                   |                     --------------------
    python train.py(12): step                                | ---------------------------------------
    python nn.Module: MoE_0                                  |  -----------          ----------
    scope experts                                            |   --------              ------
    op aten::linear seq=1 shapes=[[4,8],[2,8]] types=["float","float"] |   ---                  ---
    op aten::mm shapes=[[4,8],[8,2]] types=["float","float"] |    --                   --
    op c10d::alltoall_base_ shapes=[[4,2],[4,2],[],[],[]] types=["float","float","","ScalarList","ScalarList"] values=["","","","[2,2]","[2,2]"] |       --
    scope gloo:all_to_all tid=9 shapes=[[4,2]] types=["float"] |        ------
    op autograd::engine::evaluate_function: MmBackward0 seq=1 fwd=3 |               -----
    op aten::mm shapes=[[8,4],[4,2]] types=["float","float"]   |                ---
    op aten::item                                            |                              ----
    op aten::_local_scalar_dense                             |                               --
    op aten::copy_                                           |                                     --
"""  # noqa: E501
GROUPS = {
    "backend": "gloo",
    "rank": 0,
    "world_size": 2,
    "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": 2, "ranks": [0, 1]}],
}

CASES = {
    "ordinary": lambda: _one(aligned(ORDINARY)),
    "since 1970": lambda: _one(aligned(ORDINARY), start_ns=1_712_195_495_519_689_500, ns_per_char=50),
    "two ranks": _both_ranks,
    "a rank without GPU work": lambda: draw_run(aligned(ORDINARY), "op f | --"),
    "no GPU work": lambda: _one(_without("s7", "s9")),
    "nothing on the CPU": lambda: _one(
        _without("step", "python", "scope", "op", "launch")
    ),
    "no arrows": lambda: _one(aligned(ORDINARY), flows=False),
    "no correlation ids and no arrows": lambda: _one(aligned(ORDINARY), flows=False, correlations=False),
    "no shapes": lambda: _one(_plain(aligned(ORDINARY))),
    "no ops": lambda: _one(_without("op", "python", "scope")),
    "no python frames": lambda: _one(_without("python")),
    "no steps": lambda: _one(_without("step")),
    "one kernel": lambda: _one("s7 k | ===="),
    "one kernel without extent": lambda: _one("s7 k | !"),
    "one op": lambda: _one("op aten::mm | ----"),
    "host": lambda: _one(aligned(HOST), distributedInfo=GROUPS),
    "host, two ranks": lambda: make_run(
        draw(aligned(HOST), ns_per_char=5000 + rank, distributedInfo=GROUPS | {"rank": rank})
        for rank in (0, 1)
    ),
    "one instant": lambda: _one("scope x | !"),
    "only copies": lambda: _one("s7 copy | == =="),
}  # fmt: skip

NOTHING_TO_TELL = {("input", "losses"), ("findings", "facts"), ("findings", "candidates")}
"""Tables whose absence is good news."""

SIGNED = {
    *("ts_ns", "first_event_offset_ns", "offset_ns", "extra_ns", "saving_ns"),
    *("excess_ns", "excess_low_ns", "excess_high_ns"),
}
"""Columns in which a number below 0 is one. In all others it would stand for something that is not known."""

NAMES = [item.name for item in in_order()]
cases = pytest.mark.parametrize("case", CASES)
analyzers = pytest.mark.parametrize("name", NAMES)
EXTREME = {"ordinary", "two ranks", "a rank without GPU work", "nothing on the CPU", "one instant", "host"}
"""Cases that between them fill and empty all tables."""
extremes = pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in EXTREME else pytest.mark.slow) for case in CASES]
)


@cache
def run_of(case: str) -> Run:
    return CASES[case]()


@cache
def reported(case: str, scope: str) -> Report:
    """All analyzers at once: what several of them need is made once."""
    names = [name for name in NAMES if scope == "all" or options_of(name, scope)]
    return report(run_of(case), names, **({} if scope == "all" else {"scope": scope}))


def result_of(name: str, case: str, scope: str = "all") -> Result:
    return reported(case, scope if options_of(name, scope) else "all")[name]


def scopes_of(name: str) -> tuple[str, ...]:
    """All of them, or one for an analyzer without the option."""
    return tuple(SCOPES) if "scope" in ANALYZERS.get(name).options else ("all",)


def options_of(name: str, scope: str) -> dict[str, str]:
    """The scope, for an analyzer that has it."""
    return {"scope": scope} if "scope" in ANALYZERS.get(name).options else {}


@cache
def table_names(name: str) -> frozenset[str]:
    """All tables the analyzer has in any case."""
    return frozenset(table for case in CASES for table in result_of(name, case).data)


def copied(tables: Mapping[str, Table]) -> dict[tuple[str, str], Any]:
    """Every column, copied; texts as (codes, values)."""
    columns: dict[tuple[str, str], Any] = {}
    for name, table in tables.items():
        for column, values in table.columns.items():
            if isinstance(values, Coded):
                columns[name, column] = (np.array(values.codes), tuple(values.values))
            else:
                columns[name, column] = np.array(values)
    return columns


def same(left: Mapping[Any, Any], right: Mapping[Any, Any]) -> bool:
    return left.keys() == right.keys() and all(
        np.array_equal(a[0], b[0]) and a[1] == b[1] if isinstance(a, tuple) else np.array_equal(a, b)
        for a, b in ((left[key], right[key]) for key in left)
    )


def told(result: Result) -> Result:
    """What a result says besides tables, without what a report says of the steps that it covers."""
    return replace(result, data={}, meta={key: result.meta[key] for key in result.meta if key != "covers"})


@analyzers
@cases
def test_tables_fit_their_schemas(name: str, case: str) -> None:
    results = [result_of(name, case, scope) for scope in scopes_of(name)]
    assert all(isinstance(result, Result) for result in results)
    for table_name, table in ((item, table) for result in results for item, table in result.data.items()):
        assert list(table.columns) == table.schema.names
        for column in table.schema.columns:
            where = f"{table_name}.{column.name}"
            values = table.columns[column.name]
            if isinstance(values, Coded):
                assert len(set(values.values)) == len(values.values), where
                assert not len(values) or 0 <= values.codes.min() <= values.codes.max() < len(values.values)
            if column.dtype in ("str", "category"):
                assert all(isinstance(text, str) for text in table.values(column.name)), where
            if not column.is_number:
                continue
            known = table.known(column.name)
            if column.dtype == "float64":
                assert np.isfinite(known).all(), where
            if column.unit == "fraction":
                assert ((known >= 0) & (known <= 1 + 1e-9)).all(), where
            if column.name not in SIGNED:
                assert (known >= 0).all(), where


@analyzers
def test_frames_have_the_declared_types(name: str) -> None:
    for case in ("ordinary", "two ranks", "host", "no GPU work"):
        result = result_of(name, case)
        for table_name, table in result.data.items():
            frame = result[table_name]
            kinds = [
                column.dtype if column.absent is None else column.dtype.capitalize()
                for column in table.schema.columns
            ]
            assert list(map(str, frame.dtypes)) == kinds, table_name
            known = [column.name for column in table.schema.columns if column.absent is None]
            assert not frame[known].isna().any(axis=None), table_name


@analyzers
def test_what_is_missing_has_a_reason(name: str) -> None:
    for case, scope in product(CASES, scopes_of(name)):
        result = result_of(name, case, scope)
        for skip in result.skips:
            assert skip.subject.strip()
            assert len(skip.reason) > 5
            assert "\n" not in skip.subject + skip.reason
        missing = {table for table in table_names(name) if not len(result.data.get(table, ()))}
        missing -= {table for owner, table in NOTHING_TO_TELL if owner == name}
        assert not missing or result.skips, (
            f"{case}, {scope}: {sorted(missing)} empty or absent without a word"
        )


@analyzers
def test_a_rank_is_in_the_headline_table_or_in_a_skip(name: str) -> None:
    for case in CASES:
        result = result_of(name, case)
        ranked = [frame for frame in result.tables.values() if "rank" in frame]
        for rank in run_of(case).ranks:
            shown = any(rank in frame["rank"].tolist() for frame in ranked)
            assert shown or any(skip.subject.startswith(f"rank {rank}") for skip in result.skips), case


@analyzers
@extremes
def test_it_comes_again_and_the_trace_stays_as_it_is(name: str, case: str) -> None:
    run = CASES[case]()
    before = [copied(trace.tables) for trace in run.traces]
    first, second = result_of(name, case), analyze(run, name, **options_of(name, "all"))
    assert all(same(a, copied(trace.tables)) for a, trace in zip(before, run.traces, strict=True))
    assert same(copied(first.data), copied(second.data))
    assert told(first) == told(second)


@analyzers
@cases
def test_ranks_analyzed_apart_give_the_same(name: str, case: str) -> None:
    """What a part holds can travel, and from the parts of all ranks comes what the run itself gives."""
    item, traces = ANALYZERS.get(name), run_of(case).traces
    for scope in scopes_of(name):
        whole = result_of(name, case, scope)
        parts = [pickle.loads(pickle.dumps(item.part_of(trace, scope=scope))) for trace in traces]
        required = {need: result_of(need, case, scope) for need in item.needs}
        required |= {shared: shared_apart(shared, case, scope) for shared in item.shared}
        apart = item.combine(parts, required, scope=scope)
        apart = noted(apart, [trace.meta for trace in traces])
        assert same(plain(apart), plain(whole))
        assert list(apart.data) == list(whole.data)
        assert told(apart) == told(whole)


@cache
def shared_apart(name: str, case: str, scope: str) -> object:
    """A shared input, made of parts that have travelled."""
    item = SHARED.get(name)
    parts = [pickle.loads(pickle.dumps(item.part_of(trace, scope=scope))) for trace in run_of(case).traces]
    required = {needed: shared_apart(needed, case, scope) for needed in item.shared}
    return item.combine(parts, required, scope=scope)


def plain(result: Result) -> dict[tuple[str, str], np.ndarray]:
    """Every column of a result by itself, texts as texts."""
    return {
        (name, column.name): np.array(table.values(column.name))
        for name, table in result.data.items()
        for column in table.schema.columns
    }


@analyzers
def test_the_order_of_ranks_given_does_not_matter(name: str) -> None:
    run = _both_ranks()
    turned = make_run(reversed(run.traces))
    assert same(copied(analyze(run, name).data), copied(analyze(turned, name).data))


@analyzers
def test_columns_say_their_unit(name: str) -> None:
    for table in table_names(name):
        schema = next(
            result_of(name, case).data[table].schema for case in CASES if table in result_of(name, case).data
        )
        assert schema.title.strip()
        for column in schema.columns:
            words = column.name.split("_")
            for word, unit in (("ns", "ns"), ("bytes", "bytes"), ("fraction", "fraction")):
                # first_byte is an offset, so bytes need not be in the name; ns and fraction must.
                if word in words[-1:]:
                    assert column.unit == unit, f"{table}.{column.name}"
                if column.unit == unit and unit != "bytes":
                    assert word in words, f"{table}.{column.name}"


@analyzers
def test_it_says_what_it_answers(name: str) -> None:
    (item,) = (item for item in in_order() if item.name == name)
    assert item.doc.endswith("?"), "the first line of the docstring is the question"
    result = result_of(name, "ordinary")
    assert (result.analyzer, result.title) == (name, item.title)
    assert result.doc.strip()


@analyzers
def test_options_it_does_not_have_are_refused(name: str) -> None:
    with pytest.raises(WrongOption, match="no_such_option"):
        analyze(run_of("ordinary"), name, no_such_option=3)
    assert "device" not in analyze(run_of("ordinary"), name, device=None).meta


@analyzers
def test_meta_is_json(name: str) -> None:
    for case in CASES:
        json.dumps(dict(result_of(name, case).meta), allow_nan=False)


@extremes
def test_every_renderer_takes_every_result(case: str) -> None:
    whole = reported(case, "all")
    for name, item in RENDERERS.items():
        files = item.files(whole)
        assert files, name
        assert all(isinstance(content, bytes) for content in files.values())


def test_json_has_no_nan_and_every_table() -> None:
    whole = report(run_of("two ranks"))
    (content,) = RENDERERS.get("json").files(whole).values()

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} in JSON")

    results = json.loads(content, parse_constant=refuse)["results"]
    # A kernel without a launch is a doubt, and doubts come first.
    assert list(results) == sorted(NAMES, key=lambda name: name != "completeness")
    for result in whole.results:
        assert set(results[result.analyzer]["tables"]) == set(result.exported)
    total = next(
        row["dur_ns"] for row in results["timeline"]["tables"]["timeline"] if row["metric"] == "total"
    )
    assert total == 38 * 5000
