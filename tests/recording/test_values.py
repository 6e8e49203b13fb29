"""What the profiler leaves out, against what the program really did."""

from __future__ import annotations

import hashlib
import json
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

pytest.importorskip("torch", reason="recording needs torch")

import torch
import zstandard
from torch.utils.flop_counter import FlopCounterMode

import tracelens
from tests.recording.traces import read, scopes
from tracelens.recording import RecordingWindow, values

WINDOW = {"wait": 1, "warmup": 1, "steps": 1}


def content(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(zstandard.decompress(path.read_bytes(), max_output_size=1 << 26))
    return found


def noted(path: Path, work: Callable[[], Any], *, indices: bool = True) -> list[dict[str, Any]]:
    """The calls of some work."""
    kept = values.Values(indices=indices)
    kept.open()
    work()
    kept.close()
    kept.write(path, 0)
    found: list[dict[str, Any]] = content(path)["calls"] if path.exists() else []
    return found


def test_the_trace_is_the_same_with_and_without(tmp_path: Path) -> None:
    index = torch.tensor([3, 1, 1])

    def ops(with_values: bool) -> list[str]:
        with tracelens.record(tmp_path / str(with_values), values=with_values, **WINDOW) as r:
            for _ in range(4):
                torch.ones(4).index_select(0, index)
                r.step()
        assert r.path is not None
        assert (r.path.parent / "rank0.values.json.zst").exists() is with_values
        return [scope.name for scope in scopes(read(r.path), "cpu_op")]

    assert ops(True) == ops(False)


@pytest.mark.parametrize(
    ("window", "most", "step"),
    [((5, 2, 3), 20, 5), ((0, 2, 1), 20, 0), ((5, 1, 3), 20, 1), ((5, 0, 3), 0, 4), ((0, 1, 1), 20, 2)],
)
def test_the_step_is_neither_timed_nor_profiled(window: tuple[int, int, int], most: int, step: int) -> None:
    recorded = RecordingWindow(*window)
    assert recorded.values_step(most) == step
    assert recorded.phase(step) != "record"
    assert recorded.phase(step + 1) != "record" or not recorded.warmup  # a step to warm up is left
    assert not any(step in steps for steps in recorded.timed(most).values())


def test_behind_the_window_where_there_is_no_step_before(tmp_path: Path) -> None:
    with tracelens.record(tmp_path, wait=0, warmup=0, steps=1) as r:
        for number in range(3):
            torch.ones(9).index_select(0, torch.arange(number + 1))
            assert (tmp_path / "rank0.values.json.zst").exists() is (number == 2)
            r.step()
            if number == 1:
                assert content(tmp_path / "rank0.values.json.zst")["step"] == 1
    (call,) = content(tmp_path / "rank0.values.json.zst")["calls"]
    assert call["arguments"][2]["hits"] == [[1, 2]]


def test_hits_order_lists_texts_and_scrubbing(tmp_path: Path) -> None:
    index = torch.tensor([0, 0, 0, 2, 5, 5])

    def work() -> None:
        torch.ones(8, 2).index_select(0, index)
        torch.ones(8).index_add(0, index.flip(0)[:, None].expand(6, 1)[:, 0], torch.ones(6))
        torch._foreach_add([torch.ones(n % 3 + 1) for n in range(45)], 1.5)
        torch.nn.functional.gelu(torch.ones(3), approximate="tanh")
        torch.split_with_sizes_copy(torch.ones(40), [1] * 40)
        torch.ones(3) * 7
        torch.ones(3) + torch.ones(3)  # of which a trace has all

    calls = {call["op"]: call["arguments"] for call in noted(tmp_path / "a", work)}
    assert list(calls) == [
        "aten::index_select", "aten::index_add", "aten::_foreach_add", "aten::gelu",
        "aten::split_with_sizes_copy", "aten::mul",
    ]  # fmt: skip
    assert calls["aten::index_select"][2] == {
        "shape": [6], "dtype": "int64", "hits": [[1, 1], [2, 1], [3, 1]], "sorted": True,
    }  # fmt: skip
    assert calls["aten::index_add"][2]["sorted"] is False
    runs = calls["aten::_foreach_add"][0]["tensors"]
    assert [(run["shape"], run["count"]) for run in runs] == [([1], 1), ([2], 1), ([3], 1)] * 15
    assert calls["aten::_foreach_add"][1] == {"value": 1.5}
    assert calls["aten::gelu"][1] == {"value": "tanh"}
    assert calls["aten::split_with_sizes_copy"][1] == {"value": [1] * 40}
    assert calls["aten::mul"][1] == {"value": 7}
    scrubbed = json.dumps(noted(tmp_path / "b", work, indices=False))
    assert "hits" not in scrubbed
    assert "sorted" not in scrubbed


@pytest.mark.parametrize("cached", ["is_cuda", "is_cpu"])
def test_what_is_noted_is_what_the_call_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cached: str
) -> None:
    """Statistics are made later, of copies, also where these are too many to wait or for their memory."""
    monkeypatch.setattr(values, "_CACHED", cached)
    monkeypatch.setattr(values, "MAX_CACHE_AGE", -1)
    monkeypatch.setattr(values, "_ROOM", 64)
    index, x = torch.tensor([1, 1, 3]), torch.ones(4)

    def work() -> None:
        for number in range(3):
            x.index_select(0, index)
            torch.ops.aten.index.Tensor(x.view(2, 2), [index % 2, index % 2])
            index.fill_(number)

    calls = [noted(tmp_path / "a", work)]
    for name, most in (("_MOST_COPIED", 50), ("_MOST_KEPT", 20)):
        monkeypatch.setattr(values, name, most)
        index.copy_(torch.tensor([1, 1, 3]))
        calls.append(noted(tmp_path / name, work))
    assert calls[0] == calls[1] == calls[2]
    selected = [call for call in calls[0] if call["op"] == "aten::index_select"]
    assert [(call["count"], call["arguments"][2]["hits"]) for call in selected] == [
        (2, [[3, 1]]), (1, [[1, 1], [2, 1]]),
    ]  # fmt: skip
    indexed = [call["arguments"][1]["tensors"] for call in calls[0] if call["op"] == "aten::index"]
    assert [[run["count"] for run in runs] for runs in indexed] == [[2]] * len(indexed)


