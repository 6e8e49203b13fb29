"""Programs that are no MoE model, and MoE models that are written in other ways."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from tests.analysis.moe.test_moe import SHARED, agrees, times
from tests.analysis.moe_traces import (
    FRAMES,
    HIDDEN,
    KERNEL_NS,
    VOCABULARY,
    AddedUp,
    Key,
    Model,
    Recorder,
    as_trace,
    record,
)
from tests.builders import draw, records
from tracelens import analyze
from tracelens.table import Result
from tracelens.trace import make_run


def analyzed(program: Callable[[Recorder], None], **model: Any) -> Result:
    """The analysis of what a program launches on one rank."""
    recorder = Recorder(Model(**model), 0)
    program(recorder)
    return analyze(make_run([as_trace(recorder)]), "moe")


def is_dense(result: Result) -> bool:
    """Whether no MoE layer was found; why that is so must be said."""
    assert [skip.reason for skip in result.skips] == ["no MoE layer: no router followed by experts"]
    return not len(result["passes"])


# What is no MoE layer


def test_a_dense_model_with_a_choice_of_words() -> None:
    def program(recorder: Recorder) -> None:
        recorder.model = Model(layers=0, dense="dd", order="F0 B0")
        tapes = recorder.forward(0)
        choose(recorder, 8, VOCABULARY)
        recorder.op("aten::gather", "_scatter_gather_kernel")
        recorder.backward(0, tapes)

    assert is_dense(analyzed(program))


def choose(
    recorder: Recorder, rows: int, columns: int, top_k: int = 2, shape: Any = None, dim: int = -1
) -> None:
    shapes = [shape or [rows, columns], [], [], [], []]
    values = ["", str(top_k), str(dim), "True", "True"]
    recorder.op("aten::topk", "gatherTopK", grad="TopkBackward0", shapes=shapes, values=values)


@pytest.mark.parametrize("words", [256, 50_000])
def test_sampling_among_the_likeliest(words: int) -> None:
    """Also where the words are so few that they could be experts."""

    def program(recorder: Recorder) -> None:
        for _ in range(3):
            recorder.op("aten::embedding", "vectorized_gather_kernel")
            recorder.block(-1)
            recorder.norm()
            recorder.mm(8, HIDDEN, words)
            choose(recorder, 8, words)
            for name in ("scatter", "_softmax", "multinomial", "cat"):
                recorder.op(f"aten::{name}", f"{name}_kernel")

    assert is_dense(analyzed(program))


def test_the_best_classes_of_images() -> None:
    """A convolution may be a matrix product on the GPU; no norm lies between it and the choice before."""

    def program(recorder: Recorder) -> None:
        for _ in range(3):
            recorder.op("aten::miopen_convolution", "Cijk_Alik_Bljk_BBS_BH")
            recorder.mm(8, HIDDEN, HIDDEN)
            recorder.block(-1)
            recorder.norm()
            recorder.mm(8, HIDDEN, 100)
            choose(recorder, 8, 100)
            recorder.op("aten::index", "index_elementwise_kernel")

    assert is_dense(analyzed(program))


def test_images_and_texts_that_choose_each_other() -> None:
    def program(recorder: Recorder) -> None:
        for _ in range(2):
            recorder.block(-1)
            recorder.norm()
            for _ in range(2):
                recorder.mm(8, HIDDEN, 8)
                choose(recorder, 8, 8)
                recorder.op("aten::eq", "vectorized_elementwise_eq")
                recorder.op("aten::sum", "reduce_kernel")

    assert is_dense(analyzed(program))


@pytest.mark.parametrize("keys", [8, HIDDEN])
def test_attention_to_the_best_keys(keys: int) -> None:
    def program(recorder: Recorder) -> None:
        for _ in range(2):
            recorder.norm()
            recorder.mm(8, HIDDEN, 3 * HIDDEN)
            shapes = [[4, 8, 16], [4, 16, keys]]
            recorder.op("aten::bmm", "nvjet_scores", grad="BmmBackward0", shapes=shapes)
            choose(recorder, 8, keys, shape=[1, 4, 8, keys])
            recorder.op("aten::scatter", "_scatter_gather_kernel")
            recorder.op("aten::_softmax", "softmax_warp_forward")
            recorder.op("aten::bmm", "nvjet_values", shapes=[[4, 8, keys], [4, keys, 16]])
            recorder.mm(8, HIDDEN, HIDDEN)
            recorder.norm()
            recorder.mlp(8)

    assert is_dense(analyzed(program))


def test_graphs_hide_whether_there_are_experts() -> None:
    """Their kernels have no ops, so that a model is not said to have no MoE layers."""
    graphs = draw("""
        step 1                  | ----------
        launch cudaGraphLaunch  |  aa
        s7 gatherTopK           |     a
        s7 grouped_gemm         |      aa
    """)
    found = [skip.reason for skip in analyze(make_run([graphs]), "moe").skips]
    assert found == ["no MoE layer outside of graphs; --captures or --twin finds the ops in them"]


# What other programs do


def layers_of(result: Result) -> list[tuple[int, int]]:
    """(micro_batch, layer) of the forward passes."""
    passes = result["passes"]
    return records(passes[passes["phase"] == "forward"], "micro_batch", "layer")


def test_two_choices_of_groups_and_of_experts() -> None:
    """DeepSeek-V3: the best two of each group, the best groups, and then the best experts of these."""

    class Grouped(Recorder):
        def route(self) -> None:
            self.stage = "router"
            self.mm(8, HIDDEN, 8)
            self.op("aten::sigmoid", "vectorized_elementwise_sigmoid", grad="SigmoidBackward0")
            choose(self, 8, 4, shape=[8, 2, 4])
            self.op("aten::sum", "reduce_kernel")
            choose(self, 8, 2, top_k=1)
            self.op("aten::scatter_", "_scatter_gather_kernel")
            choose(self, 8, 8, top_k=3)
            self.op("aten::gather", "_scatter_gather_kernel", grad="GatherBackward0")
            self.stage = ""

    recorder = Grouped(Model(), 0)
    recorder.backward(0, recorder.forward(0))
    result = analyze(make_run([as_trace(recorder)]), "moe")
    assert times(result) == recorder.truth
    assert (result.meta["experts"], result.meta["top_k"]) == (8, 3)


def test_a_capacity_chooses_tokens_and_not_experts() -> None:
    class Capacity(Recorder):
        def route(self) -> None:
            super().route()
            self.stage = "router"
            choose(self, 8, 8, top_k=5, dim=0)
            self.stage = ""

    recorder = Capacity(Model(), 0)
    recorder.backward(0, recorder.forward(0))
    result = analyze(make_run([as_trace(recorder)]), "moe")
    assert times(result) == recorder.truth
    assert (result.meta["experts"], result.meta["top_k"]) == (8, 2)


def test_fused_ops_of_serving_have_other_arguments() -> None:
    class Serving(Recorder):
        def moe(self) -> None:
            self.stage = "router"
            self.mm(8, HIDDEN, 16)
            shapes = [[8, 2], [8, 2], [8, 2], [8, 16]]
            self.op("_moe_C::topk_softmax", "void vllm::moe::topkGatingSoftmax<4, 64, 4>", shapes=shapes)
            self.stage = "permute"
            self.op("_moe_C::moe_align_block_size", "void vllm::moe::moe_align_block_size_kernel<int>")
            self.stage = "experts"
            self.op("vllm::fused_experts", "fused_moe_kernel", "act_and_mul_kernel", "fused_moe_kernel")
            self.stage = "permute"
            self.op("_moe_C::moe_sum", "void vllm::moe::moe_sum_kernel<c10::BFloat16, 2>")
            self.stage = ""
            self.last = "permute"

    recorder = Serving(Model(), 0)
    recorder.forward(0)
    result = analyze(make_run([as_trace(recorder)]), "moe")
    assert layers_of(result) == [(0, 0), (0, 1)]
    assert times(result) == recorder.truth
    assert (result.meta["experts"], result.meta["top_k"]) == (16, None)


@pytest.mark.parametrize("top_k", [False, True], ids=["maxima", "top-k"])
@pytest.mark.parametrize("shared", SHARED)
def test_a_router_that_normalizes_what_it_makes_of_tokens(shared: Any, top_k: bool) -> None:
    """ZAYA: a narrow copy of the tokens has a norm of its own, and two layers choose by it."""

    class Narrow(Recorder):
        def route(self) -> None:
            with self.part("router"):
                self.mm(8, HIDDEN, 24)
                self.norm()
                self.mm(8, 24, 24)
                self.op("aten::gelu", "vectorized_elementwise_gelu", grad="GeluBackward0")
            with self.part("router"):
                self.mm(8, 24, 8)
                if top_k:
                    choose(self, 8, 8)
                else:
                    self.op("aten::max", "reduce_kernel", grad="MaxBackward0")

    recorder = Narrow(Model(shared=shared, fused_norm=False), 0)
    recorder.backward(0, recorder.forward(0))
    result = analyze(make_run([as_trace(recorder)]), "moe")
    assert times(result) == recorder.truth
    assert result.meta["experts"] == 8


@pytest.mark.parametrize("loop", [False, True], ids=["grouped", "loop"])
@pytest.mark.parametrize("shared", SHARED)
def test_experts_right_before_attention(shared: Any, loop: bool) -> None:
    """As where queries come from experts: keys, values and their rotation are no part of the MoE layer."""

    class Queries(Recorder):
        def block(self, layer: int) -> None:
            self.layer = layer
            self.norm()
            self.moe()
            self.layer = -1
            self.mm(8, HIDDEN, 3 * HIDDEN)
            for name in ("neg", "cat", "mul", "add"):
                self.op(f"aten::{name}", f"rotating_{name}", grad=f"{name.title()}Backward0")
            self.op("aten::_flash_attention_forward", "flash_fwd_kernel", grad="FlashAttentionBackward0")
            self.mm(8, HIDDEN, HIDDEN)

    recorder = Queries(Model(shared=shared, loop=loop), 0)
    recorder.backward(0, recorder.forward(0))
    assert times(analyze(make_run([as_trace(recorder)]), "moe")) == recorder.truth


@pytest.mark.parametrize("repeats", [False, True], ids=["sorted", "repeated"])
def test_all_experts_in_one_batch_of_products(repeats: bool) -> None:
    """GPT-OSS and Llama 4: every expert computes every token, or room for as many."""

    class Batched(Recorder):
        def permute(self) -> None:
            if not repeats:
                super().permute()
                return
            with self.part("router"):  # numbers, not tokens
                self.op("aten::repeat", "elementwise_kernel_copy", shapes=[[8], []])
            with self.part("permute"):
                shapes = [[8, HIDDEN], []]
                self.op("aten::repeat", "elementwise_kernel_copy", grad="RepeatBackward0", shapes=shapes)
                self.op("aten::mul", "elementwise_kernel_mul", grad="MulBackward0")

        def unpermute(self) -> None:
            if not repeats:
                super().unpermute()

        def compute(self, rows: Any) -> None:
            self.stage = "experts"
            for depth, columns in ((HIDDEN, 64), (32, HIDDEN)):
                shapes = [[8, 5, depth], [8, depth, columns]]
                self.op("aten::bmm", "nvjet_batch", grad="BmmBackward0", shapes=shapes)
            self.stage = ""

    recorder = Batched(Model(shared="after"), 0)
    recorder.backward(0, recorder.forward(0))
    result = analyze(make_run([as_trace(recorder)]), "moe")
    assert times(result) == recorder.truth
    assert result["layers"]["tokens"].tolist() == [40.0, 40.0]


@pytest.mark.parametrize("loop", [False, True], ids=["grouped", "loop"])
@pytest.mark.parametrize("shared", SHARED)
def test_a_batch_of_products_that_adds_up_what_experts_give(shared: Any, loop: bool) -> None:
    """As torchtitan's layers do, with one product a token: it is no product of experts."""

    class Weighted(Recorder):
        def unpermute(self) -> None:
            super().unpermute()
            with self.part("permute"):
                shapes = [[8, 1, 2], [8, 2, HIDDEN]]
                self.op("aten::bmm", "gemv2N_kernel", grad="BmmBackward0", shapes=shapes)

    recorder = Weighted(Model(shared=shared, loop=loop), 0)
    recorder.backward(0, recorder.forward(0))
    assert times(analyze(make_run([as_trace(recorder)]), "moe")) == recorder.truth


