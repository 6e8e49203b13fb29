"""Runs of which sample_traces/ has traces, by group: read by who records them and by who tests them.

No torch needed. The group `faults` is in fault_variants.py, `toggles` in toggle_variants.py.
"""

from __future__ import annotations

from typing import NamedTuple

from tracelens.planner.config import Config, override, preset


class Sample(NamedTuple):
    """A training run.

    Attributes:
        preset: whose settings it changes.
        fields: what it changes.
        steps: steps that are recorded.
        stack: whether Python frames are recorded.
    """

    preset: str
    fields: str
    steps: int = 1
    stack: bool = False

    @property
    def config(self) -> Config:
        """Its settings."""
        return override(preset(self.preset), self.fields.split())


_ONE_GPU = (
    "layers=3 experts_count=16 top_k=4 vocab=16384 seq=2048 micro_batch=4 aux_loss=0 main_params=false "
)
ONE_GPU = {
    "loop": Sample("small", _ONE_GPU, steps=2, stack=True),
    "grouped": Sample("small", f"{_ONE_GPU} experts=grouped sync_free=2", steps=2, stack=True),
}
"""Before and after: the experts of a layer one after the other, and in one product."""

_PIPELINE = (
    "ranks=2 pp=2 layers=4 experts_count=16 top_k=4 vocab=16384 seq=2048 micro_batch=2 micro_batches=4 "
    "experts=grouped sync_free=2 permute=fused router=fused loss=fused"
)
PIPELINE = {"plain": Sample("small", _PIPELINE), "interleaved": Sample("small", f"{_PIPELINE} vpp=2")}
"""Two stages, with one chunk of layers each and with two."""

CPU = {"tiny": Sample("tiny", "ranks=2", steps=2)}
"""What `tracelens workload run --preset tiny --ranks 2` records."""

LADDER = {
    "ep4": "--preset small --ranks 4 --layers 3 --set vocab=32768 --seq 1024 --micro-batch 2 --timed 20 "
    "--recorded 2 --without overlap_1f1b --without numa"
}
"""Options of `tracelens workload ladder`: a step that the host is too slow for. Of one micro-batch none lies
over another."""

LADDER_LARGE = {
    "ep4": "--preset small --ranks 4 --layers 2 --set vocab=32768 --set top_k=8 --set dense_ffn=8192 "
    "--seq 4096 --micro-batch 4 --micro-batches 2 --timed 12 --recorded 2 --without numa --without manual_gc"
}
"""The same of sixteen times as many tokens, which keep the GPU busy."""

LARGEST_BYTES = 650_000
"""Of a rank's trace."""
