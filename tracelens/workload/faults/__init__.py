"""Fault injection: known causes of lateness, and what makes a rank late by them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.lazy import lazy

if TYPE_CHECKING:
    from tracelens.workload.faults.fault_injection import inject_faults
    from tracelens.workload.faults.faults import Fault

__getattr__, __dir__ = lazy(
    __name__, {"workload.faults.fault_injection": "inject_faults", "workload.faults.faults": "Fault"}
)
