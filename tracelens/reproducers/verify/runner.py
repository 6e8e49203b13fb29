"""Runs scripts one after the other in one process: torch is imported once, the GPU is started once.

Executed as a file, by whatever interpreter has torch: `python -I runner.py FD LIBRARY GPU`. FD is a socket to
the one who asks, beyond the reach of what scripts print: it takes {"path", "arguments"} and answers with
{"code", "reason", "spent"}; spent: this process is no longer as it was, and the next script needs a new one.
It needs only the standard library of Python 3.10, and nothing of tracelens.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import random
import runpy
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
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
    """Serve until the other side closes the socket."""
    descriptor, library, gpu = arguments
    os.set_inheritable(int(descriptor), False)
    with Connection(int(descriptor)) as client, suppress(EOFError, OSError):
        try:
            torch = importlib.import_module(library)
        except (ImportError, OSError) as error:  # OSError: a library of the GPU's that is not there
            absent = isinstance(error, ImportError) and error.name == library
            answer(client, {"absent": absent, "reason": str(error)})
            return
        answer(client, {"torch": str(torch.__version__), "devices": devices(torch) if gpu == "gpu" else []})
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
        runpy.run_path(path, run_name="__main__")
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


if __name__ == "__main__":
    main(sys.argv[1:])
