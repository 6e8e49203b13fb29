"""The grammar of rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.compare.gate import read_rule
from tracelens.compare.gate.rules import DEFAULT_RULES, UNITS, GateRule, default_rules
from tracelens.errors import TracelensError


@pytest.mark.parametrize(
    ("text", "rule", "limit"),
    [
        ("step.time<=1.03", GateRule("step.time", "<=", "ratio", 1.03), 1.03),
        (" step.time  <= 1.03 ", GateRule("step.time", "<=", "ratio", 1.03), 1.03),
        ("step.time<=+3%", GateRule("step.time", "<=", "ratio", 1.03), 1.03),
        ("step.time<=-10%", GateRule("step.time", "<=", "ratio", 0.9), 0.9),
        ("step.time<=+2ms", GateRule("step.time", "<=", "difference", 2, "ms"), 2e6),
        ("step.time<=- 1.5 us", GateRule("step.time", "<=", "difference", -1.5, "us"), -1500),
        ("idle.fraction<=+0.01", GateRule("idle.fraction", "<=", "difference", 0.01), 0.01),
        ("kernel.count<=+0", GateRule("kernel.count", "<=", "difference", 0), 0),
        ("step.time<=120ms", GateRule("step.time", "<=", "absolute", 120, "ms"), 120e6),
        ("step.time<=120 ms abs", GateRule("step.time", "<=", "absolute", 120, "ms"), 120e6),
        ("memory.peak<=1.5GiB", GateRule("memory.peak", "<=", "absolute", 1.5, "GiB"), 1.5 * 2**30),
        ("idle.fraction<=10%", GateRule("idle.fraction", "<=", "absolute", 10, "%"), 0.1),
        ("moe.blocking_calls<=3 abs", GateRule("moe.blocking_calls", "<=", "absolute", 3), 3),
        ("moe.blocking_calls<=0", GateRule("moe.blocking_calls", "<=", "absolute", 0), 0),
        ("computation.time>=0.9", GateRule("computation.time", ">=", "ratio", 0.9), 0.9),
        ("exposed_comm<=1.05", GateRule("exposed_comm", "<=", "ratio", 1.05), 1.05),
        ("op[aten::mm].time<=1.05", GateRule("op[aten::mm].time", "<=", "ratio", 1.05), 1.05),
        ("op[a<=b]].count>=2", GateRule("op[a<=b]].count", ">=", "ratio", 2), 2),
        ("category[gemm]<=1e0", GateRule("category[gemm]", "<=", "ratio", 1), 1),
    ],
)
def test_reading(text: str, rule: GateRule, limit: float) -> None:
    assert read_rule(text) == rule
    assert read_rule(text).limit == pytest.approx(limit, rel=1e-12)


names = st.from_regex(r"[a-z_][a-z0-9_]{0,8}(\.[a-z0-9_]{1,8}){0,3}", fullmatch=True)
inside = st.text(min_size=1, max_size=20)
named = st.builds(
    "{}[{}]{}".format, st.sampled_from(["op", "category"]), inside, st.sampled_from(["", ".time", ".count"])
)
metrics = names | named
senses = st.sampled_from(["<=", ">="])
numbers = st.floats(0, 1e15, exclude_min=True, allow_subnormal=False)
units = st.sampled_from(["", *UNITS])
signed = units.filter(lambda unit: unit != "%")  # which with a sign is a ratio
rules = (
    st.builds(GateRule, metrics, senses, st.just("ratio"), numbers)
    | st.builds(GateRule, metrics, senses, st.just("difference"), st.floats(-1e15, 1e15), signed)
    | st.builds(GateRule, metrics, senses, st.just("absolute"), numbers | st.just(0.0), units)
)


@given(rules)
def test_what_is_written_reads_as_the_same(rule: GateRule) -> None:
    assert read_rule(str(rule)) == rule


def parsed(text: str) -> GateRule | str:
    """The rule, or the error."""
    try:
        return read_rule(text)
    except TracelensError as error:
        return str(error)


@given(st.text(max_size=40) | st.builds("{}<={}".format, names, st.text(max_size=8)))
def test_any_text_is_a_rule_or_a_one_line_error(text: str) -> None:
    rule = parsed(text)
    if isinstance(rule, GateRule):
        assert read_rule(str(rule)) == rule
    else:
        assert "\n" not in rule
        assert "write it like" in rule or "cannot be 'abs'" in rule


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no limit; it begins with <= or >="),
        ("step.time", "no limit"),
        ("step.time<1.03", "no limit"),
        ("step.time==1", "no limit"),
        ("<=1.03", "no limit"),
        ("step time<=1", "'step time' is not a metric name"),
        ("op[]<=1", "'op[]' is not a metric name"),
        ("step.time<=", "'' is not a limit"),
        ("step.time<=fast", "'fast' is not a limit"),
        ("step.time<=3 parsecs", "units: ns, us"),
        ("step.time<=1e999", "'1e999' is not a limit"),
        ("step.time<=nan", "'nan' is not a limit"),
        ("step.time<=+3ms abs", "cannot be 'abs'"),
    ],
)
def test_what_is_wrong_is_said(text: str, said: str) -> None:
    with pytest.raises(TracelensError, match="rule ") as caught:
        read_rule(text)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "unit", "fits"),
    [
        ("m<=1.03", "ns", True),
        ("m<=0", "ns", True),
        ("m<=+0", "bytes", True),
        ("m<=+2", "ns", False),
        ("m<=2ms", "ns", True),
        ("m<=2ms", "bytes", False),
        ("m<=2 abs", "ns", False),
        ("m<=2 abs", "count", True),
        ("m<=+2ms", "count", False),
        ("m<=0.1 abs", "fraction", True),
        ("m<=10%", "fraction", True),
        ("m<=10%", "count", False),
        ("m<=1MB", "bytes", True),
    ],
)
def test_units_fit_the_metric(text: str, unit: str, fits: bool) -> None:
    if fits:
        read_rule(text).check_unit(unit)
    else:
        with pytest.raises(TracelensError, match=rf"measured in {unit}.*write it with"):
            read_rule(text).check_unit(unit)


def test_the_default_rules_are_rules() -> None:
    assert [str(rule) for rule in default_rules()] == [str(read_rule(text)) for text in DEFAULT_RULES]
