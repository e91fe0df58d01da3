"""Helpers that run matmul kernels in the emulator."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from kernrec.kernel import Kernel
from kernrec.op import Problem, decode_elements, encode_elements, find_op, reference
from kernrec.ptx import EmulationError
from tests.helpers.kernel_code import Config, ptx_of
from tests.helpers.trial import ROUNDING, execute


def matmul(dtype: str, layout: str, **dims: int) -> Problem:
    return find_op("matmul").problem(dtype=dtype, layout=layout, **dims)


def awkward(config: Config, dtype: str, layout: str, **dims: int) -> Problem:
    """Return a problem with partial tiles in m, n and k, whose sizes are only as aligned as the config requires."""
    vector = config["vector"]
    sizes = {"m": config["block_m"] + 3 * vector, "n": config["block_n"] + 5 * vector, "k": 7 * 16 + 3 * vector}
    return matmul(dtype, layout, **(sizes | dims))


def run(
    kernel: Kernel,
    config: Config,
    problem: Problem,
    operands: Mapping[str, np.ndarray],
    sm: int,
    check_races: bool = False,
) -> np.ndarray:
    """Run the kernel, and return its output c, in which unwritten elements are NaN."""
    ptx = ptx_of(kernel, config, problem.dtype, problem.layout, sm)
    return execute(kernel, config, problem, sm, ptx, dict(operands), check_races=check_races)["c"]


def whole_numbers(problem: Problem) -> dict[str, np.ndarray]:
    """Return integer inputs whose products and their sums, in any order, are exact in f32."""
    generator = np.random.default_rng(0)
    return {
        name: encode_elements(generator.integers(-16, 17, tensor.shape).astype(np.float64), tensor.dtype)
        for name, tensor in problem.tensors.items()
        if tensor.role == "input"
    }


def exact(kernel: Kernel, config: Config, problem: Problem, sm: int) -> bool:
    """Return whether a matmul of small integers gives the exact result, rounded to the dtype of c."""
    operands = whole_numbers(problem)
    expected = encode_elements(reference(problem, operands)["c"], problem.tensors["c"].dtype)
    return bits(run(kernel, config, problem, operands, sm, check_races=True)) == bits(expected)


def breaks(kernel: Kernel, config: Config, problem: Problem, sm: int) -> bool:
    """Return whether a broken kernel fails on a matmul of integers, or gives a wrong result."""
    try:
        return not exact(kernel, config, problem, sm)
    except EmulationError:
        return True


def mma_config(*tile: int, vector: int, stages: int, fragments: int = 2, **launch: int) -> Config:
    """Return a config of an MMA kernel. `tile` has block_m, block_n, block_k, warp_m and warp_n."""
    names = ("block_m", "block_n", "block_k", "warp_m", "warp_n")
    fixed = dict(zip(names, tile, strict=True)) | {"vector": vector, "stages": stages, "fragments": fragments}
    return fixed | {"raster": 1, "split_k": 1} | launch


def named(value: object) -> str:
    """Return the part of a test's name that identifies a config."""
    return "-".join(map(str, value.values() if isinstance(value, dict) else [value]))


def bits(values: np.ndarray) -> list[int]:
    return np.ascontiguousarray(values).view(f"u{values.itemsize}").ravel().tolist()


def broken(kernel: Kernel, old: str, new: str) -> Kernel:
    assert old in kernel.source
    return dataclasses.replace(kernel, source=kernel.source.replace(old, new))


def worst(c: np.ndarray, expected: np.ndarray, sums: np.ndarray, problem: Problem) -> float:
    """Return the largest ratio of an error to its bound. `sums` has sum |a b| + |bias| for each result."""
    # Each term is rounded once in f32, and TF32 also rounds both operands.
    terms = problem.sizes["k"] + 2
    bound = sums * (terms * 2.0**-24 + (2.0**-10 + 2.0**-22 if problem.dtype == "tf32" else 0.0))
    if problem.sizes["activation"]:  # slopes are below 1.13, and exponentials and reciprocals are approximate
        bound = 1.13 * bound + 2.0**-20 * sums
    stored = problem.tensors["c"].dtype
    bound += ROUNDING[stored] * (np.abs(expected) + bound) + 2.0**-25
    error = np.abs(decode_elements(c, stored) - expected)
    return float(np.where(np.isfinite(error), error / bound, np.inf).max())
