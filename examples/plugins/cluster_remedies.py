"""A remedy for a bundled detector: what to do about an expert loop here."""

from tracelens.findings import Remedy, add_remedy

add_remedy(
    "expert_loop",
    Remedy(
        "On our cluster: start the job with `--moe-impl grouped`, see the wiki.",
        vendor=("nvidia",),
    ),
)
