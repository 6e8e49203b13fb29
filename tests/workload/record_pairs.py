# ruff: noqa: E501
"""Record pairs of runs, before and after one change, each with its unprofiled step times.

    python3 record_pairs.py OUT [--device cuda|cpu] [--tiny] [--only REGEX] [--budget SECONDS]

OUT/before-N.tar and OUT/after-N.tar hold PAIR.SIDE/rank0.json.zst and times.json. Nothing of the runs after the
change is printed, so that a projection from the runs before can be written down first.
"""

import argparse
import gc
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent

S = "layers=3 hidden=1024 heads=8 kv_lora=256 dense_ffn=4096 experts_count=32 top_k=4 expert_ffn=1024 shared_ffn=1024 vocab=16384 seq=2048 micro_batch=2"
M = "layers=3 hidden=2048 heads=16 dense_ffn=8192 experts_count=16 top_k=4 expert_ffn=1408 shared_ffn=2816 vocab=65536 seq=4096 micro_batch=2 experts=grouped"
L = "layers=2 hidden=4096 heads=32 dense_ffn=8192 experts_count=8 top_k=2 expert_ffn=4096 shared_ffn=4096 vocab=16384 seq=4096 micro_batch=4"
FUSED = "experts=grouped sync_free=3 permute=fused router=fused loss=fused"
T = "layers=4 hidden=768 heads=6 kv_lora=128 dense_ffn=2048 experts_count=16 top_k=2 expert_ffn=512 shared_ffn=512 vocab=8192 seq=1024 micro_batch=1"
X = "ranks=2 layers=2 dense_layers=0 hidden=3072 heads=24 experts_count=16 top_k=4 expert_ffn=1024 shared_ffn=3072 vocab=8192 seq=4096 micro_batch=2 micro_batches=4 experts=grouped sync_free=2 permute=fused router=fused loss=fused"
EP = "ranks=2 layers=3 hidden=2048 heads=16 experts_count=32 top_k=6 expert_ffn=1408 vocab=16384 seq=2048 micro_batch=2"
PP = f"ranks=2 pp=2 layers=4 hidden=2048 heads=16 dense_ffn=8192 experts_count=8 top_k=2 expert_ffn=2048 vocab=16384 seq=2048 micro_batch=2 micro_batches=8 {FUSED.replace('sync_free=3', 'sync_free=2')}"
TP = f"ranks=2 tp=2 layers=2 dense_layers=1 hidden=4096 heads=32 dense_ffn=16384 experts_count=8 top_k=2 expert_ffn=2048 vocab=8192 seq=4096 micro_batch=4 {FUSED}"

# name of a run -> (kind, settings); a name is PAIR.before or PAIR.after[.CHANGE]
WORKLOAD = {
    "loop_small.before": S,
    "loop_small.after.grouped": f"{S} experts=grouped",
    "loop_large.before": L,
    "loop_large.after.grouped": f"{L} experts=grouped",
    "medium.before": M,
    "medium.after.sync_free_3": f"{M} sync_free=3",
    "medium.after.permute": f"{M} permute=fused",
    "medium.after.router": f"{M} router=fused",
    "medium.after.loss": f"{M} loss=fused",
    "medium.after.bound_sizes": f"{M} sync_free=2",
    "graph.before": f"{T} {FUSED}",
    "graph.after.step": f"{T} {FUSED} graph=step",
    "recompute.before": f"{L} {FUSED} recompute_layer_ids=0,1",
    "recompute.after.none": f"{L} {FUSED}",
    "dtype.before": f"{L} dtype=float32 main_params=false",
    "dtype.after.bf16": f"{L} main_params=false",
    "batch.before": f"{M} {FUSED} micro_batch=1",
    "batch.after.double": f"{M} {FUSED} micro_batch=2",
    "exchange.before": X,
    "exchange.after.1f1b": f"{X} overlap_exchange=1f1b",
    "exchange.after.shared": f"{X} overlap_shared=on",
    "exchange.after.dedup": f"{X} dispatch=dedup",
    "loop_ep2.before": EP,
    "loop_ep2.after.grouped": f"{EP} experts=grouped",
    "pipeline.before": PP,
    "pipeline.after.vpp2": f"{PP} vpp=2",
    "tensor.before": TP,
    "tensor.after.chunked": f"{TP} tp_overlap=chunked",
}
HF = {}
for name in ("olmoe", "mixtral", "qwen3_moe"):
    HF[f"hf_{name}.before"] = (name, "eager")
    HF[f"hf_{name}.after.grouped"] = (name, "grouped_mm")

