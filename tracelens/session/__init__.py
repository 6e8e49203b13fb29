"""One engine behind the Python interface and the command line: from paths to runs, results and files.

    reading      reads files in processes that start while the caller imports and checks; `load`
    reports      runs analyzers on a run, or on files in the processes that read them; `render`
    comparison   two runs: `diff` and `gate`
    merging      `fuse`
    reproducing  `replay`
    memory, layouts, schedules   projections before a run, in the words of the command line

Importing this package is cheap; each function imports what it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.lazy import lazy

if TYPE_CHECKING:
    from tracelens.session.comparison import diff, gate, samples
    from tracelens.session.layouts import search_layouts
    from tracelens.session.memory import field_text, project_memory
    from tracelens.session.merging import fuse
    from tracelens.session.reading import Progress, Reading, Source, load, quiet
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
    from tracelens.session.schedules import project_bubble, project_pipeline

__all__ = [
    "Progress",
    "Reading",
    "Reporting",
    "Source",
    "analyze",
    "as_report",
    "diff",
    "field_text",
    "fuse",
    "gate",
    "load",
    "project_bubble",
    "project_memory",
    "project_pipeline",
    "quiet",
    "render",
    "replay",
    "report",
    "report_files",
    "samples",
    "search_layouts",
    "with_results",
]

_HOMES = {
    "comparison": ("diff", "gate", "samples"),
    "layouts": ("search_layouts",),
    "memory": ("field_text", "project_memory"),
    "merging": ("fuse",),
    "reading": ("Progress", "Reading", "Source", "load", "quiet"),
    "reports": (
        "Reporting", "analyze", "as_report", "render", "report", "report_files", "with_results",
    ),
    "reproducing": ("replay",),
    "schedules": ("project_bubble", "project_pipeline"),
}  # fmt: skip

__getattr__, __dir__ = lazy(
    __name__, {name: f"session.{module}" for module, names in _HOMES.items() for name in names}
)
