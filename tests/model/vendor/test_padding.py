"""Test that products with unaligned rows are also predicted with padding, if their layout has such rows."""

from dataclasses import replace

from kernrec.model.vendor.epilogue import padded
from kernrec.op import find_op
from kernrec.op.problem import ANY_LAYOUT, LARGEST


def test_unaligned_rows_are_padded():
    problem = find_op("matmul").problem("f16", "nn", m=64, n=100, k=64)
    assert {other.sizes["n"] for other in padded(problem)} == {100, 104, 128}
    assert padded(find_op("matmul").problem("f16", "nn", m=100, n=64, k=64)) == ()


def test_no_size_is_padded_beyond_the_largest_one():
    sizes = {"m": 1, "n": LARGEST, "k": 12}
    others = padded(find_op("matmul").problem("f16", "nn", **sizes))
    assert {(other.sizes["n"], other.sizes["k"]) for other in others} == {(LARGEST, 12), (LARGEST, 16), (LARGEST, 64)}


def test_declared_problem_named_like_an_op_is_not_padded():
    problem = replace(find_op("matmul"), layouts=(ANY_LAYOUT,)).problem("f16", ANY_LAYOUT, m=64, n=100, k=64)
    assert padded(problem) == ()
