"""Runs of the workload on several ranks: processes on this machine, or one rank that a launcher started.

Under torchrun (or whatever else sets RANK and WORLD_SIZE) a process is one rank of a larger run; else it
starts the others itself. With numa=bind each keeps to the cores that are near its GPU.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from tracelens.errors import TracelensError
from tracelens.planner.config import Config, at_least_one
from tracelens.planner.expected import Routing
from tracelens.planner.expected import summary as expected_summary
from tracelens.recording import LEFT_OUT, PACE_STEPS, RecordingWindow, record
from tracelens.workload.faults import Fault, inject_faults
from tracelens.workload.parallel import Group, make_groups
from tracelens.workload.routing_log import RoutingLog
from tracelens.workload.train import StepMeasurements, Trainer

# A published workaround for slow launches on AMD GPUs: a larger pool for kernels' arguments.
KERNARG_POOL = {"HSA_KERNARG_POOL_SIZE": "12582912"}
STORE = "TRACELENS_STORE"
"""Environment variable of a spawned rank: where it meets the others."""
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
RunRank = Callable[[int, int, Any], Any]
"""Runs one rank of a job: its rank, its number on its machine, the job."""


class RecordedJob:
    """What jobs have in common."""

    start: int
    end: int

    @property
    def window(self) -> RecordingWindow:
        return RecordingWindow.between(self.start, self.end)


@dataclass(frozen=True)
class Job(RecordedJob):
    """A run of the workload."""

    config: Config  # what to train
    out: Path | None  # folder for traces and `run.json`; None to record nothing
    device: str | None = None  # "cuda" (NVIDIA and AMD) or "cpu"; None for what is there
    steps: int = 10  # training steps
    start: int = 8  # first recorded step, from 0
    end: int = 10  # the step after the last recorded one
    stack: bool = False  # record Python frames
    memory: bool = False  # record allocations
    scrub: bool = False  # take paths of this machine out of the traces
    inject: tuple[Fault, ...] = ()  # faults that make ranks late

    def __post_init__(self) -> None:
        object.__setattr__(self, "device", resolve_device(self.device))
        if self.memory and self.config.toggles.overlap_exchange != "off":
            raise TracelensError(
                "--memory cannot be recorded with overlap_exchange=1f1b: torch's profiler would miss the "
                "thread of the backward pass"
            )
        for fault in self.inject:
            fault.check(self.config)
        at_least_one(self, ("steps",))
        if self.out is not None:
            check_recorded(self.window, self.steps, "steps")

    def timed(self) -> range:
        """The steps after warm-up and without a profiler."""
        return range(LEFT_OUT, self.steps if self.out is None else self.window.wait)


SYSTEM = Path("/sys")


def resolve_device(device: str | None) -> str:
    """The device of that name, by default a GPU if there is one; raises TracelensError for another name."""
    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device not in ("cuda", "cpu"):
        raise TracelensError(f"--device must be cuda or cpu, not {device}")
    return device


def check_recorded(window: RecordingWindow, count: int, unit: str) -> None:
    """Raise TracelensError for a run whose steps, or ticks, end before its recording does."""
    if window.end > count:
        raise TracelensError(f"the recording needs {window.end} {unit}, the run has {count}: raise --{unit}")


def launched() -> bool:
    """Whether a launcher started this process as one rank of several."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def run_job(job: Job, *, apart: bool = False) -> list[StepMeasurements]:
    """Run the job: `on_ranks` with `run_rank`."""
    if job.config.toggles.kernarg_pool:
        os.environ |= KERNARG_POOL
    return on_ranks(job.config.layout.ranks, run_rank, job, apart=apart)