TIMED_FROM, WAIT, WARMUP, RECORDED = 8, 22, 2, 2


def workload(name, out, device, tiny):
    from tracelens.planner.config import override, preset
    from tracelens.workload.launch import Job, run_job

    fields = WORKLOAD[name]
    if tiny:
        small = "hidden=64 heads=2 kv_lora=32 dense_ffn=64 expert_ffn=32 shared_ffn=32 vocab=512 seq=64 micro_batch=1"
        if "batch." in name:
            small = small.replace(" micro_batch=1", "")
        fields = f"{fields} {small}"
    config = override(preset("small"), fields.split())
    start = WAIT + WARMUP
    ranks = run_job(Job(config, out, device, start + RECORDED, start, start + RECORDED, scrub=True))
    gc.enable()
    step_ms = [max(times) for times in zip(*(rank.step_ms for rank in ranks), strict=True)]
    return {"settings": fields, "unprofiled_ms": step_ms[TIMED_FROM:WAIT], "profiled_ms": step_ms[start:]}


def huggingface(name, out, device, tiny):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    kind, experts = HF[name]
    torch.manual_seed(0)
    sizes, batch, seq = {
        "olmoe": (
            {"hidden_size": 2048, "intermediate_size": 1024, "num_experts": 64, "num_experts_per_tok": 8},
            2,
            2048,
        ),
        "mixtral": (
            {
                "hidden_size": 2048,
                "intermediate_size": 7168,
                "num_local_experts": 8,
                "num_experts_per_tok": 2,
                "num_key_value_heads": 8,
            },
            4,
            2048,
        ),
        "qwen3_moe": (
            {
                "hidden_size": 1536,
                "moe_intermediate_size": 768,
                "num_experts": 96,
                "num_experts_per_tok": 8,
                "num_key_value_heads": 4,
                "head_dim": 128,
                "decoder_sparse_step": 1,
            },
            2,
            1024,
        ),
    }[kind]  # fmt: skip
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 16, "vocab_size": 32000}
    if tiny:
        sizes |= {"hidden_size": 64, "num_attention_heads": 2, "vocab_size": 256}
        sizes |= {key: 32 for key in ("intermediate_size", "moe_intermediate_size") if key in sizes}
        if "num_key_value_heads" in sizes:
            sizes["num_key_value_heads"] = 2
        batch, seq = 2, 32
    config = AutoConfig.for_model(kind, **sizes)
    dtype = torch.bfloat16
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, experts_implementation=experts).to(device)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=device == "cuda")
    batches = [torch.randint(0, sizes["vocab_size"], (batch, seq), device=device) for _ in range(4)]

    def sync():
        if device == "cuda":
            torch.cuda.synchronize()

    def step(number):
        tokens = batches[number % 4]
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if kind == "olmoe":
            loss.item()

    for number in range(TIMED_FROM):
        step(number)
    blocks = []
    for _ in range(2):
        sync()
        began = time.perf_counter()
        for number in range(8):
            step(number)
        sync()
        blocks.append((time.perf_counter() - began) / 8 * 1e3)
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    host = []
    with torch.profiler.profile(
        activities=activities,
        schedule=torch.profiler.schedule(wait=0, warmup=WARMUP, active=RECORDED, repeat=1),
        record_shapes=True,
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(out / "rank0.json.gz")),
    ) as profiler:
        for number in range(WARMUP + RECORDED):
            began = time.perf_counter()
            step(number)
            host.append((time.perf_counter() - began) * 1e3)
            profiler.step()
    sync()
    return {"settings": f"{kind} {experts} {sizes} batch={batch} seq={seq}", "unprofiled_ms": blocks, "profiled_ms": host[WARMUP:], "timed": "two blocks of 8 steps, synchronised at their ends"}  # fmt: skip