def test_no_tensor_lives_longer(tmp_path: Path) -> None:
    index = torch.tensor([1, 1, 3])
    alive = []

    def work() -> None:
        kept = [weakref.ref(torch.ones(4).index_select(0, index).mul_(2)) for _ in range(3)]
        alive.extend(each() is not None for each in kept)

    assert noted(tmp_path / "a", work)
    assert alive == [False] * 3


def test_numbers_that_json_lacks_are_left_out(tmp_path: Path) -> None:
    (fill,) = noted(tmp_path / "a", lambda: torch.ones(9)[1:].masked_fill(torch.ones(8) > 0, -torch.inf))
    assert fill["op"] == "aten::masked_fill"
    assert fill["arguments"][2] is None


def test_generated_kernels_and_their_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "generated.py"
    file.write_text("# what torch.compile wrote")

    class CachingAutotuner:
        """As torch has it, for a kernel (in_ptr0, in_ptr1, out_ptr0, xnumel)."""

        inductor_meta: ClassVar[dict[str, str]] = {"kernel_name": "triton_poi_fused_add_0"}
        filename = str(file)
        fn = SimpleNamespace(arg_names=["in_ptr0", "in_ptr1", "out_ptr0", "xnumel", "XBLOCK"])
        launched = 0

        def run(self, *_: Any, **__: Any) -> None:
            type(self).launched += 1

    module = SimpleNamespace(CachingAutotuner=CachingAutotuner)
    monkeypatch.setitem(sys.modules, "torch._inductor.runtime.triton_heuristics", module)
    run, index, x = CachingAutotuner.run, torch.tensor([3, 0]), torch.ones(2, 2)

    def work() -> None:
        for _ in range(2):
            CachingAutotuner().run(index, x, index.clone(), 4, stream=0)
        CachingAutotuner().run("a descriptor", stream=0)

    (call,) = noted(tmp_path / "a", work)
    whole = content(tmp_path / "a")
    assert (CachingAutotuner.run, CachingAutotuner.launched) == (run, 3)
    assert (call["op"], call["count"]) == ("triton_poi_fused_add_0", 2)
    assert whole["sources"] == {call["source"]: "# what torch.compile wrote"}
    # What it only writes may hold anything before.
    assert [argument.get("below") for argument in call["arguments"]] == [4, None, None, None]
    assert call["arguments"][3] == {"value": 4}
    assert whole["cut"] == "1 generated kernels that could not be read (TypeError)"
    # A source goes with the calls that need it.
    monkeypatch.setattr(values, "MAX_BYTES", 250)
    file.write_text("".join(hashlib.sha256(bytes([number])).hexdigest() for number in range(99)))
    assert noted(tmp_path / "b", work) == []
    assert content(tmp_path / "b")["sources"] == {}


def test_misaligned_tensors_are_told(tmp_path: Path) -> None:
    (call,) = noted(tmp_path / "a", torch.ones(9)[1:].exp)
    assert call["arguments"][0]["align"] == 4


