"""Fused kernels of the workload: in Triton on GPUs, in torch's ops on the CPU to compare with."""

from __future__ import annotations

from functools import cache
from types import ModuleType

from torch import Tensor

from tracelens.errors import TracelensError
from tracelens.workload.kernels import reference
from tracelens.workload.kernels.reference import choose, scores, weights

# Older compilers lack parts of the language that the kernels are written in.
OLDEST_TRITON = (3, 2)
_USERS = "the toggles permute=fused, router=fused, loss=fused, sync_free=3 and fp8=experts"


def kernels(x: Tensor) -> ModuleType:
    """The kernels for this tensor's device: functions as in `reference`.

    Raises:
        TracelensError: a GPU without Triton or with an old one, or a device with no kernels.
    """
    if x.device.type in ("cpu", "meta"):
        return reference
    if not x.is_cuda:  # AMD's GPUs too
        raise TracelensError(f"{_USERS} run on NVIDIA and AMD GPUs and on the CPU, not on {x.device.type}")
    return _fused()


@cache
def _fused() -> ModuleType:
    """The kernels in Triton, imported when the first is needed; every layer asks for them at each call."""
    try:
        import triton
    except ImportError as error:
        raise TracelensError(
            f"on a GPU {_USERS} need Triton, which this torch came without: pip install triton "
            "(for AMD the build that pytorch.org lists next to torch), or leave them off"
        ) from error
    if tuple(int(part) for part in triton.__version__.split(".")[:2]) < OLDEST_TRITON:
        oldest = ".".join(map(str, OLDEST_TRITON))
        raise TracelensError(f"on a GPU {_USERS} need Triton {oldest} or newer, not {triton.__version__}")
    from tracelens.workload.kernels import fused

    return fused
