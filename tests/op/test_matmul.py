"""Layouts and batches of matmul: the same product, however the matrices are stored and how many there are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from kernrec.op import Problem, find_op, inputs, problem_from_key, reference

MATMUL = find_op("matmul")
sizes = st.integers(1, 9)
layouts = st.sampled_from(MATMUL.layouts)


def stored(problem: Problem, a: np.ndarray, b: np.ndarray) -> dict[str, np.ndarray]:
    """(..., m, k) and (..., k, n) matrices as the problem's layout keeps them."""
    matrices = {"a": a, "b": b}
    for name, letter in zip("ab", problem.layout, strict=True):
        if letter == "t":
            matrices[name] = np.ascontiguousarray(matrices[name].swapaxes(-1, -2))
        assert matrices[name].shape == problem.tensors[name].shape
    return matrices


@given(sizes, sizes, sizes, st.integers(1, 4), layouts)
def test_a_layout_changes_how_matrices_are_stored_and_not_their_product(
    m: int, n: int, k: int, batch: int, layout: str
) -> None:
    plain, other = (MATMUL.problem("f64", which, m=m, n=n, k=k, batch=batch) for which in ("nn", layout))
    tensors = inputs(plain)
    expected = reference(plain, tensors)["c"]
    assert_allclose(reference(other, stored(other, tensors["a"], tensors["b"]))["c"], expected, atol=1e-14)
    assert (other.flops, other.bytes) == (plain.flops, plain.bytes)


@given(sizes, sizes, sizes, st.integers(2, 4), layouts)
def test_a_batch_is_as_many_products_apart(m: int, n: int, k: int, batch: int, layout: str) -> None:
    many = MATMUL.problem("f64", layout, m=m, n=n, k=k, batch=batch)
    one = MATMUL.problem("f64", layout, m=m, n=n, k=k)
    tensors = inputs(many)
    expected = [reference(one, {name: tensors[name][i] for name in "ab"})["c"] for i in range(batch)]
    assert_allclose(reference(many, tensors)["c"], expected, atol=1e-14)
    assert (many.flops, many.bytes) == (batch * one.flops, batch * one.bytes)


@given(sizes, sizes, sizes, layouts)
def test_a_batch_of_one_is_the_problem_that_was_known_before_batches(m: int, n: int, k: int, layout: str) -> None:
    problem = MATMUL.problem(None, layout, m=m, n=n, k=k, batch=1)
    assert problem == MATMUL.problem(None, layout, m=m, n=n, k=k)
    assert problem.key == f"matmul[m={m},n={n},k={k}]f32,{layout}"
    assert problem.dim == {"m": m, "n": n, "k": k}
    assert problem.tensors["c"].shape == (m, n)
    assert problem.names["batch"] == 1


def test_a_larger_batch_is_in_the_key_and_read_back() -> None:
    problem = MATMUL.problem(m=1, n=2, k=3, batch=4)
    assert problem.key == "matmul[m=1,n=2,k=3,batch=4]f32,nn"
    assert problem_from_key(problem.key).names["batch"] == 4
    assert problem_from_key("matmul[m=1,n=2,k=3,batch=1]f32,nn").key == "matmul[m=1,n=2,k=3]f32,nn"


@pytest.mark.parametrize(("layout", "b"), [("nn", (3, 2)), ("nt", (2, 3)), ("tn", (3, 2)), ("tt", (2, 3))])
def test_the_second_letter_says_how_b_is_stored(layout: str, b: tuple[int, int]) -> None:
    assert MATMUL.problem(None, layout, m=1, n=2, k=3).tensors["b"].shape == b


@given(sizes, sizes, st.integers(1, 16))
def test_a_matvec_is_a_matmul_with_the_weights_transposed(m: int, k: int, n: int) -> None:
    matvec = find_op("matvec").problem(m=m, k=k, n=n)
    matmul = MATMUL.problem(None, "nt", m=n, n=m, k=k)
    assert (matvec.flops, matvec.bytes) == (matmul.flops, matmul.bytes)
    tensors = inputs(matvec)
    y, c = reference(matvec, tensors)["y"], reference(matmul, {"a": tensors["x"], "b": tensors["a"]})["c"]
    assert_allclose(y, c, atol=1e-14)