def test_tensors_that_are_the_same_are_told(tmp_path: Path) -> None:
    a, b = torch.ones(3), torch.ones(3)
    (addcmul,) = noted(tmp_path / "a", lambda: torch.addcmul(a, b, b, value=2))
    assert ["same" in argument for argument in addcmul["arguments"][:3]] == [False, False, True]
    assert addcmul["arguments"][2]["same"] == 1
    grads = [b, torch.ones(2)]
    (listed,) = noted(tmp_path / "b", lambda: torch._foreach_addcmul([a, torch.ones(2)], grads, grads))
    assert [argument.get("same") for argument in listed["arguments"][:3]] == [None, None, 1]
    # A view of other elements is another tensor.
    c = torch.ones(8)
    assert not noted(tmp_path / "c", lambda: torch.add(c[:4], c[4:]))


def test_ages_are_the_bytes_that_were_touched_since(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "_CACHED", "is_cpu")

    def work() -> None:
        a = torch.zeros(256)  # 1 KiB
        b = a.exp()  # of a, the last that was touched
        b.double()  # copies b, the last that was touched
        torch.zeros(1 << 20).mul_(2)  # 8 MiB in two calls
        (a + b).view(16, 16).cos()

    calls = {call["op"]: call["arguments"] for call in noted(tmp_path / "a", work)}
    ages = {op: [argument.get("age") for argument in args if argument] for op, args in calls.items()}
    assert ages["aten::exp"] == [0]
    assert ages["aten::copy_"][1] == 0
    # Since a: exp's result, b twice as an input, its copy of 2 KiB, 8 MiB.
    assert ages["aten::add"][:2] == [(8 << 20).bit_length()] * 2
    assert ages["aten::cos"] == [0]
    monkeypatch.setattr(values, "MAX_CACHE_AGE", 20)
    calls = {call["op"]: call["arguments"] for call in noted(tmp_path / "b", work)}
    assert "aten::add" not in calls


def test_many_hits_keep_their_sums(tmp_path: Path) -> None:
    index = torch.arange(1, 301).repeat_interleave(torch.arange(1, 301))
    (call,) = noted(tmp_path / "a", lambda: torch.ones(400).index_select(0, index))
    hits = call["arguments"][2]["hits"]
    assert len(hits) <= values._MOST_HITS
    assert sum(times * rows for times, rows in hits) == len(index)
    assert sum(rows for _, rows in hits) == 300


def test_what_does_not_fit_is_cut_with_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "MAX_BYTES", 400)

    def work() -> None:
        for count in range(1, 200):
            torch.ones(500).index_select(0, torch.arange(count))

    assert noted(tmp_path / "a", work)
    assert (tmp_path / "a").stat().st_size <= 400
    assert "kinds of calls, to stay under 400 bytes" in content(tmp_path / "a")["cut"]


def test_modes_of_the_program_are_left_as_they_are(tmp_path: Path) -> None:
    with tracelens.record(tmp_path / "around", **WINDOW) as r, FlopCounterMode(display=False) as counter:
        for _ in range(4):
            torch.ones(4, 4) @ torch.ones(4, 4)
            r.step()
    assert counter.get_total_flops() == 4 * 2 * 4**3
    with tracelens.record(tmp_path / "inside", wait=2, warmup=1, steps=1, pace_steps=0) as r:
        for _ in range(5):
            with FlopCounterMode(display=False):
                torch.ones(4).index_select(0, torch.arange(2))
                r.step()
    assert r.notes == []
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


def test_compiled_functions_stay_compiled(tmp_path: Path) -> None:
    compilations = []

    def backend(graph: Any, _: Any) -> Any:
        compilations.append(graph)
        return graph.forward

    @torch.compile(backend=backend)
    def work(x: Any) -> Any:
        return x.index_select(0, torch.arange(2)) * 2

    work(torch.ones(4))
    calls = noted(tmp_path / "a", lambda: work(torch.ones(4)))
    assert "aten::index_select" in {call["op"] for call in calls}
    assert len(compilations) == 1


def test_nothing_of_the_recorder_is_compiled(tmp_path: Path) -> None:
    """Between graphs, torch.compile looks at all Python code that runs."""

    def work(x: Any) -> Any:
        torch._dynamo.graph_break()
        return max([x], key=lambda each: float(each.cos().sum()))  # ops that are in no graph

    def frames(run: Callable[[Any], Any]) -> int:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        run(torch.ones(4))
        return int(torch._dynamo.utils.counters["frames"]["total"])

    compiled = torch.compile(work, backend="eager")
    alone = frames(compiled)
    assert alone
    assert frames(lambda x: noted(tmp_path / "a", lambda: compiled(x))) == alone
