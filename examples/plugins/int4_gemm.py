"""Cost of `mylib::int4_gemm(x, weight, scales)`: two weights per byte."""

from tracelens.costs import OpCall, OpCost, Uncounted, cost, size


@cost("mylib::int4_gemm")
def int4_gemm(call: OpCall) -> OpCost:
    """A GEMM of x [M, K] and a packed weight [N, K / 2]."""
    x, weight = call.tensor(0), call.tensor(1)
    if len(x.shape) != 2 or len(weight.shape) != 2 or weight.shape[1] * 2 != x.shape[1]:
        raise Uncounted(f"shapes {x.shape} and {weight.shape} do not fit each other")
    (m, k), n = x.shape, weight.shape[0]
    return OpCost(
        flops=2 * m * n * k,
        read_bytes=call.bytes(0, 1, 2),
        write_bytes=size(m * n, x.dtype),
        dtype=x.dtype,  # weights are unpacked first: the type of x decides the peak
        engine="matrix",
        dims=(("M", m), ("N", n), ("K", k)),
    )
