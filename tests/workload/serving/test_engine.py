"""The tokens that serving makes are those of the whole model, in every way that it may run."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the workload needs torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from tests.workload.agree import FLOAT32, relative_error  # noqa: E402
from tests.workload.ranks import run_ranks  # noqa: E402
from tests.workload.whole import STD, make_model  # noqa: E402
from tracelens.errors import TracelensError  # noqa: E402
from tracelens.planner.config import Config  # noqa: E402
from tracelens.workload.model import Transformer  # noqa: E402
from tracelens.workload.parallel import Groups  # noqa: E402
from tracelens.workload.serving import Serving, model_config, serving_preset  # noqa: E402
from tracelens.workload.serving.engine import (  # noqa: E402  # noqa: E402
    Ranks,
    ServingEngine,
    eager,
    make_ranks,
    overlapped,
    require,
)
from tracelens.workload.serving.model import BatchTensors, ServingModel, make_rows, numbers  # noqa: E402
from tracelens.workload.serving.plan import Batch, BatchPiece, halves  # noqa: E402
from tracelens.workload.serving.serve import ServeJob  # noqa: E402

CPU = torch.device("cpu")
TINY = replace(serving_preset("tiny"), requests=8, rate=2.0)
MODELS = {
    "mla": [],
    "mla_q_lora": ["q_lora=24"],
    "gqa": ["attention=gqa", "kv_groups=2", "head_dim=16"],
    "fused": ["permute=fused", "router=fused"],
    "groups": ["score=sigmoid", "expert_groups=4", "top_groups=2", "shared_ffn=0"],
}
PLAIN = {"mla": MODELS["mla"], "gqa": MODELS["gqa"]}


def config_of(name: str) -> Config:
    return model_config("tiny", MODELS[name], TINY)


def make_serving_model(config: Config, seed: int = 3) -> ServingModel:
    """With the weights of tests.workload.whole.make_model."""
    model = ServingModel(config, TINY.slots).eval()
    model.initialise(seed, STD)
    whole = dict(make_model(config, Groups(config.layout), seed).named_parameters())
    mine = dict(model.named_parameters())
    assert mine.keys() == whole.keys()
    for key, parameter in mine.items():
        if parameter.dim() == 1:
            parameter.data.copy_(whole[key].data)
        else:
            torch.testing.assert_close(parameter, whole[key], rtol=0, atol=0)
    return model


def full_logits(config: Config, tokens: list[int], seed: int = 3) -> Any:
    """Logits_SV of the model of training."""
    model = make_model(config, Groups(config.layout), seed).eval()
    padded = tokens + [0] * (config.training.seq - len(tokens))
    with torch.no_grad():
        return model(torch.tensor(padded)[:, None])[: len(tokens), 0]


def prompts(*lengths: int) -> list[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(5)
    return [tuple(torch.randint(256, (length,), generator=generator).tolist()) for length in lengths]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("how", ["off", "request", "token"])
def test_logits_of_prefill_and_decode_are_those_of_the_whole_sequence(name: str, how: Any) -> None:
    config = config_of(name)
    model = make_serving_model(config)
    sequences = prompts(9, 23, 14)
    slots = (2, 0, 3)

    def run(batch: Batch, prefill: bool) -> list[Any]:
        with torch.inference_mode():
            if how == "off":
                tokens = sum(len(one.tokens) for one in batch)
                return list(eager(model, make_rows(batch, prefill, CPU), tokens + 3))
            two = halves(batch, how)
            sizes = [sum(len(one.tokens) for one in half) for half in two]
            found = overlapped(model, [("ub0[tok=1]", two[0]), ("ub1[tok=1]", two[1])], prefill, sizes, CPU)
            order = [piece.slot for half in two for piece in half if piece.answers]
            return [found[order.index(piece.slot)] for piece in batch]

    # All but the last three tokens as a prompt, those one by one.
    lengths = [len(one) - 3 for one in sequences]
    begin = zip(slots, sequences, lengths, strict=True)
    found = [run(tuple(BatchPiece(slot, 0, one[:cut]) for slot, one, cut in begin), prefill=True)]
    for step in range(3):
        now = zip(slots, sequences, lengths, strict=True)
        batch = tuple(BatchPiece(slot, cut + step, (one[cut + step],)) for slot, one, cut in now)
        found.append(run(batch, prefill=False))
    for place, tokens in enumerate(sequences):
        whole_SV = full_logits(config, list(tokens))
        for step in range(4):
            expected_V = whole_SV[lengths[place] - 1 + step]
            assert relative_error(found[step][place], expected_V) < FLOAT32, (name, how, place, step)


def serve(rank: int, ranks: int, name: str, serving: Serving) -> tuple[dict[int, list[int]], int]:
    """Requests of one rank with what was made of them, and how many ticks were cut in two."""
    engine = ServingEngine(model_config("tiny", MODELS[name], serving), serving, make_ranks(rank, ranks), CPU)
    busy, cut = True, 0
    while busy:
        plan = engine.tick()
        cut += plan is not None and plan.split
        # All ranks must stop together: when nobody has anything any more.
        over = engine.traffic.over and engine.scheduler.idle
        left = torch.tensor([0.0 if over else 1.0])
        if engine.ranks.host is not None:
            torch.distributed.all_reduce(left, group=engine.ranks.host)
        busy = bool(left)
    return {one.request.number: one.made for one in engine.scheduler.finished}, cut


@cache
def alone(name: str) -> dict[int, list[int]]:
    return serve(0, 1, name, TINY)[0]


@pytest.mark.parametrize("name", PLAIN)
def test_greedy_tokens_are_those_of_the_whole_model(name: str) -> None:
    config = config_of(name)
    engine = ServingEngine(config, TINY, Ranks(), CPU)
    model = Transformer(config, Groups(config.layout)).eval()
    model.load_state_dict(engine.model.state_dict())
    assert sorted(alone(name)) == list(range(TINY.requests))
    for number, made in alone(name).items():
        prompt = engine.traffic.request(number, 0).prompt
        padded = [*prompt, *made] + [0] * (config.training.seq - len(prompt) - len(made))
        with torch.no_grad():
            logits_SV = model(torch.tensor(padded)[:, None])[:, 0]
        assert logits_SV[len(prompt) - 1 :].argmax(1)[: len(made)].tolist() == made


def jobs(rank: int, names: list[str], servings: list[Serving]) -> list[tuple[dict[int, list[int]], int]]:
    ranks = torch.distributed.get_world_size()
    return [serve(rank, ranks, name, serving) for name in names for serving in servings]


def test_two_ranks_make_the_same_tokens_in_every_way(tmp_path: Path) -> None:
    variants = [
        TINY,
        replace(TINY, prefill_delayer="on"),
        replace(TINY, tbo="request"),
        replace(TINY, tbo="token", prefill_delayer="on"),
    ]
    parts = run_ranks(2, jobs, list(PLAIN), variants, folder=tmp_path)
    for place, ((first, cut), (second, _)) in enumerate(zip(*parts, strict=True)):
        name, variant = list(PLAIN)[place // len(variants)], variants[place % len(variants)]
        assert len(first) == len(second) == TINY.requests / 2
        assert first | second == alone(name), (name, variant)
        assert (cut > 0) == (variant.tbo != "off")


class NoReading(TorchDispatchMode):
    """Fails where the host would read the device, which a graph's capture cannot do."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        assert name not in ("_local_scalar_dense", "item", "nonzero", "is_nonzero", "bincount"), name
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", PLAIN)
def test_a_decode_as_a_graph_runs_it_reads_nothing_and_makes_the_same(name: str) -> None:
    config = config_of(name)
    model = make_serving_model(config)
    first, second = prompts(12, 30)
    batch = (BatchPiece(1, 11, first[-1:]), BatchPiece(3, 29, second[-1:]))
    padded = (*batch, *[BatchPiece(TINY.slots, 0, (0,))] * 2)
    with torch.inference_mode():
        before = (BatchPiece(1, 0, first[:-1]), BatchPiece(3, 0, second[:-1]))
        eager(model, make_rows(before, True, CPU), 40)
        expected = eager(model, make_rows(batch, False, CPU), 2)
        token_B, slot_B, position_B = torch.tensor(numbers(padded)[:3])
        rows = BatchTensors(token_B, slot_B, position_B, torch.arange(4), longest=TINY.context)
        with NoReading():
            found = eager(model, rows, 4)
    assert relative_error(found[:2], expected) < FLOAT32


