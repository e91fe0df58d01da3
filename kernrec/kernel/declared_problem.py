"""Read the `[problem]` table of a spec, for kernels whose computation is not an op of kernrec.

    [problem]
    dims = { width = 4096, height = 4096, steps = { default = 1, meaning = "time steps" } }
    dtype = "f32"                                 # of tensors without a dtype; f32 by default
    flops = "11 * width * height * steps"         # optional
    tolerance = 1e-5                              # optional: accepted error relative to the output's scale

    [problem.tensors]
    temp = { shape = ["height", "width"], role = "input", values = "uniform 300 350" }
    weights = { shape = ["width"], role = "constant" }                # a __constant__ of the source
    result = { shape = ["height", "width"], role = "output", reference = "right.npy" }

Keys of a tensor:

- `role`: `input`, `output`, `inout` or `constant`. `symbol` is the name of a constant in the source, if it differs.
- `texture`: a table such as `{ filter = "linear", address = "wrap", normalized = true }`. A launch passes the tensor as
  `texture NAME` or `surface NAME`.
- `values`: content before the launch. `normal` (default of inputs), `zeros` (default of outputs), `constant 1.5`,
  `uniform 0 1`, `integers 0 100`, `expression i * 7 % 64` (`i` is the flat index), `file.npy`, `raw file.bin`, `index x
  c` (random indices into the tensor `x`, in steps of `c` elements), or `offsets x` (ascending indices, like the row
  offsets of a sparse matrix). `unknown REASON` marks content that the author does not know. If addresses depend on
  unknown content, kernrec refuses the kernel.
- `reference`: expected content after the launch, written like `values`. Either all outputs have a reference, or none.
  Without a reference, measured configs are compared with the first config.

`tolerance` is the maximum error of an element, relative to the larger of the element and the output's RMS. By default,
it is the error that rounding can cause (kernrec/measure/device/correctness.py). Integers must be equal. A launch
may also pass a pointer such as `temp + 1024` (element 1024) or `u64 0` (null), or a structure such as `bytes 0000803f`.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any

from kernrec.errors import UsageError, unknown
from kernrec.kernel.expression import Expression, expected_name, is_identifier
from kernrec.kernel.spec import TensorValues
from kernrec.kernel.tensor_map import ImageLayout
from kernrec.kernel.toml_table import Table
from kernrec.op.dtype import ELEMENT_BYTES, canonical_dtype
from kernrec.op.problem import ANY_LAYOUT, Dim, Names, Op
from kernrec.util.light_dataclass import dataclass

LAYOUT = ANY_LAYOUT
"""Layout of a declared problem: tensors are row-major."""

_ROLES = ("input", "output", "inout", "constant")
_MOST_DIMS, _MOST_TENSORS = 16, 64
_NUMBERS = {"normal": 0, "zeros": 0, "constant": 1, "uniform": 2, "integers": 2}
_NUMBER = re.compile(r"[+-]?[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?")


@dataclass(frozen=True)
class _DeclaredTensor:
    shape: tuple[Expression, ...]
    dtype: str
    role: str
    values: TensorValues
    reference: TensorValues | None
    symbol: str | None
    image: ImageLayout | None


def declared_problem(table: Table, name: str) -> tuple[Op, dict[str, Any]]:
    """Read the `[problem]` table of a spec. Return the op, and further fields of `Kernel`."""
    dims = _dims(table)
    dim_names = [dim.name for dim in dims]
    dtype = _dtype(table, table.string("dtype", "f32"))
    flops = table.parsed("flops", table.take("flops", object, "an expression", "0"), dim_names, "dimension")
    tolerance = table.take("tolerance", object, "a number", None)
    if tolerance is not None and not (type(tolerance) in (int, float) and 0.0 < tolerance < 1.0):
        raise table.fail("tolerance", "a number between 0 and 1", tolerance)
    data = table.take("tensors", dict, "a table of tensors")
    if not 1 <= len(data) <= _MOST_TENSORS:
        raise table.fail("tensors", f"1 to {_MOST_TENSORS} tensors", len(data))
    tensors = {key: _tensor(table.inner(f"tensors.{key}", value), key, dim_names, dtype) for key, value in data.items()}
    for key, tensor in tensors.items():
        indexed = tensor.values.indexed if tensor.values.kind in ("index", "offsets") else ()
        table.check(f"tensors.{key}: values", "tensor", indexed, [other for other in tensors if other != key])
    table.done()
    outputs = [key for key, tensor in tensors.items() if tensor.role in ("output", "inout")]
    references = {key: tensor.reference for key, tensor in tensors.items() if tensor.reference is not None}
    if references and (missing := [key for key in outputs if key not in references]):
        raise table.error(f"tensors.{missing[0]}: reference is missing; give a reference for every output, or for none")

    types = {key: tensor.dtype for key, tensor in tensors.items()}

    def shapes_of(sizes: Names, layout: str) -> dict[str, tuple[int, ...]]:
        return {
            key: tuple(extent.whole_number(sizes, 1, f"{name}: tensor {key}") for extent in tensor.shape)
            for key, tensor in tensors.items()
        }

    op = Op(
        name=name,
        title=f"the problem of kernel {name}",
        aliases=(),
        dims=tuple(dims),
        dtypes=(dtype,),
        layouts=(LAYOUT,),
        outputs=tuple(outputs),
        workload="",
        shapes=shapes_of,
        flops=lambda sizes: int(flops.evaluate(sizes)),
        reference=_no_reference,
        element_types=lambda sizes: types,
    )
    return op, {
        "initial_values": {key: tensor.values for key, tensor in tensors.items()},
        "constants": {key: tensor.symbol for key, tensor in tensors.items() if tensor.symbol is not None},
        "images": {key: tensor.image for key, tensor in tensors.items() if tensor.image is not None},
        "inouts": frozenset(key for key, tensor in tensors.items() if tensor.role == "inout"),
        "references": references,
        "tolerance": tolerance,
    }


def _tensor(table: Table, name: str, dims: Collection[str], dtype: str) -> _DeclaredTensor:
    if not is_identifier(name):
        raise table.error(expected_name(name))
    if name in dims:
        raise table.error(f"a dimension already has the name {name!r}")
    shape = table.items("shape", table.take("shape", list, "a list of expressions"), dims, "dimension")
    own_dtype = _dtype(table, table.string("dtype", dtype))
    role = table.string("role", "input")
    if role not in _ROLES:
        raise table.error(unknown("role", role, _ROLES))
    reference = None
    if role in ("output", "inout") and "reference" in table.data:
        reference = _tensor_values(table, "reference", "", dims)
    if "symbol" in table.data and role != "constant":
        raise table.error('symbol is for a __constant__ of the source: add role = "constant", or remove symbol')
    symbol = table.string("symbol", name) if role == "constant" else None
    texture = table.take("texture", dict, "a table", None)
    image = None if texture is None else _image_layout(table.inner("texture", texture), own_dtype)
    values = _tensor_values(table, "values", "zeros" if role == "output" else "normal", dims)
    # Accept the keys that `source_files.fingerprint` adds, so that they are not reported as unknown.
    for digest in ("digest", "reference_digest"):
        table.string(digest, "")
    table.done()
    return _DeclaredTensor(shape, own_dtype, role, values, reference, symbol, image)


def _image_layout(table: Table, dtype: str) -> ImageLayout:
    from kernrec.ptx.state.descriptors import Image, Sampler  # Import late, because queries do not need the module.

    layout = ImageLayout(
        table.take("axes", int, "1, 2 or 3", None),
        table.take("channels", int, "a whole number", 1),
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
        raise table.error(error) from None
    return layout


def _no_reference(sizes: Names, layout: str, tensors: Mapping[str, Any]) -> dict[str, Any]:
    raise UsageError("a problem that a kernel's spec declares has no reference to compare with")


RESERVED_DIMS = frozenset({"dtype", "layout", "dtype_bytes", "sm", "i"})
"""Names that no dimension can have, because they have another meaning in expressions."""


def _dims(table: Table) -> list[Dim]:
    tables = table.take("dims", dict, "a table of dimensions", {})
    if len(tables) > _MOST_DIMS:
        raise table.fail("dims", f"at most {_MOST_DIMS} dimensions", len(tables))
    dims = []
    for name, data in tables.items():
        if not is_identifier(name) or name in RESERVED_DIMS:
            raise table.error(f"dims: {name!r} cannot be the name of a dimension")
        default, meaning = data, ""
        if isinstance(data, dict):
            inner = table.inner(f"dims.{name}", data)
            default = inner.take("default", int, "a whole number", None)
            meaning = inner.string("meaning", "")
            inner.done()
        if default is not None and (type(default) is not int or not 0 <= default < 2**31):
            raise table.fail(f"dims.{name}", "its default value, a whole number below 2**31", default)
        dims.append(Dim(name, meaning, default, minimum=0))
    return dims


def _dtype(table: Table, spelling: str) -> str:
    dtype = canonical_dtype(spelling)
    if dtype not in ELEMENT_BYTES:
        raise table.error(f"dtype: {unknown('dtype', spelling, ELEMENT_BYTES)}")
    return dtype


def _tensor_values(table: Table, key: str, default: str, dims: Collection[str]) -> TensorValues:
    text = table.string(key, default).strip()
    kind, _, rest = text.partition(" ")
    if kind == "expression":
        table.parsed(key, rest, [*dims, "i"], "dimension")
    elif text.endswith(".npy"):
        return TensorValues("file", (), text)
    if kind in ("expression", "unknown") or (kind == "raw" and rest):
        return TensorValues(kind, (), rest)
    if kind in ("index", "offsets") and rest:
        values = TensorValues(kind, (), rest.strip())
        for step in values.indexed.values():
            table.parsed(key, step, dims, "dimension")
        return values
    numbers = rest.split()
    if kind not in _NUMBERS or len(numbers) != _NUMBERS[kind] or not all(map(_NUMBER.fullmatch, numbers)):
        expected = "normal, zeros, constant C, uniform A B, integers A B, index TENSOR, 'expression ...', a .npy file"
        expected += " or 'raw FILE'"
        raise table.fail(key, expected, text)
    return TensorValues(kind, tuple(float(number) for number in numbers))
