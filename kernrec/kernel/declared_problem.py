"""The problem that a kernel's spec declares when kernrec has no op for what the kernel computes.

    [problem]
    dims = { width = 4096, height = 4096, steps = { default = 1, meaning = "time steps" } }
    dtype = "f32"                                 # of tensors without a dtype; f32 by default
    flops = "11 * width * height * steps"         # optional
    tolerance = 1e-5                              # optional: accepted error relative to the output's scale

    [problem.tensors]
    temp = { shape = ["height", "width"], role = "input", values = "uniform 300 350" }
    weights = { shape = ["width"], role = "constant" }                # a __constant__ of the source
    result = { shape = ["height", "width"], role = "output", reference = "right.npy" }

A tensor is `input`, `output`, `inout` or `constant` (`symbol` gives its name in the source if it differs).
A tensor that the kernel takes as a texture or surface has a table `texture = { filter = "linear", address = "wrap",
normalized = true }`, and is passed as `texture image` or `surface image`.
`values` gives its content before the launch: `normal` (the default of inputs), `zeros` (of outputs), `constant 1.5`,
`uniform 0 1`, `integers 0 100`, `expression i * 7 % 64` (of the flat index `i` and the dimensions), `file.npy` or
`raw file.bin`. In the emulator they matter only if addresses or branches depend on them; a device computes with them.

`reference`, written like `values`, gives the expected values of an output; either every output has one or none has.
Without references, measured configs are compared with the output of the first config. `tolerance` is the largest
accepted error relative to the RMS of the output, or to the element where that is larger; the default is what rounding
explains (kernrec/measure/device/correctness.py). Integers have to be equal.
"""

import re
from collections.abc import Mapping
from typing import Any

from kernrec.errors import UsageError, unknown
from kernrec.kernel.expression import Expression, expected_name, is_identifier
from kernrec.kernel.expression_reader import read_expression
from kernrec.kernel.image_layout import ImageLayout
from kernrec.kernel.spec import TensorValues
from kernrec.kernel.toml_table import Table
from kernrec.op.dtype import ELEMENT_BYTES, canonical_dtype
from kernrec.op.problem import Dim, Names, Op
from kernrec.util.light_dataclass import dataclass

LAYOUT = "any"
"""The only layout of a declared problem: its tensors are row-major with the declared shapes."""

_ROLES = ("input", "output", "inout", "constant")
_MOST_DIMS, _MOST_TENSORS = 16, 32
_NUMBERS = {"normal": 0, "zeros": 0, "constant": 1, "uniform": 2, "integers": 2}
_NUMBER = re.compile(r"[+-]?[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?")


@dataclass(frozen=True)
class Declared:
    """What a `[problem]` table declares; all fields except `op` are those of `Kernel`."""

    op: Op
    """The op that the table describes, for this kernel alone."""
    initial_values: Mapping[str, TensorValues]
    constants: Mapping[str, str]
    images: Mapping[str, ImageLayout]
    inouts: frozenset[str]
    references: Mapping[str, TensorValues]
    tolerance: float | None


def declared_problem(table: Table, name: str) -> Declared:
    """The problem in a `[problem]` table of the kernel `name`; `UsageError` for one that cannot be read."""
    dims = _dims(table)
    known = [dim.name for dim in dims]
    dtype = _dtype(table, "dtype", table.string("dtype", "f32"))
    flops = table.take("flops", object, "an expression", "0")
    count = read_expression(table.where, "flops", flops, known, "dimension")
    tolerance = table.take("tolerance", object, "a number", None)
    if tolerance is not None and not (type(tolerance) in (int, float) and 0.0 < tolerance < 1.0):
        raise table.fail("tolerance", "a number between 0 and 1", tolerance)
    shapes: dict[str, tuple[Expression, ...]] = {}
    types: dict[str, str] = {}
    initial_values: dict[str, TensorValues] = {}
    outputs: list[str] = []
    constants: dict[str, str] = {}
    images: dict[str, ImageLayout] = {}
    inouts: list[str] = []
    references: dict[str, TensorValues] = {}
    tensors = table.take("tensors", dict, "a table of tensors")
    if not 1 <= len(tensors) <= _MOST_TENSORS:
        raise table.fail("tensors", f"1 to {_MOST_TENSORS} tensors", len(tensors))
    for tensor, data in tensors.items():
        inner = Table(f"{table.where}: tensors.{tensor}", data)
        if not is_identifier(tensor):
            raise UsageError(f"{inner.where}: {expected_name(tensor)}")
        if tensor in known:
            raise UsageError(f"{inner.where}: the name {tensor!r} is taken by a dimension")
        extents = inner.take("shape", list, "a list of expressions")
        shapes[tensor] = tuple(
            read_expression(inner.where, f"shape[{i}]", text, known, "dimension") for i, text in enumerate(extents)
        )
        types[tensor] = _dtype(inner, "dtype", inner.string("dtype", dtype))
        role = inner.string("role", "input")
        if role not in _ROLES:
            raise UsageError(f"{inner.where}: {unknown('role', role, _ROLES)}")
        if role in ("output", "inout"):
            outputs.append(tensor)
            if "reference" in data:
                references[tensor] = read_tensor_values(inner, "reference", "", known)
        if role == "inout":
            inouts.append(tensor)
        if "symbol" in data and role != "constant":
            raise UsageError(
                f'{inner.where}: symbol is for a __constant__ of the source: add role = "constant", or remove symbol'
            )
        if role == "constant":
            constants[tensor] = inner.string("symbol", tensor)
        if (texture := inner.take("texture", dict, "a table", None)) is not None:
            images[tensor] = _image_layout(Table(f"{inner.where}: texture", texture), types[tensor])
        initial_values[tensor] = read_tensor_values(inner, "values", "zeros" if role == "output" else "normal", known)
        for digest in ("digest", "reference_digest"):  # of files of values, put there when the spec was read
            inner.string(digest, "")
        inner.done()
    table.done()
    if references and (without := [tensor for tensor in outputs if tensor not in references]):
        raise UsageError(
            f"{table.where}: tensors.{without[0]}: reference is missing; either every output has one or none has"
        )
    op = Op(
        name=name,
        title=f"the problem of kernel {name}",
        aliases=(),
        dims=tuple(dims),
        dtypes=(dtype,),
        layouts=(LAYOUT,),
        outputs=tuple(outputs),
        workload="",
        shapes=lambda sizes, layout: {tensor: _shape(name, tensor, shape, sizes) for tensor, shape in shapes.items()},
        flops=lambda sizes: int(count.evaluate(sizes)),
        reference=_no_reference,
        element_types=lambda sizes: types,
    )
    op.shapes({dim.name: int(dim.default or 1) for dim in dims}, LAYOUT)  # raises now if a shape is impossible
    return Declared(op, initial_values, constants, images, frozenset(inouts), references, tolerance)


