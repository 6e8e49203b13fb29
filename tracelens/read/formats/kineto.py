"""torch.profiler (Kineto) JSON, from CUDA, ROCm and other accelerators, old and new; and generic Chrome JSON.

Of generic Chrome / Perfetto JSON, what is named as Kineto names it is understood, the rest is slices.
"""

from __future__ import annotations

import re

from tracelens.read.build import Dialect, build
from tracelens.read.json import Encoded, Splitter
from tracelens.read.parser import parser
from tracelens.trace import Trace

_KINDS = {
    "op": ("cpu_op", "operator"),
    "launch": (
        "runtime", "driver", "cuda_runtime", "cuda_driver", "hip_runtime", "hip_api", "xpu_runtime",
        "xpu_driver", "mtia_runtime", "privateuse1_runtime", "privateuse1_driver", "mlu_runtime",
        "mlu_driver", "gcu_runtime", "gcu_driver", "musa_runtime", "musa_driver", "hpu_runtime",
        "npu_runtime", "glow_runtime",
    ),
    "kernel": ("kernel", "mtia_ccp_events", "hpu_op", "mlu_kernel", "gcu_kernel", "npu_kernel"),
    "memcpy": ("gpu_memcpy", "memcpy", "mlu_memcpy", "gcu_memcpy", "musa_memcpy"),
    "memset": ("gpu_memset", "memset", "mlu_memset", "gcu_memset", "musa_memset"),
    "annotation": ("user_annotation",),
    "gpu_annotation": (
        "gpu_user_annotation", "mlu_user_annotation", "gcu_user_annotation", "musa_user_annotation"
    ),
    "python": ("python_function",),
    "sync": ("cuda_sync", "xpu_sync", "mlu_sync", "gcu_sync", "musa_sync"),
    "overhead": ("overhead",),
    "instant": ("cpu_instant_event",),
    # Known, but neither work nor a call.
    "slice": (
        "cuda_event", "cuda_profiler_range", "gcu_profiler_range", "musa_profiler_range",
        "xpu_scope_profiler", "collective_comm", "external_correlation", "trace",
    ),
}  # fmt: skip
"""Categories (libkineto, ActivityType.cpp; those of torch 1.x; forks for accelerators) by kind of event.

ROCm traces use the cuda_ categories as well; the kernels and copies of XPU and of most PrivateUse1 devices
have the plain ones.
"""
DIALECT = Dialect(
    "kineto",
    {category: kind for kind, categories in _KINDS.items() for category in categories},
    frozenset({"ac2g", "async_cpu_to_gpu"}),
    re.compile(r"(?:mtia|hpu|xpu|mlu|gcu|npu|musa|privateuse1|async_npu)(?:_|$)"),
    "a torch trace without GPU work; record with ProfilerActivity.CUDA (also on ROCm), or without a GPU with "
    "ProfilerActivity.CPU alone",
)
_SIGNS = re.compile(
    rb'"cat"\s*:\s*"(?:cpu_op|Operator|cuda_runtime|Runtime|[kK]ernel|user_annotation|python_function|ac2g'
    rb'|async_cpu_to_gpu|gpu_mem(?:cpy|set)|Mem(?:cpy|set))"'
)

_RECORD = "record the run with torch.profiler or tracelens.record"
_WRITERS = (
    (
        rb'"hlo_(?:module|op)"|"PjitFunction|"/(?:device:(?:GPU|TPU)|host:CPU)',
        "a trace of JAX or XLA, whose GPU work is not read; open it in XProf or Perfetto",
    ),
    (
        rb'"/job:\w+/',
        "a trace of TensorFlow, whose GPU work is not read; open it in XProf or Perfetto",
    ),
    (
        rb'"(?:Ascend Hardware|AI_CORE|CANN)"',
        "a trace of Ascend's msprof, whose work is not read; open it in MindStudio Insight or Perfetto",
    ),
    (
        rb'"(?:CPU H(?:IP|SA) API|BeginNs)"',
        f"a trace of rocprof, whose GPU work is not read; {_RECORD}",
    ),
    (
        rb'"(?:[\w.,-]*devtools\.timeline[\w.,-]*|toplevel|blink|__metadata)"',
        "a browser's trace; open it in the browser's developer tools, or pass what export_chrome_trace wrote",
    ),
    (rb'"cat"\s*:\s*"FEE"', f"a trace of VizTracer, which sees no GPU; {_RECORD}"),
    (b"", f"a Chrome trace of another program, whose work tracelens does not know; {_RECORD}"),
)
"""What generic Chrome JSON shows of its writer, in the first events, and what to do without GPU work."""


def looks_like_kineto(splitter: Splitter) -> bool:
    """Whether header keys or the first events carry Kineto's names."""
    return "schemaVersion" in splitter.header or bool(_SIGNS.search(splitter.head()))


@parser("kineto", sniff=looks_like_kineto)
def kineto(splitter: Splitter, table: Encoded) -> Trace:
    """torch.profiler (Kineto) JSON of CUDA and ROCm runs."""
    return build(splitter, table, DIALECT)


@parser("chrome", sniff=lambda _: True)
def chrome(splitter: Splitter, table: Encoded) -> Trace:
    """Chrome / Perfetto trace JSON of any program; begin/end and async pairs become slices."""
    no_work = next(said for sign, said in _WRITERS if re.search(sign, splitter.head()))
    return build(splitter, table, DIALECT._replace(name="chrome", no_work=no_work))
