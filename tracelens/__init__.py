"""tracelens: where the step time of a Mixture-of-Experts run goes, from profiler traces.

>>> import tracelens
>>> run = tracelens.load("traces/")                         # files or a directory of ranks
>>> kernels = run.kernels(step=2)                            # a row per kernel: stage, op, times, FLOPs
>>> kernels[kernels.stage == "experts"].nlargest(10, "dur_ns")
>>> run.ops()                                                # a row per op call with GPU work
>>> run.collectives()                                        # a row per collective and rank
>>> tracelens.analyze(run, "breakdown")["breakdown"]         # a table of an analyzer, a DataFrame too
>>> tracelens.render(tracelens.report(run), "report.html")   # or .md, .json, .xlsx, a directory of CSV
>>> tracelens.diff("before/", run)["diff"]["waterfall"]      # what changed between two runs
>>> tracelens.gate("before/", run, ["step.time<=1.03"]).failed  # what became slower, beyond noise
>>> tracelens.whatif(run, ["no_blocking"])["whatif"]         # the step if no call waited for the GPU
>>> tracelens.fuse(run, "merged.json.gz")                    # all ranks for Perfetto, on one clock
>>> tracelens.replay(run, "scripts/", top=5)                 # the calls with most time as scripts
>>> tracelens.project_memory("deepseek_v3", gpus=64, ep=64, devices="mi355x")["fits"]
>>> with tracelens.record("traces/") as r: ...               # in a training loop: r.step() after each step

Importing this module is cheap; each name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.lazy import lazy
from tracelens.version import __version__

if TYPE_CHECKING:
    from tracelens.compare.gate import Verdict
    from tracelens.errors import TracelensError
    from tracelens.recording import record
    from tracelens.session import (
        Run,
        analyze,
        diff,
        fuse,
        gate,
        load,
        project_bounds,
        project_bubble,
        project_memory,
        project_pipeline,
        project_published,
        project_scaling,
        render,
        replay,
        report,
        report_files,
        search_layouts,
    )
    from tracelens.table import Report, Result
    from tracelens.what_if import whatif

__all__ = [
    "Report",
    "Result",
    "Run",
    "TracelensError",
    "Verdict",
    "__version__",
    "analyze",
    "diff",
    "fuse",
    "gate",
    "load",
    "project_bounds",
    "project_bubble",
    "project_memory",
    "project_pipeline",
    "project_published",
    "project_scaling",
    "record",
    "render",
    "replay",
    "report",
    "report_files",
    "search_layouts",
    "whatif",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "compare.gate": "Verdict",
        "errors": "TracelensError",
        "recording": "record",
        "session": "Run analyze diff fuse gate load project_bounds project_bubble project_memory "
        "project_pipeline project_published project_scaling render replay report report_files "
        "search_layouts",
        "table": "Report Result",
        "what_if": "whatif",
    },
)
