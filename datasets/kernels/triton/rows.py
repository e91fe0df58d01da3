"""Softmax and layer norm in Triton: a block for each row, which it holds in registers."""

import triton
import triton.language as tl


@triton.heuristics({"WIDTH": lambda args: triton.next_power_of_2(args["columns"])})
@triton.jit
def softmax(x, y, columns, WIDTH: tl.constexpr):
    """y = softmax of each row of x."""
    start = tl.program_id(0).to(tl.int64) * columns
    place = tl.arange(0, WIDTH)
    inside = place < columns
    values = tl.load(x + start + place, mask=inside, other=float("-inf")).to(tl.float32)
    powers = tl.exp(values - tl.max(values, 0))
    tl.store(y + start + place, (powers / tl.sum(powers, 0)).to(y.dtype.element_ty), mask=inside)


@triton.jit
def layernorm(x, weight, bias, y, columns, epsilon, WIDTH: tl.constexpr):
    """y = each row of x less its mean, over its deviation, times weight plus bias."""
    start = tl.program_id(0).to(tl.int64) * columns
    place = tl.arange(0, WIDTH)
    inside = place < columns
    values = tl.load(x + start + place, mask=inside, other=0.0).to(tl.float32)
    centered = tl.where(inside, values - tl.sum(values, 0) / columns, 0.0)
    scale = tl.rsqrt(tl.sum(centered * centered, 0) / columns + epsilon)
    w = tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(bias + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + start + place, (centered * scale * w + b).to(y.dtype.element_ty), mask=inside)


def grid(meta):
    """A block for each row."""
    return (meta["x"].shape[0],)
