"""Call the engine's model of traffic between L2 and DRAM."""

from collections.abc import Sequence

import numpy as np

from kernrec.model.analytical.dram_traffic import Array, TensorAccess
from kernrec.util.engine import query


def dram_bytes(
    access: TensorAccess,
    extents: Sequence[Array],
    sizes: Sequence[Array],
    blocks: np.ndarray,
    concurrent_blocks: np.ndarray,
    l2_bytes: float,
) -> np.ndarray:
    """Return the bytes that each launch moves between L2 and DRAM: array of shape (launches,).

    Args:
        access: Tensors that the launches read and write.
        extents: Number of tiles in each step of the tile order, as a number or an array of shape (launches,).
        sizes: Size in bytes of each tensor in `access.tensors`, as a number or an array of shape (launches,).
        blocks: Number of tiles of each launch.
        concurrent_blocks: Number of blocks of each launch that run on the GPU at the same time.
    """
    columns = np.array([np.broadcast_to(column, blocks.shape) for column in (*(extents or (1.0,)), *sizes)], np.float64)
    moved = np.empty(len(blocks))
    query.dram_bytes(
        access.in_engine, blocks, concurrent_blocks, columns[: access.steps], columns[access.steps :], l2_bytes, moved
    )
    return moved
