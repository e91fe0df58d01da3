"""Find ops by name or alias, and create problems from shapes (`m=4096,n=4096,k=4k`) or keys."""

import copyreg
import re
from typing import Any

from kernrec.errors import UsageError, fold, unknown
from kernrec.op.attention import ATTENTION
from kernrec.op.conv2d import CONV2D
from kernrec.op.matmul import MATMUL
from kernrec.op.memory_bound import ELEMENTWISE, LAYERNORM, MATVEC, REDUCE, RMSNORM, SOFTMAX, TRANSPOSE
from kernrec.op.moe import MOE
from kernrec.op.problem import Op, Problem
from kernrec.util.human import short

_OPS = (ATTENTION, CONV2D, ELEMENTWISE, LAYERNORM, MATMUL, MATVEC, MOE, REDUCE, RMSNORM, SOFTMAX, TRANSPOSE)
_EQUALS = re.compile(r"\s*=\s*")
_SEPARATOR = re.compile(r"[,;\s]+")
_VALUE = re.compile(r"([+-]?[0-9]{1,30})(k?)", re.ASCII | re.IGNORECASE)
_PLAIN = re.compile(r"[0-9]+k?(?:\s*[,;x\s]\s*[0-9]+k?)*", re.ASCII | re.IGNORECASE)
"""Shape without names, such as `4096,4096,4k` or `4096x4096x4k`."""
_EXAMPLE = "write a shape as name=value,name=value, such as m=1024,n=1024,k=4k"
_KEY = re.compile(r"(\w+)\[([^\[\]]*)\](\w+),(\w+)")
_ACTIVATIONS = {"relu": 1, "gelu": 2, "silu": 3, "swish": 3}
_BY_NAME = {fold(name): op for op in _OPS for name in (op.name, *op.aliases)}


def all_ops() -> tuple[Op, ...]:
    return _OPS


def find_op(name: str) -> Op:
    """Return an op by name or alias, ignoring case, blanks, `-` and `_`. Raise `UsageError` if there is none."""
    if op := _BY_NAME.get(str(name)) or _BY_NAME.get(fold(str(name))):
        return op
    if (number := _ACTIVATIONS.get(fold(str(name)))) is not None:
        raise UsageError(
            f"unknown op {str(name)!r}; for an activation alone, use --op elementwise --shape n=...; after a matmul,"
            f" use --op matmul with activation={number} in the shape"
        )
    raise unknown("op", name, [n for op in _OPS for n in (op.name, *op.aliases)], see="kernrec list ops")


def parse_shape(text: str) -> dict[str, int]:
    """Parse dimensions from `name=value` pairs separated by commas, semicolons or blanks. `4k` is 4096.

    Names become lower case. A shape without names, such as `4096x4096x4k`, gets the names `"1"`, `"2"` and so on.

    Raises:
        UsageError: the text is not a shape or repeats a dimension.
    """
    shape: dict[str, int] = {}
    text = _EQUALS.sub("=", text.strip(" ,;\t\n"))
    if _PLAIN.fullmatch(text):
        text = ",".join([f"{number}={size}" for number, size in enumerate(re.split(r"[^0-9k]+", text.lower()), 1)])
    for item in _SEPARATOR.split(text):
        name, equals, value = item.lower().partition("=")
        if not (name and equals):
            raise UsageError(f"{short(item)} is not part of a shape; {_EXAMPLE}")
        if name in ("dtype", "layout"):
            raise UsageError(f"{name} is not a dimension; give it separately from the shape")
        if not (match := _VALUE.fullmatch(value)):
            raise UsageError(f"dimension {short(name)} is {short(value)}; expected a whole number such as 4096 or 4k")
        if name in shape:
            raise UsageError(f"dimension {short(name)} is given twice, as {shape[name]} and as {value}")
        shape[name] = int(match[1]) * (1024 if match[2] else 1)
    return shape


def _pickled(op: Op) -> Any:
    """Pickle a registered op by its name, because its functions may be lambdas."""
    return (find_op, (op.name,)) if op in _OPS else object.__reduce_ex__(op, 2)


copyreg.pickle(Op, _pickled)


def problem_from_shape(op: str, shape: str, dtype: str | None = None, layout: str | None = None) -> Problem:
    """Return the problem with a shape such as `m=4096,n=4096,k=4096`. Raise `UsageError` if the shape is not valid."""
    return find_op(op).problem(dtype, layout, **parse_shape(shape))


def problem_from_key(key: str, own: Op | None = None) -> Problem:
    """Return the problem with a key such as `matmul[m=1,n=2,k=3]f32,nn`.

    Args:
        own: op that a kernel's spec declares. It takes precedence over a registered op of the same name.

    Raises:
        UsageError: the key is malformed, or the op has no such problem.
    """
    if not (match := _KEY.fullmatch(key)):
        raise UsageError(f"{key[:60]!r} is not a problem key; expected a key such as matmul[m=1,n=2,k=3]f32,nn")
    op, shape, dtype, layout = match.groups()
    definition = own if own is not None and op == own.name else find_op(op)
    return definition.problem(dtype, layout, **(parse_shape(shape) if shape else {}))
