"""Runs scripts one after the other in one process: torch is imported once, the GPU is started once.

Executed as a file, by whatever interpreter has torch, in one of two ways:

    python -I runner.py FD LIBRARY GPU        serves
    python -I runner.py SCRIPT [OPTION...]    runs one script, such as one with several ranks

FD is a socket to the one who asks, beyond the reach of what scripts print: it takes {"path", "arguments"} and
answers with {"code", "reason", "spent"}; spent: this process is no longer as it was, and the next script
needs a new one.

A script that defines `arguments` and `call` is imported, and checked and timed here: with cold and with warm
caches, with a profile, as JSON. Any other runs as it would by itself, and prints its own result. This file
needs only the standard library of Python 3.10, and nothing of tracelens.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import logging
import os
import random
import runpy
import signal
import statistics
import sys
import tempfile
import threading
import time
import timeit
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import reduce
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

# How to read what a script may change, and how to set it; "" where setting it would leave something behind.
SETTINGS = {
    "get_default_dtype": "set_default_dtype",
    "is_grad_enabled": "set_grad_enabled",
    "are_deterministic_algorithms_enabled": "use_deterministic_algorithms",
    "get_num_threads": "set_num_threads",
    "get_float32_matmul_precision": "set_float32_matmul_precision",
    "get_default_device": "",
    "is_inference_mode_enabled": "",
    "is_autocast_enabled": "",
}
FLAGS = (
    "backends.cuda.matmul.allow_tf32",
    "backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
    "backends.cudnn.allow_tf32",
    "backends.cudnn.enabled",
    "backends.cudnn.benchmark",
    "backends.cudnn.deterministic",
)
KEPT_BYTES = 1 << 28
"""GPU memory that may stay: the workspaces of libraries. More is a script's, and the next one may need it."""


class Ending:
    """How a script ends, whatever it raises: the exit status and last words that Python would give."""

    def __init__(self) -> None:
        self.code = 0  # exit status
        self.reason = ""  # the error in one line, "" where there was none

    def __enter__(self) -> Ending:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, SystemExit):
            text = error.code is not None and not isinstance(error.code, int)
            self.code = 1 if text else int(error.code or 0)
            self.reason = str(error.code) if text else ""
        elif error is not None:
            self.code = 1
            self.reason = one_line(error)
            traceback.print_exception(kind, error, trace)
        return True


def one_line(error: BaseException) -> str:
    """An error in one line; torch goes on for lines with hints that do not belong to it."""
    return f"{type(error).__name__}: {error}".rstrip(": ").partition("\n")[0]


def main(arguments: Sequence[str]) -> None:
    """Run one script, or serve until the other side closes the socket."""
    if not arguments[0].isdecimal():
        sys.argv = [*arguments]
        replay(importlib.import_module(TORCH), arguments[0], arguments[1:])
        return
    descriptor, library, gpu = arguments
    os.set_inheritable(int(descriptor), False)
    with Connection(int(descriptor)) as client, suppress(EOFError, OSError):
        try:
            torch = importlib.import_module(library)
        except (ImportError, OSError) as error:  # OSError: a library of the GPU's that is not there
            absent = isinstance(error, ImportError) and error.name == library
            answer(client, {"absent": absent, "reason": str(error)})
            return
        found = devices(torch) if gpu == "gpu" else []
        answer(client, {"torch": str(torch.__version__), "devices": found, "hip": bool(torch.version.hip)})
        while True:
            job = json.loads(client.recv_bytes())
            answer(client, run(torch, job["path"], job["arguments"]))


def answer(client: Connection, message: dict[str, Any]) -> None:
    """Send one message."""
    client.send_bytes(json.dumps(message).encode())


def devices(torch: Any) -> list[str]:
    """Names of the GPUs."""
    if not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]


