"""What several rooms of the analysis need: CPU-only traces, devices, recomputed ops, labels of steps."""

from tracelens.analysis.common.events import NODE, REENTERING, call_time, op_arguments, recomputed
from tracelens.analysis.common.serving_labels import FILE_VARIABLE, KINDS, Label, grammar
from tracelens.analysis.common.setup import (
    HOST,
    NO_GPU,
    NO_LAUNCH,
    Group,
    Setup,
    choose_device,
    device_names,
    device_title,
    distinct_names,
    group_kind,
    integers,
    no_gpu_work,
    noted,
    own_device,
    setup_of,
)

__all__ = [
    "FILE_VARIABLE",
    "HOST",
    "KINDS",
    "NODE",
    "NO_GPU",
    "NO_LAUNCH",
    "REENTERING",
    "Group",
    "Label",
    "Setup",
    "call_time",
    "choose_device",
    "device_names",
    "device_title",
    "distinct_names",
    "grammar",
    "group_kind",
    "integers",
    "no_gpu_work",
    "noted",
    "op_arguments",
    "own_device",
    "recomputed",
    "setup_of",
]
