"""Kernel and op classification against reviewed lists of real names.

kernel_names.txt and op_names.txt hold `class<TAB>name`, each line read and judged by hand; `-` is an op
that has no class of its own. Kernel names are cut where nothing that matters follows.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tracelens.errors import SchemaError, UnknownName
from tracelens.trace import OPAQUE, WORK_KINDS, classes, classify, collective_of, collectives
from tracelens.trace.classify import (
    classify_kernels,
    classify_op,
    kind_of,
    matching_classes,
    matching_op_classes,
)

_HERE = Path(__file__).parent


def _listed(file: str) -> list[tuple[str, str]]:
    lines = (_HERE / file).read_text(encoding="utf-8").splitlines()
    return [(name, expected) for expected, name in (line.split("\t") for line in lines)]


KERNELS = _listed("kernel_names.txt")
OPS = _listed("op_names.txt")
RULES: dict[str, Any] = classify._file()


def _mistakes() -> list[str]:
    found = [
        f"{name}: {got}, not {want}" for name, want in KERNELS if (got := classify_kernels([name])[0]) != want
    ]
    return found + [f"{op}: {got}, not {want}" for op, want in OPS if (got := classify_op(op) or "-") != want]


def test_every_listed_name_gets_its_class() -> None:
    assert _mistakes() == []


def test_every_example_in_the_rules_gets_its_class() -> None:
    wrong = [
        (name, example)
        for name, entry in RULES["class"].items()
        for example in entry.get("examples", [])
        if name not in (classify_kernels([example])[0], classify_op(example))
    ]
    assert wrong == []


def test_only_fused_kernels_speak_of_two_classes() -> None:
    assert [name for name, want in KERNELS if len(matching_classes(name)) > 1 and want != "fused"] == []
    assert [name for name, _ in OPS if len(matching_op_classes(name)) > 1] == []


def test_every_class_but_the_last_resort_is_listed() -> None:
    assert {want for _, want in KERNELS} == {known.name for known in classes()}


@pytest.fixture
def fresh() -> Iterator[None]:
    """Rules and results are cached for the process: forget them around a test that changes the rules."""
    caches = (classify._classes, classify._compiled, classify._winners, classify.matching_classes)
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


@pytest.mark.usefixtures("fresh")
def test_the_order_of_rules_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    backwards = {
        name: {key: value[::-1] if isinstance(value, list) else value for key, value in entry.items()}
        for name, entry in reversed(RULES["class"].items())
    }
    monkeypatch.setattr(classify, "_file", lambda: {**RULES, "class": backwards})
    assert _mistakes() == []


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("broken", [{"kind": "magic"}, {"level": "somewhere"}])
def test_a_class_of_unknown_kind_or_level_is_refused(
    monkeypatch: pytest.MonkeyPatch, broken: dict[str, str]
) -> None:
    entries = {**RULES["class"], "gemm": {**RULES["class"]["gemm"], **broken}}
    monkeypatch.setattr(classify, "_file", lambda: {**RULES, "class": entries})
    with pytest.raises(SchemaError, match="gemm"):
        classes()


def test_no_rule_is_dead() -> None:
    own: dict[str, list[str]] = {}
    functors: dict[str, list[str]] = {}
    examples = [
        (example, name) for name, entry in RULES["class"].items() for example in entry.get("examples", [])
    ]
    for name, want in KERNELS + examples:
        text, arguments = classify._function_name(name)
        own.setdefault(want, []).append(text)
        functors.setdefault(want, []).append(arguments)
    ops = [classify._plain_op(op) for op, _ in OPS + examples]
    dead = []
    for name, entry in RULES["class"].items():
        fused = own["fused"] if name != "fused" else []
        texts = {"names": own.get(name, []) + fused, "functors": functors.get(name, []), "ops": ops}
        for table, candidates in texts.items():
            for rule in entry.get(table, []):
                if not any(re.search(rule, text) for text in candidates):
                    dead.append(f"{name}.{table}: {rule}")
    assert dead == []


def test_communication_and_copies_agree_with_the_reference_rule() -> None:
    """Another tool's timelines, which ours must reproduce, call exactly these communication and copies."""
    for name, _ in KERNELS:
        kind = kind_of(classify_kernels([name])[0])
        if re.search(r"rccl|nccl|cross_device_reduce", name, re.IGNORECASE):
            assert kind == "comm", name
        if re.match(r"MEMORY_COPY_|__amd_rocclr_copyBuffer", name):
            assert kind == "memcpy", name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "void cub::DeviceReduceKernel<cub::DispatchReduce<float*>::Policy600, nccl_like>(float*)",
            "reduction",
        ),
        (
            "void flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128>>(Flash_fwd_params)",
            "attention",
        ),
        ("hipblaslt_all_to_all_free_gemm", "gemm"),
        (
            "void at::native::reduce_kernel<512, 1, nccl::AllReduce<float>>(nccl::AllReduce<float>)",
            "reduction",
        ),
        ("hipMemcpyWithStream", "other"),
        ("void moe_combine_kernel<float>(float*)", "moe_routing"),
        ("void all_gather_gemm_kernel<float>(float*)", "gemm"),
    ],
)
def test_a_word_among_template_arguments_is_no_communication(name: str, expected: str) -> None:
    assert classify_kernels([name]) == [expected]


