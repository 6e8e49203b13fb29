"""One engine behind the Python interface and the command line: from paths to runs, results and files.

    request      what a command or a function can be asked: each option is declared once
    reading      `load`: reads files in processes that start while the caller imports and checks
    run          its run, whose kernels, ops and collectives are DataFrames
    reports      runs analyzers on a run, or on files in the processes that read them; `render`
    comparison   two runs: `diff`; runs against a baseline: `gate`
    writing      `fuse` and `replay`
    projections  projections before a run, in the words of the command line

Importing this package is cheap; each function imports what it needs.
"""
# ruff: noqa: F403

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.lazy import lazy

if TYPE_CHECKING:  # all that is public in them
    from tracelens.session.comparison import *
    from tracelens.session.projections import *
    from tracelens.session.reading import *
    from tracelens.session.reports import *
    from tracelens.session.request import *
    from tracelens.session.run import *
    from tracelens.session.writing import *

__getattr__, __dir__ = lazy(
    __name__,
    {
        "session.comparison": "ACCEPT RULES AcceptRequest AddRequest DiffRequest GateRequest diff gate",
        "session.projections": "SEARCH BoundsRequest BubbleRequest MemoryRequest PipelineRequest "
        "PublishedRequest ScalingRequest SearchRequest project_bounds project_bubble project_memory "
        "project_pipeline project_published project_scaling search_layouts",
        "session.reading": "PATHS STEP AnalyzerOptions Graphs Reading Rooflines Traces Unprofiled loaded",
        "session.reports": "Reporting analyze as_report render report report_files with_results",
        "session.request": "DEVICE OUTPUT READING RUN ApiRequest CommandOption Declared OptionGroup Progress "
        "declared from_command_line option",
        "session.run": "Run load",
        "session.writing": "FuseRequest ReplayRequest fuse replay",
    },
)
