"""Draw random problems with sizes that are typical of neural networks. Every run draws the same problems."""

import random

_SIZES = (64, 128, 256, 384, 512, 768, 1000, 1024, 2048, 3072, 4096, 6144, 8192, 14336)
_VARIED: dict[str, tuple[str, str, str, tuple[str, ...], dict[str, int]]] = {
    "matmul f16, nt": ("matmul", "f16", "nt", ("m", "n", "k"), {}),
    "matmul f32": ("matmul", "f32", "nn", ("m", "n", "k"), {}),
    "conv2d f32": ("conv2d", "f32", "nchw", ("c", "k"), {"h": 28, "w": 28, "padding": 1}),
    "conv2d f16": ("conv2d", "f16", "nhwc", ("c", "k"), {"h": 28, "w": 28, "padding": 1}),
    "attention f16": ("attention", "f16", "bhsd", ("queries",), {"heads": 32, "head_dim": 128}),
    "matvec": ("matvec", "f16", "row", ("m", "k"), {}),
    **{op: (op, "f16", "row", ("rows", "columns"), {}) for op in
       ("softmax", "layernorm", "rmsnorm", "reduce", "transpose")},
    "elementwise": ("elementwise", "f16", "row", ("n",), {}),
}  # fmt: skip
"""(op, data type, layout, dimensions in steps of 64, fixed dimensions), keyed by the name of a kind of problem."""


def matmuls(count: int, seed: int = 1) -> list[dict[str, int]]:
    """Return the dimensions of `count` random matmuls."""
    draw = random.Random(seed)
    return [{name: draw.choice(_SIZES) + draw.choice([0, 0, 8, 1]) for name in "mnk"} for _ in range(count)]


def varied(name: str, count: int) -> tuple[str, str, str, dict[str, list[int]]]:
    """Return op, data type, layout and sizes of `count` problems of a kind. Sizes are lists, keyed by dimension."""
    op, dtype, layout, changing, fixed = _VARIED[name]
    draw = random.Random(1)
    columns = {dim: [64 * draw.randrange(1, 65) for _ in range(count)] for dim in changing}
    return op, dtype, layout, columns | {dim: [size] * count for dim, size in fixed.items()}


KINDS = tuple(_VARIED)
"""Names of all kinds of problems."""