def on_ranks(ranks: int, run: RunRank, job: Any, *, apart: bool = False) -> list[Any]:
    """Run a job on several ranks; what each rank returned, or this one alone where a launcher started it.

    Args:
        ranks: of the job.
        run: called on each of them with its rank, its number on its machine, and the job; a function of a
            module, for it has to travel to other processes, as the job and what is returned.
        job: with the `device`.
        apart: whether a single rank, too, gets a process of its own, with which its set-up ends.

    Raises:
        TracelensError: fewer GPUs than ranks, or another number of ranks than was launched.
    """
    if launched():
        if int(os.environ["WORLD_SIZE"]) != ranks:
            raise TracelensError(
                f"the launcher started {os.environ['WORLD_SIZE']} ranks, the layout has {ranks}"
            )
        return [run(int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", "0")), job)]
    if job.device == "cuda" and torch.cuda.device_count() < ranks:
        raise TracelensError(
            f"{ranks} ranks need as many GPUs, this machine has {torch.cuda.device_count()}: "
            "lower --ranks, or use torchrun"
        )
    if ranks == 1 and not apart:
        return [run(0, 0, job)]
    method = "spawn"
    if job.device == "cpu" and sys.platform == "linux":
        # Importing torch takes longer than a small run: all ranks are forked from one process that has.
        method = "forkserver"
        mp.set_forkserver_preload([__name__])
    results = mp.get_context(method).SimpleQueue()
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // ranks)))
    try:
        with rendezvous() as store:
            arguments = (run, job, results, os.environ | {STORE: store})
            mp.start_processes(_spawned, arguments, nprocs=ranks, start_method=method)
    except mp.ProcessRaisedException:
        failure = [] if results.empty() else [results.get()]
        if failure and isinstance(failure[0][1], str):
            raise TracelensError(f"rank {failure[0][0]}: {failure[0][1]}") from None
        raise
    return [result for _, result in sorted((results.get() for _ in range(ranks)), key=itemgetter(0))]


@contextmanager
def rendezvous() -> Iterator[str]:
    """Where processes of this machine alone meet, as `torch.distributed` takes it: a file of this user's.

    A TCPStore would listen on every network interface, and take commands from anyone who connects.
    """
    with TemporaryDirectory(prefix="tracelens-") as folder:
        yield f"file://{folder}/store"


def _spawned(rank: int, run: RunRank, job: Any, results: Any, environment: Mapping[str, str]) -> None:
    os.environ |= environment  # a fork server has that of the first run
    os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    try:
        results.put((rank, run(rank, rank, job)))
    except TracelensError as error:
        results.put((rank, str(error)))
        raise


def run_rank(rank: int, local_rank: int, job: Job) -> StepMeasurements:
    """Train on one rank, and record the steps that the job asks for."""
    config, ranks = job.config, job.config.layout.ranks
    device = own_device(local_rank, job.device)
    if config.toggles.numa == "bind":
        bind(local_rank, device)
    with (
        joined(rank, ranks, device),
        closing(Trainer(config, make_groups(config.layout, rank), device)) as trainer,
        inject_faults(trainer, job.inject),
    ):
        return measure(trainer, job)


def own_device(local_rank: int, kind: str | None) -> torch.device:
    """The device of a rank, by its number on its machine."""
    return torch.device(kind, local_rank) if kind == "cuda" else torch.device(kind)


@contextmanager
def joined(rank: int, ranks: int, device: torch.device) -> Iterator[None]:
    """Inside, torch.distributed runs if there are several ranks.

    Raises:
        TracelensError: what runs inside needs more memory than the device has.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if ranks > 1:
        backend = "nccl" if device.type == "cuda" else "gloo"
        bound = device if device.type == "cuda" else None
        store = os.environ.get(STORE, "env://")
        dist.init_process_group(backend, init_method=store, rank=rank, world_size=ranks, device_id=bound)
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise TracelensError(
            f"out of memory on {device}: use fewer --layers, smaller batches or more ranks "
            f"({str(error).partition('. ')[0]})"
        ) from error
    finally:
        if ranks > 1:
            dist.destroy_process_group()


def measure(trainer: Trainer, job: Job) -> StepMeasurements:
    """Run a job's steps, those of its window with the profiler on."""
    measured = StepMeasurements()
    if job.out is None:
        for _ in range(job.steps):
            measured.step(trainer)
        return measured
    layout, window = trainer.config.layout, job.window
    injected = {"inject": [fault.as_dict() for fault in job.inject]} if job.inject else {}
    recorder = record(
        job.out,
        wait=window.wait,
        warmup=window.warmup,
        steps=window.steps,
        pace_steps=max(PACE_STEPS, window.wait),  # all that `Job.timed` names
        stack=job.stack,
        memory=job.memory,
        config=trainer.config.as_dict() | injected,
        mesh=asdict(layout) | {"dp": layout.dp, "ep": layout.experts_over},
        scrub=job.scrub,
    )
    # In the steps of a graph no router is called, nor is there an op for what is expected of each scope.
    is_graphed = trainer.config.toggles.graph != "off"
    log = None if is_graphed else RoutingLog(trainer.model, trainer.config, trainer.groups)
    with recorder as recording:
        for step in range(job.steps):
            with log if log and window.phase(step) == "record" else nullcontext():
                measured.step(trainer)
            recording.step(tokens=trainer.config.global_tokens)
        if log:
            recording.facts["expected"] = expectations(trainer, log, window.steps)
    return measured


def expectations(trainer: Trainer, log: RoutingLog, steps: int) -> list[dict[str, Any]]:
    """Closed forms of the recorded steps of all ranks, for run.json; every rank must call it.

    Returns:
        on rank 0 one table a step and rank: `step` and `rank`, counted from 0, and what
        `expected.summary` says; nothing on other ranks.
    """
    rank, ranks = trainer.groups.rank, trainer.config.layout.ranks
    # A rank without experts has no routing.
    routings: list[Routing | None] = [*log.read()] or [None] * steps
    tables = [
        {"step": step, "rank": rank, **expected_summary(trainer.config, rank, trainer.device.type, routing)}
        for step, routing in enumerate(routings)
    ]
    return [table for of_rank in gathered(tables, rank, ranks) for table in of_rank]


def gathered(value: Any, rank: int, ranks: int, group: Group = None) -> list[Any]:
    """What each rank has, on rank 0; nothing on the others. Every rank must call it."""
    if ranks == 1:
        return [value]
    everyone: list[Any] | None = [None] * ranks if rank == 0 else None
    dist.gather_object(value, everyone, group=group)
    return everyone or []


def summary(job: Job, ranks: list[StepMeasurements]) -> dict[str, Any]:
    """What a run came to, as plain values; of each step the time of its slowest rank.

    Returns:
        ranks, device, toggles (that differ from the baseline), timed_steps, step_ms (their median) and
        tokens_per_s (None where no step was timed), peak_bytes (of the rank with most), loss (of each step).
    """
    config = job.config
    step_ms = [max(times) for times in zip(*(rank.step_ms for rank in ranks), strict=True)]
    timed = [step_ms[step] for step in job.timed()]
    typical = statistics.median(timed) if timed else None
    return {
        "ranks": config.layout.ranks,
        "device": job.device,
        "toggles": config.toggles.changed(),
        "timed_steps": len(timed),
        "step_ms": typical,
        "tokens_per_s": config.global_tokens / typical * 1e3 if typical else None,
        "peak_bytes": max(rank.peak_bytes for rank in ranks),
        "loss": ranks[0].loss,
    }


def in_words(summary: Mapping[str, Any], preset: str) -> Iterator[str]:
    """What `summary` says of a run of a preset, in lines."""
    changed = " ".join(f"{name}={value}" for name, value in summary["toggles"].items())
    yield f"{preset} on {summary['ranks']} x {summary['device']}: {changed or 'baseline'}"
    if summary["step_ms"] is None:
        yield "no timed step: all steps were warm-up or recorded; increase --steps"
    else:
        memory = f", {summary['peak_bytes'] / 1e9:.2f} GB peak" if summary["peak_bytes"] else ""
        yield (
            f"{summary['step_ms']:.1f} ms per step (median of {summary['timed_steps']}), "
            f"{summary['tokens_per_s']:,.0f} tokens/s{memory}, loss {summary['loss'][-1]:.3f}"
        )


def bind(local_rank: int, device: torch.device) -> list[int]:
    """Bind this process to the cores of one NUMA node: the GPU's, or round-robin by rank without one.

    Raises:
        TracelensError: the machine does not report its nodes, or this process may not use any of the cores.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise TracelensError("numa=bind needs Linux")
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        domain, bus = getattr(properties, "pci_domain_id", 0), getattr(properties, "pci_bus_id", None)
        if bus is None:
            raise TracelensError(f"numa=bind: torch {torch.__version__} does not report a GPU's PCI address")
        address = f"{domain:04x}:{bus:02x}:{properties.pci_device_id:02x}.0"
        path = SYSTEM / "bus" / "pci" / "devices" / address / "local_cpulist"
    else:
        folders = nodes()
        if not folders:
            raise TracelensError("numa=bind: this machine reports no NUMA nodes")
        path = folders[local_rank % len(folders)] / "cpulist"
    try:
        listed = parse_cores(path.read_text(encoding="ascii"))
    except OSError as error:
        raise TracelensError(f"numa=bind: {path} cannot be read ({error.strerror})") from None
    allowed = sorted(listed & os.sched_getaffinity(0))
    if not allowed:
        raise TracelensError(f"numa=bind: this process may use none of the cores listed in {path}")
    os.sched_setaffinity(0, allowed)
    return allowed


def nodes() -> list[Path]:
    """Folders of this machine's NUMA nodes, by number."""
    folders = (SYSTEM / "devices" / "system" / "node").glob("node[0-9]*")
    return sorted(folders, key=lambda node: int(node.name[4:]))


def parse_cores(text: str) -> set[int]:
    """Numbers in a list such as "0-3,8"."""
    cores: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            cores |= set(range(int(first), int(last or first) + 1))
    return cores
