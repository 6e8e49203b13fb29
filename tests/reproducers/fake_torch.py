"""A small fake of torch for `replay verify`, and scripts that print what generated ones print."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tracelens.reproducers import folder as folders
from tracelens.reproducers.folder import Script
from tracelens.reproducers.verify import verify
from tracelens.table import Result

H100 = "NVIDIA H100 80GB HBM3"
MI300X = "AMD Instinct MI300X"

# What the runner asks of torch, with a GPU for each name in FAKE_GPUS, AMD's with FAKE_HIP. `flag` stands
# for torch.backends.
TORCH = """
import os
__version__ = "9.9+fake"
names = [name for name in os.environ.get("FAKE_GPUS", "").split(",") if name]
poisoned = False
dtype, seeds = "float32", []
get_default_dtype = lambda: dtype
def set_default_dtype(new):
    global dtype
    dtype = new
get_default_device = lambda: device
device = "cpu"
class version:
    hip = os.environ.get("FAKE_HIP")
manual_seed = seeds.append
class cuda:
    is_available = lambda: bool(names)
    device_count = lambda: len(names)
    get_device_name = lambda number=0: names[number]
    is_initialized = lambda: True
    empty_cache = lambda: None
    memory_allocated = lambda: held
    def synchronize():
        if poisoned:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
held = 0
"""


def source(told: dict[str, Any] | None = None, *, before: str = "", after: str = "", code: int = 0) -> str:
    """A script that prints a result."""
    result = {"op": "aten::mm", "check": "ok", "device": "cpu", "median_us": 50.0, "traced_us": 50.0,
              "traced_on": H100} | (told or {})  # fmt: skip
    lines = [
        "import json, os, sys; from math import inf, nan",
        before,
        f"print(json.dumps({result!r}))",
        after,
        f"raise SystemExit({code})",
    ]
    return "\n".join(filter(None, lines)) + "\n"


def listed(text: str, **other: Any) -> Script:
    """A script that stands for one call of 50 us, where nothing else is said."""
    made = Script("s", "op", "aten::mm", "[2, 3]", text, count=1, traced_us=50.0, total_us=50.0)
    return made._replace(**other)


def collective(text: str, processes: int = 2) -> Script:
    return listed(text, kind="collective", processes=processes)


def written(folder: Path, *scripts: str | Script) -> Path:
    """The folder with these scripts in it."""
    folders.write(folder, [one if isinstance(one, Script) else listed(one) for one in scripts], [])
    return folder


def checked(tmp_path: Path, *scripts: str | Script, **options: Any) -> Result:
    """The result for these scripts."""
    return verify(written(tmp_path / "replay", *scripts), **options)


def on_gpu(**told: Any) -> str:
    return source({"device": H100, **told})
