"""The step as one picture: every rank by what it does, down to single kernels."""

from tracelens.analysis.step_timeline.activities import activity_texts

__all__ = ["activity_texts"]
