"""Layers with a state instead of a cache of keys: Mamba-2, gated delta rule, their short convolution.

Mamba-2 (Dao and Gu, "Transformers are SSMs", 2024, section 6) cuts a sequence into chunks of Q tokens. With
H heads of width P, G groups of B and C and a state of N: scores C·Bᵀ (2·Q·N a token and group), their product
with x (2·Q·P a token and head), both half masked and counted half, and the state from the chunk and the
chunk's output from the state (2·N·P each a token and head). Handing states from chunk to chunk, gate, norm
and activation are not counted.

The gated delta rule (Yang et al., "Gated Delta Networks", 2024) is counted as its recurrence, the least
that any form of it does, on each token and head of a state Dk x Dv: decay 1, prediction 2, update 2 and
output 2 operations an element, 7·Dk·Dv. A state is read and written once a sequence.

Sources: state-spaces/mamba, mamba_ssm/ops/triton/ssd_combined.py; Dao-AILab/causal-conv1d,
causal_conv1d/cpp_functions.py; vllm-project/vllm, vllm/model_executor/models/qwen3_next.py; ROCm/ATOM,
atom/model_ops/base_attention.py.
"""

from __future__ import annotations

from tracelens.costs.elementwise import SILU
from tracelens.costs.gemm import math_dtype
from tracelens.costs.model import OpCall, OpCost, Uncounted, cost, size

_AROUND = "gate, norm and activation not counted"
_DELTA = "assumes keys as wide as values, one state per decoding token; convolution not counted"
_NO_STATES = "neither arguments nor a step label show how many states are read"


@cost("MambaSplitConv1dScanCombinedFn")
def mamba(call: OpCall) -> OpCost:
    """Mamba-2's block: short convolution, chunked scan and, where it has a weight, the output projection.

    The joint projection (B, L, ·), weight and bias of the convolution, bias of the time step, A (H), D (H) or
    (H, P), length of a chunk; initial states 7, projection 14, width of a head 16, number of groups 17.
    """
    joint, convolution, decay, skip = (call.tensor(index) for index in (0, 1, 4, 5))
    if len(joint.shape) != 3 or len(convolution.shape) != 2 or len(decay.shape) != 1:
        raise Uncounted("arguments of the scan in an unknown layout")
    (batch, length, _), (channels, taps), heads = joint.shape, convolution.shape, decay.shape[0]
    width = skip.shape[1] if len(skip.shape) == 2 else call.integer(16)
    inner, groups = heads * width, call.integer(17)
    state, rest = divmod(channels - inner, 2 * groups) if groups > 0 else (0, 1)
    if rest or state <= 0:
        raise Uncounted("recorded shapes of heads, groups and state disagree")
    tokens, chunk = batch * length, min(call.integer(6), length)
    if chunk < 0:
        raise Uncounted("length of a chunk not recorded")
    each = groups * chunk * state + heads * (chunk * width + 4 * state * width) + 2 * taps * channels
    projection = call.tensor(14) if call.has(14) else None
    out = inner
    if projection:
        if len(projection.shape) != 2 or projection.shape[1] != inner:
            raise Uncounted("recorded shapes of the scan and its projection disagree")
        out = projection.shape[0]
        each += 2 * inner * out
    read = sum(tensor.bytes for tensor in call.tensors())
    dims = (("B", batch), ("L", length), ("H", heads), ("P", width), ("N", state))
    dtype = math_dtype(call, joint, projection or joint)
    return OpCost(
        each * tokens, read, size(tokens * out, joint.dtype), dtype, "matrix", dims=dims, note=_AROUND
    )


@cost("DaoAILab::_causal_conv1d_fwd_cpp")
def short_convolution(call: OpCall) -> OpCost:
    """Each of D channels with a filter of W taps of its own: 2·W FLOPs an element, 5 more for SiLU.

    x (B, D, L), weight (D, W), bias, marks of sequences, initial states, the output, final states, a flag.
    """
    x, weight, out = call.tensor(0), call.tensor(1), call.tensor(5)
    if len(weight.shape) != 2:
        raise Uncounted(f"a filter with {len(weight.shape)} dimensions instead of 2")
    flops = 2 * weight.shape[1] + (SILU if call.flag(7) else 0)
    read = x.bytes + weight.bytes + call.bytes(2, 3, 4)
    return OpCost(flops * x.numel, read, out.dense_bytes + call.bytes(6), x.dtype,
                  dims=(("D", weight.shape[0]), ("W", weight.shape[1])))  # fmt: skip


@cost("vllm::gdn_attention_core", "aiter::linear_attention_with_output_base", batch=True)
def gated_delta(call: OpCall) -> OpCost:
    """Gated delta rule of queries, keys and values (T, ·) in a row, two gates (T, H), output (T, H, Dv).

    Of a newer form the row holds an output gate, too, and both gates are one tensor (T, 2H). States are in
    memory, one a sequence: how many is known where the step's label gives its queries.
    """
    row, gate, out = call.tensor(0), call.tensor(1), call.tensor(3)
    if len(row.shape) != 2 or len(gate.shape) != 2 or len(out.shape) != 3:
        raise Uncounted("queries, gates or output in an unknown layout")
    (_, heads, width), with_gate = out.shape, gate.shape[1] == 2 * out.shape[1]
    of_keys = row.shape[1] - heads * width * (2 if with_gate else 1)
    # Half of it queries, half keys; of fewer heads than values, that are as wide.
    if not width or of_keys <= 0 or of_keys % (2 * width) or heads % (of_keys // (2 * width)):
        raise Uncounted("the width of keys is not recorded")
    if call.batch is None:
        raise Uncounted(_NO_STATES)
    prefill, decode = call.batch.prefill.queries, call.batch.decode.queries
    tokens, sequences = prefill + decode, decode + (prefill > 0)
    if not 0 < tokens <= row.shape[0]:
        raise Uncounted(_NO_STATES)
    states = size(sequences * heads * width * width, out.dtype)
    second = call.tensor(2)
    gates = (gate, second) if len(second.shape) == 2 else (gate,)
    # Rows behind the tokens are padding.
    read = sum(tensor.bytes * tokens // tensor.shape[0] for tensor in (row, *gates) if tensor.shape[0])
    flops = 7 * tokens * heads * width * width
    dims = (("T", tokens), ("H", heads), ("D", width), ("states", sequences))
    written = size(tokens * heads * width, out.dtype)
    return OpCost(flops, read + states, written + states, row.dtype, "matrix", dims=dims, note=_DELTA)
