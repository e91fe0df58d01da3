"""Read the `[triton]` table of a spec: the parameters of a Triton function, and how the compiler specializes them.

    [triton]
    parameters = ["a", "b", "c", "m", "row"]       # names in the order of the launch's arguments
    divisible = { a = 1, b = 1, c = 1, row = "aligned" }   # 1: by 16; 0: unknown; or an expression
    types = { flag = "u1" }                        # types that differ from the argument's
    descriptors = { a = { shape = [512, 256], strides = [256, 1], block = ["block_m", "64"] } }   # tensor descriptors
    module = "package.kernels"                     # module to import if the source is installed

Triton generates special code for integers that are 1, which become constants, and for pointers and integers that are
multiples of 16. A number above 1 in `divisible` is another divisor, such as a constant size in TorchInductor's code.
Tunables and `defines` set `tl.constexpr` parameters and compiler options (`num_warps`, `num_stages`, `num_ctas`,
`maxnreg`).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from itertools import count, takewhile

from kernrec.kernel.expression import Expression
from kernrec.kernel.toml_table import Table
from kernrec.util.light_dataclass import dataclass

OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
"""Compiler options that a config may set."""

TYPES = {
    "f64": "fp64", "f32": "fp32", "tf32": "fp32", "f16": "fp16", "bf16": "bf16", "f8e4m3": "fp8e4nv",
    "f8e5m2": "fp8e5",
}  # fmt: skip
"""Triton's names of data types that differ from kernrec's."""

SPECIALIZED = 16
"""Divisor for which Triton specializes arguments."""

_ITEM = "{name}__{index}"

SCRATCH = 2
"""Number of pointers to scratch memory that Triton passes after the function's arguments."""


@dataclass(frozen=True, eq=False)
class TritonDescriptor:
    """Tensor descriptor that a launch passes instead of a pointer."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """Elements between neighbors along each axis."""
    block: tuple[Expression, ...]
    """Elements along each axis that one copy moves."""
    fill_nan: bool
    """Whether elements outside the tensor are read as NaN instead of zero."""


@dataclass(frozen=True, eq=False)
class TritonFunction:
    """Content of a spec's `[triton]` table."""

    parameters: tuple[str, ...]
    """Parameters that are not constants, in the order of the launch."""
    divisible: Mapping[str, Expression]
    """Whether each argument is a multiple of 16 (1 or 0). A number above 1 is another divisor of the argument."""
    types: Mapping[str, str]
    """Triton's type of each parameter if it differs from the argument's type."""
    key: str
    """Triton's cache key of the code. If it is empty, the kernel's hash depends on the source instead."""
    module: str = ""
    """Installed module to import, or an empty string to execute the source."""
    descriptors: Mapping[str, TritonDescriptor] = field(default_factory=dict)


def item_names(name: str, number: int) -> list[str]:
    """Return names for the items of a tuple argument."""
    return [_ITEM.format(name=name, index=index) for index in range(number)]


def fields_name(name: str) -> str:
    """Return the name of the constant that stores the fields of a named tuple."""
    return f"{name}__fields"


def items_of(name: str, names: Collection[str]) -> list[str]:
    """Return the names in `names` that are items of the tuple argument `name`, in order."""
    return list(takewhile(names.__contains__, (_ITEM.format(name=name, index=index) for index in count())))


def triton_function(
    top: Table, source_name: str, launches: Sequence[tuple[str, int]], names: Collection[str]
) -> TritonFunction | None:
    """Read the `[triton]` table of a spec. Return None if the source is not Python.

    `launches` has the function and the number of arguments of each launch. Expressions may use `names`.
    """
    data = top.take("triton", dict, "a table", None)
    if source_name.endswith(".py") != (data is not None):
        raise top.fail("source", "a file *.py with a [triton] table, and without one another", source_name)
    if data is None:
        return None
    if len(set(launches)) != 1 or launches[0][1] < SCRATCH:
        raise top.error(
            f"all launches of a Triton kernel must call one function with the same arguments, ending with {SCRATCH} "
            "times 'u64 0'"
        )
    table = top.inner("[triton]", data)
    own = launches[0][1] - SCRATCH
    parameters = table.take("parameters", list, "a list of parameter names")
    if len(parameters) != own or not all(isinstance(name, str) and name.isidentifier() for name in parameters):
        raise table.fail("parameters", f"names for the {own} arguments of the launch", parameters)
    divisible = table.expressions("divisible", names, "a table of expressions")
    types = table.take("types", dict, "a table of Triton's types", {})
    for name, text in types.items():
        if not isinstance(text, str):
            raise table.fail(f"types.{name}", "the name of a type", text)
    key, module = table.string("key", ""), table.string("module", "")
    tables = table.take("descriptors", dict, "a table of tensor descriptors", {})
    for what, named in {"divisible": divisible, "types": types, "descriptors": tables}.items():
        table.check(what, "parameter", named, parameters)
    descriptors = {name: _descriptor(table.inner(f"descriptors.{name}", data), names) for name, data in tables.items()}
    table.done()
    return TritonFunction(tuple(parameters), divisible, dict(types), key, module, descriptors)


def _descriptor(table: Table, names: Collection[str]) -> TritonDescriptor:
    numbers = "a list of whole numbers"
    shape, strides, block = (table.take(key, list, numbers) for key in ("shape", "strides", "block"))
    extents = table.items("block", block, names)
    if not (1 <= len(shape) == len(strides) == len(block) <= 5 and all(type(n) is int for n in (*shape, *strides))):
        raise table.error("shape, strides and block: expected equally long lists of one to five whole numbers")
    fill_nan = table.take("fill_nan", bool, "true or false", False)
    table.done()
    return TritonDescriptor(tuple(shape), tuple(strides), extents, fill_nan)
