"""Test that array shapes become problems, and that mismatches give one-line errors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.op import all_ops, find_op
from kernrec.run.shapes import Shapes
from tests.helpers.depth import few_examples

DIMS = {
    "matmul": {"m": range(1, 65), "n": range(1, 65), "k": range(1, 65)},
    "conv2d": {"n": range(1, 9), "c": 8, "h": range(5, 40), "w": range(5, 40), "k": [8, 16, 24], "padding": 1},
    "attention": {"batch": range(1, 5), "heads": 4, "queries": range(1, 100), "keys": range(100, 200), "head_dim": 64},
    "matvec": {"m": range(1, 100), "k": range(1, 100), "n": range(1, 17)},
    "elementwise": {"n": range(1, 1000)},
    "moe": {"tokens": range(1, 100), "hidden": 64, "intermediate": 32, "experts": 8, "topk": 2},
}


def shapes_of(op: str, **dims: object) -> Shapes:
    return Shapes.of(find_op(op), None, None, dims)


@pytest.mark.parametrize("op", [op.name for op in all_ops()])
@few_examples(5)
@given(data=st.data())
def test_problem_is_inferred_from_input_shapes(op, data):
    dims = DIMS.get(op, {"rows": range(1, 100), "columns": range(1, 100)})
    shapes = shapes_of(op, **dims)
    values = {name: data.draw(st.sampled_from(arguments)) for name, arguments in shapes.ranged.items()}
    problem = shapes.problem(values)
    assert shapes.read([problem.tensors[name].shape for name in shapes.inputs]) == problem


def test_inconsistent_shapes_are_named(refuses):
    def refused(dims: dict, arguments: list) -> None:
        shapes = shapes_of("matmul", **({"m": range(1, 9), "n": 4, "k": 8} | dims))
        shapes.read(arguments)

    refuses(refused, [
        ({}, [(5, 8)]), ({}, [(5, 8), (8,)]), ({}, [(9, 8), (8, 4)]), ({"m": [2, 4]}, [(3, 8), (8, 4)]),
        ({}, [(5, 9), (8, 4)]), ({"n": range(8, 33, 8)}, [(5, 8), (8, 12)]),
    ])  # fmt: skip
