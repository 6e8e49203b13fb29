"""The step as one picture: every rank by what it does, down to single kernels."""

from tracelens.analysis.step_timeline.activities import activity_texts
from tracelens.analysis.step_timeline.schemas import COMMUNICATION, WAITING

__all__ = ["COMMUNICATION", "WAITING", "activity_texts"]