@pytest.mark.parametrize("naming", FRAMES)
def test_a_rank_to_which_no_token_came(naming: str) -> None:
    def rows(rank: int, _: int, layer: int) -> list[int]:
        return [8, 8, 8, 8] if rank != layer else [0, 0, 0, 0]

    result = agrees(Model(ranks=2, exchange="all_to_all", rows=rows, naming=naming))
    assert result.meta["layers"] == 2


def test_a_shared_expert_beside_the_exchange() -> None:
    """Its products are launched between dispatch and combine, and have other sizes."""

    class Beside(Recorder):
        def compute(self, rows: Any) -> None:
            self.stage = "shared expert"
            self.mm(8, HIDDEN, 96)
            super().compute(rows)
            self.stage = "shared expert"
            self.mm(8, 48, HIDDEN)
            self.stage = ""

    traces, truth = [], Counter[Key]()
    for rank in range(2):
        recorder = Beside(Model(ranks=2, exchange="all_to_all"), rank)
        recorder.backward(0, recorder.forward(0))
        traces.append(as_trace(recorder))
        truth.update(recorder.truth)
    result = analyze(make_run(traces), "moe")
    assert times(result) == truth
    assert set(result["layers"]["tokens"]) == {16.0}


@pytest.mark.parametrize("loop", [False, True], ids=["grouped", "loop"])
def test_experts_and_a_shared_expert_that_are_both_added_up(loop: bool) -> None:
    """Under tensor parallelism: what runs between two all-reduces is the shared expert."""
    traces, truth = [], Counter[Key]()
    for rank in range(2):
        recorder = AddedUp(Model(ranks=2, loop=loop), rank)
        recorder.backward(0, recorder.forward(0))
        traces.append(as_trace(recorder))
        truth.update(recorder.truth)
    result = analyze(make_run(traces), "moe")
    assert times(result) == truth
    assert set(result["layers"]["tokens"]) == {16.0}
    reasons = {skip.subject: skip.reason for skip in result.skips}
    assert reasons["balance between ranks"] == "no expert parallelism: no rank sends tokens to another"