def worker(names, root, device, tiny, until):
    for name in names:
        if time.time() > until:
            print(f"no time left for {name}", flush=True)
            continue
        out = root / name
        out.mkdir(parents=True, exist_ok=True)
        began = time.time()
        try:
            told = (workload if name in WORKLOAD else huggingface)(name, out, device, tiny)
            (out / "times.json").write_text(json.dumps(told))
            state = "ok"
        except Exception:
            traceback.print_exc()
            state = "FAILED"
        gc.collect()
        import torch

        if device == "cuda":
            torch.cuda.empty_cache()
        size = sum(path.stat().st_size for path in out.glob("rank*"))
        print(f"{name}: {state}, {size / 1e6:.1f} MB in {time.time() - began:.0f} s", flush=True)


def of_two(name):
    return name in WORKLOAD and "ranks=2" in WORKLOAD[name]


def squeeze(path):
    """The trace in zstandard, in half the bytes."""
    import gzip

    import zstandard

    path.with_suffix(".zst").write_bytes(
        zstandard.ZstdCompressor(level=12).compress(gzip.decompress(path.read_bytes()))
    )
    path.unlink()


def pack(root, out):
    with multiprocessing.Pool() as pool:
        pool.map(squeeze, sorted(root.rglob("rank*.json.gz")))
    for side in ("before", "after"):
        folders = sorted(
            path for path in root.iterdir() if f".{side}" in path.name and (path / "times.json").exists()
        )
        number, size, tar = -1, 1e18, None
        for folder in folders:
            for file in sorted(folder.iterdir()):
                if size + file.stat().st_size > 14e6:
                    number, size = number + 1, 0
                    if tar:
                        tar.close()
                    tar = tarfile.open(out / f"{side}-{number}.tar", "w")  # noqa: SIM115 - the next file may need another
                tar.add(file, f"{folder.name}/{file.name}")
                size += file.stat().st_size
        if tar:
            tar.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--budget", type=float, default=480)
    parser.add_argument("--worker", nargs="*")
    parser.add_argument("--until", type=float, default=0)
    options = parser.parse_args()
    root = Path(tempfile.gettempdir()) / "tracelens-pairs"
    if options.worker is not None:
        worker(options.worker, root, options.device, options.tiny, options.until)
        return
    until = time.time() + options.budget
    names = [name for name in [*HF, *WORKLOAD] if re.search(options.only, name)]
    pairs = list(dict.fromkeys(name.partition(".")[0] for name in names if not of_two(name)))
    # From the largest to the smallest of each GPU, so that both end together.
    queues = [[], []]
    for number, pair in enumerate(pairs):
        queues[number % 2] += [name for name in names if name.partition(".")[0] == pair]

    def start(mine, visible, cores):
        environment = dict(os.environ)
        if visible:
            environment["CUDA_VISIBLE_DEVICES"] = visible
        command = [
            sys.executable,
            __file__,
            str(options.out),
            "--device",
            options.device,
            "--until",
            str(until),
        ]
        command += ["--tiny"] * options.tiny + ["--worker", *mine]
        if cores and options.device == "cuda":
            command = ["taskset", "-c", cores, *command]
        return subprocess.Popen(command, env=environment)

    half = (os.cpu_count() or 2) // 2
    workers = [
        start(queue, str(number), f"{number * half}-{number * half + half - 1}")
        for number, queue in enumerate(queues)
        if queue
    ]
    for process in workers:
        process.wait()
    two = [name for name in names if of_two(name)]
    if two:
        start(two, "", "").wait()
    options.out.mkdir(parents=True, exist_ok=True)
    pack(root, options.out)


if __name__ == "__main__":
    main()
