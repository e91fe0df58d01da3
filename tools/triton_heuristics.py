"""What the public wheel `nvidia-matmul-heuristics` recommends for Triton, as an order of measured configs."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from kernrec.op import Problem

CARDS = {"a100-sxm4-80gb": "A100_SXM_80GB", "h100-sxm-96gb": "H100_SXM"}
ANSWERS = 8


def heuristics_order(gpu: str, problem: Problem, configs: Sequence[tuple[int, ...]]) -> np.ndarray | None:
    """The measured configs nearest to each of its answers, in its order; the others after them.

    Nearest by the logarithms of tiles, stages and warps. None where the wheel is not installed and for other types
    than f16.

    Args:
        gpu: one of `CARDS`.
        problem: a matrix product.
        configs: (block_m, block_n, block_k, num_stages, num_warps) of each.
    """
    interface_of_card = _interface(gpu) if problem.dtype == "f16" else None
    if interface_of_card is None:
        return None
    layouts, interface, card = interface_of_card
    dims = problem.sizes
    layout = layouts[f"{problem.layout.upper()}_ROW_MAJOR"]
    answers = [a["kernel"] for a in interface.get_with_mnk(dims["m"], dims["n"], dims["k"], layout, ANSWERS, card)]
    places = np.log(np.array(configs, dtype=np.float64))
    order: list[int] = []
    for kernel in answers:
        warps = max(kernel.cta_tile_m // kernel.warp_tile_m * (kernel.cta_tile_n // kernel.warp_tile_n), 1)
        tile = (kernel.cta_tile_m, kernel.cta_tile_n, kernel.cta_tile_k, max(kernel.stages, 1), warps)
        order.append(int(np.square(places - np.log(tile)).sum(axis=1).argmin()))
    return np.array(list(dict.fromkeys([*order, *range(len(configs))])))


@cache
def _interface(gpu: str) -> tuple[Any, Any, Any] | None:
    try:
        import nvMatmulHeuristics
    except ImportError:
        return None
    target = nvMatmulHeuristics.NvMatmulHeuristicsTarget.TRITON
    interface = nvMatmulHeuristics.NvMatmulHeuristicsInterface(target, precision="HSH")
    card = interface.createHardwareDescriptor()
    interface.setHardwarePredefinedGpu(card, nvMatmulHeuristics.NvMatmulHeuristicsNvidiaGpu[CARDS[gpu]])
    return nvMatmulHeuristics.NvMatmulHeuristicsMatmulLayout, interface, card
