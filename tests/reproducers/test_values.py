"""Scripts with what the recorder noted beside the trace, which nobody has to trust."""

from __future__ import annotations

import hashlib
import json
import random
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import zstandard

import tracelens
from tests.builders import draw, write
from tests.reproducers.calls import Called, called, described, raw, space_of, trace_of
from tracelens.errors import TracelensError
from tracelens.filenames import VALUES, traces_among
from tracelens.reproducers import replay
from tracelens.table import Result
from tracelens.trace import make_run

GROUPED = called("aten::_grouped_mm", "bf16 8 4", "bf16 3 4 2", "i32 3", None, None)
ADAM = called("aten::_fused_adamw_", *[[]] * 6, 0.1, 0.9, 0.99, 0.0, 1e-8, False, False, None, None)
SELECT = called("aten::index_select", "fp32 9 2", 0, "i64 6")
PUT = called("aten::index_put_", "fp32 4 5", None, "fp32 7", True)
GELU = called("aten::gelu", "fp32 4", None)
SCALED = called("aten::mul", "fp32 4", "fp64")
CALLS = (GROUPED, ADAM, SELECT, PUT, GELU, SCALED)


def tensor(*shape: int, dtype: str = "float32", **more: Any) -> dict[str, Any]:
    return {"shape": shape, "dtype": dtype, **more}


def noted(op: str, *arguments: Any, count: int = 1) -> dict[str, Any]:
    return {"op": op, "count": count, "arguments": arguments}


PARAMETERS = {"tensors": [tensor(4, 4, count=1), tensor(4, count=1)] * 40}
HITS = {"hits": [[1, 1], [5, 1]], "sorted": False}
FILE: dict[str, Any] = {
    "schema": "tracelens.values/1",
    "step": 1,
    "cut": "",
    "calls": [
        noted(
            "aten::_grouped_mm", tensor(8, 4, dtype="bfloat16"), tensor(3, 4, 2, dtype="bfloat16"),
            tensor(3, dtype="int32", sizes=[7, 0, 1]), None, None,
        ),
        noted(
            "aten::_fused_adamw_", *[PARAMETERS] * 4, None, {"tensors": [tensor(count=80)]},
            *({"value": value} for value in (0.1, 0.9, 0.99, 0.0, 1e-8, False, False)), None, None,
        ),
        noted("aten::index_select", tensor(9, 2), {"value": 0}, tensor(6, dtype="int64", **HITS)),
        noted(
            "aten::index_put_", tensor(4, 5),
            {"tensors": [tensor(7, dtype="int64", hits=[[7, 1]]), tensor(7, dtype="int64")]},
            tensor(7), {"value": True},
        ),
        noted("aten::gelu", tensor(4), {"value": "tanh"}),
        noted("aten::mul", tensor(4), {"value": -0.25}),
    ],
}  # fmt: skip


def replayed(folder: Path, content: bytes | None, *calls: Called) -> tuple[Result, dict[str, str]]:
    """The result, and the scripts by op."""
    values = None if content is None else {"rank0.values.json.zst": content}
    found = replay(make_run([trace_of(*calls or CALLS)]), folder, top=None, values=values)
    scripts = found.data["scripts"]
    texts = [(folder / file).read_text() for file in scripts.texts("file")]
    return found, dict(zip(scripts.texts("subject"), texts, strict=True))


def test_scripts_have_what_was_noted(tmp_path: Path) -> None:
    found, scripts = replayed(tmp_path / "a", json.dumps(FILE).encode())
    assert not found.skips
    assert len(scripts) == len(CALLS)
    assert 'ends("int32", [7, 0, 1])' in scripts["aten::_grouped_mm"]
    # In the order of shapes: a script stays short.
    assert "LISTS = [[((4,), 40), ((4, 4), 40)]]" in scripts["aten::_fused_adamw_"]
    assert 'hits("int64", (6,), 9, [(1, 1), (5, 1)], False)' in scripts["aten::index_select"]
    put = scripts["aten::index_put_"]
    assert 'hits("int64", (7,), 4, [(7, 1)], False), indices("int64", (7,), 5)' in put
    assert '"tanh"' in scripts["aten::gelu"]
    assert "torch.tensor(-0.25, dtype=torch.float64)" in scripts["aten::mul"]
    assert max(len(text.splitlines()) for text in scripts.values()) <= 60


