"""Records a trace of the reference workload and prints its manifest entry.

    python -m tracelens.workload.record --preset sample --experts loop --out moe_loop.json.gz

What the profiler wrote is changed in one way only: `scrub` shortens the paths in it.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import hashlib
import json
import shlex
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

import torch

from tracelens.errors import TracelensError
from tracelens.workload.config import PRESETS, ExpertsName, MoEConfig, override, preset
from tracelens.workload.scrub import count_events, scrub
from tracelens.workload.train import Trainer, profile, time_steps

MODULE = "tracelens.workload.record"


def record(
    config: MoEConfig, out: Path, *, device: str, steps: int = 2, timed_steps: int = 0, stack: bool = True
) -> dict[str, Any]:
    """Train, record, write `out`, and return what a manifest says of it.

    Args:
        config: the model.
        out: file to write, gzip-compressed JSON.
        device: "cuda" or "cpu".
        steps: steps to record.
        timed_steps: steps to time before that, with no profiler running; 0 for none.
        stack: record Python frames and nn.Module calls.

    Raises:
        TracelensError: the trace holds a path that could not be shortened.
    """
    trainer = Trainer(config, device)
    milliseconds = time_steps(trainer, timed_steps) if timed_steps else []
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "trace.json"
        facts = profile(trainer, raw, steps, stack=stack)
        text = scrub(raw.read_text(encoding="utf-8"), out.name)
    # No file name and no time in the gzip header: the same trace gives the same bytes.
    packed = gzip.compress(text.encode(), compresslevel=9, mtime=0)
    out.write_bytes(packed)
    entry: dict[str, Any] = {"sha256": hashlib.sha256(packed).hexdigest(), "bytes": len(packed)}
    entry |= {"recorded": datetime.date.today(), "device": facts.device, "steps": facts.steps, "stack": stack}
    if milliseconds:
        entry["unprofiled_step_ms"] = round(statistics.median(milliseconds), 2)
    entry |= {"loss": [round(loss, 4) for loss in facts.loss], "parameters": facts.parameters}
    return entry | {"software": facts.software, "config": asdict(config), "events": count_events(text)}


def manifest_entry(entry: dict[str, Any]) -> str:
    """One `[[trace]]` of MANIFEST.toml; values are texts, numbers, dates, lists, or tables of those."""
    lines = ["[[trace]]"]
    lines += [f"{key} = {toml(value)}" for key, value in entry.items() if not isinstance(value, dict)]
    for table, values in entry.items():
        if isinstance(values, dict):
            lines += [f"[trace.{table}]", *(f"{key} = {toml(value)}" for key, value in values.items())]
    return "\n".join(lines)


def toml(value: Any) -> str:
    """A value in TOML, which writes texts, numbers, booleans and lists of them as JSON does."""
    return value.isoformat() if isinstance(value, datetime.date) else json.dumps(value)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Command line to options."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {MODULE}", description="Record a trace of the workload."
    )
    add = parser.add_argument
    add("--preset", default="sample", help=f"model size: {', '.join(PRESETS)}")
    add("--experts", choices=get_args(ExpertsName), default="loop", help="how experts are computed")
    add("--set", action="append", default=[], metavar="FIELD=VALUE", help="change the preset")
    add("--steps", type=int, default=2, help="steps to record")
    add("--timed-steps", type=int, default=0, help="steps to time first, with no profiler running")
    add("--stack", action=argparse.BooleanOptionalAction, default=True, help="record Python frames, modules")
    add("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    add("--out", type=Path, required=True, metavar="FILE", help="file to write, *.json.gz")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Record as the command line says; the exit code."""
    options = parse(arguments)
    try:
        config = override(replace(preset(options.preset), experts=options.experts), options.set)
        entry = record(
            config,
            options.out,
            device=options.device,
            steps=options.steps,
            timed_steps=options.timed_steps,
            stack=options.stack,
        )
    except TracelensError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    # The folder of --out is this machine's business, the rest makes the trace again.
    shown = [options.out.name if text == str(options.out) else text for text in arguments]
    origin = shlex.join(["python", "-m", MODULE, *shown])
    print(manifest_entry({"file": options.out.name, "origin": origin} | entry))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
