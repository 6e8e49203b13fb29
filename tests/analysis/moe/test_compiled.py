"""Models compiled as one region: the backward graph has no forward ops, so that sizes tell its stages.

The compiler fills the buffers of all layers first and leaves weight gradients of the experts for the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any, NamedTuple

import pytest

from tests.analysis.moe.test_moe import times
from tests.analysis.moe_traces import KERNEL_NS, Model, Recorder, as_trace
from tests.builders import records
from tracelens import analyze
from tracelens.analysis.moe import UNATTRIBUTED_NAME
from tracelens.compare.diff import diff
from tracelens.table import Result
from tracelens.trace import Run, make_run

GEMM, GROUPED, NORM = (
    "nvjet_sm90_tst_256x128",
    "cutlass::device_kernel_grouped",
    "triton_red_fused_mean_mul_pow_rsqrt",
)
BATCH = 2


class Sizes(NamedTuple):
    """Of a model; `inner` is the width between the expert GEMMs, `shared` and `heads` are of other parts."""

    tokens: int = 64
    experts: int = 8
    top_k: int = 2
    hidden: int = 48
    inner: int = 20
    shared: int = 56
    heads: int = 72
    words: int = 1500

    @property
    def rows(self) -> int:
        return self.tokens * self.top_k


def drawn(seed: int) -> Sizes:
    """Different numbers, any of which may be the larger one."""
    random = Random(seed)
    hidden, inner, shared, heads, experts = random.sample(range(4, 120, 2), 5)
    inner += hidden == 2 * inner  # else a row of the experts has the size of a token
    return Sizes(random.choice((122, 256)), experts, random.randint(2, 4), hidden, inner, shared, heads)


class Compiled:
    """Records a step of a model whose layers are one compiled region, or one region each."""

    def __init__(
        self,
        sizes: Sizes,
        layers: int = 2,
        shapes: bool = True,
        messages: bool = False,
        generated_ops: bool = True,
    ) -> None:
        self.sizes, self.layers, self.messages, self.generated_ops = sizes, layers, messages, generated_ops
        self.recorder = Recorder(Model(shapes=shapes, ranks=2 if messages else 1), 0)
        self.unknown_ns = self.backward_ns = 0

    def run(self, regions: int = 1) -> Run:
        recorder = self.recorder
        each = self.layers // regions
        parts = [range(each * number, each * (number + 1)) for number in range(regions)]
        with recorder.around("user_annotation", "ProfilerStep#1"):
            for number, layers in enumerate(parts):
                with recorder.around("cpu_op", "CompiledFunction", **{"Sequence number": number + 1}):
                    for layer in layers:
                        self.forward(layer)
                    self.norm()
                    self.gemm((self.sizes.tokens, self.sizes.hidden), (self.sizes.hidden, self.sizes.words))
            recorder.tid, recorder.phase = 2, "backward"
            for number, layers in reversed(list(enumerate(parts))):
                name = "CompiledFunctionBackward"
                args: dict[str, Any] = {"Sequence number": number + 1, "Fwd thread id": 1}
                engine = recorder.around("cpu_op", f"autograd::engine::evaluate_function: {name}", **args)
                args |= recorder.arguments([[self.sizes.tokens, self.sizes.shared]], [])
                with engine, recorder.around("cpu_op", name, **args):
                    before = self.busy()
                    self.backward(layers)
                    self.backward_ns += self.busy() - before
            recorder.tid = 1
        return make_run([as_trace(recorder)])

    def busy(self) -> int:
        return sum(end - start for _, start, end in self.recorder.kernels)

    @contextmanager
    def stage(self, name: str, layer: int) -> Iterator[None]:
        self.recorder.layer = layer
        with self.recorder.part(name) if name else ExitStack():
            yield
        self.recorder.layer = -1

    @contextmanager
    def unknown(self) -> Iterator[None]:
        before = self.busy()
        yield
        self.unknown_ns += self.busy() - before

    def gemm(self, *shapes: tuple[int, ...], name: str = "aten::mm") -> None:
        kernel = GROUPED if "grouped" in name else GEMM
        self.recorder.op(name, kernel, ns=3_001 + 7 * self.recorder.number, shapes=list(map(list, shapes)))

    def fused(self, name: str, *shapes: tuple[int, ...]) -> None:
        if self.recorder.phase == "backward" and not self.generated_ops:
            with self.recorder.part("layer"):
                self.recorder.launch(f"triton_{name}")
            return
        dims: list[Any] = [*map(list, shapes), []]
        self.recorder.op(f"triton_{name}", f"triton_{name}", ns=1_003 + 5 * self.recorder.number, shapes=dims)

    def message(self, sent: int, received: int) -> None:
        args = {"In msg nelems": sent * self.sizes.hidden, "Out msg nelems": received * self.sizes.hidden}
        self.recorder.collective("all_to_allv", "EXPERT_MODEL_PARALLEL_GROUP", args)

    def norm(self) -> None:
        size = self.sizes
        dims = [[BATCH, size.tokens // BATCH, size.hidden], [size.hidden], []]
        self.recorder.op(NORM, NORM, shapes=dims)

    def forward(self, layer: int) -> None:
        tokens, experts, top_k, hidden, inner, shared, heads, _ = size = self.sizes
        self.norm()
        self.gemm((tokens, hidden), (hidden, heads))
        self.recorder.op(
            "aten::_flash_attention_forward", "flash_fwd", shapes=[[BATCH, tokens // BATCH, 3, heads // 2]]
        )
        self.gemm((tokens, heads), (heads, hidden))
        self.norm()
        with self.stage("router", layer):
            self.gemm((tokens, hidden), (hidden, experts))
            self.fused("per_fused__softmax", (tokens, experts))
            shapes: list[list[int]] = [[tokens, experts], [], [], [], []]
            self.recorder.op(
                "aten::topk", "gatherTopK", shapes=shapes, values=["", str(top_k), "-1", "True", "True"]
            )
        with self.stage("permute", layer):
            self.recorder.op("aten::sort", "radix_sort", shapes=[[size.rows], [], []])
            self.fused("poi_fused_index_put", (size.rows,), (tokens, top_k))
        with self.stage("shared expert", layer):
            self.gemm((tokens, hidden), (hidden, shared))
            self.fused("poi_fused_silu", (BATCH, tokens // BATCH, shared))
            self.gemm((tokens, shared), (shared, hidden))
        with self.stage("permute", layer):
            self.recorder.op(
                "aten::index", "index_elementwise_kernel", shapes=[[tokens, hidden], [size.rows]]
            )
        if self.messages:
            with self.stage("dispatch", layer):
                self.message(size.rows + layer, size.rows)
        with self.stage("experts", layer):
            self.gemm((size.rows, hidden), (experts, hidden, 2 * inner), (experts,), name="aten::_grouped_mm")
            self.fused("poi_fused_silu_split", (size.rows, 2 * inner), (size.rows, inner))
            self.gemm((size.rows, inner), (experts, inner, hidden), (experts,), name="aten::_grouped_mm")
        if self.messages:
            with self.stage("combine", layer):
                self.message(size.rows, size.rows + layer)

    def backward(self, layers: range) -> None:
        tokens, experts, _, hidden, inner, _, _, words = size = self.sizes
        for layer in reversed(layers):
            with self.stage("router", layer):
                self.fused("poi_fused_zeros_0", (tokens, experts))
        for layer in reversed(layers):
            with self.stage("permute", layer):
                self.fused("poi_fused_new_zeros_1", (size.rows,))
        with self.unknown():
            self.fused("poi_fused_new_zeros_2", (tokens, hidden))
        self.gemm((tokens, words), (words, hidden))
        self.gemm((words, tokens), (tokens, hidden))
        for layer in reversed(layers):
            self.layer_backward(layer)
        for layer in reversed(layers):
            with self.stage("experts", layer):
                self.gemm((2 * inner, size.rows), (size.rows, hidden), (experts,), name="aten::_grouped_mm")

    def layer_backward(self, layer: int) -> None:
        tokens, experts, top_k, hidden, inner, shared, heads, _ = size = self.sizes
        if self.messages:
            with self.stage("combine", layer):
                self.message(size.rows + layer, size.rows)
        with self.stage("shared expert", layer):
            self.gemm((hidden, tokens), (tokens, shared))
            self.gemm((tokens, hidden), (hidden, shared))
            self.fused("poi_fused_silu_backward", (tokens, shared), (BATCH, tokens // BATCH, shared))
            self.gemm((shared, tokens), (tokens, hidden))
        with self.stage("permute", layer):
            self.fused(
                "poi_fused_clone_expand", (size.rows,), (BATCH, tokens // BATCH, hidden), (size.rows, hidden)
            )
            self.fused("red_fused_mul_sum", (size.rows, hidden), (size.rows, 1))
        with self.stage("router", layer):
            self.fused("poi_fused_mul_scatter", (tokens, top_k), (size.rows,), (tokens, experts))
            self.gemm((experts, tokens), (tokens, hidden))
            self.gemm((tokens, experts), (experts, hidden))
        with self.stage("experts", layer):
            self.gemm((size.rows, hidden), (experts, hidden, inner), (experts,), name="aten::_grouped_mm")
            self.fused(
                "poi_fused_cat_silu_backward", (size.rows, 2 * inner), (size.rows, inner), (size.rows, 1)
            )
            self.gemm(
                (size.rows, 2 * inner), (experts, 2 * inner, hidden), (experts,), name="aten::_grouped_mm"
            )
        if self.messages:
            with self.stage("dispatch", layer):
                self.message(size.rows, size.rows + layer)
        with self.stage("permute", layer):
            self.fused("poi_fused_index_put", (size.rows,), (size.rows, hidden), (tokens, hidden))
        with self.unknown():
            self.fused("per_fused_mul_pow_sum", (BATCH, tokens // BATCH, hidden), (hidden,), (tokens, hidden))
        self.gemm((hidden, tokens), (tokens, heads))
        attention = [[BATCH, tokens // BATCH, 3, heads // 2]]
        self.recorder.op("aten::_flash_attention_backward", "flash_bwd", shapes=attention)
        self.gemm((heads, tokens), (tokens, hidden))
        with self.stage("experts", layer):
            self.gemm((hidden, size.rows), (size.rows, inner), (experts,), name="aten::_grouped_mm")


def stage_rows(result: Result) -> dict[str, int]:
    """Backward ns of each row of the stages that has any."""
    return {name: ns for name, ns in records(result["stages"], "stage", "backward_ns") if ns}


@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize("seed", range(12))
def test_each_kernel_of_one_graph_is_in_its_stage_and_layer(seed: int, layers: int) -> None:
    model = Compiled(drawn(seed), layers)
    result = analyze(model.run(), "moe")
    assert times(result) == model.recorder.truth
    assert stage_rows(result)[UNATTRIBUTED_NAME] == model.unknown_ns
    assert set(result["layers"]["layer"]) == set(range(layers))


def test_a_region_a_layer() -> None:
    model = Compiled(Sizes(), layers=3)
    assert times(analyze(model.run(regions=3), "moe")) == model.recorder.truth


def test_messages_come_back_from_the_last_to_the_first() -> None:
    model = Compiled(Sizes(), layers=3, messages=True)
    result = analyze(model.run(), "moe")
    assert times(result) == model.recorder.truth
    assert {"dispatch", "combine"} <= set(stage_rows(result))


def test_layers_are_not_stretched_over_the_graph() -> None:
    """A layer's first and last backward work enclose that of all others: its time is that of its own."""
    model = Compiled(Sizes(), layers=2)
    passes = analyze(model.run(), "moe")["passes"]
    backward = passes[passes["phase"] == "backward"]
    own_ns = [ns for (*_, phase, _), ns in model.recorder.truth.items() if phase == "backward"]
    assert sum(backward["dur_ns"]) == sum(own_ns) + sum(backward["idle_ns"])


