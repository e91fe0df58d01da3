"""Test that the layout does not change a matmul's result, with batches, biases and activations."""

from math import erf, exp, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from kernrec.op import Problem, decode_elements, find_op, inputs, problem_from_key, reference

MATMUL = find_op("matmul")
sizes = st.integers(1, 9)
layouts = st.sampled_from(MATMUL.layouts)


def stored(problem: Problem, a: np.ndarray, b: np.ndarray) -> dict[str, np.ndarray]:
    matrices = {"a": a, "b": b}
    for name, letter in zip("ab", problem.layout, strict=True):
        if letter == "t":
            matrices[name] = np.ascontiguousarray(matrices[name].swapaxes(-1, -2))
        assert matrices[name].shape == problem.tensors[name].shape
    return matrices


@given(sizes, sizes, sizes, st.integers(1, 4), layouts)
def test_layout_changes_storage_but_not_the_result(m, n, k, batch, layout):
    plain, other = (MATMUL.problem("f64", which, m=m, n=n, k=k, batch=batch) for which in ("nn", layout))
    tensors = inputs(plain)
    expected = reference(plain, tensors)["c"]
    assert_allclose(reference(other, stored(other, tensors["a"], tensors["b"]))["c"], expected, atol=1e-14)
    assert (other.flops, other.bytes) == (plain.flops, plain.bytes)


@given(sizes, sizes, sizes, st.integers(2, 4), layouts)
def test_batched_matmul_reference_equals_separate_matmuls(m, n, k, batch, layout):
    many = MATMUL.problem("f64", layout, m=m, n=n, k=k, batch=batch)
    single = MATMUL.problem("f64", layout, m=m, n=n, k=k)
    tensors = inputs(many)
    expected = [reference(single, {name: tensors[name][i] for name in "ab"})["c"] for i in range(batch)]
    assert_allclose(reference(many, tensors)["c"], expected, atol=1e-14)
    assert (many.flops, many.bytes) == (batch * single.flops, batch * single.bytes)


def _activated(activation: int, values: list[float]) -> np.ndarray:
    problem = MATMUL.problem("f64", m=len(values), n=1, k=1, activation=activation)
    return reference(problem, {"a": np.array(values)[:, None], "b": np.ones((1, 1))})["c"][:, 0]


@given(st.lists(st.floats(-30, 30), min_size=1, max_size=9))
def test_activations_match_their_definitions(values):
    assert_allclose(_activated(0, values), values, rtol=0)
    assert_allclose(_activated(1, values), [max(x, 0.0) for x in values], rtol=0)
    # the tanh form approximates x Phi(x) to within 5e-4
    assert_allclose(_activated(2, values), [x * (1 + erf(x / sqrt(2))) / 2 for x in values], atol=5e-4)
    assert_allclose(_activated(3, values), [x / (1 + exp(-x)) for x in values], rtol=1e-12, atol=1e-12)


@given(sizes, sizes, sizes, st.integers(1, 3), layouts, st.integers(0, 3))
def test_bias_is_added_to_every_row_before_the_activation(m, n, k, batch, layout, activation):
    dims = {"m": m, "n": n, "k": k, "batch": batch}
    problem = MATMUL.problem("f64", layout, **dims, bias=1, activation=activation)
    plain = MATMUL.problem("f64", layout, **dims)
    assert problem.tensors["bias"].shape == (n,)
    assert problem.tensors["bias"].role == "input"
    assert problem.bytes == plain.bytes + 8 * n
    assert problem.flops == plain.flops
    tensors = inputs(problem)
    sums = (reference(plain, tensors)["c"] + tensors["bias"]).ravel().tolist()
    assert_allclose(reference(problem, tensors)["c"].ravel(), _activated(activation, sums), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("dtype", ["f8e4m3", "i8"])
@given(sizes, sizes, sizes, st.integers(1, 3), st.integers(0, 1))
def test_8_bit_matmul_multiplies_the_scaled_matrices(dtype, m, n, k, batch, scales):
    problem = MATMUL.problem(dtype, m=m, n=n, k=k, batch=batch, scales=scales, bias=1)
    tensors = inputs(problem)
    assert [tensor.dtype for tensor in problem.tensors.values()] == [dtype, dtype, "f32", "f32", "f32", "bf16"]
    a, b = (decode_elements(tensors[name], dtype).reshape(batch, -1, k) for name in "ab")
    by_row, by_column = (tensors[name].reshape(batch, -1, 1) for name in ("a_scale", "b_scale"))
    expected = (a * by_row) @ (b * by_column).swapaxes(1, 2) + tensors["bias"]
    assert_allclose(reference(problem, tensors)["c"].reshape(batch, m, n), expected, rtol=1e-5, atol=1e-5)


def test_8_bit_dtypes_have_their_own_spellings_layout_and_output_types(refuses):
    for spelling in ("fp8", "e4m3", "float8_e4m3fn", "FP8_E4M3"):
        assert MATMUL.problem(spelling, m=1, n=2, k=3).key == "matmul[m=1,n=2,k=3]f8e4m3,nt"
    assert MATMUL.problem("int8", m=1, n=2, k=3).layout == "nt"
    for output, dtype in enumerate(("bf16", "f16", "f32")):
        problem = MATMUL.problem("int8", m=1, n=2, k=3, output=output)
        assert problem.tensors["c"].dtype == dtype
        assert problem_from_key(problem.key) == problem
    refuses(lambda: MATMUL.problem("bf16", m=1, n=2, k=3, scales=1))