def test_a_rank_holds_a_slice_of_every_expert(tmp_path: Path) -> None:
    shapes = run_ranks(2, expert_shapes, folder=tmp_path)
    assert (
        shapes == [{"up_eDG": (8, 64, 48), "down_eFD": (8, 24, 64), "gate": (24, 64), "down": (64, 24)}] * 2
    )


def expert_shapes(rank: int) -> dict[str, tuple[int, ...]]:
    engine = ServingEngine(config_of("mla"), TINY, make_ranks(rank, 2), CPU)
    moe = engine.model.layers["1"].ffn
    some = {"up_eDG": moe.experts.up_eDG, "down_eFD": moe.experts.down_eFD}
    some |= {"gate": moe.shared.gate, "down": moe.shared.down}
    return {key: tuple(one.shape) for key, one in some.items()}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ranks": 0}, "ranks must be at least 1"),
        ({"ranks": 5}, r"expert_ffn \(48\) must be a multiple of ranks = 5: each has a slice"),
        ({"device": "tpu"}, "--device must be cuda or cpu, not tpu"),
        ({"out": Path("out"), "ticks": 9}, "the recording needs 56 ticks, the run has 9"),
        ({"serving": replace(TINY, graph="on")}, "graph=on needs a GPU, and this run is on cpu"),
    ],
)  # fmt: skip
def test_a_job_that_cannot_run_says_so(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(TracelensError, match=message) as caught:
        ServeJob(**{"config": config_of("mla"), "serving": TINY, "device": "cpu"} | fields)
    assert "\n" not in str(caught.value)


def test_a_dtype_whose_grouped_gemm_waits_is_refused() -> None:
    graphed = replace(TINY, graph="on")
    with pytest.raises(TracelensError, match="graph=on needs dtype=bfloat16, not float32"):
        require(config_of("mla"), graphed, torch.device("cuda"))
    require(model_config("tiny", ["dtype=bfloat16"], TINY), graphed, torch.device("cuda"))


def test_slices_too_narrow_for_a_gemm_are_refused() -> None:
    config = model_config("tiny", ["dtype=bfloat16"], TINY)
    with pytest.raises(
        TracelensError, match="expert_ffn / ranks = 12 must be a multiple of 8: lower --ranks"
    ):
        ServeJob(config, TINY, ranks=4, device="cpu")
