"""Archives of recorded pairs: runs before a change apart from those after it."""

from __future__ import annotations

import argparse
import gzip
import hashlib
import re
import tarfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import zstandard

TAR_BYTES = 15_500_000
ALL_BYTES = 62_000_000


def options(doc: str | None) -> argparse.Namespace:
    """What both programs that record pairs are told."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", default="")
    parser.add_argument("--budget", type=float, default=500)
    parser.add_argument("--together", action="store_true", help="both sides of a pair in one process")
    return parser.parse_args()


def runs(before: Iterable[str], only: str) -> list[str]:
    """Names of runs in the order of recording: each before a change, then the one after it, each once."""
    names = [name for each in before for name in (each, each.partition(".")[0])]
    return [name for name in dict.fromkeys(names) if re.search(only, name)]


def profiler_config() -> Any:
    """Collections by Python are recorded where torch can."""
    try:
        return torch._C._profiler._ExperimentalConfig(record_python_gc_info=True)
    except TypeError:
        return None


def profile(
    step: Callable[[], None], path: Path, device: str, before: int, recorded: int, idle: Any = None
) -> None:
    """Record steps behind some to warm up; `idle` is set when they no longer need the GPU."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.startswith("cuda"):
        activities.append(torch.profiler.ProfilerActivity.CUDA)

    def ready(profiler: Any) -> None:
        if idle:
            idle.set()
        path.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(path))

    with torch.profiler.profile(
        activities=activities,
        schedule=torch.profiler.schedule(wait=0, warmup=before, active=recorded, repeat=1),
        record_shapes=True,
        on_trace_ready=ready,
        experimental_config=profiler_config(),
    ) as profiler:
        for _ in range(before + recorded):
            step()
            profiler.step()


def squeeze(folder: Path, rank: int = 0) -> None:
    """A rank's trace in zstandard, in half the bytes, without the name of the file it was written to."""
    path = folder / f"rank{rank}.json.gz"
    text = gzip.decompress(path.read_bytes())
    text = re.sub(rb'"traceName": "[^"]*"', b'"traceName": "trace"', text)
    path.with_suffix(".zst").write_bytes(zstandard.ZstdCompressor(level=12).compress(text))
    path.unlink()


def pack(out: Path, after: list[str]) -> None:
    """Tars that are small enough to move; of those after a change only the hash is told."""
    folders = sorted(path.parent for path in out.glob("*/times.json"))
    left = ALL_BYTES - sum(path.stat().st_size for each in folders for path in each.iterdir())
    # The traces of runs after a change are of the least use.
    by_use = sorted(out.glob("*/rank*"), key=lambda path: (path.parent.name in after, path.stat().st_size))
    for path in reversed(by_use):
        if left < 0:
            left += path.stat().st_size
            print(f"left out: {path.parent.name}", flush=True)
            path.unlink()
    for side in ("before", "after"):
        mine = [path for path in folders if (path.name in after) is (side == "after")]
        number, size = -1, TAR_BYTES
        paths: list[Path] = []
        with ExitStack() as tars:
            archive: tarfile.TarFile
            for folder in mine:
                bytes_ = sum(path.stat().st_size for path in folder.iterdir())
                if size + bytes_ > TAR_BYTES:
                    number, size = number + 1, 0
                    paths.append(out / f"{side}-{number}.tar")
                    archive = tars.enter_context(tarfile.open(paths[-1], "w"))
                size += bytes_
                archive.add(folder, folder.name)
        for path in paths:
            print(path.name, path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest(), flush=True)
