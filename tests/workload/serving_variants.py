"""Serving runs that show what the delayer and two-batch overlap do: read by who records and who tests them.

No torch needed.
"""

from __future__ import annotations

RANKS = 2

# In these ticks all ranks prefill, all decode, and most often, without the delayer, some do this and some
# that; with it each prefill is of several requests, as a split by requests needs.
_TRAFFIC = (
    "--seed 1 --rate 1.25 --delay-quorum 1 --delay-watermark 0.1 "
    "--ticks 36 --profile-start 30 --profile-end 36"
)
_SIZES = {
    # So large that the GPU and not its host takes the time, and communication is worth hiding.
    "cuda": "--preset small --layers 2 --set dense_layers=0 --set vocab=8192 --set permute=fused "
    "--set router=fused --prompt-min 3072 --prompt-max 12288 --prefill-tokens 24576 "
    "--output-min 4 --output-max 24 --graph on",
    "cpu": "--preset tiny --layers 2 --slots 16 --prefill-tokens 192 --output-max 8",
}
VARIANTS = {
    "delayer_off": "",
    "delayer_on": "--prefill-delayer on",
    "tbo_request": "--prefill-delayer on --tbo request",
    "tbo_token": "--prefill-delayer on --tbo token",
}
"""Name of a run to what it changes."""


def options(variant: str, device: str = "cuda") -> str:
    """Options of `tracelens workload serve` for a run on a device."""
    return " ".join(f"--ranks {RANKS} {_SIZES[device]} {_TRAFFIC} {VARIANTS[variant]}".split())


TOLD = {name: options(name) for name in VARIANTS}
"""Name of a run to its options on GPUs."""

LARGEST_BYTES = 400_000
