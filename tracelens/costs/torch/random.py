"""Random numbers, dropout, and ranges.

A random number is one operation, as is every step of making the wanted distribution of it.
"""

from __future__ import annotations

from tracelens.costs.call import OpCall, Uncounted, size
from tracelens.costs.model import OpCost, cost
from tracelens.costs.torch.movement import upper
from tracelens.costs.torch.tensors import natural, outputs, result_dtype

# Operations a number: the draw, and what follows it. A normal one is a radius and a cosine (Box and Muller).
_OPERATIONS = {
    "aten::random_": 2,
    "aten::uniform_": 3,
    "aten::bernoulli_": 2,
    "aten::exponential_": 3,
    "aten::geometric_": 4,
    "aten::cauchy_": 4,
    "aten::normal_": 6,
    "aten::log_normal_": 7,
}


@cost(*_OPERATIONS, engine="vector")
def draw(call: OpCall) -> OpCost:
    """Random numbers written over a tensor that is not read; a tensor of probabilities is."""
    target = call.tensor(0)
    chances = call.bytes(1)
    return OpCost(_OPERATIONS[call.name] * target.numel, chances, target.bytes, target.dtype)


@cost("aten::bernoulli", "aten::poisson", "aten::_standard_gamma", "aten::binomial", engine="vector")
def sample(call: OpCall) -> OpCost:
    """A random number for each parameter (read) and a comparison with it."""
    parameters = call.tensor(0)
    more = call.tensor(1).bytes if call.name == "aten::binomial" else 0
    written = parameters.dense_bytes
    return OpCost(2 * parameters.numel, parameters.bytes + more, written, parameters.dtype)


@cost("aten::normal", engine="vector")
def normal(call: OpCall) -> OpCost:
    """Normal numbers with means or deviations from tensors: 6 operations each."""
    tensors = [call.tensor(index) for index in (0, 1) if call.has(index)]
    if not tensors:
        raise Uncounted("no tensor among its recorded arguments")
    numel = max(tensor.numel for tensor in tensors)
    read = sum(tensor.bytes for tensor in tensors)
    return OpCost(6 * numel, read, size(numel, tensors[0].dtype), tensors[0].dtype)


@cost("aten::multinomial", engine="vector")
def multinomial(call: OpCall) -> OpCost:
    """Positions drawn by weight: weights summed up and drawn from; the positions (i64) written."""
    weights, count = call.tensor(0), natural(call, 1)
    rows = weights.shape[0] if len(weights.shape) > 1 else 1
    return OpCost(2 * weights.numel, weights.bytes, size(rows * count, "i64"), weights.dtype)


@cost("aten::native_dropout", "aten::_fused_dropout", engine="vector")
def dropout(call: OpCall) -> OpCost:
    """A draw, a comparison and two multiplications an element; result and mask (one byte each) written."""
    x = call.tensor(0)
    if call.text(2) == "False":  # not training: a copy and a mask of ones
        return OpCost(0, x.bytes, x.dense_bytes + x.numel, x.dtype)
    return OpCost(4 * x.numel, x.bytes, x.dense_bytes + x.numel, x.dtype)


@cost("aten::randperm", engine="vector")
def permutation(call: OpCall) -> OpCost:
    """The numbers below n in random order: a draw for each, and n·⌈log₂ n⌉ comparisons to sort by it."""
    count = natural(call, 0)
    dtype = result_dtype(call, 1) or "i64"
    steps = (count - 1).bit_length() if count else 0
    return OpCost(count * (1 + steps), 0, size(count, dtype), dtype)


@cost("aten::arange", "aten::range", engine="vector")
def arange(call: OpCall) -> OpCost:
    """A multiplication and an addition for each number of a range."""
    out = outputs(call, 0)
    dtype = out[0].dtype if out else "fp32" if any("." in text for text in call.values[:3]) else "i64"
    count = out[0].numel if out and out[0].numel else _steps(call)
    return OpCost(2 * count, 0, size(count, dtype), dtype)


@cost("aten::linspace", "aten::logspace", engine="vector")
def linspace(call: OpCall) -> OpCost:
    """A multiplication and an addition for each of so many numbers between two, for logspace a power too."""
    out = outputs(call, 0)
    dtype = out[-1].dtype if out else "fp32"
    count = natural(call, 2)
    return OpCost((2 if call.name == "aten::linspace" else 3) * count, 0, size(count, dtype), dtype)


@cost("aten::eye", engine="vector")
def eye(call: OpCall) -> OpCost:
    """A matrix of zeros and a diagonal of ones."""
    rows = natural(call, 0)
    columns = natural(call, 1, rows)
    dtype = result_dtype(call, 0) or "fp32"
    return OpCost(0, 0, size(rows * columns, dtype), dtype)


@cost("aten::tril_indices", "aten::triu_indices", engine="vector")
def triangle_indices(call: OpCall) -> OpCost:
    """Row and column (i64) of every element of a triangle of a matrix."""
    rows, columns, diagonal = natural(call, 0), natural(call, 1), call.integer(2, 0)
    count = upper(rows, columns, diagonal if "triu" in call.name else diagonal + 1)
    if "tril" in call.name:
        count = rows * columns - count
    return OpCost(2 * count, 0, size(2 * count, "i64"), "i64")


def _steps(call: OpCall) -> int:
    """Numbers in arange(end), arange(start, end) or arange(start, end, step), whichever is recorded."""
    numbers = []
    for text in call.values[:3]:
        try:
            numbers.append(float(text))
        except ValueError:
            break
    if not numbers:
        raise Uncounted("start and end of the range have no recorded value")
    start, end = (0.0, numbers[0]) if len(numbers) == 1 else (numbers[0], numbers[1])
    step = numbers[2] if len(numbers) > 2 else 1.0
    span = (end - start) / step if step else -1.0
    if not 0 <= span < float(1 << 53):
        raise Uncounted("a range without an end")
    full_steps = int(span)
    return full_steps + (span > full_steps) + (call.name == "aten::range")
