"""The micro-batches of a step through the chunks of the model that a rank holds: one seam, four ways.

    schedule = make_schedule(config, groups, device)
    loss = schedule.step(token_MSB, target_MSB)        # gradients are in the parameters' .grad

Without a pipeline a rank holds the whole model and takes one micro-batch after the other, or lays the
collectives of one under the computation of the next (see `overlap`), or has all of the first in a graph that
one launch replays (see `StepGraph`). In a pipeline chunk c of the model lies on
stage c % pp, and torch's schedules say whose turn it is: 1F1B with one chunk a stage, interleaved 1F1B
(arXiv:2104.04473) with several. M is the number of micro-batches; see `rows` for the other letters.

A whole forward and backward can be a CUDA or HIP graph: captured once, then replayed by one launch.

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
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B

from tracelens.errors import TracelensError
from tracelens.planner.config import Config
from tracelens.recording import scoped, span, twin
from tracelens.workload.model import Transformer, token_loss
from tracelens.workload.parallel import Groups, interleave


class ScheduledChunk(nn.Module):
    """A chunk of the model as a schedule runs it: behind the last one comes the loss."""

    def __init__(self, chunk: Transformer, config: Config) -> None:
        super().__init__()
        self.chunk, self.fusion, self.tokens = chunk, config.toggles.loss, config.global_tokens

    def forward(self, x: Tensor, target_1SB: Tensor) -> Tensor:
        """x_SBD of token_1SB or x_SBD; of the last chunk the loss, as a share of the mean over all tokens."""
        y = self.chunk(x.squeeze(0) if self.chunk.is_first else x)
        return scoped("loss", self.loss, y, target_1SB.squeeze(0)) if self.chunk.is_last else y

    def loss(self, logits_SBV: Tensor, target_SB: Tensor) -> Tensor:
        """Sum over these tokens / tokens of the step on all ranks: so gradients of ranks only add up."""
        return token_loss(logits_SBV, target_SB, self.fusion) / self.tokens


class MicroBatchSchedule:
    """One micro-batch after the other, forward and backward; the matrices of its chunks are not filled yet.

    Attributes:
        chunks: parts of the model that this rank holds, by their number in the whole model.
    """

    def __init__(self, config: Config, groups: Groups, device: torch.device) -> None:
        self.config, self.device = config, device
        parts = config.layout.chunks(config.model.layers)
        with device, default_dtype(getattr(torch, config.training.dtype)):
            self.chunks = {
                number: Transformer(config, groups, layers, (number == 0, number == len(parts) - 1))
                for number, layers in enumerate(parts)
                if number % config.layout.pp == groups.coordinate("pp")
            }
        self.parts = {number: ScheduledChunk(chunk, config) for number, chunk in self.chunks.items()}

    def step(self, token_MSB: Tensor, target_MSB: Tensor) -> Tensor:
        """Add this step's gradients to those of the parameters.

        The tokens, and the targets that come next, are this rank's part of all micro-batches, on the device;
        the same on all stages.

        Returns:
            this rank's share of the mean loss of the step, float32; 0 where it has not the last chunk.
        """
        losses = self.run(token_MSB, target_MSB)
        return torch.stack(losses).sum() if losses else torch.zeros((), device=self.device)

    def close(self) -> None:
        """Free what must be gone before the process group is; to be called at the end."""

    def run(self, token_MSB: Tensor, target_MSB: Tensor) -> list[Tensor]:
        """The loss of each micro-batch, where there is one."""
        losses = []
        for number in range(len(token_MSB)):
            loss = self.forward(number, token_MSB, target_MSB)
            losses.append(loss.detach())
            self.backward(number, loss)
        return losses

    def forward(self, number: int, token_MSB: Tensor, target_MSB: Tensor) -> Tensor:
        with span(f"mb{number}.chunk0.F"):
            loss: Tensor = self.parts[0](token_MSB[number : number + 1], target_MSB[number : number + 1])
        return loss

    def backward(self, number: int, loss: Tensor) -> None:
        with span(f"mb{number}.chunk0.B"):
            loss.backward()


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Make parameters in this dtype: converted from float32, they would need their memory twice over."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(usual)


class GraphedSchedule(MicroBatchSchedule):
    """The same, launched all at once: gradients must be there, and stay where they are."""

    def __init__(self, config: Config, groups: Groups, device: torch.device) -> None:
        require(config, device)
        super().__init__(config, groups, device)
        self.graph = StepGraph(device)

    def step(self, token_MSB: Tensor, target_MSB: Tensor) -> Tensor:
        return self.graph.run(super().step, token_MSB, target_MSB)

    def close(self) -> None:
        self.graph.close()


class OverlappedSchedule(MicroBatchSchedule):
    """Collectives of a micro-batch's forward under the backward of the one before, and the reverse."""

    def run(self, token_MSB: Tensor, target_MSB: Tensor) -> list[Tensor]:
        losses = []

        def forward(number: int) -> Tensor:
            loss = self.forward(number, token_MSB, target_MSB)
            losses.append(loss.detach())
            return loss

        interleave(len(token_MSB), forward, self.backward)
        return losses


