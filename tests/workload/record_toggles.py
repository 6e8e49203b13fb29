"""Records what only GPUs show of the workload's toggles: small runs on one or two, one step, no frames.

    python -m tests.workload.record_toggles --out sample_traces/toggles

takes two minutes on NVIDIA or AMD GPUs. test_visible_on_gpus.py reads the result.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import hashlib
import json
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import torch

from tests.workload.toggle_variants import LARGEST_BYTES, VARIANTS, fields
from tracelens.errors import TracelensError
from tracelens.recording.software import device_name, software_versions
from tracelens.workload.config import override, preset
from tracelens.workload.launch import Job, run_job

# The first three compile kernels, make buffers and capture a graph.
STEPS = 4


def record(out: Path, variant: str, device: str) -> list[Path]:
    """Record one variant in a folder of its name; the traces of its ranks.

    Raises:
        TracelensError: a trace is larger than samples may be.
    """
    config = override(preset("small"), fields(variant))
    run_job(Job(config, out / variant, device, STEPS, STEPS - 1, STEPS, scrub=True))
    # Of a run with gc=manual nothing may stay: the next one is in the same process.
    gc.unfreeze()
    gc.enable()
    paths = sorted((out / variant).glob("rank*.json.gz"))
    for path in paths:
        # Smaller by a third than what is written in a hurry while a training waits.
        path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()), mtime=0))
        if path.stat().st_size > LARGEST_BYTES:
            raise TracelensError(f"{path} has {path.stat().st_size:,} bytes, more than {LARGEST_BYTES:,}")
    return paths


def manifest(out: Path, files: Sequence[Path], device: str) -> str:
    """MANIFEST.toml of a recording."""
    facts = {
        "origin": f"python -m tests.workload.record_toggles --out {out.name}",
        "device": device_name(torch.device(device)),
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in facts.items()]
    lines += [f"recorded = {date.today().isoformat()}", "[software]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in software_versions().items()]
    lines += [
        "[variants]",
        *(
            f"{name} = {json.dumps(VARIANTS[name])}"
            for name in dict.fromkeys(path.parent.name for path in files)
        ),
    ]
    lines.append("[sha256]")
    for path in files:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        lines.append(f'"{path.relative_to(out).as_posix()}" = "{digest}"')
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Record as the command line says; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.workload.record_toggles", description=__doc__)
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="DIR", help="where the folders of the variants go")
    add("--variant", action="append", choices=list(VARIANTS), help="only this one (repeat for more)")
    add("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args(arguments)
    try:
        if options.device == "cuda" and not torch.cuda.is_available():
            raise TracelensError("there is no GPU here; --device cpu records runs that show less")
        names = options.variant or VARIANTS
        files = [path for name in names for path in record(options.out, name, options.device)]
    except TracelensError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    (options.out / "MANIFEST.toml").write_text(manifest(options.out, files, options.device))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
