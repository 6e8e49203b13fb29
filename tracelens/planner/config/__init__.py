"""The configuration of a run: model, layout, toggles and training, from presets and files."""

from tracelens.planner.config.checks import at_least_one, one_of
from tracelens.planner.config.config import (
    HELP,
    PARTS,
    Config,
    DtypeName,
    Training,
    override,
    parse_value,
    preset,
)
from tracelens.planner.config.files import read_config, read_file
from tracelens.planner.config.layout import Layout
from tracelens.planner.config.model import GEMM_ALIGNMENT, Model
from tracelens.planner.config.model_file import MODELS
from tracelens.planner.config.toggles import (
    DEVICE_COUNTS,
    DEVICE_PERMUTE,
    OPTIMISED,
    STATIC,
    DispatchName,
    ExpertsName,
    FusionName,
    ReductionName,
    TensorOverlapName,
    Toggles,
)

__all__ = [
    "DEVICE_COUNTS",
    "DEVICE_PERMUTE",
    "GEMM_ALIGNMENT",
    "HELP",
    "MODELS",
    "OPTIMISED",
    "PARTS",
    "STATIC",
    "Config",
    "DispatchName",
    "DtypeName",
    "ExpertsName",
    "FusionName",
    "Layout",
    "Model",
    "ReductionName",
    "TensorOverlapName",
    "Toggles",
    "Training",
    "at_least_one",
    "one_of",
    "override",
    "parse_value",
    "preset",
    "read_config",
    "read_file",
]
