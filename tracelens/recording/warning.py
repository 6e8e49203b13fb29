"""The warning of a recording that is not what was asked for."""

from __future__ import annotations


class RecordingWarning(UserWarning):
    """A recording is not what was asked for; the training it is of goes on."""
