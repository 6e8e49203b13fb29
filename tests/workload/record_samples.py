"""Records the traces in sample_traces/, a group of runs at a time.

    python -m tests.workload.record_samples toggles pipeline --out sample_traces

Most groups need GPUs, NVIDIA or AMD, as many as their runs have ranks. `--device cpu` records runs that show
less. Tests read the result: test_samples.py, and those that its groups are for.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from zstandard import ZstdCompressor

from tests.workload import fault_variants, sample_runs, serving_variants, toggle_variants
from tests.workload.sample_runs import Sample
from tracelens.cli import run as command
from tracelens.errors import TracelensError
from tracelens.planner.config import override, preset
from tracelens.recording.software import device_name, software_versions
from tracelens.workload.launch import Job, run_job

# The first three compile kernels, make buffers and capture a graph.
BEFORE = 3


class Group(NamedTuple):
    """Runs that are recorded together.

    Attributes:
        runs: name of each to what the manifest tells of it.
        record: called with a name, a folder for its traces, and "cuda" or "cpu".
        largest_bytes: of a trace from a GPU.
        device: on which it is recorded unless another one is asked for.
        zstandard: whether the files are, in half the bytes; other viewers of traces want gzip.
    """

    runs: Mapping[str, str]
    record: Callable[[str, Path, str], None]
    largest_bytes: int
    device: str = "cuda"
    zstandard: bool = True


def train(samples: Mapping[str, Sample], name: str, folder: Path, device: str) -> None:
    """Record training steps."""
    sample = samples[name]
    end = BEFORE + sample.steps
    run_job(Job(sample.config, folder, device, end, BEFORE, end, stack=sample.stack, scrub=True), apart=True)


def toggle(name: str, folder: Path, device: str) -> None:
    """Record a run that shows what a toggle does."""
    config = override(preset("small"), toggle_variants.fields(name))
    run_job(Job(config, folder, device, BEFORE + 1, BEFORE, BEFORE + 1, scrub=True))
    # Of a run with gc=manual nothing may stay: the next one is in the same process.
    gc.unfreeze()
    gc.enable()


def fault(name: str, folder: Path, device: str) -> None:
    """Record a run whose last rank is late."""
    ranks = fault_variants.RANKS
    config = fault_variants.config_of(name, ranks, device)
    steps, first = fault_variants.STEPS[device], fault_variants.FIRST[device]
    run_job(
        Job(
            config, folder, device, steps, first, steps, scrub=True,
            inject=fault_variants.faults_of(name, ranks, device),
        )
    )  # fmt: skip


def ladder(told: Mapping[str, str], name: str, folder: Path, device: str) -> None:
    """Record a ladder, each of its rungs in a folder."""
    arguments = ["workload", "ladder", str(folder), *told[name].split()]
    # It has told what is wrong.
    if command([*arguments, "--scrub", "--device", device]):
        raise TracelensError(f"the ladder {name} was not climbed")


def serve(name: str, folder: Path, device: str) -> None:
    """Record ticks of a serving run."""
    arguments = ["workload", "serve", *serving_variants.options(name, device).split(), "-o", str(folder)]
    if command([*arguments, "--scrub", "--device", device]):
        raise TracelensError(f"the serving run {name} was not recorded")


def _of_training(samples: Mapping[str, Sample], largest_bytes: int, device: str = "cuda") -> Group:
    told = {name: f"--preset {one.preset} {one.fields}" for name, one in samples.items()}
    return Group(told, partial(train, samples), largest_bytes, device)


def _of_ladders(told: Mapping[str, str]) -> Group:
    return Group(told, partial(ladder, told), sample_runs.LARGEST_BYTES)


GROUPS = {
    "cpu": _of_training(sample_runs.CPU, sample_runs.LARGEST_BYTES, "cpu"),
    "one_gpu": _of_training(sample_runs.ONE_GPU, sample_runs.LARGEST_BYTES)._replace(zstandard=False),
    "pipeline": _of_training(sample_runs.PIPELINE, sample_runs.LARGEST_BYTES),
    "ladder": _of_ladders(sample_runs.LADDER),
    "ladder_large": _of_ladders(sample_runs.LADDER_LARGE),
    "toggles": Group(toggle_variants.VARIANTS, toggle, toggle_variants.LARGEST_BYTES),
    "serving": Group(serving_variants.TOLD, serve, serving_variants.LARGEST_BYTES),
    "faults": Group(fault_variants.TOLD, fault, fault_variants.LARGEST_BYTES),
}


def record(group: str, runs: Sequence[str], folder: Path, device: str) -> None:
    """Record runs of a group, and its manifest.

    Args:
        group: of GROUPS.
        runs: names of runs.
        folder: in which each gets a folder of its name.
        device: "cuda" or "cpu".

    Raises:
        TracelensError: a trace from a GPU is larger than samples may be.
    """
    of = GROUPS[group]
    files = []
    for name in runs:
        of.record(name, folder / name, device)
        for path in sorted((folder / name).rglob("*.json.gz")):
            (smaller if of.zstandard else recompressed)(path)
        files += sorted((folder / name).rglob("rank*.json.*"))  # with the values that the profiler leaves out
    told = {name: of.runs[name] for name in runs}
    (folder / "MANIFEST.toml").write_text(manifest(group, told, folder, files, device))
    largest = max(files, key=lambda path: path.stat().st_size)
    if device == "cuda" and largest.stat().st_size > of.largest_bytes:
        raise TracelensError(
            f"{largest} has {largest.stat().st_size:,} bytes, more than {of.largest_bytes:,}"
        )


def recompressed(path: Path) -> None:
    """Pack a trace into a third less than what is written in a hurry while a training waits."""
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()), mtime=0))


def smaller(path: Path) -> None:
    """Pack a trace into half the bytes."""
    packed = ZstdCompressor(level=19).compress(gzip.decompress(path.read_bytes()))
    path.with_suffix(".zst").write_bytes(packed)
    path.unlink()


def manifest(group: str, runs: Mapping[str, str], folder: Path, files: Sequence[Path], device: str) -> str:
    """The text of MANIFEST.toml."""
    facts = {
        "origin": f"python -m tests.workload.record_samples {group} --out sample_traces --device {device}",
        "device": device_name(torch.device(device)),
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in facts.items()]
    lines += [f"recorded = {date.today().isoformat()}", "[software]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in software_versions().items()]
    lines += ["[runs]", *(f"{name} = {json.dumps(told)}" for name, told in runs.items()), "[sha256]"]
    for path in files:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        lines.append(f'"{path.relative_to(folder).as_posix()}" = "{digest}"')
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Record as the command line says; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.workload.record_samples", description=__doc__)
    add = parser.add_argument
    add("groups", nargs="+", choices=list(GROUPS), metavar="GROUP", help=", ".join(GROUPS))
    add("--out", type=Path, required=True, metavar="DIR", help="where the folders of the groups go")
    add("--run", action="append", metavar="NAME", help="only this one of a group (repeat for more)")
    add("--device", choices=("cuda", "cpu"), help="by default what the group is meant for")
    options = parser.parse_args(arguments)
    try:
        for group in options.groups:
            device = options.device or GROUPS[group].device
            if device == "cuda" and not torch.cuda.is_available():
                raise TracelensError("there is no GPU here; --device cpu records runs that show less")
            runs = list(GROUPS[group].runs)
            if unknown := set(options.run or ()) - set(runs):
                raise TracelensError(f"no run {min(unknown)} in {group}: it has {', '.join(runs)}")
            record(group, options.run or runs, options.out / group, device)
    except TracelensError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