def _image_layout(table: Table, dtype: str) -> ImageLayout:
    """How a tensor of elements of this type is seen as a texture or surface."""
    from kernrec.ptx.state.textures import Image, Sampler  # not on the path of a query

    number = "a whole number"
    layout = ImageLayout(
        table.take("axes", int, "1, 2 or 3", None),
        table.take("channels", int, number, 1),
        table.string("filter", "point"),
        table.string("address", "clamp"),
        table.take("normalized", bool, "true or false", False),
        table.take("unit_range", bool, "true or false", False),
    )
    table.done()
    try:
        sampler = Sampler(layout.filter, layout.address, layout.normalized, layout.unit_range)
        Image("", (1,), dtype, layout.channels, sampler=sampler)
    except UsageError as error:
        raise UsageError(f"{table.where}: {error}") from None
    return layout


def _no_reference(sizes: Names, layout: str, tensors: Mapping[str, Any]) -> dict[str, Any]:
    raise UsageError("a problem that a kernel's spec declares has no reference to compare with")


def _dims(table: Table) -> list[Dim]:
    dims = []
    given = table.take("dims", dict, "a table of dimensions", {})
    if len(given) > _MOST_DIMS:
        raise table.fail("dims", f"at most {_MOST_DIMS} dimensions", len(given))
    for name, data in given.items():
        if not is_identifier(name) or name in ("dtype", "layout", "dtype_bytes", "sm", "i"):
            raise UsageError(f"{table.where}: dims: {name!r} cannot be the name of a dimension")
        default, meaning = data, ""
        if isinstance(data, dict):
            inner = Table(f"{table.where}: dims.{name}", data)
            default = inner.take("default", int, "a whole number", None)
            meaning = inner.string("meaning", "")
            inner.done()
        if default is not None and (type(default) is not int or not 0 <= default < 2**31):
            raise table.fail(f"dims.{name}", "a whole number below 2**31, its default", default)
        dims.append(Dim(name, meaning, default, minimum=0))
    return dims


def _dtype(table: Table, key: str, given: str) -> str:
    dtype = canonical_dtype(given)
    if dtype not in ELEMENT_BYTES:
        raise UsageError(f"{table.where}: {key}: {unknown('dtype', given, ELEMENT_BYTES)}")
    return dtype


def _shape(kernel: str, tensor: str, shape: tuple[Expression, ...], sizes: Names) -> tuple[int, ...]:
    extents = []
    for extent in shape:
        value = extent.evaluate(sizes)
        if not isinstance(value, int) or value < 1:
            raise UsageError(f"{kernel}: tensor {tensor}: {extent.text!r} is {value!r}, expected a whole number from 1")
        extents.append(value)
    return tuple(extents)


def read_tensor_values(table: Table, key: str, default: str, known: list[str]) -> TensorValues:
    """Reads `values` or `reference` of a tensor."""
    text = table.string(key, default).strip()
    kind, _, rest = text.partition(" ")
    if kind == "expression":
        read_expression(table.where, key, rest, [*known, "i"], "dimension")
        return TensorValues(kind, (), rest)
    if text.endswith(".npy"):
        return TensorValues("file", (), text)
    if kind == "raw" and rest:
        return TensorValues("raw", (), rest)
    numbers = rest.split()
    if kind not in _NUMBERS or len(numbers) != _NUMBERS[kind] or not all(map(_NUMBER.fullmatch, numbers)):
        expected = "normal, zeros, constant C, uniform A B, integers A B, 'expression ...', a .npy file or 'raw FILE'"
        raise table.fail(key, expected, text)
    return TensorValues(kind, tuple(float(number) for number in numbers))