@pytest.mark.parametrize("block", [False, True], ids=["siblings in the step", "siblings in the block"])
@pytest.mark.parametrize("shared", SHARED)
def test_scopes_without_one_around_the_layer(
    block: bool, shared: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {stage: name for stage, name in FRAMES["scopes"].items() if stage != "layer"}
    monkeypatch.setitem(FRAMES, "parts", names)

    class Block(Recorder):
        def block(self, layer: int) -> None:
            with self.around("python_function", "nn.Module: TransformerBlock_0"):
                super().block(layer)

    kind = Block if block else Recorder
    recorder = kind(Model(naming="parts", shared=shared, layers=3, order="F0 B0 F1 B1"), 0)
    with recorder.around("user_annotation", "ProfilerStep#1"):
        for micro_batch in (0, 1):
            recorder.backward(micro_batch, recorder.forward(micro_batch))
    result = analyze(make_run([as_trace(recorder)]), "moe")
    assert result.meta["layers"] == 3
    by_stage = times(result)
    # The residual's addition has no frame of its own; it is taken for the end of the last part.
    last = {(0, number, layer, phase, "shared expert" if shared == "after" else "permute")
            for number, layer, phase in product((0, 1), range(3), ("forward", "backward"))}  # fmt: skip
    assert by_stage == recorder.truth + Counter(dict.fromkeys(last, KERNEL_NS))


@pytest.mark.parametrize(
    "frame", ["nn.Module: FSDPTransformerBlock_0", "deepspeed/runtime/engine.py(1): forward"]
)
def test_a_wrapped_module_does_not_make_the_exchange_one_of_parameters(frame: str) -> None:
    class Wrapped(Recorder):
        def moe(self) -> None:
            with self.around("python_function", frame):
                super().moe()

    recorder = Wrapped(Model(exchange="all_to_all"), 0)
    recorder.backward(0, recorder.forward(0))
    assert times(analyze(make_run([as_trace(recorder)]), "moe")) == recorder.truth


@pytest.mark.parametrize(
    ("frame", "group"), [("FSDP::pre_forward (layers.0)", "mesh"), ("", "EXPERT_DATA_PARALLEL_GROUP")]
)
def test_parameters_that_are_gathered_within_a_layer_are_no_part_of_it(frame: str, group: str) -> None:
    class Sharded(Recorder):
        def compute(self, rows: Any) -> None:
            before, self.stage = self.stage, ""
            with self.around("user_annotation", frame or "something else"):
                self.collective("_allgather_base", group, {"In msg nelems": 8, "Out msg nelems": 16})
            self.stage = before
            super().compute(rows)

    recorder = Sharded(Model(exchange="all_to_all"), 0)
    recorder.backward(0, recorder.forward(0))
    assert times(analyze(make_run([as_trace(recorder)]), "moe")) == recorder.truth


def test_messages_of_ring_attention_do_not_end_a_micro_batch() -> None:
    class Ring(Recorder):
        def attention(self) -> None:
            super().attention()
            self.collective("send", "CONTEXT_PARALLEL_GROUP", {"In msg nelems": 8})

    recorder = Ring(Model(), 0)
    recorder.backward(0, recorder.forward(0))
    result = analyze(make_run([as_trace(recorder)]), "moe")
    assert times(result) == recorder.truth
    assert layers_of(result) == [(0, 0), (0, 1)]


def test_backward_work_of_one_micro_batch_between_the_layers_of_another() -> None:
    """1F1B overlap: while one micro-batch is exchanged, another is computed."""

    class Overlapped(Recorder):
        between: Any = None

        def block(self, layer: int) -> None:
            super().block(layer)
            if self.between:
                state = self.micro_batch, self.tape, self.phase, self.tid
                self.micro_batch, self.tid = 0, 2
                self.run_back(*self.between.pop())
                self.micro_batch, self.tape, self.phase, self.tid = state

    recorder = Overlapped(Model(), 0)
    _, *tapes, _ = recorder.forward(0)
    recorder.between = [(tape, layer) for layer, tape in enumerate(tapes)]
    recorder.backward(1, recorder.forward(1))
    result = analyze(make_run([as_trace(recorder)]), "moe")
    assert times(result) == recorder.truth
    assert layers_of(result) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_passes_beside_the_steps_do_not_count_for_a_step() -> None:
    recorder = record(Model(order="F0"))
    once = analyze(make_run([as_trace(recorder)]), "moe")
    recorder.wait()
    for number in (1, 2):
        recorder.forward(number)
    result = analyze(make_run([as_trace(recorder)]), "moe")
    assert layers_of(result) == [(0, 0), (0, 1), (0, 0), (0, 1), (1, 0), (1, 1)]
    assert result["stages"]["forward_ns"].tolist() == once["stages"]["forward_ns"].tolist()


def test_a_run_without_gpu_work_has_a_reason() -> None:
    def program(recorder: Recorder) -> None:
        with recorder.around("cpu_op", "aten::topk"):
            pass

    assert is_dense(analyzed(program))
