"""Where the traces are that the reference is held against."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {
    "corpus": Path(os.environ.get("TRACELENS_CORPUS", ROOT.parent / "shared" / "corpus")),
    "foreign": Path(os.environ.get("TRACELENS_FOREIGN", ROOT.parent / "shared" / "foreign")),
    "sample_traces": ROOT / "sample_traces",
    "planted": ROOT / "tests" / "conformance" / "planted",
}
PP2VPP2EP4 = "foreign/nvidia-h200-megatron/pp2vpp2ep4"
PP2EP4 = "corpus/nvidia-h200-megatron/pp2ep4"
EP8 = "corpus/nvidia-h200-megatron/ep8"
PLAIN = "sample_traces/pipeline/plain"
INTERLEAVED = "sample_traces/pipeline/interleaved"
GROUPED_COMPILE = "foreign/nvidia-h200-hf/dsv2_grouped_compile.json.zst"


def path_of(name: str) -> Path:
    """The file or folder of a trace; the test is skipped where it is not there."""
    folder, _, rest = name.partition("/")
    path = FOLDERS[folder] / rest
    if not path.exists():
        pytest.skip(f"no {path}: set TRACELENS_{folder.upper()}")
    return path
