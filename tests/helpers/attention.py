"""Helpers that run attention kernels in the emulator and bound their rounding errors."""

import numpy as np

from kernrec.gpu import limits
from kernrec.kernel import Kernel, find_kernel
from kernrec.op import Problem, decode_elements, encode_elements, find_op, inputs, reference
from kernrec.ptx import EmulationError
from tests.helpers.kernel_code import Config, ptx_of
from tests.helpers.products import broken
from tests.helpers.trial import execute

_SHIFT = 256.0
"""Factor by which weights, which are at most 1, are scaled before rounding."""


def with_rounded_weights(
    problem: Problem, operands: dict[str, np.ndarray], block_k: int, error: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return o with weights rounded to e4m3, and a bound on its error. Before rounding, weights may have a relative
    `error`. They are scaled by the largest score of their tile and all earlier tiles of `block_k` keys."""
    d = problem.sizes
    value = {name: decode_elements(tensor, problem.tensors[name].dtype) for name, tensor in operands.items()}
    q, k, v = (value[name] if problem.layout == "bhsd" else value[name].swapaxes(1, 2) for name in "qkv")
    scale = {name: np.broadcast_to(value[f"{name}_scale"], (d["batch"], d["kv_heads"])) for name in "qkv"}
    queries, keys = d["queries"], d["keys"]
    mask = np.where(np.tri(queries, keys, keys - queries), 0, -np.inf) if d["causal"] else 0.0
    o, slack = np.empty(q.shape), np.empty(q.shape)
    for b, h in np.ndindex(d["batch"], d["heads"]):
        shared = b, h // d["group"]
        factor = scale["q"][shared] * scale["k"][shared] / np.sqrt(d["head_dim"])
        scores = q[b, h] @ k[shared].T * factor + mask
        tiles = np.maximum.reduceat(scores, np.arange(0, keys, block_k), axis=1)
        met = np.maximum.accumulate(tiles, axis=1).repeat(block_k, axis=1)[:, :keys]
        held = np.exp(met - scores.max(axis=1, keepdims=True)) / _SHIFT
        weights = _SHIFT * np.exp(scores - met)
        rounded = (encode_elements(weights * factor, "f8e4m3") for factor in (1 - error, 1, 1 + error))
        low, near, high = (decode_elements(codes, "f8e4m3") * held for codes in rounded)
        share = scale["v"][shared] / np.exp(scores - scores.max(axis=1, keepdims=True)).sum(axis=1, keepdims=True)
        o[b, h] = near @ v[shared] * share
        slack[b, h] = (high - low) @ np.abs(v[shared]) * share
    back = (lambda x: x) if problem.layout == "bhsd" else (lambda x: np.ascontiguousarray(x.swapaxes(1, 2)))
    return back(o), back(slack)


SIMT, WGMMA = find_kernel("attention_simt"), find_kernel("attention_wgmma")
UNIT = 2.0**-24
"""Largest relative rounding error of f32: half a unit in the last place."""
ROUNDING = {"f32": UNIT, "f16": 2.0**-11, "bf16": 2.0**-8}
LEAST = {"f32": 0.0, "f16": 2.0**-25, "bf16": 0.0}
"""Largest rounding error of subnormal numbers: half of their spacing."""

Case = tuple[Kernel, dict[str, int], str, int]
"""A kernel, one of its configs, a dtype, and a head_dim that the config's `head` supports."""


def sm_of(kernel: Kernel, dtype: str, config: Config) -> int:
    """Return the architecture for a run: 75 for half precision if Turing supports the config, otherwise at least 86."""
    turing = dtype != "f32" if kernel is SIMT else dtype == "f16" and kernel.min_sm == 75 and config["stages"] == 1
    return 75 if turing else max(86, kernel.min_sm)


def wgmma_case(head: int, *tile: int, dtype: str = "f16", dim: int = 0) -> Case:
    names = ("block_q", "block_k", "stages", "overlap", "turns")
    return WGMMA, {"head": head} | dict(zip(names, tile, strict=True)), dtype, dim or head


def code_of(kernel: Kernel, config: Config, dtype: str) -> tuple[Kernel, Config, str, str, int]:
    """Return the arguments for compiling a config's code, which is the same for both layouts."""
    return kernel, config, dtype, "bhsd", sm_of(kernel, dtype, config)


def problem_of(dtype: str, dim: int, shape: dict[str, int], layout: str = "bhsd") -> Problem:
    return find_op("attention").problem(dtype=dtype, layout=layout, head_dim=dim, **shape)


def run(
    kernel: Kernel, config: dict[str, int], problem: Problem, operands: dict[str, np.ndarray], check_races: bool = False
) -> np.ndarray:
    ptx = ptx_of(*code_of(kernel, config, problem.dtype))
    sm = sm_of(kernel, problem.dtype, config)
    o = execute(kernel, config, problem, sm, ptx, operands, check_races=check_races)["o"]
    return decode_elements(o, problem.tensors["o"].dtype)


def outcome(
    kernel: Kernel, config: dict[str, int], problem: Problem, operands: dict[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the exact o, and a bound on the rounding error. With e4m3, the exact o uses rounded weights."""
    dim, dtype, output = problem.sizes, problem.dtype, problem.tensors["o"].dtype
    value = {name: decode_elements(tensor, problem.tensors[name].dtype) for name, tensor in operands.items()}
    size = problem.definition.reference(problem.sizes, problem.layout, value | {"v": np.abs(value["v"])})["o"]
    scale = {name: value[f"{name}_scale"].max() if dim["scaled"] else 1.0 for name in "qk"}
    longest = [np.linalg.norm(value[name], axis=-1).max() * scale[name] for name in "qk"]
    of_score = (dim["head_dim"] + 8) * UNIT * longest[0] * longest[1] / np.sqrt(dim["head_dim"])
    # The absolute error of a score is the relative error of its weight.
    relative = 2 * of_score + (3 * dim["keys"] + 32) * UNIT
    if dim["scaled"]:
        expected, lost = with_rounded_weights(problem, operands, config["block_k"], 2 * of_score + 32 * UNIT)
    else:
        expected, lost = reference(problem, operands)["o"], np.zeros(1)
        if kernel is not SIMT:
            relative += ROUNDING[dtype]
            lost = dim["keys"] * LEAST[dtype] * np.abs(value["v"]).max()
    return expected, relative * size + ROUNDING[output] * np.abs(expected) + lost + LEAST[output]


def count_wrong(
    kernel: Kernel, config: dict[str, int], problem: Problem, check_races: bool = False, seed: int = 0
) -> int:
    """Return how many values of o differ from the reference by more than the rounding bound."""
    operands = inputs(problem, seed)
    o = run(kernel, config, problem, operands, check_races)
    expected, bound = outcome(kernel, config, problem, operands)
    return int((~(np.abs(o - expected) <= bound)).sum())


def fitting(case: Case, problem: Problem) -> dict[str, int]:
    """Return the case's config for the problem. Run-time tunables that do not fit fall back to their first values."""
    kernel, config, _, _ = case
    plain = {name: value for name, value in (("split_keys", 1), ("pack", 0)) if name in config}
    candidates = (config, *(config | {name: value} for name, value in plain.items()), config | plain)
    of_gpu = limits(sm_of(kernel, problem.dtype, config))
    return next(c for c in candidates if not kernel.misfit(c, problem, of_gpu))


def is_noticed(old: str, new: str, case: Case, shape: dict[str, int]) -> bool:
    """Return whether the case's kernel fails on a bshd problem once `old` in its source is replaced by `new`."""
    kernel, _, dtype, dim = case
    assert kernel.source.count(old) == 1
    problem = problem_of(dtype, dim, shape, "bshd")
    try:
        return count_wrong(broken(kernel, old, new), fitting(case, problem), problem, check_races=True) > 0
    except EmulationError:
        return True
