"""Test every bias and activation of the matmul kernels, with and without split-k, and at matrix edges."""

import numpy as np
import pytest

from kernrec.gpu import limits
from kernrec.kernel import Kernel, bind_launches, find_kernel
from kernrec.kernel.binding import Pointer
from kernrec.op import decode_elements, encode_elements, inputs, reference
from kernrec.ptx import EmulationError
from tests.helpers.kernel_code import Config
from tests.helpers.products import broken, matmul, run, worst

pytestmark = pytest.mark.slow

_MMA = {"block_m": 64, "block_n": 64, "block_k": 32, "warp_m": 32, "warp_n": 32, "raster": 8}
_SIMT = {"block_m": 32, "block_n": 64, "block_k": 16, "thread_m": 4, "thread_n": 4, "lanes_m": 4, "min_blocks": 0}
_SIMT |= {"raster": 1}

CASES: list[tuple[str, str, str, int, Config]] = [
    ("matmul_mma", "f16", "nn", 86, _MMA | {"vector": 8, "stages": 4, "fragments": 2}),
    ("matmul_mma", "bf16", "nt", 86, _MMA | {"vector": 2, "stages": 3, "fragments": 2}),
    ("matmul_mma", "f16", "tn", 75, _MMA | {"vector": 8, "stages": 2, "fragments": 1}),
    ("matmul_mma", "f16", "tt", 75, _MMA | {"vector": 1, "stages": 2, "fragments": 1}),
    ("matmul_tf32", "tf32", "nn", 86, _MMA | {"block_k": 16, "vector": 4, "stages": 4, "fragments": 2}),
    ("matmul_tf32", "tf32", "tt", 86, _MMA | {"block_k": 16, "vector": 1, "stages": 4, "fragments": 2}),
    ("matmul_mma_8bit", "i8", "nt", 75, _MMA | {"block_k": 64, "vector": 16, "stages": 2, "fragments": 1}),
    ("matmul_mma_8bit", "i8", "nt", 75, _MMA | {"block_k": 64, "vector": 2, "stages": 2, "fragments": 1}),
    ("matmul_mma_8bit", "f8e4m3", "nt", 89, _MMA | {"block_k": 64, "vector": 4, "stages": 3, "fragments": 2}),
    ("matmul_simt", "f32", "nn", 86, _SIMT | {"vector": 4, "stages": 4, "async_copy": 1}),
    ("matmul_simt", "f32", "nn", 75, _SIMT | {"vector": 1, "stages": 2, "async_copy": 0}),
    ("matmul_skinny", "f32", "nt", 86, {"rows": 4, "columns": 4, "vector": 4, "unroll": 2}),
    ("matmul_skinny", "f16", "nt", 75, {"rows": 8, "columns": 8, "vector": 8, "unroll": 1}),
    ("matmul_skinny", "bf16", "nt", 75, {"rows": 2, "columns": 2, "vector": 1, "unroll": 2}),
    ("matmul_simt", "f32", "nt", 75, _SIMT | {"vector": 4, "stages": 2, "async_copy": 0}),
    ("matmul_simt", "f32", "nt", 86, _SIMT | {"vector": 1, "stages": 2, "async_copy": 0}),
]
"""Append new cases at the end, because the tests below refer to cases by number."""
ENDS = ((1, 0), (0, 1), (1, 2), (1, 3))  # bias, relu, bias with gelu, bias with silu
SPREAD = [(case, 1 + (i + j // 2) % 2, *ENDS[(i + j) % 4]) for i, case in enumerate(CASES) for j in range(4)]
"""Each case runs with every activation, alternating between split_k = 1 and 2 so that each activation has both."""


def _name(value: object) -> str:
    return "-".join(map(str, (*value[:4], value[4]["vector"]))) if isinstance(value, tuple) else str(value)


def _dims(kernel: str, vector: int) -> dict[str, int]:
    """Return sizes that are only as aligned as the config requires."""
    if kernel == "matmul_skinny":
        return {"m": 5, "n": 67, "k": 2048 + 3 * vector}
    return {"m": 64 + 3 * vector, "n": 128 + 5 * vector, "k": 64 + 3 * vector}


@pytest.mark.every(6)
@pytest.mark.parametrize(("case", "split_k", "bias", "activation"), SPREAD, ids=_name)
def test_bias_and_activation_match_the_reference(case, split_k, bias, activation):
    name, dtype, layout, sm, config = case
    kernel, config = find_kernel(name), config | {"split_k": split_k}
    problem = matmul(dtype, layout, **_dims(name, config["vector"]), bias=bias, activation=activation)
    assert kernel.misfit(config, problem, limits(sm)) is None
    operands = inputs(problem, seed=activation)
    assert worst(run(kernel, config, problem, operands, sm), *_expected(problem, operands), problem) <= 1


def _expected(problem, operands) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[no-untyped-def]
    """Return the reference for c, and sum |a b| + |bias|."""
    sizes = {
        name: encode_elements(np.abs(decode_elements(value, problem.tensors[name].dtype)), problem.tensors[name].dtype)
        for name, value in operands.items()
    }
    plain = matmul(problem.dtype, problem.layout, **(problem.dim | {"activation": 0}))
    return reference(problem, operands)["c"], reference(plain, sizes)["c"]


@pytest.mark.parametrize("activation", [1, 2, 3])
def test_extreme_activations_are_zero_or_identity(activation):
    name, dtype, layout, sm, config = CASES[11]
    problem = matmul(dtype, layout, m=1, n=8, k=4, activation=activation)
    values = np.array([-1e30, -3e4, -100.0, -0.0, 0.0, 100.0, 3e4, 1e30], np.float32)
    operands = {"a": np.array([[1, 0, 0, 0]], np.float32), "b": np.zeros((8, 4), np.float32)}
    operands["b"][:, 0] = values
    c = run(find_kernel(name), config | {"split_k": 1, "columns": 1}, problem, operands, sm)
    assert np.abs(c[0, :5]).max() <= 1e-30
    np.testing.assert_allclose(c[0, 5:], values[5:], rtol=1e-6)


def test_relu_keeps_nan():
    name, dtype, layout, sm, config = CASES[11]
    problem = matmul(dtype, layout, m=1, n=2, k=4, activation=1)
    operands = {"a": np.ones((1, 4), np.float32), "b": np.array([[np.nan, 0, 0, 0], [-1, 0, 0, 0]], np.float32)}
    c = run(find_kernel(name), config | {"split_k": 1, "columns": 1}, problem, operands, sm)
    assert np.isnan(c[0, 0])
    assert c[0, 1] == 0


def test_missing_bias_is_a_null_pointer():
    name, dtype, layout, sm, config = CASES[0]
    for bias in (0, 1):
        problem = matmul(dtype, layout, m=64, n=64, k=64, bias=bias)
        for launch in bind_launches(find_kernel(name), config | {"split_k": 2}, problem, sm):
            nulls = {a.name: a.null for a in launch.arguments if isinstance(a, Pointer)}
            assert nulls["bias"] is (bias == 0)


BREAKS = [
    (0, 1, "if (bias) {", "if (false) {"), (0, 1, "column + j * 8 + e, n - 1", "j * 8 + e, n - 1"),
    (2, 1, "sums[i][j][e + 2] += value", "sums[i][j][e] += value"),
    (3, 1, "min(column + j * 8 + e, n - 1)", "column + j * 8 + e"), (4, 2, "first % columns", "first"),
    (4, 2, "first = min(first, elements - N);", ""), (5, 1, "if (!partial) finish", "if (partial) finish"),
    (9, 1, "j / VECTOR * VECTOR * LANES_N", "j * LANES_N"), (10, 2, "partial += elements;", "partial += 0;"),
    (11, 1, "linear + cubic * x * x", "linear"), (11, 2, "activation != NONE", "activation == SILU"),
    (12, 1, "bias_at(bias, column)", "bias_at(bias, 0)"), (12, 1, "r < m && c < columns", "r < m"),
]  # fmt: skip


@pytest.mark.every(8)
@pytest.mark.parametrize(("number", "split_k", "old", "new"), BREAKS, ids=[b[2] for b in BREAKS])
def test_suite_detects_an_error_inserted_in_the_kernel(number, split_k, old, new):
    name, dtype, layout, sm, config = CASES[number]
    kernel: Kernel = broken(find_kernel(name), old, new)
    problem = matmul(dtype, layout, **_dims(name, config["vector"]), bias=1, activation=2)
    operands = inputs(problem)
    try:
        c = run(kernel, config | {"split_k": split_k}, problem, operands, sm)
    except EmulationError:
        return
    assert worst(c, *_expected(problem, operands), problem) > 1
