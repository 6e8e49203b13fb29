"""Registration of cost models: which one counts an op, and that each is documented and tested."""

import inspect

import pytest

import tracelens.costs.model as costs
from tracelens.costs import COSTS, OpCall, OpCost, Uncounted, cost, find
from tracelens.errors import TracelensError

MODELS = [model for _, model in COSTS.items()]


def test_an_exact_name_is_preferred_to_a_pattern() -> None:
    exact = find("primus_turbo::grouped_gemm_combine_impl")
    assert exact is not None
    assert exact.name == "primus_turbo::grouped_gemm_combine_impl"
    assert find("aten::mm") is not None
    assert find("aten::no_such_op") is None


def test_the_longest_pattern_is_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    def model(call: OpCall) -> OpCost:
        raise Uncounted("not called")

    patterns = ["mylib::*", "mylib::gemm_a8*", "mylib::gemm*", "mylib::gemm_a8w8"]
    found = {name: costs.CostModel(name, model) for name in patterns}
    monkeypatch.setattr(COSTS, "_items", found)
    monkeypatch.setattr(COSTS, "load", lambda: None)
    for memory in (costs._models, find):
        memory.cache_clear()
    try:
        names = {name: getattr(find(name), "name", None) for name in
                 ("mylib::gemm_a8w8", "mylib::gemm_a8w4", "mylib::gemm", "mylib::x", "other::x")}  # fmt: skip
    finally:
        for memory in (costs._models, find):
            memory.cache_clear()
    assert names == {
        "mylib::gemm_a8w8": "mylib::gemm_a8w8",
        "mylib::gemm_a8w4": "mylib::gemm_a8*",
        "mylib::gemm": "mylib::gemm*",
        "mylib::x": "mylib::*",
        "other::x": None,
    }


def test_a_name_belongs_to_one_model() -> None:
    def another(call: OpCall) -> OpCost:
        raise Uncounted("not called")

    COSTS.load()
    with pytest.raises(TracelensError, match=r"'aten::mm' is defined in .*gemm\.mm and in"):
        cost("aten::mm")(another)


def test_forward_is_kept() -> None:
    found = find("_LinearBackward")
    assert found is not None
    assert found.forward
    assert not getattr(find("_Linear"), "forward", True)


def test_the_first_line_of_a_docstring_is_the_doc() -> None:
    found = find("aten::mm")
    assert found is not None
    assert found.doc == "(M, K) x (K, N)."


def test_every_model_is_documented() -> None:
    assert not [model.name for model in MODELS if not model.doc]
    assert not [model.name for model in MODELS if not inspect.getdoc(inspect.getmodule(model.function))]
