"""What traces show of vendor, frameworks and versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tracelens
from tests.builders import aligned, draw, events, write
from tracelens.findings import TracePlatform, joined, platform_of

SAMPLES = Path(__file__).parents[2] / "sample_traces"
H200: dict[str, Any] = {"deviceProperties": [{"id": 0, "name": "NVIDIA H200"}]}
MI300X: dict[str, Any] = {"deviceProperties": [{"id": 0, "name": "AMD Instinct MI300X"}]}
NO_NAME: dict[str, Any] = {"deviceProperties": [{"id": 0, "name": ""}]}


def shown(text: str, **header: Any) -> TracePlatform:
    return platform_of(draw(text, **header))


@pytest.mark.parametrize(
    ("header", "call", "vendor"),
    [
        (H200, "cudaLaunchKernel", "nvidia"),
        (MI300X, "hipLaunchKernel", "amd"),
        (NO_NAME, "hipModuleLaunchKernel", "amd"),
        (NO_NAME, "cuLaunchKernelEx", "nvidia"),
        ({"deviceProperties": [{"id": 0, "name": "AMD Radeon Graphics"}]}, "hipLaunchKernel", "amd"),
        ({"deviceProperties": [{"id": 0, "name": "Tesla V100-SXM2-16GB"}]}, "", "nvidia"),
    ],
)
def test_the_vendor_is_that_of_the_device_or_of_the_launch_calls(
    header: dict[str, Any], call: str, vendor: str
) -> None:
    text = aligned(f"launch {call} | a\n s7 gemm |  aaa")
    assert shown(text, **header).vendor == vendor


def test_a_trace_without_a_gpu_is_the_processors() -> None:
    trace = tracelens.load(SAMPLES / "cpu/tiny").traces[0]
    assert platform_of(trace).vendor == "cpu"


def test_nothing_shows_the_vendor_of_bare_kernels() -> None:
    assert shown("s7 gemm | ---") == TracePlatform()


@pytest.mark.parametrize(
    ("row", "framework"),
    [
        ("python megatron/core/transformer/moe/experts.py(88): forward", ("megatron",)),
        ("python /opt/Megatron-LM/megatron/training/training.py(9): train_step", ("megatron",)),
        ("op _VocabParallelCrossEntropy", ("megatron",)),
        ("op LinearWithGradAccumulationAndAsyncCommunicationBackward", ("megatron",)),
        ("python primus/backends/megatron/core/x.py(1): f", ("primus",)),
        ("op primus_turbo::grouped_gemm", ("primus",)),
        ("python torchtitan/train.py(1): f", ("torchtitan",)),
        ("python deepspeed/runtime/engine.py(1): f", ("deepspeed",)),
        ("python transformers/models/qwen2/modeling_qwen2.py(243): forward", ("huggingface",)),
        ("python transformers/utils/generic.py(437): f", ()),
        ("python transformers/tokenization_utils_base.py(1): f", ()),
        ("python vllm/v1/worker/gpu_worker.py(1): f", ("vllm",)),
        ("op vllm::unified_attention", ("vllm",)),
        ("python sglang/srt/managers/scheduler.py(1): f", ("sglang",)),
        ("python atom/model_engine/llm_engine.py(1): f", ("atom",)),
        ("python tracelens/recording/scopes.py(1): f", ()),
        ("python tracelens/workload/train.py(1): f", ("workload",)),
        ("python tracelens/workload/serving/serve.py(1): f", ("workload_serve",)),
        ("op aten::mm", ()),
        ("python megatron_dataset.py(1): f", ()),
    ],
)
def test_a_framework_is_told_by_its_own_code(row: str, framework: tuple[str, ...]) -> None:
    text = aligned(f"{row} | -------\n launch |   a\n s7 gemm |    aaa")
    assert shown(text).frameworks == framework


def test_what_a_framework_is_built_on_is_not_named() -> None:
    text = """
        python primus/backends/megatron/x.py(1): f | ---------
        python megatron/core/x.py(1): f            |  -------
        op _AllToAll                               |   -
        op MoEAuxLossAutoScaler                    |     -
        s7 gemm                                    |      ---
    """
    assert shown(text).frameworks == ("primus",)
    text = """
        python vllm/v1/worker/gpu_worker.py(1): f        | ---------
        python transformers/models/a/modeling_a.py(1): f |  -------
        s7 gemm                                          |      ---
    """
    assert shown(text).frameworks == ("vllm",)


def test_the_bundled_workload_is_told_by_the_traces_header_and_not_by_the_labels_it_borrows() -> None:
    training, serving = (
        platform_of(tracelens.load(SAMPLES / name / "rank0.json.zst").traces[0])
        for name in ("toggles/baseline", "serving/delayer_off")
    )
    assert training.frameworks == ("workload",)
    assert serving.frameworks == ("workload_serve",)


def test_versions_are_those_of_the_header_and_of_run_json(tmp_path: Path) -> None:
    write(
        tmp_path / "rank0.json",
        events("s7 gemm | ---"),
        hip_runtime_version=70253211,
        distributedInfo={"backend": "nccl", "rank": 0, "world_size": 1, "nccl_version": "2.27.7"},
    )
    trace = tracelens.load(tmp_path / "rank0.json").traces[0]
    assert trace.meta.software == {"hip": "7.2", "nccl": "2.27.7"}
    (tmp_path / "run.json").write_text(
        json.dumps({"schema": "tracelens.run/1", "software": {"torch": "2.9.1+rocm7", "hip": "7.0"}})
    )
    trace = tracelens.load(tmp_path / "rank0.json").traces[0]
    assert platform_of(trace).versions == {"torch": "2.9.1+rocm7", "hip": "7.2", "nccl": "2.27.7"}
    assert platform_of(trace).vendor == "amd"


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"schema": 3}', '{"schema": "other/1", "software": {"torch": "2"}}']
)
def test_another_run_json_says_nothing(tmp_path: Path, content: str) -> None:
    write(tmp_path / "rank0.json", events("s7 gemm | ---"))
    (tmp_path / "run.json").write_text(content)
    assert platform_of(tracelens.load(tmp_path / "rank0.json").traces[0]).versions == {}


@pytest.mark.parametrize(
    ("row", "trains"),
    [
        ("op autograd::engine::evaluate_function: MmBackward0 | -------\n launch |  a", True),
        ("op MmBackward0 | -------\n launch |  a", True),
        ("scope Optimizer.step#AdamW.step | -------\n op aten::add | -------\n launch |  a", True),
        ("op aten::mm | -------\n launch |  a", False),
        ("op aten::mm | -------\n launch cudaGraphLaunch |  a\n s7 fmha_bwd_kernel |    aa", True),
        ("launch |  a", True),
    ],
)
def test_a_run_trains_that_has_a_backward_pass_or_no_ops_that_could_be_one(row: str, trains: bool) -> None:
    assert shown(aligned(f"{row}\n s7 gemm |    aaa")).trains == trains


@pytest.mark.parametrize(("generated", "other", "compiled"), [(1, 9, True), (1, 10, False), (0, 3, False)])
def test_a_run_is_compiled_if_torch_compile_made_a_tenth_of_its_kernels(
    generated: int, other: int, compiled: bool
) -> None:
    text = f"""
        s7 gemm | {"- " * other}
        s8 triton_poi_fused_add_mul_0 | {"- " * generated}
    """
    assert shown(aligned(text)).compiled == compiled


def test_ranks_together_show_what_one_of_them_shows() -> None:
    ranks = [
        TracePlatform("nvidia", ("megatron",), {"cuda": "13.0"}),
        TracePlatform("nvidia", ("primus",)),
        TracePlatform("", (), {"nccl": "2.27"}),
    ]
    assert joined(ranks) == TracePlatform("nvidia", ("primus",), {"cuda": "13.0", "nccl": "2.27"})
    assert joined([TracePlatform("nvidia"), TracePlatform("amd")]).vendor == ""
    assert joined([TracePlatform(trains=False), TracePlatform(compiled=True)]) == TracePlatform(compiled=True)
    assert not joined([TracePlatform(trains=False)]).trains
