"""Select the configs to compare for a number of tokens: a short list by problem size, and the engine's default.

The engines' tuners try 640 to 1,920 configs, but few tile sizes win for each problem size. The list contains the tiles
that occur most often in the 16-bit and 8-bit files of vLLM 0.33.0, selected by a rule. The number of
tokens per expert determines the rows of a tile. Shared memory limits its columns and depth.
"""

from kernrec.gpu import GPU
from kernrec.recommender.serving.engine_defaults import Tiles
from kernrec.recommender.serving.engines import Kind, StateShape, TunedFile

_SMALL = (
    (16, 32, 128, 4, 4), (16, 32, 256, 4, 3), (16, 64, 128, 4, 4), (16, 64, 256, 4, 3), (16, 128, 64, 4, 3),
    (16, 128, 128, 4, 3), (16, 128, 128, 8, 4),
)  # fmt: skip
_MIDDLE = (
    (32, 64, 128, 4, 4), (32, 128, 64, 4, 3), (32, 128, 128, 4, 4), (64, 64, 64, 4, 4), (64, 128, 64, 4, 3),
    (64, 128, 128, 4, 3),
)  # fmt: skip
_LARGE = (
    (64, 256, 64, 8, 4), (128, 64, 64, 4, 4), (128, 128, 64, 4, 3), (128, 128, 64, 8, 4), (128, 256, 64, 8, 3),
)  # fmt: skip
"""16-bit tiles: (rows, columns, depth, warps, stages)."""
_OF_LANE = range(4, 33)
"""State elements per thread. Fewer give a thread too little work; more need too many registers."""


def candidates(file: TunedFile, tokens: int, gpu: GPU) -> list[Tiles]:
    """Return configs worth comparing, in the form of a file's entries.

    Args:
        file: the file that the configs are for.
        tokens: number of tokens in a step.
        gpu: GPU whose shared memory must hold the configs.
    """
    if file.state is not None:
        return _of_state(file.state)
    shape = file.products[0]
    rows = tokens * shape.top / min(shape.experts, max(1, tokens * shape.top))  # Assume that routing is even.
    tiles = list(_SMALL) if rows <= 16 else []
    tiles += _MIDDLE if 8 < rows <= 160 else ()
    tiles += _LARGE if rows > 64 else ()
    grouped = 1 if rows <= 64 else 16
    eight = file.weights is not None and not file.quantization.group  # Both operands have 8 bits.
    unique: dict[tuple[int, ...], Tiles] = {}
    for m, n, k, warps, stages in tiles:
        k = k * 2 if eight and file.block is None and k < 256 else k
        k = min(k, file.block[1]) if file.block else k
        k = max(k, file.block[1]) if file.block and file.kind is Kind.BLOCK_GEMM else k
        while file.quantization.group and any(product.depth % k for product in file.products):
            k //= 2  # The kernel reads only whole steps of weights.
        width = 1 if eight else 2
        while (m + n) * k * width * (stages - 1) > gpu.limits.smem_per_block and stages > 2:
            stages -= 1
        if (m + n) * k * width * (stages - 1) > gpu.limits.smem_per_block:
            continue
        config = {
            "BLOCK_SIZE_M": m,
            "BLOCK_SIZE_N": n,
            "BLOCK_SIZE_K": k,
            "GROUP_SIZE_M": grouped,
            "num_warps": warps,
            "num_stages": stages,
        }
        unique.setdefault(tuple(config.values()), config)
    return list(unique.values())


def _of_state(shape: StateShape) -> list[Tiles]:
    return [
        {"BLOCK_SIZE_M": rows, "num_warps": warps}
        for rows in (4, 8, 16, 32, 64)
        for warps in (1, 2, 4, 8)
        if rows <= shape.width and rows * shape.state // (32 * warps) in _OF_LANE
    ]
