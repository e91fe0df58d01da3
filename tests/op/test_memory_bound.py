"""Test memory-bound ops against their definitions and laws."""

from math import exp, sqrt
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from kernrec.op import decode_elements, find_op, inputs, reference

sizes = st.integers(1, 12)
seeds = st.integers(0, 100)


def run(op: str, seed: int = 0, **dims: int) -> tuple[dict[str, Any], np.ndarray]:
    problem = find_op(op).problem(**dims)
    tensors = inputs(problem, seed)
    return {name: decode_elements(tensor, "f32") for name, tensor in tensors.items()}, reference(problem, tensors)["y"]


@given(sizes, sizes, seeds)
def test_softmax_matches_its_definition(rows, columns, seed):
    given_, y = run("softmax", seed, rows=rows, columns=columns)
    for x_row, y_row in zip(given_["x"], y, strict=True):
        total = sum(map(exp, x_row))
        assert_allclose(y_row, [exp(value) / total for value in x_row], rtol=1e-12)


@given(sizes, sizes, seeds)
def test_softmax_sums_to_one_and_ignores_a_shift(rows, columns, seed):
    problem = find_op("softmax").problem(rows=rows, columns=columns)
    x = inputs(problem, seed)["x"]
    y = reference(problem, {"x": x})["y"]
    assert_allclose(y.sum(axis=1), 1)
    assert_allclose(reference(problem, {"x": x.astype(np.float64) + 5000})["y"], y, rtol=1e-9)


@given(sizes, sizes, seeds)
def test_layernorm_matches_its_definition(rows, columns, seed):
    t, y = run("layernorm", seed, rows=rows, columns=columns)
    for x_row, y_row in zip(t["x"], y, strict=True):
        mean = sum(x_row) / columns
        variance = sum((value - mean) ** 2 for value in x_row) / columns
        expected = [(value - mean) / sqrt(variance + 1e-5) for value in x_row]
        assert_allclose(y_row, expected * t["weight"] + t["bias"], atol=1e-10)


@given(sizes, sizes, seeds)
def test_rmsnorm_matches_its_definition(rows, columns, seed):
    t, y = run("rmsnorm", seed, rows=rows, columns=columns)
    for x_row, y_row in zip(t["x"], y, strict=True):
        size = sqrt(sum(value**2 for value in x_row) / columns + 1e-5)
        assert_allclose(y_row, x_row / size * t["weight"], rtol=1e-12)


@given(sizes, sizes, seeds)
def test_reduce_sums_each_row_and_transpose_swaps_the_axes(rows, columns, seed):
    t, y = run("reduce", seed, rows=rows, columns=columns)
    assert_allclose(y, [sum(row) for row in t["x"]], atol=1e-12)
    t, y = run("transpose", seed, rows=rows, columns=columns)
    assert_array_equal(y, [[t["x"][i, j] for i in range(rows)] for j in range(columns)])


@given(sizes, seeds)
def test_elementwise_is_a_multiply_add_clipped_at_zero(n, seed):
    t, y = run("elementwise", seed, n=n)
    assert_allclose(y, [max(0.0, t["a"][0] * x + b) for x, b in zip(t["x"], t["b"], strict=True)])


@given(sizes, sizes)
def test_bytes_and_flops_follow_from_the_sizes(rows, columns):
    elements = rows * columns
    expected = {
        "softmax": (5 * elements, 2 * elements),
        "layernorm": (7 * elements, 2 * elements + 2 * columns),
        "rmsnorm": (4 * elements, 2 * elements + columns),
        "reduce": (elements, elements + rows),
        "transpose": (0, 2 * elements),
    }
    for op, (flops, touched) in expected.items():
        problem = find_op(op).problem("f16", rows=rows, columns=columns)
        assert (problem.flops, problem.bytes) == (flops, 2 * touched)
    problem = find_op("elementwise").problem("f16", n=elements)
    assert (problem.flops, problem.bytes) == (3 * elements, 2 * (3 * elements + 1))
