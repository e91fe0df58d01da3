"""Define ops, problems and workloads, independently of any kernel or GPU.

>>> from kernrec.op import find_op
>>> problem = find_op("gemm").problem(m=512, n=512, k=64)
>>> problem.key, problem.flops, problem.bytes
('matmul[m=512,n=512,k=64]f32,nn', 33554432, 1310720)
"""

from kernrec.op.data import decode_elements, encode_elements, inputs, reference
from kernrec.op.problem import Dim, Op, Problem, Tensor
from kernrec.op.registry import all_ops, find_op, parse_shape, problem_from_key, problem_from_shape

__all__ = [
    "Dim",
    "Op",
    "Problem",
    "Tensor",
    "all_ops",
    "decode_elements",
    "encode_elements",
    "find_op",
    "inputs",
    "parse_shape",
    "problem_from_key",
    "problem_from_shape",
    "reference",
]
