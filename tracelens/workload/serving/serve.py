"""Serving runs on several ranks, recorded and measured: speed, waiting, and how well the ranks kept step."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from tracelens.errors import TracelensError
from tracelens.planner.config import GEMM_ALIGNMENT, Config, at_least_one
from tracelens.recording import Recorder, record
from tracelens.workload.launch import (
    RecordedJob,
    check_recorded,
    gathered,
    joined,
    on_ranks,
    own_device,
    resolve_device,
)
from tracelens.workload.serving.engine import ServingEngine, make_ranks, require
from tracelens.workload.serving.measure import WARM_UP, Ticks, latencies, summary
from tracelens.workload.serving.settings import TOGGLES, TRAINING, Serving


@dataclass(frozen=True)
class ServeJob(RecordedJob):
    """A serving run."""

    config: Config  # of the model, from `config.model_config`
    serving: Serving  # what is served
    ranks: int = 1  # number of ranks
    out: Path | None = None  # folder for traces and `run.json`; None to record nothing
    device: str | None = None  # "cuda" (NVIDIA and AMD) or "cpu"; None for what is there
    ticks: int = 64  # forward passes of all ranks together
    start: int = 48  # first recorded tick, from 0
    end: int = 56  # the tick after the last recorded one
    stack: bool = False  # record Python frames
    scrub: bool = False  # take paths of this machine out of the traces

    def __post_init__(self) -> None:
        object.__setattr__(self, "device", resolve_device(self.device))
        at_least_one(self, ("ranks", "ticks"))
        if self.out is not None:
            check_recorded(self.window, self.ticks, "ticks")
        require(self.config, self.serving, torch.device(self.device or "cpu"))
        # Each rank has a slice of every MLP.
        model, ranks = self.config.model, self.ranks
        for name in ("expert_ffn", "shared_ffn", "dense_ffn"):
            if getattr(model, name) % ranks:
                raise TracelensError(
                    f"{name} ({getattr(model, name)}) must be a multiple of ranks = {ranks}: each has a slice"
                )
        width = model.expert_ffn // ranks
        if self.config.training.dtype == "bfloat16" and width % GEMM_ALIGNMENT:
            raise TracelensError(
                f"expert_ffn / ranks = {width} must be a multiple of {GEMM_ALIGNMENT}: lower --ranks"
            )

    def settings(self) -> dict[str, Any]:
        """Model, serving and what it shares with training, as plain values."""
        config = self.config
        return {
            "model": asdict(config.model),
            "serving": asdict(self.serving),
            "training": {name: getattr(config.training, name) for name in TRAINING},
            "toggles": {name: getattr(config.toggles, name) for name in TOGGLES},
        }

    def timed(self) -> range:
        """The ticks after warm-up and without a profiler."""
        return range(WARM_UP, self.ticks if self.out is None else max(self.window.wait, WARM_UP))


def run_serving(job: ServeJob) -> dict[str, Any] | None:
    """Run the job; what `measure.summary` says of it, None where a launcher started this rank and not as 0.

    Raises:
        TracelensError: fewer GPUs than ranks, or another number of ranks than was launched.
    """
    summary_of_run: dict[str, Any] | None = on_ranks(job.ranks, run_rank, job)[0]
    return summary_of_run


def run_rank(rank: int, local_rank: int, job: ServeJob) -> dict[str, Any] | None:
    """Serve on one rank, and record the ticks that the job asks for."""
    device = own_device(local_rank, job.device)
    recording = None if job.out is None else recorder(job, job.out)
    with joined(rank, job.ranks, device), ExitStack() as stack:
        # While it waits, the recorder sees what graphs capture; else set-up would be a part of tick 0.
        waits = recording is not None and job.window.wait > 0
        if recording is not None and waits:
            stack.enter_context(recording)
        ranks = make_ranks(rank, job.ranks)
        engine = stack.enter_context(closing(ServingEngine(job.config, job.serving, ranks, device)))
        if recording is not None and not waits:
            stack.enter_context(recording)
        return measure(engine, job, recording)


def recorder(job: ServeJob, out: Path) -> Recorder:
    """Records the ticks that a job asks for."""
    window = job.window
    return record(
        out,
        wait=window.wait,
        warmup=window.warmup,
        steps=window.steps,
        pace_steps=0,  # every tick runs another batch: no tick's time is that of others
        stack=job.stack,
        config=job.settings(),
        mesh={"ranks": job.ranks, "dp": job.ranks, "moe_tp": job.ranks},
        scrub=job.scrub,
    )


def measure(engine: ServingEngine, job: ServeJob, recording: Recorder | None = None) -> dict[str, Any] | None:
    """Run a job's ticks, those of its window with the profiler on; the summary on rank 0."""
    ticks = Ticks()
    for _ in range(job.ticks):
        tick(engine, ticks)
        if recording is not None:
            recording.step()
    result = gathered_summary(engine, ticks, job)
    if recording is not None and result is not None:
        recording.facts["ticks"] = ticks.facts(range(job.window.first, job.window.end))
        recording.facts["summary"] = result
    return result


def tick(engine: ServingEngine, ticks: Ticks) -> None:
    """Run one tick, and note what it was."""
    begin = time.perf_counter()
    plan = engine.tick()
    held = engine.delayer is not None and engine.delayer.waited > 0
    ticks.add(plan, held, begin * 1e3, time.perf_counter() * 1e3)


def gathered_summary(engine: ServingEngine, ticks: Ticks, job: ServeJob) -> dict[str, Any] | None:
    """The summary on rank 0, nothing on the others; every rank must call it."""
    scheduler, ranks = engine.scheduler, engine.ranks
    latencies_here = latencies([*scheduler.finished, *scheduler.running], ticks, job.timed())
    latencies_here["peak_bytes"] = [torch.cuda.max_memory_allocated() if engine.device.type == "cuda" else 0]
    latencies_here["finished"] = [len(scheduler.finished)]
    everyone: list[dict[str, list[float]]] = gathered(latencies_here, ranks.rank, ranks.count, ranks.host)
    if not everyone:
        return None
    return {
        "ranks": ranks.count,
        "device": engine.device.type,
        "serving": job.serving.changed(),
        **summary(ticks, everyone, job.timed()),
        "finished": int(sum(sum(rank_latencies["finished"]) for rank_latencies in everyone)),
        "peak_bytes": int(max(max(rank_latencies["peak_bytes"]) for rank_latencies in everyone)),
    }
