"""Simulated runs of MoE models, recorded as Kineto JSON: who launches what, and what it is for.

    run, truth = recorded(Model(layers=2, ranks=4, exchange="all_to_all"))

Each rank launches its kernels one after the other, and the GPU runs them in that order, none beside another.
So the time of a stage is the sum of its kernels, and `truth` knows it: (rank, micro_batch, layer, phase,
stage) to ns. A product of an expert takes a microsecond a row; every other kernel takes 2 us.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.builders import read
from tracelens.trace import Run, Trace, make_run

Event = dict[str, Any]
Key = tuple[int, int, int, str, str]
"""(rank, micro_batch, layer, phase, stage)."""

KERNEL_NS, ROW_NS, CALL_NS = 2_000, 1_000, 1_000
HIDDEN, INNER, VOCABULARY = 64, 32, 50_000
_EVALUATE = "autograd::engine::evaluate_function: "

FRAMES = {
    "none": {},
    "scopes": {
        "layer": "moe",
        "router": "moe.router",
        "dispatch": "moe.dispatch",
        "permute": "moe.permute",
        "experts": "moe.experts",
        "combine": "moe.combine",
        "shared expert": "moe.shared_expert",
    },
    "torchtitan": {
        "layer": "nn.Module: MoE_0",
        "router": "nn.Module: TokenChoiceTopKRouter_0",
        "experts": "nn.Module: GroupedExperts_0",
        "shared expert": "nn.Module: FeedForward_0",
    },
    "megatron": {
        "layer": "nn.Module: MoELayer_0",
        "router": "nn.Module: TopKRouter_0",
        "experts": "nn.Module: SequentialMLP_0",
        "shared expert": "nn.Module: SharedExpertMLP_0",
    },
}
"""What each part is called by programs that name it."""


# Kernels without a record of what they send.
_REDUCED = "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)"
_EXCHANGE_KERNELS = {
    "deep_ep": {
        name: f"void deep_ep::intranode::{name}<8, 768, 8192>(int4*)" for name in ("dispatch", "combine")
    },
    "multimem": {"dispatch": _REDUCED, "combine": _REDUCED},
    "gather": {
        "dispatch": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "combine": "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    },
}


@dataclass(frozen=True)
class Model:
    """What runs, and how.

    Attributes:
        order: passes of micro-batches in launch order, F0 B0 F1 B1; without B nothing is trained.
        router: how it chooses: a top-k of what its product gives, or the last of several products, maxima of
            that, or a top-k of other scores before it.
        rows: (rank, micro_batch, layer) to rows of each local expert.
        messages: whether passes begin and end with messages to other pipeline stages, without an embedding.
        recompute: "" or the way in which layers are computed again in the backward pass: by a node of their
            own, or by hooks, with their frames or with autograd's numbers alone.
        recomputed: the layers for which that is so, None for all.
        bare_threads: whether frames are recorded in the main thread alone.
        sizes_to_host: whether the sizes of the exchange are waited for by the host.
        sync: whether gradients are reduced in the backward pass.
        shapes: whether arguments are recorded.
        kernel_ns: duration of all kernels but the experts' products.
        dense: kinds of layers before the MoE layers, "d" each.
        pipeline: ranks of its stages; by default this rank is the first of two, and the other one missing.
        fallback: whether a grouped call reads its sizes on the host, and runs one product after the other.
        split: whether the host cuts the rows of experts apart: before a loop, or in grouped calls.
    """

    layers: int = 2
    order: str = "F0 B0"
    ranks: int = 1
    tokens: int = 8
    experts: int = 8
    chosen: int = 2
    loop: bool = True
    exchange: Literal["none", "all_to_all", "deep_ep", "multimem", "gather"] = "none"
    router: Literal["top-k", "maxima", "early", "layers"] = "top-k"
    fused_router: bool = False
    fused_permute: bool = False
    fused_norm: bool = True
    shared: Literal["", "before", "after"] = ""
    naming: str = "none"
    recompute: Literal["", "reentrant", "hooks", "numbers"] = ""
    recomputed: Sequence[int] | None = None
    bare_threads: bool = False
    rows: Callable[[int, int, int], Sequence[int]] | None = None
    messages: bool = False
    sizes_to_host: bool = True
    sync: bool = False
    shapes: bool = True
    kernel_ns: int = KERNEL_NS
    dense: str = ""
    pipeline: Sequence[int] = ()
    fallback: bool = False
    split: bool = False

    def rows_of(self, rank: int, micro_batch: int, layer: int) -> list[int]:
        """Rows of each expert of a rank; by default 1 more and 1 less than the mean in turns."""
        if self.rows is not None:
            return list(self.rows(rank, micro_batch, layer))
        mean = self.tokens * self.chosen * self.ranks // self.experts
        return [mean + 1 - 2 * (expert % 2) for expert in range(self.experts // self.ranks)]


@dataclass
class _Op:
    """A forward op that the backward pass runs again."""

    grad: str
    sequence: int
    tid: int
    stage: str
    kernels: list[tuple[str, str, int, dict[str, Any]]]


@dataclass
class Recorder:
    """What one rank records.

    `kernels` has each one's key in `truth` (None outside of MoE layers), start and end; `waits` says how many
    there were when the host had waited for the GPU.
    """

    model: Model
    rank: int
    events: list[Event] = field(default_factory=list)
    truth: Counter[Key] = field(default_factory=Counter)
    host: int = 1_000_000
    gpu: int = 0
    tid: int = 1
    micro_batch: int = 0
    layer: int = -1
    phase: str = "forward"
    stage: str = ""
    last: str = "permute"
    kernels: list[tuple[Key | None, int, int]] = field(default_factory=list)
    waits: list[int] = field(default_factory=list)
    tape: list[_Op] = field(default_factory=list)
    graph: bool = True
    number: int = 0
    sequence: int = 0
    regions: dict[tuple[int, int], int] = field(default_factory=dict)

    def event(self, category: str, name: str, start: int, end: int, **args: Any) -> None:
        lane = {"pid": 100, "tid": self.tid}
        if category in ("kernel", "gpu_memcpy"):
            lane = {"pid": 0, "tid": args["stream"]}
        times = {"ts": start / 1000, "dur": (end - start) / 1000}
        self.events.append({"ph": "X", "cat": category, "name": name, **lane, **times, "args": args})

    @contextmanager
    def around(self, category: str, name: str, **args: Any) -> Iterator[None]:
        """An event of the host around what happens inside."""
        start = self.host
        self.host += 100
        yield
        self.host += 100
        self.event(category, name, start, self.host, **args)

    @contextmanager
    def part(self, stage: str) -> Iterator[None]:
        """A part of a layer, in its frame."""
        name = FRAMES[self.model.naming].get(stage, "")
        category = "python_function" if name.startswith("nn.Module") else "user_annotation"
        before, self.stage = self.stage, stage if stage != "layer" else ""
        named = name and (self.tid == 1 or not self.model.bare_threads)
        with self.around(category, name) if named else ExitStack():
            yield
        self.stage = before

    def launch(self, kernel: str, ns: int = 0, stream: int = 7) -> None:
        """A kernel, or with "Memcpy" in its name a copy."""
        self.number += 1
        ns = ns or self.model.kernel_ns
        copy = kernel.startswith("Memcpy")
        call = "cudaMemcpyAsync" if copy else "cudaLaunchKernel"
        with self.around("cuda_runtime", call, correlation=self.number):
            self.host += CALL_NS
        start = self.gpu = max(self.gpu, self.host)
        self.gpu += ns
        args = {"correlation": self.number, "device": 0, "stream": stream}
        self.event("gpu_memcpy" if copy else "kernel", kernel, start, self.gpu, **args)
        if self.stage and self.layer >= 0:
            key = self.rank, self.micro_batch, self.layer, self.phase, self.stage
            self.truth[key] += ns
            self.kernels.append((key, start, self.gpu))
        else:
            self.kernels.append((None, start, self.gpu))

    def wait(self) -> None:
        """A call that waits for the GPU."""
        self.number += 1
        with self.around("cuda_runtime", "cudaStreamSynchronize", correlation=self.number):
            self.host = max(self.host, self.gpu)
        self.waits.append(len(self.kernels))

    def arguments(self, shapes: Sequence[Any], values: Sequence[str]) -> dict[str, Any]:
        if not self.model.shapes or not shapes:
            return {}
        dtypes = ["c10::BFloat16" if shape else "Scalar" for shape in shapes]
        return {
            "Input Dims": shapes,
            "Input type": dtypes,
            "Concrete Inputs": list(values) or [""] * len(shapes),
        }

    def op(
        self,
        name: str,
        *kernels: str,
        grad: str = "",
        ns: int = 0,
        shapes: Sequence[Any] = (),
        values: Sequence[str] = (),
        waits: bool = False,
    ) -> None:
        """An op with its kernels; with `grad` one that autograd will run backward."""
        with self.node(name, grad, self.arguments(shapes, values)) as done:
            for kernel in kernels:
                self.launch(kernel, ns)
                done.append((name, kernel, ns, {}))
            if waits:
                self.launch("Memcpy DtoH (Device -> Pinned)")
                self.wait()

    @contextmanager
    def node(self, name: str, grad: str, args: dict[str, Any]) -> Iterator[list[Any]]:
        """An op around what it launches, which goes on the tape."""
        done: list[tuple[str, str, int, dict[str, Any]]] = []
        graph = self.graph and bool(grad)
        if graph:
            self.sequence += 1
            args = args | {"Sequence number": self.sequence, "Fwd thread id": 0}
            self.tape.append(_Op(grad, self.sequence, self.tid, self.stage, done))
        with self.around("cpu_op", name, **args):
            yield done

    def mm(self, rows: int, depth: int, columns: int, ns: int = 0, name: str = "aten::mm") -> None:
        shapes = [[rows, depth], [depth, columns]]
        self.op(name, "nvjet_tst_128x64", grad="MmBackward0", ns=ns, shapes=shapes)

    def collective(self, name: str, group: str, args: dict[str, Any]) -> None:
        """The record of a collective around its kernel."""
        size = self.model.ranks
        record = {
            "Collective name": name,
            "Process Group Name": group[:4],
            "Process Group Description": group,
            "Process Group Ranks": str(list(range(size))),
            "Group size": size,
            "dtype": "BFloat16",
            **args,
        }
        with self.around("cpu_op", "record_param_comms", **record):
            self.launch("ncclDevKernel_SendRecv(ncclDevComm*)", stream=9)

    def exchange(self, sent: Sequence[int], received: Sequence[int], kernel: str) -> None:
        """An all-to-all of tokens."""
        with self.node("_AllToAll", "_AllToAllBackward", {}) as done:
            if self.model.exchange in _EXCHANGE_KERNELS:
                name = _EXCHANGE_KERNELS[self.model.exchange][kernel]
                self.launch(name, stream=9)
                done.append((self.model.exchange, name, 0, {}))
                return
            args = {
                "In msg nelems": sum(sent) * HIDDEN,
                "Out msg nelems": sum(received) * HIDDEN,
                "In split size": str(list(sent)),
                "Out split size": str(list(received)),
            }
            with self.around("cpu_op", "c10d::alltoall_base_"):
                self.collective("all_to_allv", "EXPERT_MODEL_PARALLEL_GROUP", args)
            done.append(("c10d::alltoall_base_", "", 0, args))

    def norm(self) -> None:
        if self.model.fused_norm:
            self.op("aten::_fused_rms_norm", "vectorized_layer_norm_kernel", grad="FusedRmsNormBackward0")
            return
        for name in ("pow", "mean", "rsqrt", "mul"):
            self.op(f"aten::{name}", f"vectorized_elementwise_{name}", grad=f"{name.title()}Backward0")

    def attention(self) -> None:
        size = self.model.tokens
        self.mm(size, HIDDEN, 3 * HIDDEN)
        self.op("aten::_flash_attention_forward", "flash_fwd_kernel", grad="FlashAttentionBackward0")
        self.mm(size, HIDDEN, HIDDEN)
        self.add()

    def mlp(self, rows: int, ns: int = 0, inner: int = INNER) -> None:
        self.mm(rows, HIDDEN, 2 * inner, ns)
        self.op("aten::silu", "vectorized_elementwise_silu", grad="SiluBackward0")
        self.mm(rows, inner, HIDDEN, ns)

    def shared(self) -> None:
        with self.part("shared expert"):
            self.mlp(self.model.tokens, inner=48)

    def route(self) -> None:
        model = self.model
        shapes = [[model.tokens, model.experts], [], [], [], []]
        values = ["", str(model.chosen), "-1", "True", "True"]
        with self.part("router"):
            if model.router == "early":
                self.op("aten::topk", "gatherTopK", shapes=shapes, values=values)
            for _ in range(2 if model.router == "layers" else 0):
                self.mm(model.tokens, HIDDEN, HIDDEN)
                self.op("aten::gelu", "vectorized_elementwise_gelu", grad="GeluBackward0")
            self.mm(model.tokens, HIDDEN, model.experts)
            if model.router == "early":
                self.op("aten::sigmoid", "vectorized_elementwise_sigmoid", grad="SigmoidBackward0")
                self.op("aten::gather", "_scatter_gather_kernel", grad="GatherBackward0")
                return
            if model.router == "maxima":
                for _ in range(model.chosen):
                    self.op("aten::max", "reduce_kernel", grad="MaxBackward0")
                    self.op("aten::masked_fill", "vectorized_elementwise_masked_fill")
                    self.op("aten::_softmax", "softmax_warp_forward", grad="SoftmaxBackward0")
                    self.op("aten::gather", "_scatter_gather_kernel", grad="GatherBackward0")
                return
            if model.fused_router:
                self.op(
                    "FusedTopk", "fused_topk_with_score_function_forward_kernel", grad="FusedTopkBackward"
                )
                return
            self.op("aten::_softmax", "softmax_warp_forward", grad="SoftmaxBackward0")
            self.op("aten::topk", "gatherTopK", grad="TopkBackward0", shapes=shapes, values=values)
            self.op("aten::scatter", "_scatter_gather_kernel", grad="ScatterBackward0")
            self.op("aten::sum", "reduce_kernel", grad="SumBackward0")
            self.op("aten::div", "vectorized_elementwise_div", grad="DivBackward0")

    def permute(self) -> None:
        with self.part("permute"):
            if self.model.fused_permute:
                self.op("moe_permute", "_row_id_map_pass_1_kernel", "_permute_kernel", grad="PermuteBackward")
                return
            self.op("aten::sort", "radix_sort_onesweep", "radix_sort_scan")
            self.op("aten::nonzero", "flag_nonzero", waits=self.model.sizes_to_host)
            self.op("aten::index", "index_elementwise_kernel", grad="IndexBackward0")

    def unpermute(self) -> None:
        with self.part("permute"):
            if self.model.fused_permute:
                self.op("moe_unpermute", "_unpermute_kernel", grad="UnpermuteBackward")
                return
            self.op("aten::index_add_", "indexFuncLargeIndex", grad="IndexAddBackward0")

    def dispatch(self, rows: Sequence[int]) -> None:
        size = self.model.ranks
        self.received = _parts(sum(rows), size)
        self.sent = _parts(self.model.tokens * self.model.chosen, size)
        if self.model.exchange == "none":
            return
        with self.part("dispatch"):
            if self.model.exchange == "deep_ep":
                self.op("deep_ep_layout", "void deep_ep::intranode::notify_dispatch<8>(int const*)")
            elif self.model.sizes_to_host:
                self.op("aten::copy_", waits=True)
            self.exchange(self.sent, self.received, "dispatch")

    def combine(self) -> None:
        if self.model.exchange != "none":
            with self.part("combine"):
                self.exchange(self.received, self.sent, "combine")

    def compute(self, rows: Sequence[int]) -> None:
        with self.part("experts"):
            if self.model.loop:
                self.cut(rows, HIDDEN)
                for number in rows:
                    if number:
                        self.mlp(number, number * ROW_NS)
                return
            total = sum(rows)
            for depth, columns in ((HIDDEN, 2 * INNER), (INNER, HIDDEN)):
                kernel, ns = "void cutlass::device_kernel<GroupProblemShape>", total * ROW_NS
                if self.model.split:  # as Transformer Engine
                    arguments = self.arguments([[total, depth], *[[columns, depth]] * len(rows)], ())
                    with self.node("_GroupedLinear", "_GroupedLinearBackward", arguments) as done:
                        self.cut(rows, depth)
                        self.launch(kernel, ns)
                        done.append(("_GroupedLinear", kernel, ns, {}))
                else:
                    shapes = [[total, depth], [len(rows), depth, columns], [len(rows)]]
                    arguments = self.arguments(shapes, ())
                    with self.node("aten::_grouped_mm", "GroupedMmBackward0", arguments) as done:
                        if self.model.fallback:
                            with self.around("cpu_op", "aten::_to_copy"):
                                self.op("aten::copy_", waits=True)
                        self.launch(kernel, ns)
                        done.append(("aten::_grouped_mm", kernel, ns, {}))
                self.op("aten::silu", "vectorized_elementwise_silu", grad="SiluBackward0")

    def cut(self, rows: Sequence[int], depth: int) -> None:
        """The rows of each expert as views of all rows."""
        if self.model.split:
            shapes, values = [[sum(rows), depth], [], []], ["", str(list(rows)), "0"]
            self.op("aten::split_with_sizes", shapes=shapes, values=values)

    def moe(self) -> None:
        """One MoE layer."""
        rows = self.model.rows_of(self.rank, self.micro_batch, self.layer)
        with self.part("layer"):
            if self.model.shared == "before":
                self.shared()
            self.route()
            self.permute()
            self.dispatch(rows)
            self.compute(rows)
            self.combine()
            self.unpermute()
            if self.model.shared == "after":
                self.shared()
            if self.model.shared:
                self.last = "shared expert" if self.model.shared == "after" else "permute"
                with self.part(self.last):
                    self.add()

    def add(self) -> None:
        self.op("aten::add", "vectorized_elementwise_add", grad="AddBackward0")

    def block(self, layer: int) -> None:
        """One transformer layer, dense for a negative number."""
        self.layer = layer
        self.norm()
        self.attention()
        self.norm()
        if layer < 0:
            self.mlp(self.model.tokens)
        else:
            self.moe()
        # Nothing but a frame tells the addition of the residual from that of the shared expert's output, so
        # without frames both are taken for the end of the layer.
        unnamed = self.model.naming == "none" or (self.model.bare_threads and self.tid != 1)
        self.stage = self.last if unnamed and layer >= 0 else ""
        self.add()
        self.layer, self.stage = -1, ""

    def forward(self, micro_batch: int) -> list[list[_Op]]:
        """One micro-batch forward; the tapes of its head, its layers and its end."""
        self.micro_batch, self.phase, self.tid = micro_batch, "forward", 1
        tapes: list[list[_Op]] = []
        self.tape = []
        if self.model.messages:
            self.message("recv")
        else:
            self.op("aten::embedding", "vectorized_gather_kernel", grad="EmbeddingBackward0")
        tapes.append(self.tape)
        for layer in [*range(-len(self.model.dense), 0), *range(self.model.layers)]:
            self.tape = []
            self.graph = layer not in self.again_in()
            with ExitStack() as region:
                if not self.graph:
                    self.sequence += 1
                    self.regions[micro_batch, layer] = self.sequence
                    region.enter_context(
                        self.around("cpu_op", "CheckpointFunction", **{"Sequence number": self.sequence})
                    )
                self.block(layer)
            self.graph = True
            tapes.append(self.tape)
        self.tape = []
        self.norm()
        if self.model.messages:
            self.message("send")
        else:
            self.mm(self.model.tokens, HIDDEN, VOCABULARY)
            self.op("aten::_log_softmax", "cunn_SoftMaxForward", grad="LogSoftmaxBackward0")
        return [*tapes, self.tape]

    def message(self, name: str) -> None:
        ranks = list(self.model.pipeline) or [self.rank, self.rank + self.model.ranks]
        group = {"Process Group Ranks": str(ranks), "Group size": len(ranks)}
        sizes = {"In msg nelems": 8, "Out msg nelems": 8}
        self.collective(name, "PIPELINE_MODEL_PARALLEL_GROUP", group | sizes)

    def backward(self, micro_batch: int, tapes: list[list[_Op]]) -> None:
        """The same micro-batch backward, in autograd's thread."""
        self.micro_batch, self.tid = micro_batch, 2
        self.run_back(tapes[-1], -1)
        layers = [*range(-len(self.model.dense), 0), *range(self.model.layers)]
        for layer, tape in zip(reversed(layers), reversed(tapes[1:-1]), strict=True):
            if layer not in self.again_in():
                self.run_back(tape, layer)
                continue
            reentrant = self.model.recompute == "reentrant"
            name = "CheckpointFunctionBackward" if reentrant else "MmBackward0"
            args = {"Sequence number": self.regions[micro_batch, layer], "Fwd thread id": 1}
            with ExitStack() as node:
                node.enter_context(self.around("cpu_op", _EVALUATE + name))
                node.enter_context(self.around("cpu_op", name, **args))
                if reentrant:
                    self.run_back(self.again(layer), layer)
                    continue
                if self.model.recompute == "hooks":
                    frame = "torch/utils/checkpoint.py(1): recompute_fn"
                    node.enter_context(self.around("python_function", frame))
                first = self.again(layer)
            self.run_back(first, layer)
        self.run_back(tapes[0], -1)
        self.tid = 1

    def again_in(self) -> Sequence[int]:
        """The layers that are computed again."""
        if not self.model.recompute:
            return ()
        layers = range(-len(self.model.dense), self.model.layers)
        return layers if self.model.recomputed is None else self.model.recomputed

    def again(self, layer: int) -> list[_Op]:
        """A layer's forward pass once more."""
        self.phase, self.tape = "recompute", []
        self.block(layer)
        return self.tape

    def run_back(self, tape: list[_Op], layer: int) -> None:
        self.phase, self.layer = "backward", layer
        for op in reversed(tape):
            self.stage = op.stage
            with self.around("cpu_op", _EVALUATE + op.grad):
                args = {"Sequence number": op.sequence, "Fwd thread id": op.tid}
                with self.around("cpu_op", op.grad, **args):
                    for name, kernel, ns, more in op.kernels:
                        self.one_back(name, kernel, ns, more)
            if op.grad == "MmBackward0":
                self.accumulate()
            self.stage = ""
        self.layer = -1

    def one_back(self, name: str, kernel: str, ns: int, more: dict[str, Any]) -> None:
        if name == "c10d::alltoall_base_":
            with self.around("cpu_op", name):
                self.collective("all_to_allv", "EXPERT_MODEL_PARALLEL_GROUP", more)
        elif name == "deep_ep":
            self.launch(kernel, stream=9)
        else:
            for _ in range(2 if name == "aten::mm" else 1):
                with self.around("cpu_op", name):
                    self.launch(kernel, ns)

    def accumulate(self) -> None:
        """What autograd does with the gradient of a weight: no forward op is behind it."""
        name = "torch::autograd::AccumulateGrad"
        with self.around("cpu_op", _EVALUATE + name), self.around("cpu_op", name):
            with self.around("cpu_op", "aten::add_"):
                self.launch("vectorized_elementwise_add")
            if self.model.sync:
                before, self.stage = self.stage, ""
                self.collective("_reduce_scatter_base", "DATA_PARALLEL_GROUP", {"In msg nelems": 8})
                self.stage = before


