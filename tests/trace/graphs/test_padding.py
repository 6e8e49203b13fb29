"""The batch size of captures and of steps, by their labels."""

import json
from pathlib import Path

import pytest

from tests.builders import aligned, draw, events, kernel_names, records, write
from tracelens.analysis.common import grammar
from tracelens.read import parse
from tracelens.session import load
from tracelens.trace import Trace
from tracelens.trace.graphs import UNKNOWN, Size, attributed
from tracelens.trace.graphs.nodes import Batch, captured_size, step_batch


def capture(batch: int, mode: str = "FULL", when: int = 0) -> str:
    """A norm of `batch` rows and what follows, captured on ROCm."""
    pad = " " * when
    return f"""
    scope capture_{batch}_{mode}                 | {pad}--------------------
    launch hipStreamBeginCapture                 | {pad} b
    op aten::norm shapes=[[{batch},8]]           | {pad}   ----
    launch hipLaunchKernel kernel=norm           | {pad}    c
    op aten::mm shapes=[[{batch},8],[8,8]]       | {pad}        ----
    launch hipLaunchKernel kernel=gemm           | {pad}         d
    op aten::silu shapes=[[{batch},8]]           | {pad}             ----
    launch hipLaunchKernel kernel=silu           | {pad}              e
    launch hipStreamEndCapture                   | {pad}                  f"""


def replay(label: str) -> str:
    return f"""
    scope {label}                                | --------------------
    launch hipGraphLaunch                        |  aaaaaaa
    s7 norm                                      |    aaa
    s7 gemm                                      |        aa
    s7 silu                                      |            aa"""


def captured(*batches: int) -> Trace:
    return draw(aligned("".join(capture(batch, when=40 * k) for k, batch in enumerate(batches))))


def texts(trace: Trace, column: str) -> list[str]:
    of_op = dict(records(trace.ops, "event_id", column))
    return [str(of_op.get(op, "")).replace(" ", "") for op in trace.tables["links"].array("op_id").tolist()]


OPS = ["aten::norm", "aten::mm", "aten::silu"]


def shapes(batch: int) -> list[str]:
    return [f"[[{batch},8]]", f"[[{batch},8],[8,8]]", f"[[{batch},8]]"]


@pytest.mark.parametrize(
    ("label", "batch"),
    [("decode[bs=5]", 8), ("decode[bs=8]", 8), ("decode[bs=9/32]", 32), ("step[DECODE bs=17]", 32)],
)
def test_a_batch_is_padded_to_the_smallest_capture_that_holds_it(label: str, batch: int) -> None:
    """Three captures of the same kernels, and ROCm records no grids of replays."""
    trace = attributed(draw(aligned(replay(label))), [captured(32, 16, 8)])
    assert kernel_names(trace, "op_id") == OPS
    assert texts(trace, "shapes") == shapes(batch)
    assert set(texts(trace, "inferred")) == {""}


def test_without_a_label_captures_of_several_sizes_leave_the_shapes_open() -> None:
    trace = attributed(draw(aligned(replay("forward"))), [captured(32, 16)])
    assert kernel_names(trace, "op_id") == OPS
    assert texts(trace, "shapes") == texts(trace, "inferred") == [""] * 3


@pytest.mark.parametrize("label", ["decode[bs=64]", "execute_context_0(0)_generation_64(64)"])
def test_shapes_of_another_size_are_inferred(label: str) -> None:
    trace = attributed(draw(aligned(replay(label))), [captured(32)])
    assert kernel_names(trace, "op_id") == OPS
    assert texts(trace, "shapes") == [""] * 3
    assert texts(trace, "inferred") == ["[32,8]", "[32,8][8,8]", "[32,8]"]


def test_a_size_that_is_listed_and_not_there_is_no_reason_to_take_the_next() -> None:
    sizes = [Size(8, "FULL"), Size(32, "FULL")]
    for label, known in (("decode[bs=20]", shapes(32)), ("decode[bs=6]", [""] * 3)):
        trace = attributed(draw(aligned(replay(label))), [captured(32)], sizes=sizes)
        assert texts(trace, "shapes") == known


