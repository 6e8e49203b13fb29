"""What several rooms of the analysis need: CPU-only traces, devices, recomputed ops, labels of steps."""

from tracelens.analysis.common.call_time import call_time
from tracelens.analysis.common.cpu_only import HOST, NO_GPU, NO_LAUNCH, device_names, no_gpu_work, noted
from tracelens.analysis.common.device import choose_device, own_device
from tracelens.analysis.common.group_names import distinct_names, group_kind
from tracelens.analysis.common.integers import integers
from tracelens.analysis.common.recompute import NODE, recomputed
from tracelens.analysis.common.serving_labels import FILE_VARIABLE, KINDS, Label, grammar
from tracelens.analysis.common.setup import Setup

__all__ = [
    "FILE_VARIABLE",
    "HOST",
    "KINDS",
    "NODE",
    "NO_GPU",
    "NO_LAUNCH",
    "Label",
    "Setup",
    "call_time",
    "choose_device",
    "device_names",
    "distinct_names",
    "grammar",
    "group_kind",
    "integers",
    "no_gpu_work",
    "noted",
    "own_device",
    "recomputed",
]