class PipelinedSchedule(MicroBatchSchedule):
    """This rank is a stage of a pipeline that torch's schedules run; all of its ranks must make one."""

    def __init__(self, config: Config, groups: Groups, device: torch.device) -> None:
        super().__init__(config, groups, device)
        stages = [self.stage(number, groups.pp) for number in self.chunks]
        # Stages would make the group's communicator at their first mixed send and receive, all at another
        # time; here they do it together.
        dist.all_reduce(torch.zeros(1, device=device), group=groups.pp)
        # The last chunk's output is the loss already.
        options: dict[str, Any] = {"loss_fn": lambda loss, _: loss, "scale_grads": False}
        batches = config.training.micro_batches
        self.schedule = (
            Schedule1F1B(stages[0], batches, **options)
            if len(stages) == 1
            else ScheduleInterleaved1F1B(stages, batches, **options)
        )

    def stage(self, number: int, group: dist.ProcessGroup) -> MarkedStage:
        """A chunk with the shapes of what comes and goes: torch would find out by one more forward."""
        config, layout = self.config, self.config.layout
        shape_SB = (config.training.seq // (layout.cp * layout.tp), config.training.micro_batch)
        token = torch.empty(1, *shape_SB, dtype=torch.int64, device="meta")
        dtype = getattr(torch, config.training.dtype)
        x = torch.empty(*shape_SB, config.model.hidden, dtype=dtype, device="meta", requires_grad=True)
        loss = torch.empty((), dtype=torch.float32, device="meta", requires_grad=True)
        part, chunks = self.parts[number], layout.pp * layout.vpp
        ends = (token if part.chunk.is_first else x, loss if part.chunk.is_last else x)
        return MarkedStage(
            part, number, chunks, self.device, input_args=ends[0], output_args=ends[1], group=group
        )

    def run(self, token_MSB: Tensor, target_MSB: Tensor) -> list[Tensor]:
        """The loss of each micro-batch, where this rank has the last chunk."""
        inputs = (token_MSB,) if 0 in self.chunks else ()
        losses: list[Tensor] = []
        # torch cuts all of these into micro-batches along their first dimension.
        try:
            self.schedule.step(
                *inputs, target=target_MSB, target_1SB=target_MSB, losses=losses, return_outputs=False
            )
        except RuntimeError as error:
            # torch wraps what a stage raises.
            if isinstance(error.__cause__, TracelensError):
                raise error.__cause__ from None
            raise
        return [loss.detach() for loss in losses]


class MarkedStage(PipelineStage):
    """torch's, with a scope around each forward and each backward."""

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with span(f"mb{fwd_chunk_id}.chunk{self.stage_index}.F"):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with span(f"mb{bwd_chunk_id}.chunk{self.stage_index}.B"):
            return super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)


INSTEAD = "use graph=off"
Step = Callable[[Tensor, Tensor], Tensor]


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


def make_schedule(config: Config, groups: Groups, device: torch.device) -> MicroBatchSchedule:
    """The schedule that layout and toggles select; every rank must make it at the same time."""
    if config.layout.pp > 1:
        return PipelinedSchedule(config, groups, device)
    if config.toggles.graph == "step":
        return GraphedSchedule(config, groups, device)
    kind = MicroBatchSchedule if config.toggles.overlap_exchange == "off" else OverlappedSchedule
    return kind(config, groups, device)


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
