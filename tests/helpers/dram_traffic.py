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
    """Return the bytes that each of N launches moves between L2 and DRAM, (N,).

    Args:
        access: Tensors that the launches read and write.
        extents: Extent of each step of the tile order, as a number or an array (N,).
        sizes: Size in bytes of each tensor in `access.tensors`, as a number or an array (N,).
        blocks: Number of tiles that the thread blocks of each launch visit, (N,).
        concurrent_blocks: Number of blocks of each launch that run on the GPU at the same time, (N,).
    """
    columns = np.array([np.broadcast_to(column, blocks.shape) for column in (*(extents or (1.0,)), *sizes)], np.float64)
    moved = np.empty(len(blocks))
    query.dram_bytes(
        access.in_engine, blocks, concurrent_blocks, columns[: access.steps], columns[access.steps :], l2_bytes, moved
    )
    return moved
