"""One engine behind the Python interface and the command line: from paths to runs, results and files.

    reading      files that are about to be read, while the caller imports and checks; `load`
    reports      analyzers on a run, or on files whose ranks are analyzed where they are read; `render`
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

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Progress": "session.reading",
        "Reading": "session.reading",
        "Reporting": "session.reports",
        "Source": "session.reading",
        "analyze": "session.reports",
        "as_report": "session.reports",
        "diff": "session.comparison",
        "field_text": "session.memory",
        "fuse": "session.merging",
        "gate": "session.comparison",
        "load": "session.reading",
        "project_bubble": "session.schedules",
        "project_memory": "session.memory",
        "project_pipeline": "session.schedules",
        "quiet": "session.reading",
        "render": "session.reports",
        "replay": "session.reproducing",
        "report": "session.reports",
        "report_files": "session.reports",
        "samples": "session.comparison",
        "search_layouts": "session.layouts",
        "with_results": "session.reports",
    },
)
