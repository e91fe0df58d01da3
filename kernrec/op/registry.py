"""The ops of kernrec, looked up by name, alias or a problem's key."""

import re

from kernrec.errors import UsageError, fold, unknown
from kernrec.op.attention import ATTENTION
from kernrec.op.conv2d import CONV2D
from kernrec.op.elementwise import ELEMENTWISE
from kernrec.op.layernorm import LAYERNORM
from kernrec.op.matmul import MATMUL
from kernrec.op.matvec import MATVEC
from kernrec.op.problem import Op, Problem
from kernrec.op.reduce import REDUCE
from kernrec.op.rmsnorm import RMSNORM
from kernrec.op.shape import parse_shape
from kernrec.op.softmax import SOFTMAX
from kernrec.op.transpose import TRANSPOSE

_OPS = (ATTENTION, CONV2D, ELEMENTWISE, LAYERNORM, MATMUL, MATVEC, REDUCE, RMSNORM, SOFTMAX, TRANSPOSE)
_KEY = re.compile(r"(\w+)\[([^\[\]]*)\](\w+),(\w+)")


_BY_NAME = {fold(name): op for op in _OPS for name in (op.name, *op.aliases)}


def all_ops() -> tuple[Op, ...]:
    """Every op, by name."""
    return _OPS


def find_op(name: str) -> Op:
    """The op of this name or alias; case, spaces, `-` and `_` do not matter. Raises `UsageError`."""
    if op := _BY_NAME.get(fold(str(name))):
        return op
    raise unknown("op", name, [n for op in _OPS for n in (op.name, *op.aliases)], see="kernrec ops")


def problem_from_shape(op: str, shape: str, dtype: str | None = None, layout: str | None = None) -> Problem:
    """The problem of an op with the dimensions in a text such as `m=4096,n=4096,k=4096`. Raises `UsageError`."""
    return find_op(op).problem(dtype, layout, **parse_shape(shape))


def problem_from_key(key: str, own: Op | None = None) -> Problem:
    """The problem with this `key`.

    Args:
        key: Such as `matmul[m=1,n=2,k=3]f32,nn`.
        own: An op that is tried before the registered ones: that of a kernel that declares its own problem.

    Raises:
        UsageError: It is not the key of a problem, or the op or a dimension is not accepted.
    """
    if not (match := _KEY.fullmatch(key)):
        raise UsageError(f"{key[:60]!r} is not the key of a problem; expected one such as matmul[m=1,n=2,k=3]f32,nn")
    op, shape, dtype, layout = match.groups()
    definition = own if own is not None and op == own.name else find_op(op)
    return definition.problem(dtype, layout, **(parse_shape(shape) if shape else {}))