def test_without_a_file_all_stays_as_it_was(tmp_path: Path) -> None:
    found, scripts = replayed(tmp_path / "a", None)
    assert "routed(" in scripts["aten::_grouped_mm"]
    assert "hits(" not in "".join(scripts.values())
    assert "aten::_fused_adamw_" not in scripts
    assert any("list" in skip.subject for skip in found.skips)
    empty = json.dumps({"schema": FILE["schema"], "calls": []}).encode()
    assert scripts == replayed(tmp_path / "b", empty)[1]


def test_of_several_calls_of_the_same_shapes_the_middle_one_counts(tmp_path: Path) -> None:
    base = FILE["calls"][0]
    calls = []
    for sizes, count in ([2, 3, 3], 2), ([0, 0, 8], 1), ([6, 1, 1], 2):
        arguments = [*base["arguments"]]
        arguments[2] = arguments[2] | {"sizes": sizes}
        calls.append(noted(base["op"], *arguments, count=count))
    _, scripts = replayed(tmp_path / "a", json.dumps(FILE | {"calls": calls}).encode(), GROUPED)
    assert "[6, 1, 1]" in scripts["aten::_grouped_mm"]


def test_arguments_that_are_the_same_and_when_they_were_touched(tmp_path: Path) -> None:
    addcmul = called("aten::_foreach_addcmul_", [], [], [], 0.5)
    grads = {"tensors": [tensor(4, count=40)]}
    calls = [
        noted("aten::_foreach_addcmul_", grads | {"age": 7}, grads, grads | {"same": 1}, {"value": 0.5}),
        # Lists that the profiler would have recorded are another call's, as one with fewer tensors.
        noted("aten::_foreach_addcmul_", *[{"tensors": [tensor(2, count=3)]}] * 3, {"value": 0.5}, count=9),
        noted("aten::mul", tensor(4, age=0), {"value": -0.25}),
    ]
    content = json.dumps(FILE | {"calls": calls}).encode()
    _, scripts = replayed(tmp_path / "a", content, addcmul, SCALED)
    assert "None, 0.5], [(2, 1)])" in scripts["aten::_foreach_addcmul_"]
    assert "(4,)) for _ in range(40)]" in scripts["aten::_foreach_addcmul_"]
    listed = json.loads((tmp_path / "a" / "replay.json").read_text())["scripts"]
    assert sorted(entry["ages"] for entry in listed) == [[0, None], [7, None, None, None]]
    # What is not the same here is none there.
    calls[0]["arguments"][2]["same"] = 3
    _, scripts = replayed(tmp_path / "b", json.dumps(FILE | {"calls": calls}).encode(), addcmul)
    assert "shared" not in scripts["aten::_foreach_addcmul_"]