def test_modes_are_padded_on_their_own() -> None:
    sizes = [Size(8, "PIECEWISE"), Size(32, "FULL")]
    trace = attributed(draw(aligned(replay("decode[bs=6]"))), [captured(32)], sizes=sizes)
    assert texts(trace, "shapes") == shapes(32)


def folder(path: Path, label: str, files: dict[str, int], details: object = None) -> Path:
    """A trace with captures beside it that have no labels of their own."""
    captures = path / "capture_traces"
    captures.mkdir()
    for name, batch in files.items():
        text = capture(batch).replace(f"scope capture_{batch}_FULL", "scope capturing")
        write(captures / name, events(aligned(text)))
    if details is not None:
        (captures / "execution_details.json").write_text(json.dumps(details))
    trace = path / "decode.json"
    write(trace, events(aligned(replay(label))))
    return trace


def listed(*sizes: int) -> list[dict[str, object]]:
    return [{"file": f"of_{size}.json", "batch_size": size, "mode": "FULL"} for size in sizes]


def test_sizes_in_the_list_of_captures(tmp_path: Path) -> None:
    path = folder(tmp_path, "decode[bs=6]", {"of_8.json": 8, "of_32.json": 32}, listed(8, 32))
    (trace,) = parse(str(path))
    assert texts(trace, "shapes") == shapes(8)


def test_a_list_that_names_a_smaller_capture_than_those_there(tmp_path: Path) -> None:
    path = folder(tmp_path, "decode[bs=6]", {"of_32.json": 32}, listed(8, 32))
    (trace,) = parse(str(path))
    assert texts(trace, "shapes") == [""] * 3
    frame = load(path).kernels()
    assert frame["op_source"].astype(str).tolist() == ["capture, inferred"] * 3
    assert frame["shapes"].astype(str).tolist() == ["~[32,8]", "~[32,8] [8,8]", "~[32,8]"]
    assert frame["flops"].isna().all()


def test_sizes_in_file_names(tmp_path: Path) -> None:
    path = folder(tmp_path, "decode[bs=6]", {"bs_8_rank0.json": 8, "bs_32_rank0.json": 32})
    (trace,) = parse(str(path))
    assert texts(trace, "shapes") == shapes(8)


@pytest.mark.parametrize("details", [{"batch_size": 8}, [1, {"file": 3, "batch_size": "8"}], "text"])
def test_a_list_of_another_form_is_passed_over(tmp_path: Path, details: object) -> None:
    path = folder(tmp_path, "decode[bs=6]", {"of_8.json": 8}, details)
    (trace,) = parse(str(path))
    assert texts(trace, "shapes") == shapes(8)


def test_capture_labels() -> None:
    assert captured_size("capture_32_DECODE") == Size(32, "DECODE")
    assert captured_size("capture_one_batch_size") == captured_size("decode") == UNKNOWN


def test_batches_of_steps_are_those_of_the_label_grammar() -> None:
    """Sizes of all labels that the analysis of serving knows, where a graph may run them."""
    for label in (
        "decode[bs=117/128 tok=117 d=117]",
        "dummy_decode[bs=1/8 tok=1 d=1]",
        "execute_context_2(6144)_generation_3(3)",
        "execute_64_context_0(sq0sk0sqsq0sqsk0)_generation_64(sq64sk131072sqsq64sqsk131072)",
        "step[EXTEND bs=1 toks=1025 c_sqsq=1050625 c_sqsk=1050625 c_sk=1025]",
        "step[DECODE bs=64]",
    ):
        step = grammar().step(label)
        assert step is not None
        padded = step_batch(label)
        assert padded.size == (step.graph_requests if padded.is_padded else step.tokens)
    assert step_batch("step[DRAFT_LOOP raw_bs=3 bs=4 topk=1]") == Batch(4, is_padded=True)
    assert step_batch("execute_new_1_cached_31") == step_batch("forward bs 8") == Batch(-1)
