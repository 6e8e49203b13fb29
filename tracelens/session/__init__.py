"""One engine behind the Python interface and the command line: from paths to runs, results and files.

    reading      reads files in processes that start while the caller imports and checks
    loading      `load`
    run          its `Run`, whose kernels, ops and collectives are DataFrames; their columns are in wide/
    reports      runs analyzers on a run, or on files in the processes that read them; `render`
    comparison   two runs: `diff`
    gating       runs against a baseline: `gate`
    merging      `fuse`
    reproducing  `replay`
    memory, layouts, scaling, schedules, bounds   projections before a run, in the words of the command line

Importing this package is cheap; each function imports what it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.lazy import lazy

if TYPE_CHECKING:
    from tracelens.session.bounds import project_bounds
    from tracelens.session.comments import comment
    from tracelens.session.comparison import diff
    from tracelens.session.gating import GateSide, explain, gate, gate_side, grown_baseline
    from tracelens.session.layouts import search_layouts
    from tracelens.session.loading import load
    from tracelens.session.memory import field_text, project_memory
    from tracelens.session.merging import fuse
    from tracelens.session.reading import Progress, Reading, Source, loaded, quiet
    from tracelens.session.reports import (
        Reporting,
        analyze,
        as_report,
        render,
        report,
        report_files,
        with_results,
    )
    from tracelens.session.reproducing import replay
    from tracelens.session.run import Run
    from tracelens.session.scaling import project_scaling
    from tracelens.session.schedules import project_bubble, project_pipeline

__all__ = [
    "GateSide",
    "Progress",
    "Reading",
    "Reporting",
    "Run",
    "Source",
    "analyze",
    "as_report",
    "comment",
    "diff",
    "explain",
    "field_text",
    "fuse",
    "gate",
    "gate_side",
    "grown_baseline",
    "load",
    "loaded",
    "project_bounds",
    "project_bubble",
    "project_memory",
    "project_pipeline",
    "project_scaling",
    "quiet",
    "render",
    "replay",
    "report",
    "report_files",
    "search_layouts",
    "with_results",
]

_HOMES = {
    "bounds": ("project_bounds",),
    "comments": ("comment",),
    "comparison": ("diff",),
    "gating": ("GateSide", "explain", "gate", "gate_side", "grown_baseline"),
    "layouts": ("search_layouts",),
    "loading": ("load",),
    "memory": ("field_text", "project_memory"),
    "merging": ("fuse",),
    "reading": ("Progress", "Reading", "Source", "loaded", "quiet"),
    "reports": (
        "Reporting", "analyze", "as_report", "render", "report", "report_files", "with_results",
    ),
    "reproducing": ("replay",),
    "run": ("Run",),
    "scaling": ("project_scaling",),
    "schedules": ("project_bubble", "project_pipeline"),
}  # fmt: skip

__getattr__, __dir__ = lazy(
    __name__, {name: f"session.{module}" for module, names in _HOMES.items() for name in names}
)