@pytest.mark.torch
def test_long_lists_of_many_shapes_and_types_stay_together(tmp_path: Path) -> None:
    """20 shapes in two types, some gradients transposed: a table a type, and the same rows in all lists."""
    pytest.importorskip("torch")
    types = ("bfloat16", "float32")
    kinds = [tensor(64 + n % 20, 8, dtype=types[n % 2], count=1 + n % 3) for n in range(40)]
    rows = {kind["shape"][0]: kind["shape"][0] % 4 < 2 for kind in kinds}  # whether transposed
    grads = [kind | ({"stride": (1, kind["shape"][0])} if rows[kind["shape"][0]] else {}) for kind in kinds]
    count = sum(kind["count"] for kind in kinds)
    arguments = [{"tensors": kinds}, {"tensors": grads}, *[{"tensors": kinds}] * 2, None]
    arguments += [{"tensors": [tensor(count=count)]}, *({"value": value} for value in (0.1, 0.9, 0.99, 0.0))]
    calls = [noted("aten::_fused_adamw_", *arguments, {"value": 1e-8}, *[{"value": False}] * 2, None, None)]
    _, scripts = replayed(tmp_path / "a", json.dumps(FILE | {"calls": calls}).encode(), ADAM)
    script = scripts["aten::_fused_adamw_"]
    assert 'each(strided, "bfloat16", 0, 1) + each(strided, "float32", 1, 1)' in script
    assert len(script.splitlines()) <= 60
    parameters, gradients, first, second, _, steps, *_ = described(space_of(script)["arguments"]())
    assert parameters == first == second
    assert len(steps) == len(parameters) == count
    strides = [(1, shape[0]) if rows[shape[0]] else dense for _, shape, dense in parameters]
    assert gradients == [(*made[:2], stride) for made, stride in zip(parameters, strides, strict=True)]
    listed = [(kind["dtype"], kind["shape"], (8, 1)) for kind in kinds for _ in range(kind["count"])]
    assert sorted(parameters) == sorted(listed)


SOURCE = "def triton_poi_fused_add_0():\n    pass\n"
KEY = hashlib.sha256(SOURCE.encode()).hexdigest()[:16]


def compiled(**changes: Any) -> bytes:
    """What the recorder noted of a program with a generated kernel."""
    arguments = [
        tensor(8, dtype="int64", below=5), tensor(4, 2, age=3), tensor(4, 2, same=1), {"value": 8},
    ]  # fmt: skip
    call = noted("triton_poi_fused_add_0", *arguments) | {"source": KEY}
    return json.dumps(FILE | {"calls": [call], "sources": {KEY: SOURCE}} | changes).encode()


def generated(folder: Path, content: bytes, trust: bool) -> Result:
    trace = draw("""
        op triton_poi_fused_add_0    | ---  ---
        launch                       |  a    b
        s7 triton_poi_fused_add_0    |   aaa  bb
    """)
    values = {"rank0.values.json.zst": content}
    return replay(make_run([trace]), folder, values=values, trust_generated=trust)


def test_generated_kernels_are_replayed_where_they_are_trusted(tmp_path: Path) -> None:
    with pytest.raises(TracelensError, match="--trust-generated"):
        generated(tmp_path / "a", compiled(), trust=False)
    found = generated(tmp_path / "b", compiled(), trust=True)
    assert not found.skips
    assert found.meta["fraction_of_gpu_time"] == 1
    (entry,) = json.loads((tmp_path / "b" / "replay.json").read_text())["scripts"]
    assert (entry["kind"], entry["count"], entry["source"], entry["ages"][1]) == ("generated", 2, KEY, 3)
    script = (tmp_path / "b" / entry["file"]).read_text()
    assert 'indices("int64", (8,), 5)' in script
    assert "None, 8], [(2, 1)])" in script
    assert len(script.splitlines()) <= 60
    source = tmp_path / "b" / f"generated_{KEY}.py"
    assert source.read_text() == SOURCE
    # A directory is written anew without what lies there.
    generated(tmp_path / "b", compiled(), trust=True)
    assert source.read_text() == SOURCE


