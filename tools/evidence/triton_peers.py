"""How others order the measured configs of a matrix product: PyTorch's TorchInductor, and NVIDIA's heuristics.

`learned_order` is the ranking that torch ships for a card, learned from the very recordings of `triton_recordings.py`
(`torch._inductor.autoheuristic.artifacts`): the problems here are among those that it was made of. `listed_order` is
the order of the configs that TorchInductor tries, all of which it measures: it ranks none. `heuristics_order` are the
answers of the public wheel `nvidia-matmul-heuristics` for Triton. Each is None where the library is not installed.
"""

import importlib
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from kernrec.op import Problem

RANKINGS = {"a100-sxm4-80gb": "MMRankingA100", "h100-sxm-96gb": "MMRankingH100"}
"""The class of a card's ranking, in the module of the same name behind an underscore."""
CARDS = {"a100-sxm4-80gb": "A100_SXM_80GB", "h100-sxm-96gb": "H100_SXM"}
_ANSWERS = 8
_DTYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "tf32": "float32"}

Config = tuple[int, ...]
"""block_m, block_n, block_k, stages, warps."""


def learned_order(gpu: str, problem: Problem, configs: Sequence[Config]) -> np.ndarray | None:
    """The measured configs in the order of torch's ranking for the card, those it does not name after them."""
    if (parts := _ranking(gpu)) is None:
        return None
    ranking, utils, torch = parts
    m, n, k = (problem.sizes[name] for name in "mnk")
    dtype = getattr(torch, _DTYPES[problem.dtype])
    a = (k, 1) if problem.layout[0] == "n" else (1, m)
    b = (n, 1) if problem.layout[1] == "n" else (1, k)
    context = utils.AHContext()
    for name, value in {"m": m, "k": k, "n": n, "mat1_dtype": dtype, "mat2_dtype": dtype}.items():
        context.add_feature(name, value)
    utils.context_add_strides(context, "mat1", a)
    utils.context_add_strides(context, "mat2", b)
    context.add_feature("mat1_iscontig", a[1] == 1)
    context.add_feature("mat2_iscontig", b[1] == 1)
    context.add_feature("using_tf32", problem.dtype == "tf32" if "32" in problem.dtype else "not_float_32")
    context.apply_operations(utils.mm_operations())
    places = {_name(config): place for place, config in enumerate(configs)}
    ranked = [places[choice] for choice in ranking.get_decisions_ranked(context) or () if choice in places]
    return _completed(ranked, len(configs))


def listed_order(configs: Sequence[Config]) -> np.ndarray | None:
    """The measured configs in the order of TorchInductor's list, the others after them."""
    if (listed := _listed()) is None:
        return None
    places = {config: place for place, config in enumerate(configs)}
    return _completed([places[config] for config in listed if config in places], len(configs))


def listed_first(configs: Sequence[Config], costs: np.ndarray) -> np.ndarray | None:
    """The measured configs that are in TorchInductor's list by their costs, the others after them."""
    if (listed := _listed()) is None:
        return None
    return np.argsort(np.where([config in set(listed) for config in configs], costs, np.inf), kind="stable")


def heuristics_order(gpu: str, problem: Problem, configs: Sequence[Config]) -> np.ndarray | None:
    """The measured configs nearest to each of the wheel's answers, in its order; the others after them.

    Nearest by the logarithms of tiles, stages and warps. None also for other types than f16.
    """
    if problem.dtype != "f16" or (parts := _heuristics(gpu)) is None:
        return None
    layouts, interface, card = parts
    m, n, k = (problem.sizes[name] for name in "mnk")
    answers = interface.get_with_mnk(m, n, k, layouts[f"{problem.layout.upper()}_ROW_MAJOR"], _ANSWERS, card)
    places = np.log(np.array(configs, dtype=np.float64))
    order: list[int] = []
    for kernel in (answer["kernel"] for answer in answers):
        warps = max(kernel.cta_tile_m // kernel.warp_tile_m * (kernel.cta_tile_n // kernel.warp_tile_n), 1)
        tile = (kernel.cta_tile_m, kernel.cta_tile_n, kernel.cta_tile_k, max(kernel.stages, 1), warps)
        order.append(int(np.square(places - np.log(tile)).sum(axis=1).argmin()))
    return _completed(order, len(configs))


def _completed(ranked: list[int], count: int) -> np.ndarray:
    return np.array(list(dict.fromkeys([*ranked, *range(count)])))


def _name(config: Config) -> str:
    block_m, block_n, block_k, stages, warps = config
    return f"type=triton_BLOCK-M={block_m}_BLOCK-K={block_k}_BLOCK-N={block_n}_numstages={stages}_numwarps={warps}"


@cache
def _ranking(gpu: str) -> tuple[Any, Any, Any] | None:
    try:
        torch = importlib.import_module("torch")
        utils = importlib.import_module("torch._inductor.autoheuristic.autoheuristic_utils")
        module = importlib.import_module(f"torch._inductor.autoheuristic.artifacts._{RANKINGS[gpu]}")
    except ImportError:
        return None
    return getattr(module, RANKINGS[gpu])(), utils, torch


@cache
def _listed() -> tuple[Config, ...] | None:
    try:
        lists = importlib.import_module("torch._inductor.template_heuristics.triton")
    except ImportError:
        return None
    configs = lists.CUDAConfigHeuristic().mm_configs
    return tuple((c.block_m, c.block_n, c.block_k, c.num_stages, c.num_warps) for c in configs)


@cache
def _heuristics(gpu: str) -> tuple[Any, Any, Any] | None:
    try:
        wheel = importlib.import_module("nvMatmulHeuristics")
    except ImportError:
        return None
    interface = wheel.NvMatmulHeuristicsInterface(wheel.NvMatmulHeuristicsTarget.TRITON, precision="HSH")
    card = interface.createHardwareDescriptor()
    interface.setHardwarePredefinedGpu(card, wheel.NvMatmulHeuristicsNvidiaGpu[CARDS[gpu]])
    return wheel.NvMatmulHeuristicsMatmulLayout, interface, card
