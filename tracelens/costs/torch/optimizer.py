"""Fused optimizer steps with recorded shapes: Adam, AdamW, SGD and Adagrad over lists of tensors.

For each of P parameters

- Adam and AdamW read parameter, gradient and two moments and write all but the gradient: 7 elements;
  AMSGrad reads and writes a fifth list. 15 operations: weight decay 2, first moment 3, second moment 4,
  denominator 3, update 3 (Kingma and Ba, "Adam"; Loshchilov and Hutter, "Decoupled weight decay
  regularization").
- SGD reads parameter and gradient and writes the parameter: 3 elements, 4 operations; with momentum 5
  elements (4 in the first step, which only writes it) and 7 operations.
- Adagrad reads parameter, gradient and sum and writes all but the gradient: 5 elements, 9 operations.

A gradient scale makes the kernel write the unscaled gradients too. The profiler records no element type of a
list; it is read from the kernel's name (see multi_tensor.py, which also counts longer lists). Apex's and
TransformerEngine's optimizers are no ops and show as kernels only.
"""

from __future__ import annotations

from tracelens.costs.call import OpCall, size
from tracelens.costs.model import OpCost, cost
from tracelens.costs.torch.multi_tensor import functor


@cost("aten::_fused_adam_", "aten::_fused_adamw_", engine="vector")
def adam(call: OpCall) -> OpCost:
    """Adam or AdamW step: 4 lists read, 3 written; AMSGrad one more of both."""
    lists = 5 if call.flag(11) else 4
    return _step(call, lists, lists - 1 + call.has(13), 15 + (lists == 5))


@cost("aten::_fused_sgd_", engine="vector")
def sgd(call: OpCall) -> OpCost:
    """SGD step: 2 lists read, 1 written; momentum is one more of both, and not read in the first step."""
    momentum = call.text(4) not in ("", "0", "0.0", "0.")
    reads = 3 if momentum and not call.flag(9) else 2
    return _step(call, reads, 1 + momentum + call.has(10), 7 if momentum else 4)


@cost("aten::_fused_adagrad_", engine="vector")
def adagrad(call: OpCall) -> OpCost:
    """Adagrad step: 3 lists read, 2 written."""
    return _step(call, 3, 2 + call.has(9), 9)


def _step(call: OpCall, reads: int, writes: int, operations: int) -> OpCost:
    """The cost of a step over list 0, whose elements are read and written so many times."""
    # The shapes first: "no shapes recorded" says more than an unknown kernel.
    elements = sum(tensor.numel for tensor in call.listed(0, ""))
    dtype = functor(call.kernel).reads[0]
    list_bytes = size(elements, dtype)
    return OpCost(
        operations * elements,
        reads * list_bytes,
        writes * list_bytes,
        dtype,
        dims=(("parameters", elements),),
    )
