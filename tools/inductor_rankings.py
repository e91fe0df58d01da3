"""How PyTorch's own TorchInductor orders the measured configs of a matrix product, where torch is installed.

`learned_order` is the ranking that torch ships for a card, learned from the very recordings of
`tools/triton_recordings.py` (`torch._inductor.autoheuristic.artifacts`): the problems here are among those that it was
made of. `listed_order` is the order of the configs that TorchInductor tries, all of which it measures: it ranks none.
"""

import importlib
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from kernrec.op import Problem

RANKINGS = {"a100-sxm4-80gb": "MMRankingA100", "h100-sxm-96gb": "MMRankingH100"}
"""The class of a card's ranking, in the module of the same name behind an underscore."""
_DTYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "tf32": "float32"}

Config = tuple[int, ...]
"""block_m, block_n, block_k, stages, warps."""


def learned_order(gpu: str, problem: Problem, configs: Sequence[Config]) -> np.ndarray | None:
    """The measured configs in the order of torch's ranking for the card, those it does not name after them.

    None without torch or the ranking.

    Args:
        gpu: one of `RANKINGS`.
        problem: a matrix product.
        configs: what was measured.
    """
    if (known := _ranking(gpu)) is None:
        return None
    ranking, utils, torch = known
    dims = problem.sizes
    m, n, k = (dims[name] for name in "mnk")
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
    """The measured configs in the order of TorchInductor's list, the others after them; None without torch."""
    if (listed := _listed()) is None:
        return None
    places = {config: place for place, config in enumerate(configs)}
    return _completed([places[config] for config in listed if config in places], len(configs))


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
    return tuple(
        (c.block_m, c.block_n, c.block_k, c.num_stages, c.num_warps) for c in lists.CUDAConfigHeuristic().mm_configs
    )
