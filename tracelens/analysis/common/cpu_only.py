"""What to say of traces without a GPU, in which the host's ops are the work (see trace/host.py)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tracelens.table import Result
from tracelens.trace import Scope, Trace, TraceMeta, gpu_work

HOST = "cpu (host ops)"
"""In the place of a device's name."""

RECORD = "record with ProfilerActivity.CUDA (that is ROCm's name for it, too)"

NO_GPU = (
    "no GPU event in the trace, so the processor is the device, and its work are the host's innermost ops "
    f"and gloo's communication; if the program ran on a GPU, {RECORD}"
)

NO_LAUNCH = "about a host that feeds a GPU; here the host does the work itself"
"""Why a detector of such a signature is silent."""

NOTE = "The trace has no GPU: where this says GPU, it is the processor, and its work are the host's ops."

MIXED = "Some ranks have no GPU: of them, GPU here means the processor, and its work are the host's ops."


def noted(found: Result, metas: Iterable[TraceMeta]) -> Result:
    """A result whose text says so where the work of any rank is the host's."""
    on_host = [meta.on_host for meta in metas]
    note = NOTE if all(on_host) else MIXED
    if not any(on_host) or note in found.doc:
        return found
    return replace(found, doc=f"{found.doc} {note}".strip())


def device_names(metas: Iterable[TraceMeta]) -> list[str]:
    """Names of the devices that did the work, sorted."""
    names = {name for meta in metas for name in ([HOST] if meta.on_host else meta.devices.values())}
    return sorted(names)


def no_gpu_work(trace: Trace, scope: Scope) -> str:
    """Why an analyzer has no GPU work to look at."""
    if scope == "linked" and len(gpu_work(trace).event):
        return "no GPU work is linked to a launch call; use --scope all"
    return f"the trace has no GPU work; {RECORD}"
