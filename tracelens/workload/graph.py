"""A whole forward and backward as a CUDA or HIP graph: captured once, then replayed by one launch.

    graph = StepGraph(device)
    loss = graph.run(step, token_MSB, target_MSB)      # as step(token_MSB, target_MSB), call after call

The first call runs the step as it is, which makes what a capture must find ready: compiled kernels,
workspaces of libraries, connections between ranks. The second captures it, which computes nothing, and
replays it. So no call is for nothing, and each adds its gradients exactly once.

A graph holds addresses. Its input is copied to where it was captured; parameters and gradients must stay
where they are, as in the flat buffers of `optimizer`, which checks this in every step. Whatever the host does
in a step (names of scopes, hooks, choices by a value) happens in the first two calls and never again.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from tracelens.errors import TracelensError
from tracelens.planner.config import Config
from tracelens.recording import span, twin

INSTEAD = "use graph=off"

Step = Callable[[Tensor, Tensor], Tensor]


def require(config: Config, device: torch.device, toggle: str = "graph=step") -> None:
    """Check that a run can be captured, as far as that is known before it starts.

    Raises:
        TracelensError: no GPU, or a dtype for which torch's grouped GEMM reads the sizes of groups.
    """
    if device.type != "cuda":
        raise TracelensError(f"{toggle} needs a GPU, and this run is on {device}: {INSTEAD}")
    dtype = config.training.dtype
    if config.model.moe_layers and dtype != "bfloat16":
        raise TracelensError(
            f"{toggle} needs dtype=bfloat16, not {dtype}: there torch's grouped GEMM makes the host wait for "
            f"the group sizes; {INSTEAD}"
        )


class StepGraph:
    """One step's forward and backward, as one launch from the second call on."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # For the first call and the capture alike: autograd adds up gradients on the stream on which it saw
        # the parameter first, and libraries keep a workspace for each stream.
        self.stream = torch.cuda.Stream(device)
        self.inputs: tuple[Tensor, ...] = ()
        self.graph: torch.cuda.CUDAGraph | None = None
        self.loss: Tensor | None = None

    def run(self, step: Step, token_MSB: Tensor, target_MSB: Tensor) -> Tensor:
        """Add this step's gradients to those of the parameters.

        Args:
            step: forward and backward; the same in all calls. It is not kept: its owner may own this graph.
            token_MSB: input on the device, in all calls of the same shape.
            target_MSB: likewise.

        Returns:
            the loss.

        Raises:
            TracelensError: the input has another shape, or the step cannot be captured.
        """
        inputs = (token_MSB, target_MSB)
        if not self.inputs:
            self.inputs = tuple(x.clone() for x in inputs)
            # Memory of the side stream, which may use it again as soon as this one is gone.
            return warm_up(lambda: step(*self.inputs), self.stream, self.device).clone()
        for static, x in zip(self.inputs, inputs, strict=True):
            if static.shape != x.shape:
                raise TracelensError(
                    f"graph=step got {tuple(x.shape)} tokens after {tuple(static.shape)}, but a graph has "
                    f"one shape: {INSTEAD}"
                )
            static.copy_(x)
        if self.graph is None or self.loss is None:
            self.graph, self.loss = capture(
                lambda: step(*self.inputs), self.stream, self.device, "graph=step: the capture of the step"
            )
        with span("graph"):
            self.graph.replay()
        # The next replay writes to the same place.
        return self.loss.clone()

    def close(self) -> None:
        """Free the graph; the next call of `run` would capture anew.

        To be called before the process group is destroyed: NCCL waits there until no graph holds its work.
        """
        if self.graph is not None:
            torch.cuda.synchronize(self.device)
            self.graph.reset()
            self.graph = self.loss = None


def warm_up(run: Callable[[], Tensor], stream: torch.cuda.Stream, device: torch.device) -> Tensor:
    """Run on the stream of a later capture, which must find kernels, workspaces and connections ready."""
    current = torch.cuda.current_stream(device)
    stream.wait_stream(current)
    with twin(), torch.cuda.stream(stream):
        result = run()
    current.wait_stream(stream)
    return result


def capture(
    run: Callable[[], Tensor], stream: torch.cuda.Stream, device: torch.device, what: str, pool: Any = None
) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """A graph of `run`, and where each replay writes its result; graphs of one pool share their memory.

    Raises:
        TracelensError: `what` failed, and why.
    """
    graph = torch.cuda.CUDAGraph()
    # A failed capture leaves its own stream the current one.
    with torch.cuda.stream(torch.cuda.current_stream(device)), no_collection():
        try:
            # What other threads do, as NCCL's that looks after earlier collectives, is no part of it.
            with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                result = run()
        except RuntimeError as error:
            raise TracelensError(f"{what} failed ({cause(error)}): {INSTEAD}") from error
    return graph, result


@contextmanager
def no_collection() -> Iterator[None]:
    """Keep Python from freeing what it finds: freeing memory or events of a GPU would break a capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def cause(error: BaseException) -> str:
    """What was raised first, in one line: the end of a broken capture raises once more."""
    while isinstance(error.__context__, RuntimeError):
        error = error.__context__
    return str(error).partition("\n")[0]
