"""Running a ladder: every rung in processes of its own, with all else the same, each with its traces."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp

from tracelens.errors import TracelensError
from tracelens.outputs import write_file
from tracelens.planner.config import Config
from tracelens.recording import LEFT_OUT, WARMUP, plain
from tracelens.workload import launch, pipeline
from tracelens.workload.ladder import PlannedRung, SkippedRung
from tracelens.workload.launch import Job, launched, run_job
from tracelens.workload.model import lacks_fp8

NAME, SCHEMA = "ladder.json", "tracelens.ladder/1"


@dataclass(frozen=True)
class Ladder:
    """How a ladder is run."""

    out: Path  # folder; each rung gets one in it, and what was measured is written to NAME
    device: str | None = None  # "cuda" (NVIDIA and AMD) or "cpu"; None for what is there
    timed: int = 10  # steps of each rung that are timed, without the profiler and before it
    recorded: int = 3  # steps of each rung that are recorded
    scrub: bool = False  # take paths of this machine out of the traces

    def __post_init__(self) -> None:
        """Raise TracelensError for what cannot be run, or would mix with another ladder."""
        for name in ("timed", "recorded"):
            if getattr(self, name) < 1:
                raise TracelensError(f"{name} steps must be at least 1, not {getattr(self, name)}")
        if (self.out / NAME).exists():
            raise TracelensError(
                f"{self.out} already has a ladder: choose another folder, or show it with --from {self.out}"
            )
        if launched():
            raise TracelensError(
                "a ladder starts its own ranks on one machine: run it without a launcher such as torchrun"
            )

    def job(self, config: Config, folder: str) -> Job:
        start = LEFT_OUT + self.timed + WARMUP
        end = start + self.recorded
        return Job(config, self.out / folder, self.device, steps=end, start=start, end=end, scrub=self.scrub)


def lacking(device: str) -> Callable[[Config], str]:
    """What this machine lacks for a config, for `ladder.plan_ladder`."""

    def lacks(config: Config) -> str:
        toggles = config.toggles
        if toggles.graph != "off":
            try:
                pipeline.require(config, torch.device(device))
            except TracelensError as error:
                return str(error)
        if toggles.fp8 != "off" and (reason := lacks_fp8(torch.device(device))):
            return reason
        if toggles.kernarg_pool and (device != "cuda" or torch.version.hip is None):
            return "kernarg_pool needs an AMD GPU"
        if toggles.numa == "bind" and (count := len(launch.nodes())) < 2:
            return f"numa=bind needs several NUMA nodes, and this machine reports {count}"
        return ""

    return lacks


def run_ladder(
    ladder: Ladder,
    steps: Sequence[PlannedRung],
    skipped: Sequence[SkippedRung],
    *,
    preset: str,
    progress: Callable[[str], None],
) -> Path:
    """Run the rungs from the baseline up; `preset` and the skipped ones are only noted.

    Returns:
        path of NAME, which is complete up to the last rung that ran, also after an error.

    Raises:
        TracelensError: a rung failed; its name and the reason are given.
    """
    base = steps[0].config
    jobs = [ladder.job(step.config, f"{number:02}_{step.rung.name}") for number, step in enumerate(steps)]
    content: dict[str, Any] = {
        "schema": SCHEMA,
        "preset": preset,
        "device": jobs[0].device,
        "ranks": base.layout.ranks,
        "tokens_a_step": base.global_tokens,
        "config": base.as_dict(),
        "rungs": [],
        "left": [{"name": skip.rung.name, "adds": skip.rung.adds, "reason": skip.reason} for skip in skipped],
    }
    for number, (step, job) in enumerate(zip(steps, jobs, strict=True)):
        name = step.rung.name
        progress(f"{number} {name}: {' '.join(step.rung.adds) or 'nothing added'}")
        assert job.out is not None
        before = dict(os.environ)
        try:
            try:
                ranks = run_job(job, apart=True)
            except mp.ProcessRaisedException as error:
                # What is too long for a line goes to a file.
                message = str(error).strip()
                path = job.out / "error.txt"
                write_file(path, f"{message}\n".encode(errors="replace"))
                raise TracelensError(f"{message.splitlines()[-1]}; full error in {path}") from None
            except mp.ProcessExitedException as error:
                raise TracelensError(
                    f"one of its processes ended ({error}); memory may have run out"
                ) from None
            finally:
                # What a rung's toggles set in the environment is not there for all that follow.
                for variable in set(os.environ) - set(before):
                    del os.environ[variable]
                os.environ.update(before)
        except TracelensError as error:
            below = f"; the rungs below are kept: --from {ladder.out}" if number > 1 else ""
            raise TracelensError(f"rung {name!r} failed: {error}{below}") from None
        # Of each step the time of its slowest rank.
        step_ms = [max(times) for times in zip(*(rank.step_ms for rank in ranks), strict=True)]
        timed = [step_ms[index] for index in job.timed()]
        typical = statistics.median(timed)
        content["rungs"].append(
            {
                "folder": job.out.name,
                "name": name,
                "adds": list(step.rung.adds),
                "purpose": step.rung.purpose,
                "toggles": step.config.toggles.changed(),
                "timed_ms": timed,
                "typical_ms": typical,
                # torch counts the memory of GPUs alone.
                "peak_bytes": max(rank.peak_bytes for rank in ranks) if job.device == "cuda" else None,
                "loss": list(ranks[0].loss),
            }
        )
        write_file(ladder.out / NAME, json.dumps(plain(content), indent=2).encode() + b"\n")
        progress(f"  {typical:,.2f} ms per step")
    return ladder.out / NAME