class AddedUp(Recorder):
    """Without an exchange: all ranks have all tokens, and what experts and shared expert give is added up.

    The gradients of what each rank computes a part of are added up by ops that do nothing in forward.
    """

    def moe(self) -> None:
        self.route()
        self.add_up_gradients("dispatch")
        self.permute()
        self.compute(self.model.rows_of(self.rank, self.micro_batch, self.layer))
        self.unpermute()
        with self.part("combine"):
            self.add_up()
        self.add_up_gradients("combine")
        self.shared()
        self.last = "combine"
        with self.part("combine"):
            self.add_up()
            self.add()

    def add_up(self) -> None:
        size = self.model.tokens * HIDDEN
        self.collective("allreduce", "mesh_tp", {"In msg nelems": size, "Out msg nelems": size})

    def add_up_gradients(self, stage: str) -> None:
        with self.part(stage), self.node("_AllReduceBackward", "_AllReduceBackwardBackward", {}) as done:
            done.append(("c10d::allreduce_", "", 0, {}))

    def one_back(self, name: str, kernel: str, ns: int, more: dict[str, Any]) -> None:
        if name == "c10d::allreduce_":
            self.add_up()
        else:
            super().one_back(name, kernel, ns, more)


class Masked(AddedUp):
    """Each rank has four of eight experts, and grouped GEMMs leave out the rows of the others."""

    gemm_ns = KERNEL_NS

    def compute(self, rows: Sequence[int]) -> None:
        chosen = self.model.tokens * self.model.chosen
        with self.part("permute"):
            shapes, values = [[chosen], [], [], []], ["", "4", "0", "3"]
            self.op("aten::histc", "kernelHistogram1D", shapes=shapes, values=values)
        with self.part("experts"):
            for depth, columns in ((HIDDEN, 2 * INNER), (INNER, HIDDEN)):
                kernel = "void cutlass::device_kernel<GroupProblemShape>"
                shapes = [[chosen, depth], [4, depth, columns], [4]]
                self.op(
                    "aten::_grouped_mm", kernel, grad="GroupedMmBackward0", ns=self.gemm_ns, shapes=shapes
                )


