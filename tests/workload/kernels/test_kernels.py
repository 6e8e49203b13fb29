"""Which kernels a device gets, and what traces call them."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="the workload needs torch")

from tracelens import workload  # noqa: E402
from tracelens.errors import TracelensError  # noqa: E402
from tracelens.trace.classify import classify_kernels  # noqa: E402
from tracelens.workload import kernels as package  # noqa: E402
from tracelens.workload.kernels import reference  # noqa: E402

CLASSES = {
    "_permute_kernel": "moe_routing",
    "_unpermute_kernel": "moe_routing",
    "_unpermute_backward_kernel": "moe_routing",
    "fused_topk_routing_kernel": "moe_routing",
    "fused_topk_routing_backward_kernel": "moe_routing",
    "_swiglu_kernel": "activation",
    "_swiglu_backward_kernel": "activation",
    "_cross_entropy_kernel": "loss",
    "_quantize_kernel": "quantization",
    "_quantize_transposed_kernel": "quantization",
}
FUNCTIONS = {
    "permute", "unpermute", "unpermute_backward", "swiglu", "swiglu_backward", "route", "route_backward",
    "cross_entropy", "quantize", "quantize_transposed",
}  # fmt: skip


def on(device: str) -> SimpleNamespace:
    """What `kernels` asks a tensor, for devices that are not here."""
    return SimpleNamespace(is_cuda=device == "cuda", device=SimpleNamespace(type=device))


class TestChoice:
    def test_the_cpu_gets_the_reference(self):
        assert package.kernels(torch.zeros(1)) is reference

    def test_a_gpu_gets_triton(self, triton_backend):
        assert package.kernels(on("cuda")) is triton_backend.kernels

    def test_without_triton_the_message_says_what_to_do(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "triton", None)
        with pytest.raises(TracelensError, match=r"permute=fused.*need Triton.*pip install triton"):
            package.kernels(on("cuda"))

    @pytest.mark.parametrize("version", ["3.1.0", "2.3.1"])
    def test_an_old_triton_is_refused(self, monkeypatch, version):
        monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(__version__=version))
        with pytest.raises(TracelensError, match=rf"Triton 3\.2 or newer, not {version}"):
            package.kernels(on("cuda"))

    def test_another_device_is_refused(self):
        with pytest.raises(TracelensError, match="not on mps"):
            package.kernels(on("mps"))


def test_both_have_the_same_functions(triton_backend):
    assert set(triton_backend.kernels.__all__) == FUNCTIONS
    for name in FUNCTIONS:
        assert callable(getattr(triton_backend.kernels, name))
        assert callable(getattr(reference, name))


def test_traces_show_each_kernel_as_what_it_is():
    assert dict(zip(CLASSES, classify_kernels(list(CLASSES)), strict=True)) == CLASSES


def test_these_are_all_the_kernels(triton_backend):
    modules = {getattr(triton_backend.kernels, name).__module__ for name in FUNCTIONS}
    found = {
        name
        for module in modules
        for name, value in vars(sys.modules[module]).items()
        if hasattr(value, "fn") and name.endswith("_kernel")
    }
    assert found == set(CLASSES)


def test_the_package_needs_no_triton():
    """The CPU never imports it: `fused` is imported by the first call for a GPU."""
    assert "triton" not in vars(package)
    assert "triton" not in vars(workload)