@pytest.mark.parametrize(
    "changes",
    [{"sources": {KEY: "import os"}}, {"sources": {"0" * 16: SOURCE}}, {"sources": {"../x": SOURCE}}],
)
def test_a_source_is_that_of_its_name(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(TracelensError, match="nothing"):
        generated(tmp_path / "a", compiled(**changes), trust=True)


@pytest.mark.parametrize(
    "third", [{"sizes": [7, 0, 2]}, {"sizes": [4, 4]}, {"hits": [[1, 3]]}, {"shape": [4], "sizes": [8]}, {}]
)
def test_what_does_not_fit_the_call_is_not_used(tmp_path: Path, third: dict[str, Any]) -> None:
    arguments = [*FILE["calls"][0]["arguments"]]
    arguments[2] = tensor(3, dtype="int32") | third
    content = json.dumps(FILE | {"calls": [noted("aten::_grouped_mm", *arguments)]}).encode()
    _, scripts = replayed(tmp_path / "a", content, GROUPED)
    assert "routed(" in scripts["aten::_grouped_mm"]


STRANGE = (
    None, True, -1, 0, 1 << 62, 1e308, "x" * 99, "__import__('os').system('id')", '"]\nimport os #', "tanh",
    [], [[]], [-1], [1 << 61], [[1 << 40, 1 << 40]], {}, {"value": "x\ny"}, {"tensors": [{"dtype": "x"}]},
    {"shape": [1 << 39, 1 << 39], "dtype": "int64"}, {"tensors": [{"count": 1 << 16, "dtype": "int8"}] * 3},
    {"shape": [2], "stride": [1, 1], "dtype": "int64"}, {"value": [1, "a", None]}, {"value": float("inf")},
)  # fmt: skip


def broken(seed: int) -> bytes:
    """A file of which something is not as the recorder writes it."""
    draw = random.Random(seed)
    document = json.loads(json.dumps(FILE))
    for _ in range(draw.randint(1, 4)):
        place: Any = document
        while isinstance(place, dict | list) and place:
            keys = list(place) if isinstance(place, dict) else range(len(place))
            key = draw.choice(keys)
            if not isinstance(place[key], dict | list) or draw.random() < 0.2:
                place[key] = deepcopy(draw.choice(STRANGE))
                break
            place = place[key]
    content = json.dumps(document).encode()
    cut = draw.random()
    if cut < 0.1:
        return content[: draw.randrange(len(content))]
    return content if cut < 0.9 else draw.randbytes(99) + b"[" * 10_000


@pytest.mark.parametrize(
    "seeds",
    [range(40), *(pytest.param(range(at, at + 40), marks=pytest.mark.slow) for at in (40, 80, 120, 160))],
)
def test_hostile_files_give_scripts_of_the_template_or_a_skip(tmp_path: Path, seeds: range) -> None:
    for seed in seeds:
        found, scripts = replayed(tmp_path / "a", broken(seed))
        assert {"aten::_grouped_mm", "aten::index_select"} <= scripts.keys() | {
            skip.subject.split()[0] for skip in found.skips
        }
        assert all("import os" not in text and "system" not in text for text in scripts.values())
        for text in scripts.values():
            compile(text, "script", "exec")
        told = [skip for skip in found.skips if skip.subject == "rank0.values.json.zst"]
        assert len(told) <= 1
        assert all(skip.reason == "not a file of values that tracelens wrote" for skip in told)


def test_the_file_beside_the_trace_is_found_and_is_no_trace(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", raw(*CALLS), rank=0)
    beside = tmp_path / f"rank0{VALUES}"
    beside.write_bytes(zstandard.compress(json.dumps(FILE | {"cut": "3 lists"}).encode()))
    assert traces_among(map(str, tmp_path.iterdir())) == [str(tmp_path / "rank0.json")]
    assert len(tracelens.load(tmp_path).traces) == 1
    found = tracelens.replay(tmp_path, tmp_path / "out")
    assert [skip.reason for skip in found.skips] == ["left out when recorded: 3 lists"]
    assert "[7, 0, 1]" in next((tmp_path / "out").glob("*grouped*")).read_text()
    for damaged in (b"", b"\x28\xb5\x2f\xfd junk", zstandard.compress(b"\0" * (100 << 20))):
        beside.write_bytes(damaged)
        found = tracelens.replay(tmp_path, tmp_path / "out")
        assert [skip.subject for skip in found.skips if skip.subject.endswith(VALUES)] == [str(beside)]
        assert "routed(" in next((tmp_path / "out").glob("*grouped*")).read_text()