def test_without_shapes_all_backward_work_is_one_row() -> None:
    model = Compiled(Sizes(), shapes=False)
    result = analyze(model.run(), "moe")
    assert stage_rows(result) == {UNATTRIBUTED_NAME: model.backward_ns}
    assert set(result["passes"]["phase"]) == {"forward"}


def test_sizes_of_two_stages_tell_none() -> None:
    """Here the shared expert is as wide as the attention: what is of no other size is not guessed."""
    plain = Sizes()
    same = Compiled(plain._replace(heads=plain.shared))
    result = stage_rows(analyze(same.run(), "moe"))
    assert "shared expert" not in result
    of_shared = sum(ns for key, ns in same.recorder.truth.items() if key[3:] == ("backward", "shared expert"))
    assert result[UNATTRIBUTED_NAME] >= same.unknown_ns + of_shared


def test_metrics_of_steps_and_rows_of_a_diff_follow() -> None:
    model, bare = Compiled(Sizes()), Compiled(Sizes(), shapes=False)
    run, other = model.run(), bare.run()
    metrics = dict(records(analyze(run, "steps")["metrics"], "metric", "value"))
    truth = model.recorder.truth
    for stage in ("router", "permute", "experts", "shared expert"):
        expected = sum(ns for key, ns in truth.items() if key[4] == stage)
        assert metrics[f"moe.{stage.replace(' ', '_')}.time"] == expected
    assert metrics["moe.compiled_unknown.time"] == model.unknown_ns
    assert metrics["moe.time"] == truth.total()
    rows = diff(run, other)["waterfall"].to_dict("records")
    stages = {row["name"]: (row["base_ns"], row["cand_ns"]) for row in rows if row["level"] == "stage"}
    assert stages[UNATTRIBUTED_NAME] == (model.unknown_ns, bare.backward_ns)
    assert stages["experts"][0] == sum(ns for key, ns in truth.items() if key[4] == "experts")


