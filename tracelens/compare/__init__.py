"""Two runs: what changed, and whether it may."""

from tracelens.compare.noise import (
    Interval,
    Mixture,
    PooledVariance,
    StepSpread,
    differences,
    noise,
    plausible,
    ratio,
)
