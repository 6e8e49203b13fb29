"""Runs whose last rank is late in a known way: read by who records them and by who tests the recordings."""

from __future__ import annotations

from tracelens.planner.config import Config, override, preset
from tracelens.workload.faults import Fault
from tracelens.workload.faults.faults import KINDS

CONTROL = "control"

NAMES = (CONTROL, *KINDS)
"""Of the runs; all but the first are of the fault of that name."""

RANKS = 2
"""Of a recorded run."""

STEPS, FIRST = {"cuda": 6, "cpu": 7}, {"cuda": 3, "cpu": 2}
"""How many there are, and the first recorded one, by device."""

LARGEST_BYTES = 600_000
"""Of a rank's trace from a GPU."""

_SAME = "dense_layers=0 routing=balanced gc=manual aux_loss=0"
_LARGE = (
    # So many tokens that the GPUs take the time, and what their hosts do by chance does not show.
    "layers=4 hidden=2048 heads=16 attention=gqa kv_groups=4 head_dim=128 top_k=2 expert_ffn=1024 "
    "shared_ffn=0 vocab=8192 seq=4096 micro_batch=12 experts=grouped sync_free=1 permute=fused loss=fused"
)
_TINY = "layers=8 micro_batches=1"
_OTHER = {
    # Each ms of reading is some thousand events.
    "blocking_call": "layers=6 micro_batches=1",
    # Here the processor's ops and not the program around them take the time.
    "token_skew": "micro_batches=1 layers=4 hidden=128 expert_ffn=512 seq=256",
    "slow_kernels": "micro_batches=1 layers=2 hidden=128 expert_ffn=512 seq=512",
}

# What the devices of a machine do not do by themselves: a CPU may have other programs to run.
_AMOUNTS = {
    "cuda": {"host_delay": 20, "token_skew": 2, "slow_kernels": 1, "blocking_call": 6, "gc": 20},
    "cpu": {"host_delay": 40, "token_skew": 2, "slow_kernels": 3, "blocking_call": 16, "gc": 40},
}


def config_of(name: str, ranks: int, device: str) -> Config:
    """The configuration of a run."""
    base, size = ("small", _LARGE) if device == "cuda" else ("tiny", _OTHER.get(name, _TINY))
    experts = max(8, 2 * ranks)
    return override(preset(base), f"{_SAME} {size} ranks={ranks} experts_count={experts}".split())


def faults_of(name: str, ranks: int, device: str) -> tuple[Fault, ...]:
    """The fault of a run, if it has one: the last rank's."""
    return () if name == CONTROL else (Fault(ranks - 1, name, _AMOUNTS[device][name]),)


TOLD = {name: ", ".join(map(str, faults_of(name, RANKS, "cuda"))) for name in NAMES}
"""What the manifest of a recording tells of each run."""
