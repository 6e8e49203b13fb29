"""`tracelens project scaling`: throughput over the GPUs that share the experts."""

from __future__ import annotations

from tracelens.cli.common import Json, Output, check_outputs, deliver_result, files_of
from tracelens.cli.project import memory_options
from tracelens.cli.project import scaling_options as options
from tracelens.session import project_scaling


def scaling(
    model: memory_options.Model,
    gpus: options.Gpus,
    ep: options.ExpertRanks,
    device: options.Device,
    dispatch: options.Dispatch = "alltoall,deepep",
    overlap: options.Overlap = "deepep",
    network: options.Network = None,
    assume: options.Assume = None,
    routing: options.Routing = None,
    pp: options.Stages = None,
    vpp: options.Chunks = None,
    cp: options.ContextRanks = None,
    tp: options.TensorRanks = None,
    mbs: options.MicroBatch = None,
    micro_batches: options.MicroBatches = None,
    seq: memory_options.Sequence = None,
    recompute: options.Recompute = None,
    assignments: memory_options.Assignments = None,
    output: Output = None,
    json_output: Json = False,
) -> None:
    """Tokens/s and time breakdown for expert parallelism of several sizes, by way of dispatch.

    An all-to-all sends a token once per expert; DeepEP once per node over the network, and from there once
    per GPU over the links of the node.

    Examples:
        tracelens project scaling --model moe_2t --gpus 1024 --ep 8,16,32,64 --device mi300x
            --network mi300x-8x400g
        tracelens project scaling --model deepseek_v3 --gpus 256 --ep 8,64 --pp 4 --device h200
            --overlap none -o scaling.html
    """
    check_outputs(output, files_of(model, network, device, routing))
    result = project_scaling(
        model, gpus, device, ep=ep, dispatch=dispatch, network=network or "", overlap=overlap, pp=pp, vpp=vpp,
        cp=cp, tp=tp, mbs=mbs, micro_batches=micro_batches, seq=seq, recompute=recompute,
        settings=assignments or (), assume=assume or (), routing=routing or "",
    )  # fmt: skip
    title = f"project scaling of {model}: EP {ep} on {gpus:,} x {result.meta['device']}"
    deliver_result(result, title, output, json_output, [model])
