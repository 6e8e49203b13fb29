"""Remedies name only what the trace shows."""

from __future__ import annotations

import itertools
import re
import tomllib
from pathlib import Path

import pytest

from tracelens.findings import (
    DETECTORS,
    Detector,
    Remedy,
    TracePlatform,
    add_remedy,
    remedies,
    remedy,
    without_set,
)

FILE = Path(__file__).parents[2] / "tracelens/findings/frameworks.toml"
FRAMEWORKS = [entry["name"] for entry in tomllib.loads(FILE.read_text())["framework"]]
VENDORS = ("amd", "nvidia", "cpu", "")
ALL = [
    TracePlatform(vendor, frameworks, compiled=compiled, trains=trains)
    for vendor in VENDORS
    for frameworks in [(), *((name,) for name in FRAMEWORKS)]
    for compiled in (False, True)
    for trains in (False, True)
]
TITLES = {
    "primus": "Primus",
    "megatron": "Megatron-LM",
    "torchtitan": "torchtitan",
    "huggingface": "transformers:|TrainingArguments",
    "vllm": "vLLM",
    "sglang": "SGLang",
    "atom": "ATOM",
    "workload": "bundled workload",
}


def of(name: str, platform: TracePlatform, in_graphs: bool = False, cause: str = "") -> str:
    """The remedy of a bundled detector."""
    return remedy(DETECTORS.get(name), platform, in_graphs=in_graphs, cause=cause)


def of_loop(platform: TracePlatform, cause: str = "rows split") -> str:
    """What to do about a loop over experts."""
    return of("expert_loop", platform, cause=cause)


def test_there_are_remedies_for_every_detector() -> None:
    assert [name for name, detector in DETECTORS.items() if not detector.remedies] == []


def test_conditions_are_such_as_a_trace_can_show() -> None:
    for entry in itertools.chain.from_iterable(item.remedies for _, item in DETECTORS.items()):
        assert set(entry.framework) <= set(FRAMEWORKS), entry
        assert set(entry.vendor) <= {"amd", "nvidia", "cpu", "gpu"}, entry
        assert set(entry.versions) <= {"torch", "cuda", "hip", "nccl"}, entry
        assert not (entry.plain and entry.framework), entry
        assert not (entry.best and not entry.framework), entry
        assert entry.text.endswith("."), entry


@pytest.mark.parametrize("name", [name for name, _ in DETECTORS.items()])
def test_every_platform_has_a_remedy_in_whole_sentences(name: str) -> None:
    for platform in ALL:
        text = of(name, platform)
        assert text.endswith("."), platform
        assert not re.search(r"[{}]", text), platform


@pytest.mark.parametrize("name", [name for name, _ in DETECTORS.items()])
def test_what_graphs_launch_already_is_not_to_be_captured(name: str) -> None:
    in_graphs = {entry.in_graphs for entry in DETECTORS.get(name).remedies}
    for platform in ALL:
        text = of(name, platform, in_graphs=True)
        assert text.endswith("."), platform
        if False in in_graphs:
            assert text != of(name, platform)
            assert not re.search(r"[Cc]apture the|--graph|--cuda-graph", text), platform


@pytest.mark.parametrize("name", [name for name, _ in DETECTORS.items()])
def test_no_remedy_is_for_another_vendor_or_framework(name: str) -> None:
    for platform in ALL:
        text = of(name, platform)
        if platform.vendor != "amd":
            assert not re.search(r"HSA_|ROCm|HIP graph|RCCL", text.replace("CUDA or HIP graph", "")
                                 .replace("NCCL or RCCL", "")), platform  # fmt: skip
        if platform.vendor == "amd":
            assert "CUDA graph" not in text
        if platform.frameworks:
            shown = platform.frameworks[0].removesuffix("_serve")
            allowed = {shown} | ({"megatron"} if shown == "primus" else set())
            named = {key for key, title in TITLES.items() if re.search(title, text)}
            assert named <= allowed, platform


@pytest.mark.parametrize("name", [name for name, _ in DETECTORS.items()])
def test_nobody_is_told_what_is_on_or_what_only_training_has(name: str) -> None:
    for platform in ALL:
        text = of(name, platform)
        if platform.compiled:
            assert not re.search(r"torch\.compile (?:around|fuses|before)|torch_compile=True", text), platform
        if not platform.trains:
            assert not re.search("TrainingArguments: |TrainingArguments.*(?:compile|bf16)", text), platform


def test_compiled_runs_look_for_graph_breaks_where_others_compile() -> None:
    for name in ("router_unfused", "permute_unfused"):
        eager, compiled = (of(name, TracePlatform("nvidia", compiled=each)) for each in (False, True))
        assert "torch.compile around" in eager
        assert "TORCH_LOGS=graph_breaks" in compiled
        assert "TORCH_LOGS" not in eager


def test_the_kernel_argument_pool_is_for_rocm_only() -> None:
    assert "HSA_KERNARG_POOL_SIZE=12582912" in of("launch_bound", TracePlatform("amd"))
    assert "HSA_KERNARG_POOL_SIZE" not in of("launch_bound", TracePlatform("nvidia", ("megatron",)))


