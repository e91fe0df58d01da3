"""Shapes of arrays become problems, and what does not fit is said in one line."""

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


def test_unsupported_dimensions_are_named(refuses):
    refuses(lambda op, dims: shapes_of(op, **dims), [
        ("matmul", {"m": 1, "n": 1}), ("matmul", {"m": 1, "n": 1, "k": 1, "kk": 3}),
        ("matmul", {"m": range(0), "n": 1, "k": 1}), ("matmul", {"m": "many", "n": 1, "k": 1}),
        ("matmul", {"m": range(0, 9), "n": 1, "k": 1}), ("matmul", {"m": 1, "n": 1, "k": 1, "batch": range(1, 9)}),
        ("conv2d", {"c": 8, "h": 9, "w": 9, "k": 8, "stride": [1, 2]}),
    ])  # fmt: skip


def test_output_shape_follows_from_inputs_or_is_computed():
    assert shapes_of("matmul", **DIMS["matmul"]).output_axes == ((0, 0), (1, 1))
    assert shapes_of("reduce", rows=range(1, 9), columns=5).output_axes == ((0, 0),)
    assert shapes_of("matmul", m=2, n=[3, 4], k=5).output_axes == (2, (1, 1))
    assert shapes_of("conv2d", **DIMS["conv2d"] | {"padding": 0}).output_axes is None
