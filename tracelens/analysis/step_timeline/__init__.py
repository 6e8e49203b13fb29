"""The step as one picture: every rank by what it does, down to single kernels."""

from tracelens.analysis.step_timeline.step_timeline import COMMUNICATION, WAITING, activity_texts

__all__ = ["COMMUNICATION", "WAITING", "activity_texts"]
