"""What the readers of other projects' model files share: typed fields with defaults, and notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from tracelens.errors import TracelensError
from tracelens.planner.config.model import GEMM_ALIGNMENT, Model

NO_EXPERTS = {"experts_count": 1, "top_k": 1, "expert_ffn": GEMM_ALIGNMENT, "aux_loss": 0.0}
"""Fields of a dense model: no layer has experts, so these sizes do not matter."""

LARGEST = 10_000_000
"""Upper limit of any whole number in a file."""


@dataclass(frozen=True)
class ModelFile:
    """A model file, read.

    Attributes:
        model: the architecture.
        notes: what the file has and the model leaves out, one line each.
        settings: its layout and training, by field name of the parts of `Config`.
        global_batch: sequences per step on all ranks, 0 if the file does not say.
    """

    model: Model
    notes: tuple[str, ...] = ()
    settings: dict[str, int] = field(default_factory=dict)
    global_batch: int = 0


@dataclass
class Fields:
    """The fields of a file, and the notes made while reading them.

    Every method raises TracelensError, which names the file, for a value of the wrong type.
    """

    path: str
    values: Mapping[str, Any]
    notes: list[str] = field(default_factory=list)

    def whole(self, name: str, default: int | None = None) -> int:
        """A whole number of 1 to LARGEST, or 0 if that is the default; without a default it is required."""
        value = self.values.get(name)
        if value is None:
            if default is None:
                raise TracelensError(f"{self.path}: {name!r} is missing; add it")
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise TracelensError(f"{self.path}: {name} must be a whole number, not {value!r}")
        if not (least := 0 if default == 0 else 1) <= value <= LARGEST:
            raise TracelensError(f"{self.path}: {name} must be {least} to {LARGEST:,}, not {value:,}")
        return value

    def numbers(self, name: str) -> tuple[int, ...]:
        """Whole numbers in a list; empty if missing."""
        value = self.values.get(name) or []
        if not isinstance(value, list) or not all(isinstance(number, int) for number in value):
            raise TracelensError(f"{self.path}: {name} must be a list of whole numbers, not {value!r}")
        return tuple(value)

    def number(self, name: str, default: float) -> float:
        value = self.values.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            raise TracelensError(f"{self.path}: {name} must be a number, not {value!r}")
        return float(value)

    def is_on(self, name: str, default: bool = False) -> bool:
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise TracelensError(f"{self.path}: {name} must be true or false, not {value!r}")
        return value

    def word(self, name: str, default: str) -> str:
        value = self.values.get(name)
        return default if value is None else str(value)

    def refuse(self, problem: str) -> TracelensError:
        return TracelensError(f"{self.path}: {problem}")

    def left_out(self, subject: str, parameters: int) -> None:
        """Note parameters of the file that the model does not have."""
        self.notes.append(f"not counted: {subject}, {parameters:,} parameters")

    def leading_dense(self, sparse: Sequence[bool]) -> int:
        """Number of dense layers before the first MoE layer; `sparse` tells which layers have experts."""
        dense = sparse.index(True) if True in sparse else len(sparse)
        if not all(sparse[dense:]):
            later = dense + sparse[dense:].index(False)
            raise self.refuse(
                f"layer {later} is dense but layer {dense} has experts; dense layers are supported only "
                "before the first MoE layer"
            )
        return dense
