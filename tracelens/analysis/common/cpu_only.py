"""Wording for CPU-only traces, in which the host's ops are the work (see trace/cpu_only.py)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tracelens.table import Result
from tracelens.trace import Scope, Trace, TraceMeta, gpu_work

HOST = "cpu (host ops)"
"""In the place of a device's name."""

RECORD = "record with ProfilerActivity.CUDA (also on ROCm)"

NO_GPU = (
    "CPU-only trace: the CPU counts as the device, its innermost ops and gloo communication as the GPU's "
    f"kernels; if the program ran on a GPU, {RECORD}"
)

NO_LAUNCH = "not applicable to a CPU-only run: no kernels are launched"
"""Why a detector of such a signature is silent."""

NOTE = "CPU-only trace: GPU means the CPU here, and kernels are the host's ops."

MIXED = "Some ranks are CPU-only: for them GPU means the CPU, and kernels are the host's ops."


def noted(result: Result, metas: Iterable[TraceMeta]) -> Result:
    """A result whose text says so where the work of any rank is the host's."""
    cpu_only = [meta.cpu_only for meta in metas]
    note = NOTE if all(cpu_only) else MIXED
    if not any(cpu_only) or note in result.doc:
        return result
    return replace(result, doc=f"{result.doc} {note}".strip())


def device_names(metas: Iterable[TraceMeta]) -> list[str]:
    """Names of the devices that did the work, sorted."""
    names = {name for meta in metas for name in ([HOST] if meta.cpu_only else meta.devices.values())}
    return sorted(names)


def no_gpu_work(trace: Trace, scope: Scope) -> str:
    """Why an analyzer has no GPU work to look at."""
    if scope == "linked" and len(gpu_work(trace).event):
        return "no GPU work is linked to a launch call; use --scope all"
    return f"the trace has no GPU work; {RECORD}"
