"""MoE layers of simulated models as scripts; those that need torch run them on the CPU."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tracelens
from tests.analysis.moe_traces import Model, recorded
from tests.builders import draw
from tracelens.analysis.moe import STAGES
from tracelens.reproducers.arguments import Argument, TensorArgument, dense
from tracelens.reproducers.call_source import PassLine
from tracelens.reproducers.call_source import source as source_of
from tracelens.reproducers.folder import Script
from tracelens.reproducers.layers import median_pass, passes, sequences, traced
from tracelens.reproducers.scripts import about, render
from tracelens.trace import Trace

LOOP = Model(exchange="all_to_all", ranks=2, shared="after")


def trace_of(model: Model) -> Trace:
    return recorded(model)[0].traces[0]


def forward(model: Model, **options: Any) -> Script:
    (script,), skips = sequences(trace_of(model), phases=["forward"], **options)
    assert skips == []
    return script


def bf16(*shape: int, stride: tuple[int, ...] = (), dtype: str = "bfloat16") -> TensorArgument:
    return TensorArgument(dtype, shape, stride or dense(shape))


def call(op: str, *arguments: Argument, us: float = 1.0, stage: str = "experts") -> PassLine:
    return PassLine(stage, f"aten::{op}", us, list(arguments))


def left(text: str, us: float = 1.0) -> PassLine:
    return PassLine("experts", text, us, None)


def script_of(*calls: PassLine, traced_us: float | None = 10.0) -> str:
    """A script of these calls."""
    makers = {one.maker for line in calls for one in line.arguments or [] if isinstance(one, TensorArgument)}
    leaves_out = any(line.arguments is None for line in calls)
    return render(
        "sequence.py.j2",
        {"library": False, "leaves_out": leaves_out, "kinds": frozenset(makers)},
        about=about(["drawn"]), name="moe_layer_forward", traced_us=traced_us, span_us=20.0,
        traced_on="MI300X", libraries=[], calls=source_of(calls, 4),
    )  # fmt: skip


def source(calls: Sequence[PassLine], indent: int) -> list[str]:
    """The lines of calls."""
    return source_of(calls, indent).text.splitlines()


def raw(script: Script) -> list[str]:
    """Lines of the list of calls."""
    found = script.text[script.text.index("def calls():") : script.text.index("\ndef strided(")]
    found = found.partition("\ndef left_out(")[0]
    return [line for line in found.splitlines()[2:] if line]


def body(script: Script) -> list[str]:
    return [line.strip() for line in raw(script)]


# -- which pass, and what is said of it ----------------------------------------------------------------


def test_a_loop_over_experts_is_one_in_the_script() -> None:
    # Each product takes 1 us a row, all else 2 us: see moe_traces. Experts have 5, 3, 5 and 3 rows.
    script = forward(LOOP)
    lines = body(script)
    at = lines.index("for n in [5, 3, 5, 3]:")
    assert lines[at + 1 : at + 5] == [
        "# experts",
        'yield "aten::mm", 4.0, [Like("bfloat16", (n, 64)), Like("bfloat16", (64, 64))]',
        'left_out(2.0, "aten::silu: no op with recorded arguments")',
        'yield "aten::mm", 4.0, [Like("bfloat16", (n, 32)), Like("bfloat16", (32, 64))]',
    ]
    # The router's product and top-k, 2 * (5 + 3 + 5 + 3) rows, the two products of the shared expert.
    assert script.traced_us == 2 + 2 + 32 + 2 + 2
    assert (script.kind, script.name, script.processes) == ("sequence", "moe_layer_forward", 1)
    assert script.subject == "MoE layer, forward"
    assert script.shapes == "8 tokens, hidden 64, 8 experts, top 2"
    # Two layers, which call the same.
    assert (script.count, script.total_us) == (2, 80.0)


def test_what_is_left_out_is_said_and_summed_up() -> None:
    script = forward(LOOP)
    lines = body(script)
    assert [line for line in lines if line.endswith(': communication")')] == [
        'left_out(2.0, "all_to_allv: communication")'
    ] * 2
    single = [re.match(r'left_out\(([\d.]+), "(?:(\d+) times)?', line) for line in lines]
    # Four rounds of the loop have one more each; its time there is the mean.
    calls = sum(int(found[2] or 1) for found in single if found) - 2 + 3
    assert f"communication of 4.0 us; {calls} calls of {2 * calls:.1f} us" in script.text
    assert f"({2 * calls / (2 * calls + 40):.1%} of all calls' time)" in script.text


def test_the_median_layer_stands_for_all() -> None:
    # The third layer has the most rows, the first the fewest.
    model = Model(layers=3, order="F0", rows=lambda rank, micro_batch, layer: [layer + 2] * 8)
    script = forward(model)
    assert 'micro-batch 0, layer 1",' in script.text
    assert "for _ in range(8):" in body(script)
    assert '[Like("bfloat16", (3, 64)), Like("bfloat16", (64, 64))]' in script.text
    assert "3 of them call the same ops, 1 with the same arguments." in script.text
    assert script.count == 3
    assert 'layer 2",' in forward(model, layer=2).text


def test_a_part_of_the_layer() -> None:
    script = forward(LOOP, stages=["experts"])
    assert (script.name, script.traced_us) == ("moe_experts_forward", 32.0)
    assert script.subject == "MoE layer, forward, experts only"
    assert "communication" not in "".join(body(script))


def test_what_there_is_not_is_a_skip() -> None:
    trace = trace_of(LOOP)
    (skip,) = sequences(trace, phases=["recompute"])[1]
    assert (skip.subject, skip.reason) == (
        "MoE layer, recompute",
        "no MoE layer has recompute work",
    )
    (skip,) = sequences(trace, phases=["forward"], layer=7)[1]
    assert skip.reason.startswith("no MoE work in layer 7; the trace has MoE layers 0 to 1 and the steps")
    (skip,) = sequences(trace, phases=["forward"], step="5")[1]
    assert skip.reason.startswith("no MoE work in step 5; ")
    assert sequences(trace, phases=["forward"], step="1")[0]
    (skip,) = sequences(draw("op aten::mm | --\nlaunch      | a \ns7 k        |  a"))[1]
    assert skip.reason == "no MoE layer in the trace: no router followed by experts"
    scripts, skips = sequences(trace_of(Model(shapes=False, order="F0")))
    assert (scripts, [one.reason for one in skips]) == (
        [], ["none of its calls can be replayed; record with record_shapes=True"]
    )  # fmt: skip


def test_scaled_down_by_one_number_for_all_calls() -> None:
    model = Model(order="F0", tokens=1000, rows=lambda *_: [250] * 8)
    script = forward(model, max_elements=10_000)
    # 1000 x 64 and 250 x 64 elements are too many. Halved until all fit: 125 and 32 rows; 64 stays.
    lines = body(script)
    assert 'yield "aten::mm", 2.0, [Like("bfloat16", (125, 64)), Like("bfloat16", (64, 8))]' in lines
    assert 'yield "aten::mm", 250.0, [Like("bfloat16", (32, 64)), Like("bfloat16", (64, 64))]' in lines
    assert (script.traced_us, "TRACED_US, SPAN_US, TRACED_ON = None, None, " in script.text) == (0.0, True)
    assert '    "Sizes are scaled down' in script.text


def test_types_of_lists_are_those_of_tensors_of_that_shape() -> None:
    # The lists' tensors have no type in a trace. (8, 64) is what the router's product takes; (3, 5) nothing
    # has, so that it is of the type of the last tensor.
    cat = {"shapes": [[[8, 64], [3, 5]], []], "types": ["TensorList", "Scalar"], "values": ["", "0"]}
    options = " ".join(f"{key}={json.dumps(value, separators=(',', ':'))}" for key, value in cat.items())
    trace = with_op("aten::cat", options)
    one = median_pass(passes(trace, "forward", STAGES, -1, ""))
    (line,) = (line for line in traced(trace, one, None).lines if line.op == "aten::cat")
    assert line.arguments == [[bf16(8, 64), bf16(3, 5, dtype="float16")], 0]


def with_op(name: str, options: str, work: str = "s7 k") -> Trace:
    """A layer of two experts with one more op between their products."""

    def product(*sizes: int, dtype: str = "c10::BFloat16") -> str:
        shapes = json.dumps([list(sizes[:2]), list(sizes[1:])], separators=(",", ":"))
        return f'op aten::mm shapes={shapes} types=["{dtype}","{dtype}"]'

    topk = 'op aten::topk shapes=[[8,2],[],[]] types=["float","Scalar","Scalar"] values=["","1","-1"]'
    rows = [
        ("op aten::rsqrt", "-           "), (product(8, 64, 2), "  -         "), (topk, "    -       "),
        ("op aten::index", "      -     "), (product(6, 64, 4, dtype="c10::Half"), "        -   "),
        (f"op {name} {options}", "          - "), (product(5, 64, 4), "            - "),
        ("op aten::rsqrt", "              - "), ("launch", "a b c d e f g h"),
        ("s7 nvjet", "  b     e   g "), (work, "a   c d   f   h"),
    ]  # fmt: skip
    width = max(len(label) for label, _ in rows)
    return draw("\n".join(f"{label:{width}}| {line}" for label, line in rows))


# -- loops -----------------------------------------------------------------------------------------------


class Torch:
    """What of torch stands in calls: numbers that are tensors, and their types."""

    def __getattr__(self, name: str) -> str:
        return f"torch.{name}"

    def tensor(self, value: float, dtype: str) -> str:
        return f"torch.tensor({value}, dtype={dtype})"


def unrolled(lines: Sequence[str]) -> list[tuple[str, list[Any]]]:
    """The calls that a generator yields, as (op, arguments as text)."""

    def maker(name: str) -> Any:
        return lambda *values: f"{name}{values}"

    makers = ("Like", "strided", "indices", "mask", "distinct", "ends", "routed")
    names: dict[str, Any] = {name: maker(name) for name in makers}
    names["torch"] = Torch()
    names["left_out"] = lambda us, what: None
    text = "\n".join(["def calls():", *lines, "    yield from ()"])
    exec(text, names)
    return [(op, arguments) for op, _, arguments in names["calls"]()]


def expected(calls: Sequence[PassLine]) -> list[tuple[str, list[Any]]]:
    """The same, each call by itself."""
    return [found for line in calls if line.arguments is not None for found in unrolled(source([line], 4))]


def loops_of(calls: Sequence[PassLine]) -> list[str]:
    return [line.strip() for line in source(calls, 4) if line.lstrip().startswith("for ")]


def expert(rows: int, first: str = "mm") -> list[PassLine]:
    return [
        call(first, bf16(rows, 64), bf16(64, 32)),
        call("silu", bf16(rows, 32)),
        call("mm", bf16(rows, 32), bf16(32, 64, stride=(1, 32))),
    ]


def test_a_round_begins_where_the_sizes_change() -> None:
    # Behind the first expert comes a sum, so that the loop could begin inside of the first one.
    calls = expert(4)[1:]
    for rows in (5, 6, 7):
        calls += expert(rows)
    assert loops_of(calls) == ["for n in [5, 6, 7]:"]
    assert unrolled(source(calls, 4)) == expected(calls)


def test_several_sizes_have_several_names() -> None:
    calls = [
        line
        for n, m in [(2, 3), (4, 3), (6, 9)]
        for line in (call("mm", bf16(n, m)), call("add", bf16(m, n), m), call("mul", bf16(7, 7)))
    ]
    assert loops_of(calls) == ["for n, m in [(2, 3), (4, 3), (6, 9)]:"]
    assert unrolled(source(calls, 4)) == expected(calls)


def test_too_many_sizes_are_no_loop() -> None:
    calls = [
        call("mul", bf16(at, at * at, at + 3, at * 7), stage=stage)
        for at in range(2, 5)
        for stage in ("experts", "permute")
    ]
    assert loops_of(calls) == []


def test_strides_that_follow_a_size_do_so_in_each_round() -> None:
    calls = [
        line
        for n in (4, 5, 6)
        for line in (
            call("add", TensorArgument("int64", (6, n), (n, 1)), bf16(6, n), bf16(6, n, stride=(1, 6))),
            call("gather", TensorArgument("int64", (n,), (1,), "indices", (4096,))),
            call("grouped", TensorArgument("int32", (2,), (1,), "ends", ([n, n],))),
        )
    ]
    assert loops_of(calls) == ["for n in [4, 5, 6]:"]
    found = unrolled(source(calls, 4))
    assert found == expected(calls)
    assert found[3] == (
        "aten::add",
        ["strided('int64', (6, 5))", "Like('bfloat16', (6, 5))", "Like('bfloat16', (6, 5), (1, 6))"],
    )


def test_equal_calls_need_no_size_and_what_is_left_out_no_loop() -> None:
    calls = [call("silu", bf16(4, 4), us=us) for us in (1.0, 2.0, 3.0, 4.0, 10.0)]
    assert source(calls, 4) == [
        "    for _ in range(5):",
        "        # experts",
        '        yield "aten::silu", 4.0, [Like("bfloat16", (4, 4))]',
    ]
    assert source([left("x", us) for us in (1.0, 2.0, 3.0, 4.0, 10.0)], 4) == [
        "    # experts",
        '    left_out(20.0, "5 times x")',
    ]
    pairs = [line for _ in range(4) for line in (left("x"), left("y"))]
    assert loops_of(pairs) == []


SIZES = st.sampled_from([1, 2, 3, 64])
CALLS = st.one_of(
    st.builds(lambda op, n, m: call(op, bf16(n, m), n), st.sampled_from(["mm", "add"]), SIZES, SIZES),
    st.builds(lambda n: call("sort", TensorArgument("int64", (n, 2), (2, 1))), SIZES),
    st.builds(lambda n: call("mul", bf16(n, 3, stride=(1, n)), [n, 1.5, True]), SIZES),
    st.just(left("communication")),
)


@given(st.lists(st.tuples(st.lists(CALLS, min_size=1, max_size=4), st.integers(1, 6)), max_size=4))
def test_loops_yield_the_very_calls(parts: list[tuple[list[PassLine], int]]) -> None:
    calls = [line for some, times in parts for line in some * times]
    assert unrolled(source(calls, 4)) == expected(calls)


@given(st.lists(st.integers(1, 3000), min_size=2, max_size=70), st.sampled_from(["mm", "bmm"]))
def test_experts_of_any_size_are_the_very_calls(rows: list[int], first: str) -> None:
    calls = [*expert(9, first), *(line for one in rows for line in expert(one)), call("add", bf16(1, 1))]
    lines = source(calls, 4)
    assert unrolled(lines) == expected(calls)
    assert max(map(len, lines)) <= 110


def test_what_is_left_out_is_one_line() -> None:
    lines = source([left("x\nimport os\r\u2028\x00é" + "y" * 300), call("mm", bf16(2, 2))], 4)
    assert all(re.fullmatch("[ -~]{1,110}", line) for line in lines)
    assert lines[1].startswith('    left_out(1.0, "x?import os????yyy')
    assert len(unrolled(lines)) == 1


# -- running them ----------------------------------------------------------------------------------------


class Ran:
    """What a script printed, and what it left: its names, exit status and last words."""

    def __init__(self, text: str, path: Path, monkeypatch: Any, capsys: Any, *options: str) -> None:
        monkeypatch.setattr(sys, "argv", [str(path), "--device", "cpu", "--iters", "2", *options])
        self.names: dict[str, Any] = {"__name__": "replayed"}
        with pytest.raises(SystemExit) as ended:
            exec(compile(text, str(path), "exec", dont_inherit=True), self.names)
        self.code = ended.value.code
        self.out, self.error = capsys.readouterr()

    @property
    def result(self) -> dict[str, Any]:
        return json.loads(self.out.splitlines()[-1])

    def flow(self) -> list[tuple[str, ...]]:
        """Of each call where its tensors are from: number of a call, "new", or "-" for other arguments."""
        steps = {node: str(number) for number, node in enumerate(self.names["steps"])}

        def origin(value: Any) -> str:
            if getattr(value, "op", "") == "get_attr":
                return "new"
            if value in steps:
                return steps[value]
            return steps[value.args[0]] if hasattr(value, "args") else "-"  # one of several results

        return [tuple(origin(value) for value in node.kwargs.values()) for node in steps]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: Any, capsys: Any) -> Any:
    def ran(text: str, *options: str) -> Ran:
        return Ran(text, tmp_path / "script.py", monkeypatch, capsys, *options)

    return ran


@pytest.mark.torch
def test_a_layer_runs(run: Any) -> None:
    script = forward(LOOP)
    ran = run(script.text, "--json")
    result = ran.result
    assert (ran.code, ran.error) == (False, "")
    assert result["check"] == "none: no reference for a sequence; all its numbers are finite"
    assert (result["name"], result["device"]) == ("moe_layer_forward", "cpu")
    assert (result["traced_us"], result["ratio"]) == (40.0, result["median_us"] / 40)
    assert result["ratio_span"] == result["median_us"] / result["traced_span_us"]
    assert 0 < result["p10_us"] <= result["median_us"] <= result["p90_us"]
    counts = [(one["op"], one["count"], one["traced_us"]) for one in result["calls"]]
    assert counts == [
        ("aten::mm", 1, 2.0), ("aten::topk", 1, 2.0), ("aten::mm", 4, 4.0), ("aten::mm", 4, 4.0),
        ("aten::mm", 1, 2.0), ("aten::mm", 1, 2.0),
    ]  # fmt: skip
    assert result["calls_us"] == pytest.approx(sum(one["count"] * one["us"] for one in result["calls"]))
    lines = script.text.splitlines()
    assert all(f'yield "{one["op"]}"' in lines[one["line"] - 1] for one in result["calls"])


@pytest.mark.torch
def test_without_json_a_table_and_a_line_for_each_key(run: Any) -> None:
    ran = run(forward(LOOP).text)
    assert re.search(r"^    4 x aten::mm +[\d.]+ us, traced 4.0 us, line \d+$", ran.out, re.MULTILINE)
    assert re.search(r"^traced_us +40.0$", ran.out, re.MULTILINE)


@pytest.mark.torch
def test_results_flow_to_the_calls_behind(run: Any) -> None:
    ran = run(forward(LOOP).text)
    assert ran.flow() == [
        ("new", "new"),  # the router's product: (8, 64) x (64, 8)
        ("0", "-", "-", "-", "-"),  # its top-k
        ("new", "new"),  # the first expert's products: (5, 64) x (64, 64), (5, 32) x (32, 64)
        ("new", "new"),
        ("new", "new"),
        ("new", "new"),
        ("3", "new"),  # the third expert has five rows as the first: the first's last result
        ("new", "new"),
        ("5", "new"),
        ("new", "new"),
        ("new", "new"),  # the shared expert: (8, 64) x (64, 96), (8, 48) x (48, 64)
        ("new", "new"),
    ]


@pytest.mark.torch
def test_no_result_is_two_arguments_of_a_call(run: Any) -> None:
    square = bf16(4, 4, dtype="float32")
    ran = run(
        script_of(
            call("silu", square),
            call("mul", square, square),
            call("add_", square, square, 1),
            call("mul", square, square),
            call("mul", bf16(4, 4, stride=(1, 4), dtype="float32"), bf16(4, 4)),
            call("topk", square, 2, -1, True, True),
            call("neg", bf16(4, 2, dtype="float32")),
            call("index_select", square, 0, TensorArgument("int64", (2,), (1,), "indices", (4,))),
        )
    )
    assert ran.flow() == [
        ("new",),
        ("0", "new"),  # one result so far
        ("1", "0", "-"),
        ("1", "0"),  # what was added to is the latest again
        ("new", "new"),  # other strides, another type
        ("3", "-", "-", "-", "-"),
        ("5",),  # the values, not the indices
        ("3", "-", "new"),
    ]


@pytest.mark.torch
def test_lists_of_tensors(run: Any) -> None:
    pair = [bf16(2, 3, dtype="float32"), bf16(2, 3, dtype="float32")]
    ran = run(
        script_of(
            call("cat", list(pair), 0),
            call("split", bf16(4, 3, dtype="float32"), 2, 0),
            call("_foreach_add_", list(pair), 2.0),
            call("cat", list(pair), 0),
        ),
        "--json",
    )
    assert ran.result["check"].startswith("none: no reference")
    nodes = list(ran.names["steps"])
    assert nodes[1].kwargs["self"] is nodes[0]
    first, second = nodes[2].kwargs["self"]
    assert {first.args, second.args} == {(nodes[1], 0), (nodes[1], 1)}
    assert set(nodes[3].kwargs["tensors"]) == {first, second}


@pytest.mark.torch
def test_numbers_that_are_not_finite_are_wrong(run: Any) -> None:
    ran = run(script_of(call("log", bf16(64, 64)), call("mm", bf16(64, 64), bf16(64, 64))), "--json")
    assert ran.code is True
    assert re.fullmatch(r"wrong: line \d+: aten::log returns non-finite numbers", ran.result["check"])
    # Routers mask with minus infinity.
    ran = run(
        script_of(call("masked_fill", bf16(8, 8), TensorArgument("bool", (8, 8), (8, 1)), float("-inf"))),
        "--json",
    )
    assert (ran.code, ran.result["check"][:4]) == (False, "none")


@pytest.mark.torch
def test_what_a_cpu_lacks_is_left_out_and_said(run: Any) -> None:
    histogram = call("histc", TensorArgument("int32", (64,), (1,)), 8, 0, 63)
    ran = run(script_of(histogram, call("silu", bf16(4, 4))), "--json")
    assert ran.code is False
    assert re.search(r"; line \d+: aten::histc: .*not implemented for 'Int'$", ran.result["check"])
    assert [one["op"] for one in ran.result["calls"]] == ["aten::silu"]


@pytest.mark.torch
def test_an_unknown_op_is_one_line_and_status_2(run: Any) -> None:
    ran = run(script_of(call("no_such_op", bf16(4, 4))))
    assert (ran.code, ran.error.count("\n")) == (2, 1)
    assert "has no aten::no_such_op that takes these arguments" in ran.error


@pytest.mark.torch
def test_a_profile_is_written(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    run(script_of(call("mm", bf16(4, 4), bf16(4, 4))), "--profile", str(path))
    assert any(event.get("name") == "aten::mm" for event in json.loads(path.read_text())["traceEvents"])


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.rare
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own
def test_compiled_as_a_whole(run: Any) -> None:
    ran = run(script_of(call("silu", bf16(4, 4)), call("mul", bf16(4, 4), bf16(4, 4))), "--compile", "--json")
    assert (ran.code, ran.result["median_us"] > 0) == (False, True)


# -- real traces -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rounds"),
    [
        ("nvidia-h100-hf/dsv2_grouped.json.gz", 0),
        ("nvidia-h100-hf/dsv2_eager.json.gz", 63),
        ("nvidia-h200-megatron/ep8/rank0.json.gz", 8),
    ],
)
def test_real_layers(corpus: Path, name: str, rounds: int) -> None:
    (trace,) = tracelens.load(str(corpus / name)).traces
    scripts, skips = sequences(trace)
    assert ([one.name for one in scripts], skips) == (["moe_layer_forward", "moe_layer_backward"], [])
    for script, phase in zip(scripts, ("forward", "backward"), strict=True):
        one = median_pass(passes(trace, phase, STAGES, -1, ""))
        told = traced(trace, one, None)
        # Calls and what is left out have all the time of the pass.
        whole = told.calls_us + sum(told.left_out_us) + told.comm_us
        assert whole == pytest.approx(trace.work.dur[one.rows].sum() / 1e3, rel=1e-3)
        # The time is all there, but for several index tensors at once and long lists of tensors.
        assert told.calls_us > 0.85 * (told.calls_us + sum(told.left_out_us))
        calls = [line for line in told.lines if line.arguments is not None]
        lines = body(script)
        assert len(lines) < 160
        assert max(map(len, script.text.splitlines())) <= 110
        assert len(script.text.splitlines()) - len(lines) < 220
        yielded = unrolled(raw(script))
        assert len(yielded) == len(calls)
        assert [op for op, _ in yielded] == [line.op for line in calls]
        if rounds and phase == "forward":
            (head,) = (line for line in " ".join(lines).split("for ") if line.startswith("n in ["))
            sizes = ast.literal_eval(head[5 : head.index("]") + 1])
            assert len(sizes) == rounds
            # The rows of the experts, as the analysis of MoE layers has them.
            assert sizes in (one.layer_pass.rows[:rounds], one.layer_pass.rows[-rounds:])
