"""torch.profiler (Kineto) JSON, from CUDA and ROCm, old and new."""

from __future__ import annotations

import re

from tracelens.read.build import Dialect, build
from tracelens.read.json import Encoded, Splitter
from tracelens.read.parser import parser
from tracelens.trace import Trace

DIALECT = Dialect(
    "kineto",
    {
        "cpu_op": "op",
        "operator": "op",
        "cuda_runtime": "launch",
        "cuda_driver": "launch",
        "hip_runtime": "launch",
        "hip_api": "launch",
        "xpu_runtime": "launch",
        "runtime": "launch",
        "kernel": "kernel",
        "gpu_memcpy": "memcpy",
        "memcpy": "memcpy",
        "gpu_memset": "memset",
        "memset": "memset",
        "user_annotation": "annotation",
        "gpu_user_annotation": "gpu_annotation",
        "python_function": "python",
        "cuda_sync": "sync",
        "overhead": "overhead",
        "cpu_instant_event": "instant",
    },
    frozenset({"ac2g", "async_cpu_to_gpu"}),
)
"""ROCm traces use the cuda_ categories as well; capitalised categories are those of torch 1.x."""

_SIGNS = re.compile(
    rb'"cat"\s*:\s*"(?:cpu_op|Operator|cuda_runtime|Runtime|[kK]ernel|user_annotation|python_function|ac2g'
    rb'|async_cpu_to_gpu|gpu_mem(?:cpy|set)|Mem(?:cpy|set))"'
)


def looks_like_kineto(splitter: Splitter) -> bool:
    """Whether header keys or the first events carry Kineto's names."""
    return "schemaVersion" in splitter.header or bool(_SIGNS.search(splitter.head()))


@parser("kineto", sniff=looks_like_kineto)
def kineto(splitter: Splitter, table: Encoded) -> Trace:
    """torch.profiler (Kineto) JSON of CUDA and ROCm runs."""
    return build(splitter, table, DIALECT)
