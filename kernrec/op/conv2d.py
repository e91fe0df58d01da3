"""Define the two-dimensional convolution of neural networks: cross-correlation with zero padding and no bias.

y[n,k,p,q] = sum over c,r,s of x[n, c, p*stride - padding + r*dilation, q*stride - padding + s*dilation] w[k,c,r,s],
where c runs over the input channels of k's group. Stride, padding and dilation are the same in height and width.
"""

from collections.abc import Mapping
from math import sqrt
from typing import TYPE_CHECKING

from kernrec.errors import UsageError
from kernrec.op.problem import Dim, Names, Op

if TYPE_CHECKING:
    import numpy as np


def _derive(d: Names) -> dict[str, int]:
    groups = d["groups"]
    if d["c"] % groups or d["k"] % groups:
        raise UsageError(f"conv2d groups={groups} must divide c={d['c']} and k={d['k']}")
    return {"p": _outputs(d, "h", "r"), "q": _outputs(d, "w", "s")}


def _outputs(d: Names, size: str, taps: str) -> int:
    padded = d[size] + 2 * d["padding"]
    extent = d["dilation"] * (d[taps] - 1) + 1
    if extent > padded:
        raise UsageError(
            f"conv2d has no output: the filter spans {extent} ({taps}={d[taps]}, dilation={d['dilation']}) "
            f"but the padded input only {padded} ({size}={d[size]}, padding={d['padding']})"
        )
    return (padded - extent) // d["stride"] + 1


def _shapes(d: Names, layout: str) -> dict[str, tuple[int, ...]]:
    n, c, h, w, k, r, s, p, q = (d[name] for name in "nchwkrspq")
    depth = c // d["groups"]
    if layout == "nchw":
        return {"x": (n, c, h, w), "w": (k, depth, r, s), "y": (n, k, p, q)}
    return {"x": (n, h, w, c), "w": (k, r, s, depth), "y": (n, p, q, k)}


def _untouched(d: Names) -> dict[str, int]:
    """Return the number of input elements that no output needs: 3 of 4 for a 1x1 filter with stride 2."""
    rows = _reached(d["h"], d["p"], d["r"], d)
    columns = _reached(d["w"], d["q"], d["s"], d)
    return {"x": d["n"] * d["c"] * (d["h"] * d["w"] - rows * columns)}


def _reached(size: int, outputs: int, taps: int, d: Names) -> int:
    """Return the number of positions along an input axis that at least one output reads.

    Output i reads the position i*stride + j*dilation - padding for filter element j. A single filter element reads
    every `stride`-th position in a range. Positions that several filter elements read are counted once.
    """
    stride = d["stride"]
    if stride == 1 and d["dilation"] == 1:
        return size  # With stride 1 and dilation 1, every position is read.
    covered: dict[int, int] = {}
    count = 0
    for tap in range(taps):
        start, remainder = divmod(tap * d["dilation"] - d["padding"], stride)
        first = max(start, covered.get(remainder, 0))
        last = min(start + outputs, -((remainder - size) // stride))
        if last > first:
            count += last - first
            covered[remainder] = last
    return count


def _reference(d: Names, layout: str, tensors: "Mapping[str, np.ndarray]") -> "dict[str, np.ndarray]":
    import numpy as np

    x, w = tensors["x"], tensors["w"]
    if layout == "nhwc":
        x, w = x.transpose(0, 3, 1, 2), w.transpose(0, 3, 1, 2)
    n, c, k, p, q, stride, groups = (d[name] for name in ("n", "c", "k", "p", "q", "stride", "groups"))
    pad = (d["padding"], d["padding"])
    padded = np.pad(x, ((0, 0), (0, 0), pad, pad))
    y = np.zeros((n, groups, k // groups, p * q))
    for r in range(d["r"]):
        for s in range(d["s"]):
            top, left = r * d["dilation"], s * d["dilation"]
            met = padded[:, :, top : top + (p - 1) * stride + 1 : stride, left : left + (q - 1) * stride + 1 : stride]
            y += w[:, :, r, s].reshape(groups, k // groups, c // groups) @ met.reshape(n, groups, c // groups, p * q)
    y = y.reshape(n, k, p, q)
    return {"y": y if layout == "nchw" else np.ascontiguousarray(y.transpose(0, 2, 3, 1))}


CONV2D = Op(
    name="conv2d",
    title="2-D convolution, y[n,k,p,q] = sum over c,r,s of x w",
    aliases=("conv", "convolution"),
    dims=(
        Dim("n", "images in the batch", 1, aliases=("b", "batch", "batch_size")),
        Dim("c", "input channels", aliases=("cin", "c_in", "in_channels")),
        Dim("h", "input height", aliases=("height",)),
        Dim("w", "input width", aliases=("width",)),
        Dim("k", "output channels", aliases=("cout", "c_out", "out_channels", "filters")),
        Dim("r", "filter height", 3, aliases=("kh", "kernel_h")),
        Dim("s", "filter width", 3, aliases=("kw", "kernel_w")),
        Dim("stride", "step between outputs, both axes", 1, aliases=("strides",)),
        Dim("padding", "zeros added on each side, both axes", 0, minimum=0, aliases=("pad",)),
        Dim("dilation", "step between filter taps, both axes", 1),
        Dim("groups", "groups of channels; groups = c is a depthwise convolution", 1, aliases=("group",)),
    ),
    dtypes=("f32", "f16", "bf16", "f64", "tf32"),
    layouts=("nchw", "nhwc"),
    outputs=("y",),
    workload="resnet50",
    shapes=_shapes,
    flops=lambda d: 2 * d["n"] * d["k"] * d["p"] * d["q"] * (d["c"] // d["groups"]) * d["r"] * d["s"],
    reference=_reference,
    derive=_derive,
    untouched=_untouched,
    values=lambda d: {"w": (0, 1 / sqrt(d["c"] // d["groups"] * d["r"] * d["s"]))},
)