def masked(rank: int, gemm_ns: int) -> Trace:
    """One of two ranks that mask rows, whose expert GEMMs take as long."""
    recorder = Masked(Model(ranks=2, loop=False), rank)
    recorder.gemm_ns = gemm_ns
    recorder.backward(0, recorder.forward(0))
    return as_trace(recorder)


def recorded(model: Model) -> tuple[Run, Counter[Key]]:
    """A run of such a model, and the ns of each stage."""
    recorders = [record(model, rank) for rank in range(model.ranks)]
    truth: Counter[Key] = Counter()
    for recorder in recorders:
        truth.update(recorder.truth)
    return make_run(as_trace(recorder) for recorder in recorders), truth


def record(model: Model, rank: int = 0) -> Recorder:
    """What one rank records of a step."""
    recorder = Recorder(model, rank)
    tapes: dict[int, list[list[_Op]]] = {}
    with recorder.around("user_annotation", "ProfilerStep#1"):
        for turn in model.order.split():
            micro_batch = int(turn[1:])
            if turn[0] == "F":
                tapes[micro_batch] = recorder.forward(micro_batch)
            else:
                recorder.backward(micro_batch, tapes.pop(micro_batch))
    return recorder


def as_trace(recorder: Recorder) -> Trace:
    """The record as a trace, through a file and the real parser."""
    return read(recorder.events, rank=recorder.rank)


def _parts(total: int, number: int) -> list[int]:
    """A total in parts that differ by 1 at most."""
    return [total // number + (index < total % number) for index in range(number)]
