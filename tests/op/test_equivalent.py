"""Test that a matvec and a matmul with the same number of rows are the same problem."""

import numpy as np
import pytest

from kernrec.op import find_op, inputs, reference
from kernrec.op.equivalent import as_matmul, as_op, equivalents, tensor_names

MATMUL, MATVEC = find_op("matmul"), find_op("matvec")


def test_matvec_and_small_matmul_are_equivalent_problems():
    vectors, rows = MATVEC.problem("bf16", m=4096, k=512, n=16), MATMUL.problem("bf16", "nt", m=16, n=4096, k=512)
    assert equivalents(vectors) == equivalents(rows) == (rows, vectors)
    assert as_matmul(vectors) == rows
    assert as_op(rows, "matvec") == vectors
    assert as_op(rows, "matmul") is rows


@pytest.mark.parametrize(("dtype", "layout", "dims"), [
    ("bf16", "nt", {"m": 17}), ("bf16", "nn", {"m": 4}), ("bf16", "tn", {"m": 4}), ("bf16", "nt", {"m": 4, "batch": 2}),
    ("bf16", "nt", {"m": 4, "bias": 1}), ("bf16", "nt", {"m": 4, "activation": 1}), ("i8", "nt", {"m": 4}),
    ("f8block", "nt", {"m": 4}),
])  # fmt: skip
def test_matmul_that_matvec_cannot_express_has_no_equivalent(dtype, layout, dims):
    problem = MATMUL.problem(dtype, layout, **{"n": 64, "k": 128} | dims)
    assert equivalents(problem) == (problem,)
    assert as_op(problem, "matvec") is None


@pytest.mark.parametrize(
    "problem",
    [MATMUL.problem("f32", "nt", m=3, n=20, k=12), MATMUL.problem("f32", "nn", m=20, n=1, k=12)],
    ids=lambda problem: problem.key,
)
def test_equivalent_forms_have_the_same_tensors_and_results(problem):
    form = as_op(problem, "matvec")
    assert form is not None
    names = tensor_names(problem, "matvec")
    tensors = inputs(problem, seed=1)
    mine = {name: tensors[names[name]].reshape(form.tensors[name].shape) for name in ("a", "x")}
    (expected,), (result,) = reference(problem, tensors).values(), reference(form, mine).values()
    assert np.array_equal(result.reshape(expected.shape), expected)
    assert names["y"] == "c"
