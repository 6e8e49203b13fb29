"""One engine behind the Python interface and the command line: from paths to runs, results and files.

    reading      files that are about to be read, while the caller imports and checks; `load`
    reports      analyzers on a run, or on files whose ranks are analyzed where they are read; `render`
    comparison   two runs: `diff` and `gate`
    merging      `fuse`
    reproducing  `replay`
    memory, layouts, schedules   projections before a run, in the words of the command line

Importing this package is cheap; each function imports what it needs.
"""

from tracelens.session.comparison import diff, gate, samples
from tracelens.session.layouts import search_layouts
from tracelens.session.memory import field_text, project_memory
from tracelens.session.merging import fuse
from tracelens.session.reading import Progress, Reading, load
from tracelens.session.reports import Reporting, analyze, as_report, render, report, report_files
from tracelens.session.reproducing import replay
from tracelens.session.schedules import project_bubble, project_pipeline

__all__ = [
    "Progress",
    "Reading",
    "Reporting",
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
    "render",
    "replay",
    "report",
    "report_files",
    "samples",
    "search_layouts",
]
