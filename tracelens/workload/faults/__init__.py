"""Fault injection: known causes of lateness, and what makes a rank late by them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.lazy import lazy

if TYPE_CHECKING:
    from tracelens.workload.faults.fault_injection import hindered
    from tracelens.workload.faults.faults import Fault

__all__ = ["Fault", "hindered"]

__getattr__, __dir__ = lazy(
    __name__, {"Fault": "workload.faults.faults", "hindered": "workload.faults.fault_injection"}
)
