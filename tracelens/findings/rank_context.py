"""What detectors look at: one rank's work in its steps, and whether launches hold it up."""

from __future__ import annotations

from functools import cached_property

from tracelens.analysis.fusable import StepWork

_LAUNCH_BOUND = 0.1
"""Of the time of the steps: where the queue is mostly filled, the GPU waits for launches for less."""


class RankContext(StepWork):
    """One rank, as detectors see it."""

    @cached_property
    def is_launch_bound(self) -> bool:
        """Whether the GPU often waits for launches where no blocking call has emptied the queue before.

        Then a queue that such a call emptied would often have been empty without it.
        """
        late = int(self.idle_by("launch overhead").dur.sum())
        return late > _LAUNCH_BOUND * (self.window[1] - self.window[0])