def test_a_framework_is_told_in_its_own_flags() -> None:
    assert "--moe-grouped-gemm" in of_loop(TracePlatform("nvidia", ("megatron",)))
    assert "use_turbo_grouped_gemm" in of_loop(TracePlatform("amd", ("primus",)))
    assert "experts_implementation" in of_loop(TracePlatform("nvidia", ("huggingface",)))
    assert "--experts grouped" in of_loop(TracePlatform("nvidia", ("workload",)))
    assert "grouped_mm" not in of_loop(TracePlatform("nvidia", ("megatron",)))


def test_a_loop_with_a_one_hot_mask_is_one_of_transformers() -> None:
    for platform in (TracePlatform("nvidia"), TracePlatform("amd", ("huggingface",))):
        text = of_loop(platform, cause="one-hot mask")
        assert 0 < text.index("Sort the tokens") < text.index('experts_implementation="grouped_mm"')
        assert "For reference" not in text.replace("For reference: Primus", "")
        assert "Megatron" not in text


def test_without_a_framework_torch_comes_first_and_those_of_frameworks_after_it_for_reference() -> None:
    text = of_loop(TracePlatform("nvidia"))
    assert 0 < text.index("torch.nn.functional.grouped_mm") < text.index("For reference:")
    assert "Primus" not in text
    assert text.partition("For reference:")[2].count(": ") == 2
    assert "Primus" in of_loop(TracePlatform("amd")).partition("For reference:")[2]


@pytest.mark.parametrize(
    ("version", "function"),
    [
        ("2.11.0+cu130", "nn.functional.grouped_mm"),
        ("2.10", "nn.functional.grouped_mm"),
        ("2.9.1", "call torch._grouped_mm"),
        ("", "nn.functional.grouped_mm"),
        ("nightly", "nn.functional.grouped_mm"),
    ],
)
def test_versions_count_and_an_unknown_one_is_recent(version: str, function: str) -> None:
    text = of_loop(TracePlatform("nvidia", (), {"torch": version} if version else {}))
    assert function in text
    assert text.count("Sort the tokens by expert") == 1


def test_a_processor_is_no_gpu() -> None:
    assert Remedy("x", vendor=("gpu",)).fits(TracePlatform(""))
    assert not Remedy("x", vendor=("gpu",)).fits(TracePlatform("cpu"))
    assert "number of threads" in of("stragglers", TracePlatform("cpu"))
    assert "power cap" not in of("stragglers", TracePlatform("cpu"))


def test_a_plugin_adds_a_remedy_behind_those_of_a_detector() -> None:
    own = Remedy("Allocate them with torch.empty.")
    fills = Detector("fills", "Fills", "a sign", (), lambda context: "", remedies=(own,))
    assert remedy(fills, TracePlatform("amd")) == "Allocate them with torch.empty."
    add_remedy("fills", Remedy("On our cluster: see the wiki.", vendor=("amd",)))
    assert [entry.vendor for entry in remedies(fills)] == [(), ("amd",)]
    assert remedy(fills, TracePlatform("nvidia")) == "Allocate them with torch.empty."
    assert remedy(fills, TracePlatform("amd")).endswith("torch.empty. On our cluster: see the wiki.")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "The bundled workload: --overlap-exchange 1f1b, --dispatch dedup."),
        ({"overlap_exchange": "off"}, "The bundled workload: --overlap-exchange 1f1b, --dispatch dedup."),
        ({"overlap_exchange": "1f1b"}, "The bundled workload: --dispatch dedup."),
        ({"overlap_exchange": "1f1b", "dispatch": "dedup"}, ""),
    ],
)
def test_what_a_run_has_set_is_not_recommended(settings: dict[str, str], text: str) -> None:
    platform = TracePlatform("nvidia", ("workload",), settings=settings)
    general = of("exposed_all_to_all", TracePlatform("nvidia", ("workload",))).partition(" The bundled")[0]
    assert of("exposed_all_to_all", platform) == f"{general} {text}".strip()


@pytest.mark.parametrize(
    ("text", "settings", "left"),
    [
        ("Megatron-LM: --moe-grouped-gemm.", {"moe_grouped_gemm": "True"}, ""),
        (
            "Megatron-LM: --moe-grouped-gemm.",
            {"moe_grouped_gemm": "False"},
            "Megatron-LM: --moe-grouped-gemm.",
        ),
        ("Set --a 1 or 2.", {"a": "2"}, ""),
        ("Set --a 1 with --b.", {"a": "1"}, "Set --a 1 with --b."),
        ("vLLM: leave --enforce-eager out.", {"enforce_eager": "True"}, "vLLM: leave --enforce-eager out."),
        ("No option here.", {"option": "True"}, "No option here."),
    ],
)
def test_options_that_are_set_are_left_out(text: str, settings: dict[str, str], left: str) -> None:
    assert without_set(text, settings) == left