def test_backward_without_its_forward_op_is_one_row() -> None:
    """As where the forward pass was not recorded. Only of attention its kind says that it lies outside."""
    model = Compiled(Sizes())
    model.run()
    for event in model.recorder.events:
        if event["name"].endswith("CompiledFunctionBackward"):
            event["args"]["Sequence number"] = 99
    result = analyze(make_run([as_trace(model.recorder)]), "moe")
    assert stage_rows(result) == {UNATTRIBUTED_NAME: model.backward_ns - model.layers * KERNEL_NS}


def test_kernels_without_ops_of_their_own_are_in_no_stage() -> None:
    """Older versions record no op for generated kernels: around these is the graph with its own arguments."""
    model = Compiled(Sizes(), generated_ops=False)
    result = analyze(model.run(), "moe")
    assert times(result) == model.recorder.truth
    assert stage_rows(result)[UNATTRIBUTED_NAME] > model.unknown_ns
    assert "stages of some compiled backward work" in [skip.subject for skip in result.skips]


def test_ops_that_not_every_layer_has_are_of_a_stage_without_a_layer() -> None:
    model = Compiled(Sizes())
    before, rows = model.layer_backward, model.sizes.rows

    def more(layer: int) -> None:
        before(layer)
        if layer == 0:
            with model.stage("experts", layer):
                model.gemm(
                    (model.sizes.hidden, rows), (rows, model.sizes.inner), (8,), name="aten::_grouped_mm"
                )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "layer_backward", more)
        result = analyze(model.run(), "moe")
    experts_ns = sum(ns for key, ns in model.recorder.truth.items() if key[3:] == ("backward", "experts"))
    assert stage_rows(result)["experts"] == experts_ns
    assert sum(ns for key, ns in times(result).items() if key[3:] == ("backward", "experts")) < experts_ns
    assert "layers of some compiled backward work" in [skip.subject for skip in result.skips]
