"""A user's script that calls every public function: type checkers must know every value in it."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

import tracelens


def slowest_expert_kernels(run: tracelens.Run, step: int) -> pd.DataFrame:
    """The ten longest kernels of the experts."""
    kernels = run.kernels(step=step, rank=[0, 1], device="mi355x")
    return kernels[kernels["stage"] == "experts"].nlargest(10, "dur_ns")


def total_ms(frame: pd.DataFrame) -> float:
    """Sum of durations, ms."""
    return float(frame["dur_ns"].sum()) / 1e6


def exposed(result: tracelens.Result) -> pd.DataFrame:
    """What an analyzer says of overlap, and what it could not compute."""
    for skip in result.skips:
        print(skip.subject, skip.reason)
    return result["overlap"]


def passed(verdict: tracelens.Verdict) -> bool:
    """Whether no rule failed."""
    return not verdict.failed


def look_at(folder: Path) -> tracelens.Report:
    """Load, look and report."""
    run = tracelens.load(folder, partial=True)
    print(run, run.ranks, [trace.meta.path for trace in run.traces])
    print(slowest_expert_kernels(run, 2), total_ms(run.ops(step=2)))
    rows = run.collectives(scope="linked")
    print(rows.loc[rows["role"] == "EP", ["bytes", "latency_ns"]].sort_values("bytes"))
    print(exposed(tracelens.analyze(run, "overlap", step="2", scope="all")))
    report = tracelens.report(run, ["timeline", "moe"], device="mi300x", fork=False)
    tracelens.render(report, folder / "report.html")
    return report


def compare(before: Path, after: Path) -> bool:
    """Two runs."""
    report: tracelens.Report = tracelens.diff(before, after, step=2)
    print(report["diff"]["waterfall"], report.title, sorted(report.meta))
    verdict = tracelens.gate(before, after, ["step.time<=1.03"])
    tracelens.render(verdict, after / "gate.md")
    return passed(verdict)


def make_files(run: tracelens.Run, folder: Path) -> None:
    """Traces and scripts from a run."""
    tracelens.fuse(run, folder / "merged.json.gz")
    tracelens.replay(run, folder / "scripts", top=5)
    report = tracelens.report_files(folder, names=["kernels"])
    print(report["kernels"].tables["kernels"])


def project(run: tracelens.Run) -> None:
    """What a change would bring."""
    print(tracelens.whatif(run, ["comm_speedup:all_to_all=2"], step=2)["whatif"])
    print(tracelens.project_memory("deepseek_v3", gpus=64, ep=64, devices="mi355x")["fits"])
    print(tracelens.project_bounds(device="mi300x", nodes=4)["crossovers"])
    print(tracelens.project_bubble(pp=4, global_tokens=1 << 20, nodes=8)["bubble"])
    print(tracelens.project_pipeline(run, schedules=["1f1b"])["summary"])
    print(tracelens.project_published("6")["throughput"])
    print(tracelens.project_scaling("moe_2t", 1024, "mi300x", ep=(8, 16))["scaling"])
    print(tracelens.search_layouts("deepseek_v3", 64, "mi355x", top=3)["layouts"])


def train(folder: Path) -> None:
    """A training loop that records itself."""
    try:
        with tracelens.record(folder) as recorder:
            for _ in range(3):
                recorder.step()
    except tracelens.TracelensError as error:
        print(error, tracelens.__version__)
