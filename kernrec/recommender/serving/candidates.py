"""The configs that are compared for a number of tokens: a short list by the shape of the work, and the engine's own.

The engines' tuners try 640 to 1,920 configs; what wins there is one of few tiles for each amount of work. The list has
the tiles that 16-bit and 8-bit files of vLLM 0.33.0 have most often, in its own words a rule and no copy of one file:
rows of a tile by the tokens of an expert, both sides of it; columns and depth by what fits shared memory.
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
"""(rows, columns, depth, warps, stages) of 16-bit tiles."""
_OF_LANE = range(4, 33)
"""Numbers of a state for a thread: fewer leave it little to do, more take too many registers."""


def candidates(file: TunedFile, tokens: int, gpu: GPU) -> list[Tiles]:
    """Configs worth comparing, in the form of a file's entries.

    Args:
        file: what they are for.
        tokens: in a step.
        gpu: whose shared memory they have to fit.
    """
    if file.state is not None:
        return _of_state(file.state)
    shape = file.products[0]
    rows = tokens * shape.top / min(shape.experts, max(1, tokens * shape.top))  # of an expert, if routing is even
    tiles = list(_SMALL) if rows <= 16 else []
    tiles += _MIDDLE if 8 < rows <= 160 else ()
    tiles += _LARGE if rows > 64 else ()
    grouped = 1 if rows <= 64 else 16
    eight = file.weights is not None and not file.quantization.group  # bits of both operands
    unique: dict[tuple[int, ...], Tiles] = {}
    for m, n, k, warps, stages in tiles:
        k = k * 2 if eight and file.block is None and k < 256 else k
        k = min(k, file.block[1]) if file.block else k
        k = max(k, file.block[1]) if file.block and file.kind is Kind.BLOCK_GEMM else k
        while file.quantization.group and any(product.depth % k for product in file.products):
            k //= 2  # the kernel reads weights of whole steps alone
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