def test_a_shell_is_what_its_functor_is() -> None:
    shell = "void at::native::vectorized_elementwise_kernel<4, at::native::{}, std::array<char*, 2ul> >(int)"
    assert classify_kernels(
        [shell.format(functor) for functor in ("silu_kernel", "mse_kernel_cuda", "nothing")]
    ) == [
        "activation",
        "loss",
        "elementwise",
    ]


def test_a_functor_cut_at_its_parameters_hides_no_lambda() -> None:
    name = "void at::native::elementwise_kernel<128, 2, at::native::exp_kernel_cuda(at::TensorIter&)::{lambda"
    assert classify_kernels([name + tail for tail in ("", "()#1", "()#1}>(int)")]) == ["elementwise"] * 3


@pytest.mark.parametrize(
    ("mangled", "plain"),
    [
        (
            "_ZN12primus_turbo7deep_ep9intranode7combineILi8EEEvPf",
            "primus_turbo::deep_ep::intranode::combine",
        ),
        ("_ZN2at6native12_GLOBAL__N_120softmax_warp_forwardIffEEvPf", "at::native::softmax_warp_forward"),
        ("_Z20rms_norm_fwd_kernel_Pf", "rms_norm_fwd_kernel_"),
        ("_ZNSt4conv5applyIfEEvv", "conv::apply"),
    ],
)
def test_mangled_names_are_read(mangled: str, plain: str) -> None:
    assert classify._function_name(mangled)[0] == plain
    assert classify_kernels([mangled]) == classify_kernels([plain])


@pytest.mark.parametrize(
    "name", ["", "_Z", "_ZN", "_Z9999", "_Z" + "9" * 5000, "<", "(", "void ", "<script>", "\n"]
)
def test_nonsense_is_other(name: str) -> None:
    assert classify_kernels([name]) == ["other"]
    assert classify_op(name) is None


def test_one_class_for_each_name_in_order() -> None:
    assert classify_kernels([]) == []
    assert classify_kernels(["attn_fwd", "x", "attn_fwd"]) == ["attention", "other", "attention"]


def test_kinds() -> None:
    assert {known.kind for known in classes()} == set(WORK_KINDS)
    assert {known.name for known in classes()} >= OPAQUE
    assert all(known.doc.endswith(".") for known in classes())
    assert [kind_of(name) for name in ("gemm", "communication", "copy", "fill")] == list(WORK_KINDS)
    with pytest.raises(UnknownName, match="did you mean 'gemm'"):
        kind_of("gem")


def test_long_names_cost_no_more_than_short_ones() -> None:
    """8,000 characters of the worst text for the rules; the bound is some ten times what it takes."""
    tails = (
        "mean_" * 1600,
        "<" * 8000,
        "moe" * 2600,
        "std::enable_if<" * 500,
        "enable_if_t<a> " * 500,
        "all_" * 2000,
    )
    names = [
        f"{head}{tail}{number}"
        for number in range(100)
        for tail in tails
        for head in ("fused_", "_Z", "void ")
    ]
    start = time.process_time()
    classify_kernels(names)
    assert time.process_time() - start < 2.0


def test_importing_reads_no_rules() -> None:
    script = (
        "import sys, tracelens.trace.classify; sys.exit('tomllib' in sys.modules or 'pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@pytest.mark.parametrize(
    ("name", "collective"),
    [
        ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>()", "all_reduce"),
        ("void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<float, 8>()", "all_reduce"),
        ("symm_mem::multimem_all_reduce_", "all_reduce"),
        ("void vllm::cross_device_reduce_2stage<__hip_bfloat16, 8>(vllm::RankData*)", "all_reduce"),
        ("void quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half>>()", "all_reduce"),
        ("ncclSymkDevKernel_AllReduce_AGxLLMC_R(ncclSymkDevWorkArgs)", "all_reduce"),
        ("allreduce", "all_reduce"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "reduce_scatter"),
        ("reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("_allgather_base", "all_gather"),
        ("all_to_allv", "all_to_all"),
        ("c10d::alltoall_base_", "all_to_all"),
        ("void deep_ep::intranode::combine<__nv_bfloat16, 8, 768, 4096>(__nv_bfloat16*)", "all_to_all"),
        ("combine.kd", "all_to_all"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "send_recv"),
        ("broadcast", "broadcast"),
        # These may be anything, or two things at once.
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", ""),
        ("record_param_comms", ""),
        ("void aiter::reduce_scatter_cross_device_store<__hip_bfloat16, 8>()", "reduce_scatter"),
        ("fused_all_gather_reduce_scatter", ""),
    ],
)  # fmt: skip
def test_collectives_by_name(name: str, collective: str) -> None:
    assert collective_of(name) == collective
    assert {"all_reduce", "all_to_all"} < set(collectives())
