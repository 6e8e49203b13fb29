"""What readers of other projects' model files share: fields with defaults, dense layers, notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from tracelens.errors import TracelensError
from tracelens.planner.config.model import GEMM_ALIGNMENT

NO_EXPERTS = {"experts_count": 1, "top_k": 1, "expert_ffn": GEMM_ALIGNMENT}
"""Fields of a model without experts: all its layers are dense, and these have no weights."""


LARGEST = 10_000_000
"""Of any whole number in a file."""


@dataclass
class Fields:
    """The fields of a file, and what was noted while they were read.

    Attributes:
        where: the file, for messages.
        values: of the file.
        notes: what the model leaves out.
    """

    where: str
    values: Mapping[str, Any]
    notes: list[str] = field(default_factory=list)

    def whole(self, name: str, default: int | None = None) -> int:
        """A whole number: at least 1, and 0 where that is the default.

        Args:
            name: of the field.
            default: for a field that is missing or null; without it the field is needed.

        Raises:
            TracelensError: it is missing, no whole number, too small, or larger than any model has.
        """
        value = self.values.get(name)
        if value is None:
            if default is None:
                raise TracelensError(f"{self.where}: {name!r} is missing; add it")
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise TracelensError(f"{self.where}: {name} must be a whole number, not {value!r}")
        if not (least := 0 if default == 0 else 1) <= value <= LARGEST:
            raise TracelensError(f"{self.where}: {name} must be {least} to {LARGEST:,}, not {value:,}")
        return value

    def numbers(self, name: str) -> tuple[int, ...]:
        """Whole numbers in a list, none where it is missing; raises TracelensError for anything else."""
        value = self.values.get(name) or []
        if not isinstance(value, list) or not all(isinstance(number, int) for number in value):
            raise TracelensError(f"{self.where}: {name} must be a list of whole numbers, not {value!r}")
        return tuple(value)

    def number(self, name: str, default: float) -> float:
        """A number, whole or not; raises TracelensError where it is none."""
        value = self.values.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            raise TracelensError(f"{self.where}: {name} must be a number, not {value!r}")
        return float(value)

    def is_on(self, name: str, default: bool = False) -> bool:
        """A switch; raises TracelensError where it is something else."""
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise TracelensError(f"{self.where}: {name} must be true or false, not {value!r}")
        return value

    def word(self, name: str, default: str) -> str:
        value = self.values.get(name)
        return default if value is None else str(value)

    def refuse(self, problem: str) -> TracelensError:
        """The error that says what the model cannot be."""
        return TracelensError(f"{self.where}: {problem}")

    def left_out(self, subject: str, parameters: int) -> None:
        """Note parameters that the model does not have."""
        self.notes.append(f"not counted: {subject}, {parameters:,} parameters")

    def leading_dense(self, sparse: Sequence[bool]) -> int:
        """Dense layers in front of those with experts.

        Args:
            sparse: for each layer whether it has experts.

        Raises:
            TracelensError: a layer with experts stands before a dense one.
        """
        dense = sparse.index(True) if True in sparse else len(sparse)
        if not all(sparse[dense:]):
            later = dense + sparse[dense:].index(False)
            raise self.refuse(
                f"layer {later} is dense and layer {dense} before it has experts; only leading dense layers "
                "are supported"
            )
        return dense
