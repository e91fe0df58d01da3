"""Test seeded inputs, and compare reference results with a term-by-term evaluation of the definition."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from kernrec.op import Problem, decode_elements, encode_elements, find_op, inputs, reference
from tests.op.test_problem import convolutions

MATMUL, CONV2D = find_op("matmul"), find_op("conv2d")


def convolution_by_definition(problem: Problem, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Sum the definition of a convolution for each output element, with indexes in the problem's layout."""
    d = problem.sizes
    depth, share = d["c"] // d["groups"], d["k"] // d["groups"]
    y = np.zeros(problem.tensors["y"].shape)
    for n, k, p, q in product(range(d["n"]), range(d["k"]), range(d["p"]), range(d["q"])):
        total = 0.0
        for c, r, s in product(range(depth), range(d["r"]), range(d["s"])):
            row = p * d["stride"] - d["padding"] + r * d["dilation"]
            column = q * d["stride"] - d["padding"] + s * d["dilation"]
            if 0 <= row < d["h"] and 0 <= column < d["w"]:
                channel = k // share * depth + c
                if problem.layout == "nchw":
                    total += x[n, channel, row, column] * w[k, c, r, s]
                else:
                    total += x[n, row, column, channel] * w[k, r, s, c]
        y[(n, k, p, q) if problem.layout == "nchw" else (n, p, q, k)] = total
    return y


@given(convolutions(["f64"], 2, 5), st.integers(0, 100))
def test_convolution_matches_its_definition(problem, seed):
    tensors = inputs(problem, seed)
    y = reference(problem, tensors)["y"]
    assert y.shape == problem.tensors["y"].shape
    assert_allclose(y, convolution_by_definition(problem, **tensors), atol=1e-12)


def test_matmul_matches_its_definition():
    problem = MATMUL.problem(m=3, n=4, k=5)
    tensors = inputs(problem, 7)
    a, b = (tensors[name].astype(np.float64) for name in "ab")
    expected = [[sum(a[i, t] * b[t, j] for t in range(5)) for j in range(4)] for i in range(3)]
    assert_allclose(reference(problem, tensors)["c"], expected, atol=1e-14)


@pytest.mark.parametrize("dtype", MATMUL.dtypes)
def test_inputs_follow_the_tensor_layout_and_the_seed(dtype):
    problems = [MATMUL.problem(dtype, m=7, n=5, k=3, bias=1)]
    if dtype in CONV2D.dtypes:
        problems.append(CONV2D.problem(dtype, "nhwc", c=4, h=5, w=6, k=8, groups=2))
    for problem in problems:
        first, again, other = inputs(problem, 1), inputs(problem, 1), inputs(problem, 2)
        expected = [name for name, tensor in problem.tensors.items() if tensor.role == "input"]
        assert list(first) == expected
        for name in expected:
            assert first[name].shape == problem.tensors[name].shape
            packed = 2 if problem.tensors[name].dtype in ("i4", "f4e2m1") else 1
            assert (first[name].nbytes + packed - 1) // packed == problem.tensors[name].bytes
            assert_array_equal(first[name], again[name])
            assert not np.array_equal(first[name], other[name])


def test_flat_inputs_are_reshaped_and_wrong_sizes_refused(refuses):
    problem = MATMUL.problem(m=3, n=4, k=5)
    tensors = inputs(problem)
    flat = {name: array.ravel() for name, array in tensors.items()}
    assert_array_equal(reference(problem, flat)["c"], reference(problem, tensors)["c"])
    refuses(lambda: reference(problem, {"a": tensors["a"]}))
    refuses(lambda: reference(problem, {"a": tensors["a"], "b": tensors["a"]}))


@given(st.lists(st.floats(width=32), min_size=1))
def test_bf16_rounds_to_nearest_even(values):
    exact = np.array(values, dtype=np.float32)
    bits = exact.view(np.uint32) & np.uint32(0xFFFF0000)
    with np.errstate(invalid="ignore", over="ignore"):  # signalling NaNs cause warnings
        rounded = decode_elements(encode_elements(exact, "bf16"), "bf16")
        below, above = (b.view(np.float32).astype(np.float64) for b in (bits, bits + np.uint32(0x10000)))
    for value, low, high, got in zip(exact.astype(np.float64), below, above, rounded, strict=True):
        if np.isnan(value):
            assert np.isnan(got)
        elif np.isfinite(low) and np.isfinite(high) and abs(value - low) != abs(high - value):
            assert got == (low if abs(value - low) < abs(high - value) else high)
        else:
            assert got in (low, high) or np.isinf(value)


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16", "tf32"])
def test_decoded_values_encode_to_the_same_bits(dtype):
    stored = encode_elements(np.linspace(-3, 3, 101), dtype)
    assert_array_equal(encode_elements(decode_elements(stored, dtype), dtype), stored)