def run(torch: Any, path: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Run one script as `python path arguments` would, and put everything back."""
    before = state(torch)
    random.seed(0)
    torch.manual_seed(0)
    kept = (sys.argv, sys.path[:], dict(os.environ), os.getcwd(), sys.stdout, sys.stderr)
    sys.argv = [path, *arguments]
    with Ending() as ending:
        replay(torch, path, arguments)
    sys.argv, sys.path[:], environment, directory, sys.stdout, sys.stderr = kept
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    closed = flush()
    late = wait(torch)
    if late and not ending.code:
        ending.code, ending.reason = 1, f"{late} (reported after its end)"
    spent = closed or bool(late) or not settle(torch, before)
    return {"code": ending.code, "reason": ending.reason, "spent": spent}


def flush() -> bool:
    """Hand on what the script printed; whether it closed one of the streams."""
    for stream in (sys.stdout, sys.stderr):
        if stream.closed:
            return True
        stream.flush()
    return False


def state(torch: Any) -> dict[str, Any]:
    """What scripts may change, by name."""
    process_state: dict[str, Any] = {
        "threads": threading.active_count(),
        "alarm": signal.getsignal(signal.SIGALRM),
    }
    return process_state | {name: read(torch, name) for name in (*SETTINGS, *FLAGS)}


def read(torch: Any, name: str) -> Any:
    """A flag, or what a function returns, by its dotted name; None where torch has none or will not say."""
    try:
        value = reduce(getattr, name.split("."), torch)
        return value() if callable(value) else value
    except (AttributeError, RuntimeError):
        return None


def wait(torch: Any) -> str:
    """The error of a kernel that nobody has waited for; after one nothing works in this process. "": none."""
    try:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
    except RuntimeError as error:
        return one_line(error)
    return ""


def settle(torch: Any, before: dict[str, Any]) -> bool:
    """Free memory and put settings back; whether all is as it was, so that another script may run here."""
    gc.collect()
    gc.freeze()  # torch's own objects: going through them again after each script is what would take time
    try:
        restore(torch, before)
    except RuntimeError:  # torch refuses where a script has used its older and newer settings together
        return False
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
        if torch.cuda.memory_allocated() > KEPT_BYTES:
            return False
    return state(torch) == before


def restore(torch: Any, before: dict[str, Any]) -> None:
    """Set what has changed."""
    now = state(torch)
    for name, setter in SETTINGS.items():
        if setter and now[name] != before[name]:
            getattr(torch, setter)(before[name])
    for name in FLAGS:
        if now[name] != before[name]:
            owner, _, flag = name.rpartition(".")
            setattr(reduce(getattr, owner.split("."), torch), flag, before[name])


# ====================
# Measuring: what a script itself leaves out, to be short.

TORCH = "torch"
CACHES = 1 << 29  # bytes that leave nothing else in caches: twice the largest of a GPU, 256 MB
CALL = "tracelens: call"
WARM_UP = 4  # calls before those that count
PAUSE = 100_000_000  # cycles in which calls queue up, so that the time of the host is not measured


def replay(torch: Any, path: str, arguments: Sequence[str]) -> None:
    """Run one script, or measure what it defines and print the result; raises SystemExit with its status."""
    with open(path, encoding="utf-8") as file:
        source = file.read()
    if "\ndef arguments(" not in source or "\ndef call(" not in source:
        runpy.run_path(path, run_name="__main__")  # it has its own options
        return
    options = parsed(arguments)
    sys.argv = [path]
    gpus = torch.cuda.device_count()
    options.device = options.device or ("cuda" if gpus else "cpu")
    if options.device == "cuda" and not gpus and "RANKS =" not in source and ", RANKS, " not in source:
        raise SystemExit("--device cuda: torch sees no GPU")
    space = defined(path, options)
    if "RANKS" in space:
        start_ranks(torch, space, path, options)
    else:
        torch.manual_seed(0)
        finished((counted if options.counters else measured)(torch, space, options), options)


def defined(path: str, options: argparse.Namespace) -> dict[str, Any]:
    """What a script defines, for a device and messages of a size."""
    cuda = importlib.import_module(TORCH).cuda
    available, cuda.is_available = cuda.is_available, lambda: options.device == "cuda"
    try:
        script = runpy.run_path(path, run_name="replayed")
    finally:
        cuda.is_available = available
    space: dict[str, Any] = script["call"].__globals__  # what its functions look up
    if "RANKS" in space:
        share = min(1, (options.max_bytes or space["BYTES"]) / space["BYTES"])
        count = space["COUNT"]
        matrix = isinstance(count, list)
        space["SHARE"] = share
        space["COUNT"] = (
            [[int(number * share) for number in row] for row in count]
            if matrix
            else max(1, int(count * share))
        )
    return space


def finished(result: dict[str, Any], options: argparse.Namespace) -> None:
    """Print a result and end with its status."""
    lines = [json.dumps(result)] if options.json else [f"{key:26}{result[key]}" for key in result]
    sys.stdout.write("\n".join([*lines, ""]))
    raise SystemExit(int(str(result["check"]).startswith("wrong")))


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of a measurement."""
    cli = argparse.ArgumentParser()
    cli.add_argument("--device", choices=["cuda", "cpu"], help="where (a GPU, if there is one)")
    cli.add_argument("--iters", type=lambda number: max(int(number), 1), default=50, help="timed calls (50)")
    cli.add_argument("--profile", metavar="FILE", help="write a profiler trace of the calls")
    cli.add_argument("--compile", action="store_true", help="time the torch.compile version")
    cli.add_argument(
        "--counters", action="store_true", help="run one call, for a profiler around this process"
    )
    cli.add_argument("--json", action="store_true", help="print the result as one JSON object")
    cli.add_argument("--ages", type=known_ages, default=[], help="when arguments were touched")
    cli.add_argument("--max-bytes", type=int, help="scale messages of a collective down to N bytes")
    cli.add_argument("--ranks", type=int, default=8, help="start up to N processes on a CPU (8)")
    cli.add_argument("--skew", action="store_true", help="start each rank as late as in the trace")
    return cli.parse_args(arguments)


def known_ages(text: str) -> list[int]:
    """The ages of arguments, -1 where one is not known."""
    return [int(word) if word else -1 for word in text.split(",")]


def leaves(torch: Any, values: Any) -> list[Any]:
    """All tensors among results; numbers as tensors."""
    flat = importlib.import_module(f"{TORCH}.utils._pytree").tree_leaves(values)
    return [torch.as_tensor(leaf) for leaf in flat if leaf is not None]


def verdict(torch: Any, space: dict[str, Any], call: Callable[[Any], Any]) -> str:
    """Compare a call with what is expected: "ok", or what is wrong."""
    given = space["arguments"]()
    if "expected" not in space:
        call(given)
        return f"none: {space['UNCHECKED']}"
    if call is space["expected"]:
        return "none: this device has no kernel of the op"
    want, got = leaves(torch, space["expected"](given)), leaves(torch, call(given))
    rtol = space["RTOL"]
    try:
        for result, reference in zip(got, want, strict=False):
            size = reference.to(torch.cdouble).abs().nan_to_num(0, 0, 0)
            rms = size.square().mean().sqrt().nan_to_num(0).item()
            torch.testing.assert_close(
                result.to(reference), reference, rtol=rtol, atol=rtol * rms, equal_nan=True
            )
    except AssertionError as error:
        return "wrong: " + " ".join(str(error).split())
    return "ok"


class Rounds:
    """Calls of a script's op with the same arguments, each in the state in which the trace had it.

    Before each call, what it overwrites is put back; caches are cold, and hold code of other kernels; then
    arguments that were touched not long before are written anew.
    """

    def __init__(self, torch: Any, run: Callable[[Any], Any], given: list[Any], ages: Sequence[int]) -> None:
        self._torch, self._run, self._given = torch, run, given
        flat = importlib.import_module(f"{TORCH}.utils._pytree").tree_leaves
        every = [leaf for leaf in flat(given) if isinstance(leaf, torch.Tensor)]
        self.gpu = any(tensor.is_cuda for tensor in every)
        before = [(tensor, tensor._version) for tensor in every]
        run(given)
        written = [tensor for tensor, version in before if tensor._version != version]
        recent = sorted(
            (-age, index)
            for index, age in enumerate(ages[: len(given)])
            if age >= 0 and self.gpu and 1 << age <= cache_bytes(torch)
        )
        fresh = [leaf for _, index in recent for leaf in flat(given[index]) if isinstance(leaf, torch.Tensor)]
        size = sum(tensor.nbytes for tensor in every)
        roomy = not self.gpu or 2 * size < torch.cuda.mem_get_info()[0]
        self._written = [(tensor, tensor.clone()) for tensor in written if roomy]
        self._fresh = [(tensor, tensor.clone()) for tensor in fresh if roomy and dense(tensor)]
        # What is larger than caches passes through them anyway.
        self._flush = torch.ones(CACHES // 4, device="cuda") if self.gpu and size < CACHES else None
        self._others = other_kernels(torch) if self.gpu else []

    def prepare(self, cold: bool) -> None:
        for tensor, kept in self._written:
            tensor.copy_(kept)
        if cold:
            if self._flush is not None:
                self._flush.sum()
            for other in self._others:
                other()
            for tensor, kept in self._fresh:
                tensor.copy_(kept)

    def elapsed_us(self, iters: int, cold: bool = True) -> list[float]:
        """Sorted times of a call."""
        torch = self._torch
        if not self.gpu:
            times = []
            for _ in range(iters):
                self.prepare(cold)
                times.append(1e6 * timeit.timeit(lambda: self._run(self._given), number=1))
            return sorted(times)
        torch.cuda._sleep(PAUSE)
        pairs = []
        for _ in range(iters + WARM_UP):
            self.prepare(cold)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            with torch.profiler.record_function(CALL):
                self._run(self._given)
            end.record()
            pairs.append((begin, end))
        torch.cuda.synchronize()
        return sorted(1e3 * begin.elapsed_time(end) for begin, end in pairs[WARM_UP:])

    def count(self) -> None:
        """One call with cold caches, alone in what a hardware profiler counts.

        Nsight Compute counts from start to stop. rocprofv3 counts all that the process does: there, the call
        is what lies between the last two kernels of `_sleep`.
        """
        cuda = self._torch.cuda
        for _ in range(WARM_UP):
            self.prepare(cold=False)
            self._run(self._given)
        self.prepare(cold=True)
        cuda._sleep(1)
        cuda.synchronize()
        if not self._torch.version.hip:
            cuda.cudart().cudaProfilerStart()
        self._run(self._given)
        cuda.synchronize()
        if not self._torch.version.hip:
            cuda.cudart().cudaProfilerStop()
        cuda._sleep(1)
        cuda.synchronize()

    def kernel_us(self, iters: int, op: str, file: str | None) -> float:
        """Mean time of a call's kernels, as a trace has it: without those of ops inside it."""
        with self._torch.profiler.profile() as profile:
            self.elapsed_us(iters)
        if file:
            profile.export_chrome_trace(file)
        calls = [event for event in profile.events() if event.name == CALL and event.cpu_children]
        events = [event for call in calls for event in inside(call)]
        own = sum(own_us(event) for event in events if event.name == op)
        return (own or sum(map(own_us, events))) / max(len(calls), 1)


def dense(tensor: Any) -> bool:
    """Whether a tensor is written by writing each of its elements once."""
    return bool(tensor.numel()) and not any(
        step == 0 and size > 1 for size, step in zip(tensor.shape, tensor.stride(), strict=True)
    )


def cache_bytes(torch: Any) -> int:
    """What the caches of a GPU hold; torch does not tell of AMD's last one."""
    return 1 << 28 if torch.version.hip else int(torch.cuda.get_device_properties(0).L2_cache_size)


def other_kernels(torch: Any) -> list[Callable[[], Any]]:
    """Kernels with much code: between two calls of an op, a model runs others."""
    some = torch.rand(1 << 10, device="cuda")
    square = torch.rand(256, 256, device="cuda").bfloat16()
    return [
        lambda: square @ square,
        some.sort,
        some.lgamma,
        some.erfinv,
        lambda: some.cumsum(0),
        lambda: square.softmax(0),
    ]


def inside(event: Any) -> list[Any]:
    """An event of a profile and all inside it."""
    return [event, *(inner for child in event.cpu_children for inner in inside(child))]


def own_us(event: Any) -> float:
    """Time of the kernels that an op has launched itself; calls of the driver have none of their own."""
    name = event.name.removeprefix("cuda").removeprefix("cu").removeprefix("hip")
    driver = name != event.name and name[:1].isupper()
    return 0.0 if driver else float(sum(kernel.duration for kernel in event.kernels))


def measured(torch: Any, space: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """The result of an op's script: with cold and warm caches, and the time of its kernels."""
    call, op = space["call"], space["OP"]
    try:
        call(space["arguments"]())
    except (RuntimeError, NotImplementedError):  # no such kernel on this device
        try:
            space["expected"](space["arguments"]())
        except (RuntimeError, NotImplementedError, KeyError):
            call = None
        if call is None:
            raise
        call, op = space["expected"], f"stand-in for {op}"
    check = verdict(torch, space, call)
    gpu = space["ON"] == "cuda"
    run = torch.compile(call) if options.compile else call
    rounds = Rounds(torch, run, space["arguments"](), options.ages)
    times, warm = (rounds.elapsed_us(options.iters, cold) for cold in (True, False))
    kernel_us = rounds.kernel_us(options.iters, op, options.profile)
    device = torch.cuda.get_device_name() if gpu else "cpu"
    median_us, traced_us = times[len(times) // 2], space["TRACED_US"]
    us = kernel_us or median_us
    return {
        "op": op, "check": check, "device": device, "torch": torch.__version__,
        "traced_on": space["TRACED_ON"], "median_us": median_us, "p10_us": times[len(times) // 10],
        "p90_us": times[len(times) * 9 // 10], "warm_us": warm[len(warm) // 2], "kernel_us": kernel_us,
        "traced_us": traced_us, "ratio": us / traced_us if traced_us else None,
        "flop_per_s": 1e6 * space["FLOPS"] / us, "byte_per_s": 1e6 * space["BYTES"] / us,
        "of_roofline": sum(least / us for name, least in space.get("LEAST_US", {}).items() if name in device),
    }  # fmt: skip


def counted(torch: Any, space: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Run one call under a hardware profiler; what it counts, the profiler writes."""
    if space["ON"] != "cuda":
        raise SystemExit("--counters needs a GPU")
    Rounds(torch, space["call"], space["arguments"](), options.ages).count()
    return {"op": space["OP"], "check": "none: counted", "device": torch.cuda.get_device_name()}


def start_ranks(torch: Any, space: dict[str, Any], path: str, options: argparse.Namespace) -> None:
    """Run a collective on its ranks, in processes of their own unless torchrun has started them."""
    ranks, gpu, world = space["RANKS"], options.device == "cuda", int(os.environ.get("WORLD_SIZE", "1"))
    gpus = torch.cuda.device_count()
    if world not in (1, ranks):
        ended(2, f"needs {ranks} ranks: torchrun --nproc-per-node {ranks}, or plain python")
    if gpu and gpus < int(os.environ.get("LOCAL_WORLD_SIZE", str(ranks))):
        ended(2, f"needs {ranks} GPUs, found {gpus}; --device cpu needs none")
    if options.skew and "START_US" not in space:
        ended(2, "start times unknown: the trace does not cover every rank")
    if world > 1:
        rank_main(int(os.environ["RANK"]), path, "env://", options)
        return
    if not gpu and ranks > options.ranks:
        ended(2, f"would start {ranks} processes on this CPU; allow them with --ranks {ranks}")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if os.uname().sysname == "Darwin" else "lo")
    logging.disable()  # torch logs each process that it ends
    processes = importlib.import_module(f"{TORCH}.multiprocessing")
    with tempfile.TemporaryDirectory() as folder:
        arguments = (path, f"file://{folder}/all", options)
        try:
            processes.start_processes(rank_main, arguments, ranks, start_method="spawn" if gpu else "fork")
        except (processes.ProcessExitedException, processes.ProcessRaisedException) as error:
            wrong = getattr(error, "exit_code", 2) == 1  # rank 0 has printed it
            last = str(error).splitlines()[-1]
            ended(1 if wrong else 2, "" if wrong else f"{last} (try --max-bytes)")


def ended(status: int, words: str) -> None:
    """End with a status and last words."""
    if words:
        sys.stderr.write(f"{words}\n")
    raise SystemExit(status)


def rank_main(rank: int, path: str, store: str, options: argparse.Namespace) -> None:
    """Run, check and time a collective on one rank; rank 0 prints the result.

    A rank that comes early waits for the others inside its kernel: the time of a call is that of the rank
    that waits least, here and in the trace.
    """
    torch, dist = map(importlib.import_module, (TORCH, f"{TORCH}.distributed"))
    space = defined(path, options)
    gpu, ranks = options.device == "cuda", space["RANKS"]
    if gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank)))
    dist.init_process_group("nccl" if gpu else "gloo", init_method=store, rank=rank, world_size=ranks)
    send, out = space["arguments"](rank)
    space["call"](rank, send, out)
    outcome = (
        rank_verdict(torch, space, rank, out),
        rank_us(torch, space, rank, (send, out), options),
        max(send.nbytes, out.nbytes),
    )
    outcomes: list[Any] = [None] * ranks
    dist.all_gather_object(outcomes, outcome)
    if options.profile:
        with torch.profiler.profile() as profile:
            rank_us(torch, space, rank, (send, out), options)
        profile.export_chrome_trace(f"{options.profile}.rank{rank}.json" if rank else options.profile)
    dist.destroy_process_group()
    verdicts, times, sizes = zip(*outcomes, strict=True)
    check, least = max(verdicts, key=lambda said: said != "ok"), sorted(map(min, zip(*times, strict=True)))
    us, traced_us, rate = statistics.median(least), space["TRACED_US"], 1e6 * max(sizes)
    note = "; ".join(filter(None, (space.get("NOTE"), None if gpu else space.get("NOTE_ON_CPU"))))
    result = {
        "op": space["NAME"], "check": check, "device": torch.cuda.get_device_name() if gpu else "cpu",
        "torch": torch.__version__, "ranks": ranks, "bytes": max(sizes), "skew": options.skew, "note": note,
        "median_us": us, "p10_us": least[len(least) // 10], "p90_us": least[len(least) * 9 // 10],
        "max_us": statistics.median(map(max, zip(*times, strict=True))),
        "rank_us": [*map(statistics.median, times)],
        "traced_us": traced_us, "traced_rank_us": space.get("TRACED_RANK_US", []),
        "traced_on": space["TRACED_ON"],
        "ratio": us / traced_us if traced_us and space["SHARE"] == 1 else None,
        "algbw_bytes_per_s": rate / us, "busbw_bytes_per_s": rate / us * space["FACTOR"],
        "traced_busbw_bytes_per_s": traced_us and 1e6 * space["BYTES"] / traced_us * space["FACTOR"],
    }  # fmt: skip
    if rank == 0:
        finished(result, options)


def rank_verdict(torch: Any, space: dict[str, Any], rank: int, out: Any) -> str:
    """Compare the output of a rank with what all ranks sent: "ok", or the error."""
    if "expected" not in space:
        return f"none: {space['UNCHECKED']}"
    want = space["expected"](rank)
    if want is None:  # it receives nothing
        return "ok"
    wrong = (out.view(torch.uint8) != want.view(torch.uint8)).count_nonzero().item()
    return f"wrong: {wrong} of {out.nbytes} bytes on rank {rank}" if wrong else "ok"


def rank_us(
    torch: Any, space: dict[str, Any], rank: int, given: tuple[Any, Any], options: argparse.Namespace
) -> list[float]:
    """Time of each call on this rank; before each call the ranks synchronize."""
    dist, gpu = importlib.import_module(f"{TORCH}.distributed"), options.device == "cuda"
    late_us, cycles, (send, out) = space["START_US"][rank] if options.skew else 0, 0.0, given
    before = send.clone() if send is out else None  # what a call in place overwrites

    def mark() -> Any:
        if not gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    if gpu and late_us:
        start, _, end = mark(), torch.cuda._sleep(20_000_000), mark()
        end.synchronize()
        cycles = 20_000 / start.elapsed_time(end)  # in a us
    marks = []
    for _ in range(options.iters + WARM_UP):
        if before is not None:
            send.copy_(before)
        if gpu:
            torch.cuda._sleep(2_000_000)  # the host runs ahead, so that its time is not measured
        dist.all_reduce(torch.zeros(1, device=options.device))
        if gpu:
            torch.cuda._sleep(int(late_us * cycles))
        else:
            time.sleep(late_us / 1e6)
        marks.append((mark(), space["call"](rank, send, out), mark()))
    if gpu:
        torch.cuda.synchronize()
    pairs = [(begin, end) for begin, _, end in marks[WARM_UP:]]
    return [1e3 * begin.elapsed_time(end) if gpu else 1e6 * (end - begin) for begin, end in pairs]


if __name__ == "__main__":
    main(sys.argv[1:])
