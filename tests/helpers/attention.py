"""Running attention kernels in the emulator, and how far roundings may take their results, for the tests of each."""

import dataclasses

import numpy as np

from kernrec.gpu import limits
from kernrec.kernel import Kernel, find_kernel
from kernrec.op import Problem, decode_elements, find_op, inputs, reference
from kernrec.ptx import EmulationError
from tests.helpers.attention_8bit import with_rounded_weights
from tests.helpers.kernel_code import Config, ptx_of
from tests.helpers.trial import execute

SIMT, WGMMA = find_kernel("attention_simt"), find_kernel("attention_wgmma")
UNIT = 2.0**-24
"""Half a unit in the last place of f32, relative."""
ROUNDING = {"f32": UNIT, "f16": 2.0**-11, "bf16": 2.0**-8}
LEAST = {"f32": 0.0, "f16": 2.0**-25, "bf16": 0.0}
"""Half the distance of subnormal numbers."""

Case = tuple[Kernel, dict[str, int], str, int]
"""A kernel, a config of it, a dtype, and a head_dim that the config's HEAD is for."""


def sm_of(kernel: Kernel, dtype: str, config: Config) -> int:
    """The architecture that a case is run for: sm_75 for halves without tensor cores, and for f16 in one slot."""
    turing = dtype != "f32" if kernel is SIMT else dtype == "f16" and kernel.min_sm == 75 and config["stages"] == 1
    return 75 if turing else max(86, kernel.min_sm)


def wgmma_case(head: int, *tile: int, dtype: str = "f16", dim: int = 0) -> Case:
    names = ("block_q", "block_k", "stages", "overlap", "turns")
    return WGMMA, {"head": head} | dict(zip(names, tile, strict=True)), dtype, dim or head


def code_of(kernel: Kernel, config: Config, dtype: str) -> tuple[Kernel, Config, str, str, int]:
    """The arguments that a config's code is compiled from; that of both layouts is the same."""
    return kernel, config, dtype, "bhsd", sm_of(kernel, dtype, config)


def problem_of(dtype: str, dim: int, shape: dict[str, int], layout: str = "bhsd") -> Problem:
    return find_op("attention").problem(dtype=dtype, layout=layout, head_dim=dim, **shape)


def run(
    kernel: Kernel, config: dict[str, int], problem: Problem, operands: dict[str, np.ndarray], check_races: bool = False
) -> np.ndarray:
    """The values of o as the kernel leaves them in memory."""
    ptx = ptx_of(*code_of(kernel, config, problem.dtype))
    sm = sm_of(kernel, problem.dtype, config)
    o = execute(kernel, config, problem, sm, ptx, operands, check_races=check_races)["o"]
    return decode_elements(o, problem.tensors["o"].dtype)


def outcome(
    kernel: Kernel, config: dict[str, int], problem: Problem, operands: dict[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """o in exact arithmetic, and how far roundings may take it from that.

    A score is a sum of head_dim products, scaled, in f32: its absolute error is the relative error of its weight. The
    weights are rounded to the dtype before tensor cores multiply them, and what is left of those below its least normal
    number; where that is e4m3, what is expected has weights so rounded. Then come the sums over the keys, rescaled once
    a tile, and the rounding of the result.
    """
    dim, dtype, output = problem.sizes, problem.dtype, problem.tensors["o"].dtype
    value = {name: decode_elements(tensor, problem.tensors[name].dtype) for name, tensor in operands.items()}
    size = problem.definition.reference(problem.sizes, problem.layout, value | {"v": np.abs(value["v"])})["o"]
    scale = {name: value[f"{name}_scale"].max() if dim["scaled"] else 1.0 for name in "qk"}
    longest = [np.linalg.norm(value[name], axis=-1).max() * scale[name] for name in "qk"]
    of_score = (dim["head_dim"] + 8) * UNIT * longest[0] * longest[1] / np.sqrt(dim["head_dim"])
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
    """How many values of o are further from the reference than roundings take them."""
    operands = inputs(problem, seed)
    o = run(kernel, config, problem, operands, check_races)
    expected, bound = outcome(kernel, config, problem, operands)
    return int((~(np.abs(o - expected) <= bound)).sum())


def fitting(case: Case, problem: Problem) -> dict[str, int]:
    """The case's config as far as it fits the problem: run-time tunables fall back to their first values."""
    kernel, config, _, _ = case
    plain = {name: value for name, value in (("split_keys", 1), ("pack", 0)) if name in config}
    candidates = (config, *(config | {name: value} for name, value in plain.items()), config | plain)
    of_card = limits(sm_of(kernel, problem.dtype, config))
    return next(c for c in candidates if kernel.fits(c, problem, of_card))


def is_noticed(old: str, new: str, case: Case, shape: dict[str, int]) -> bool:
    """Whether a copy of the case's kernel with `old` replaced by `new` fails on a problem of layout bshd."""
    kernel, _, dtype, dim = case
    assert kernel.source.count(old) == 1
    broken = dataclasses.replace(kernel, source=kernel.source.replace(old, new))
    problem = problem_of(dtype, dim, shape, "bshd")
    config = fitting(case, problem)
    operands = inputs(problem)
    try:
        o = run(broken, config, problem, operands, check_races=True)
    except EmulationError:
        return True
    expected, bound = outcome(kernel, config, problem, operands)
    return not (np.abs(o - expected) <= bound).all()
