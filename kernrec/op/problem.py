"""Define ops, and problems: an op with fixed dimensions, dtype and layout.

An `Op` is data plus a few functions of its dimensions. Validation, keys, inputs and workload files work for any op in
`registry.py`. This module does not import NumPy, because every query creates problems.
"""

from collections.abc import Callable, Mapping
from dataclasses import field
from functools import cached_property
from math import prod
from operator import index
from typing import TYPE_CHECKING, Any

from kernrec.errors import UsageError, nearest, unknown
from kernrec.op import dtype as dtypes
from kernrec.util.human import short
from kernrec.util.light_dataclass import dataclass

if TYPE_CHECKING:
    import numpy as np

Names = Mapping[str, int]
"""Values of all given and derived dimensions, by name."""

Normal = tuple[float, float]
"""Mean and standard deviation of a tensor's values."""

SPREAD_8BIT = 32.0
"""Standard deviation of 8-bit values, a compromise between coarse rounding and saturation."""

ANY_LAYOUT = "any"
"""Layout of problems that a kernel's spec declares."""

_KINDS = 1024
"""Maximum number of (dtype, layout) spellings that an op caches."""

LARGEST = 2**31 - 1
"""Maximum dimension, and maximum elements of a tensor, because kernels index with 32-bit integers."""


@dataclass(frozen=True)
class Dim:
    """One dimension of an op."""

    name: str
    meaning: str
    """Short description for error messages and `kernrec list ops`."""
    default: int | str | None = None
    """Default value, or the name of an earlier dimension to copy; None if the dimension is required."""
    minimum: int = 1
    maximum: int = LARGEST
    late: bool = False
    """Whether the dimension was added after problems had been stored.

    A problem's `dims` and `key` omit the dimension at its default, which must be a number. So keys that were stored
    earlier still name the same problems.
    """


@dataclass(frozen=True)
class Tensor:
    """One tensor of a problem, contiguous and row-major."""

    name: str
    shape: tuple[int, ...]
    """Elements along each axis, the contiguous axis last."""
    dtype: str
    """Key of `ELEMENT_BYTES`, or an element type of `FORMATS`."""
    role: str
    """`input` or `output`."""
    touched: int
    """Number of elements that every kernel must read or write at least once."""

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @cached_property
    def bytes(self) -> int:
        return dtypes.bytes_of(self.elements, self.dtype)


def _nothing(names: Any) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, eq=False)
class Op:
    """An operator: its dimensions, and functions of all given and derived dimensions (`Names`)."""

    name: str
    title: str
    """Formula in one line for `kernrec list ops`."""
    aliases: tuple[str, ...]
    dims: tuple[Dim, ...]
    dtypes: tuple[str, ...]
    """Accepted data types, the default first."""
    layouts: tuple[str, ...]
    """Accepted layouts, the default first."""
    outputs: tuple[str, ...]
    workload: str
    """Workload to use if no shape is given."""
    shapes: Callable[[Names, str], dict[str, tuple[int, ...]]]
    """Returns the shape of each tensor by name, inputs first, from dimensions and layout."""
    flops: Callable[[Names], int]
    """Returns floating-point operations. A multiply-add counts as two."""
    reference: "Callable[[Names, str, Mapping[str, np.ndarray]], dict[str, np.ndarray]]"
    """Returns the float64 outputs from dimensions, layout and float64 inputs."""
    of_dtype: Callable[[str], dict[str, int]] = _nothing
    """Returns the derived dimensions that depend on the data type."""
    derive: Callable[[Names], dict[str, int]] = _nothing
    """Returns the other derived dimensions. Raises `UsageError` if the given dimensions are inconsistent."""
    untouched: Callable[[Names], dict[str, int]] = _nothing
    """Returns the number of elements that never need to be read, by tensor, except for tensors that are read
    completely.
    """
    values: Callable[[Names], dict[str, Normal]] = _nothing
    """Returns mean and standard deviation of inputs that are not standard normal."""
    finishing: Callable[[Names], dict[str, float]] = _nothing
    """Returns the epilogue work (bias, activation) that profiles exclude: counts per 32 results, by the emulator's
    metric.
    """
    element_types: Callable[[Names], Mapping[str, str]] = _nothing
    """Returns the dtype of each tensor whose dtype differs from the problem's."""
    dtype_layouts: Mapping[str, str] = field(default_factory=dict)
    """Default layouts of dtypes whose default is not the first layout."""

    @cached_property
    def late(self) -> dict[str, int]:
        """Return the late dimensions (`Dim.late`) with their defaults."""
        return {dim.name: dim.default for dim in self.dims if dim.late and isinstance(dim.default, int)}

    @cached_property
    def _ranges(self) -> list[tuple[str, int | str | None, int, int, Dim]]:
        return [(dim.name, dim.default, dim.minimum, dim.maximum, dim) for dim in self.dims]

    @cached_property
    def _kinds(self) -> dict[tuple[str | None, str | None], tuple[str, str]]:
        return {}

    def _kind(self, dtype: str | None, layout: str | None) -> tuple[str, str]:
        """Return the canonical data type and layout. Raises `UsageError` if one is unknown."""
        canonical = dtypes.canonical_dtype(dtype) if dtype is not None else None
        chosen = self._choose("dtype", canonical, dtype, self.dtypes)
        wanted = str(layout).strip().lower() if layout is not None else self.dtype_layouts.get(chosen)
        return chosen, self._choose("layout", wanted, layout, self.layouts)

    def problem(self, /, dtype: str | None = None, layout: str | None = None, **dims: Any) -> "Problem":
        """Return the problem with these dimensions.

        Args:
            dtype: Any spelling of an accepted data type; None for the default.
            layout: An accepted layout; None for the default.
            dims: Integers by name. Omitted dimensions have their defaults.

        Raises:
            UsageError: A dimension is unknown, missing, not an integer or out of range; the dimensions are
                inconsistent; or the dtype or layout is unknown.
        """
        sizes = self._sizes(dims)
        try:
            kind = self._kinds.get((dtype, layout))
        except TypeError:  # A wrong value may not be hashable.
            kind = None
        if kind is None:
            kind = self._kind(dtype, layout)
            if isinstance(dtype, str | None) and isinstance(layout, str | None) and len(self._kinds) < _KINDS:
                self._kinds[dtype, layout] = kind
        named = self.named(sizes, kind[0])
        stated = tuple([item for item in sizes.items() if item not in self.late.items()])
        problem = Problem(self.name, stated, *kind, self)
        vars(problem)["sizes"] = named
        return problem

    def named(self, sizes: Names, dtype: str) -> dict[str, int]:
        """Return all given and derived dimensions by name. Raises `UsageError` as `derive` does."""
        names = {**sizes, **self.of_dtype(dtype)}
        names.update(self.derive(names))
        return names

    def _sizes(self, dims: Mapping[str, Any]) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for name, default, least, most, dim in self._ranges:
            value = dims.get(name)
            if value is None:
                value = sizes[default] if isinstance(default, str) else default
            if value is None:
                raise self._missing(dims)
            sizes[name] = size = value if type(value) is int else self._whole(dim, value)
            if not least <= size <= most:
                raise UsageError(
                    f"{self.name} dimension {name}{f' ({dim.meaning})' if dim.meaning else ''} is {short(value)}; "
                    f"expected {least} to {most}"
                )
        for name in dims:
            if name not in sizes:
                raise unknown(f"{self.name} dimension", name, sizes)
        return sizes

    def _missing(self, dims: Mapping[str, Any]) -> UsageError:
        accepted = [dim.name for dim in self.dims]
        for name in dims:
            if name not in accepted:  # This is more likely a typing error than a forgotten dimension.
                return unknown(f"{self.name} dimension", name, accepted)
        required = [dim.name for dim in self.dims if dim.default is None]
        optional = [f"{dim.name}={dim.default}" for dim in self.dims if dim.default is not None]
        message = f"{self.name} is missing {', '.join(n for n in required if dims.get(n) is None)}; "
        message += f"required: {', '.join(required)}"
        return UsageError(message + (f"; optional: {', '.join(optional)}" if optional else ""))

    def _whole(self, dim: Dim, value: Any) -> int:
        if not isinstance(value, bool):
            try:
                return index(value)  # This accepts NumPy integers, but not floats.
            except TypeError:
                pass
        raise UsageError(f"{self.name} dimension {dim.name} ({dim.meaning}) is {short(value)}; expected a whole number")

    def _choose(self, kind: str, folded: str | None, written: object, accepted: tuple[str, ...]) -> str:
        if folded is None:
            return accepted[0]
        if folded in accepted:
            return folded
        if kind == "dtype":
            if folded in dtypes.FORMATS or folded in dtypes.ELEMENT_BYTES:
                raise UsageError(f"{self.name} has no dtype {folded}; it has {', '.join(accepted)}")
            spellings = dtypes.spellings(accepted)
            accepted = spellings if nearest(str(written), spellings) else accepted
        raise unknown(f"{self.name} {kind}", str(written)[:40], accepted)


@dataclass(frozen=True)
class Problem:
    """An op with fixed dimensions, dtype and layout, created by `Op.problem`; hashable, equal by value.

    Its properties are computed once, and callers must not modify them.
    """

    op: str
    dims: tuple[tuple[str, int], ...]
    """Name and value of each dimension in the op's order, without late dimensions at their default."""
    dtype: str
    layout: str
    definition: Op = field(repr=False, compare=False)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.op, self.dims, self.dtype, self.layout))

    @property
    def dim(self) -> dict[str, int]:
        """Return `dims` by name, as `Op.problem` takes them."""
        return dict(self.dims)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Return all dimensions by name, including derived ones such as an output's height and width."""
        return self.definition.named({**self.definition.late, **dict(self.dims)}, self.dtype)

    @cached_property
    def names(self) -> dict[str, int | str]:
        """Return the names that a kernel's expressions use: `sizes`, `dtype`, `layout` and `dtype_bytes`."""
        size = dtypes.ELEMENT_BYTES.get(self.dtype, 1)  # No kernel supports a dtype of `FORMATS`.
        return {**self.sizes, "dtype": self.dtype, "layout": self.layout, "dtype_bytes": size}

    @property
    def key(self) -> str:
        """Return the canonical name, such as `matmul[m=1,n=2,k=3]f32,nn`. `problem_from_key` is its inverse."""
        dims = ",".join([f"{name}={value}" for name, value in self.dims])
        return f"{self.op}[{dims}]{self.dtype},{self.layout}"

    @property
    def title(self) -> str:
        """Return a readable key. For a problem that a kernel declares, it has the types of the outputs instead of a
        layout.
        """
        if self.layout != ANY_LAYOUT:
            return self.key
        types = dict.fromkeys(tensor.dtype for tensor in self.tensors.values() if tensor.role != "input")
        return self.key.removesuffix(f"{self.dtype},{self.layout}") + ",".join(types)

    def as_dict(self) -> dict[str, Any]:
        """Return the problem as plain values, as databases and journals store it."""
        return {"key": self.key, "op": self.op, "dims": self.dim, "dtype": self.dtype, "layout": self.layout}

    @cached_property
    def too_large(self) -> str | None:
        """Describe the first tensor with more than `LARGEST` elements; return None if kernels can index all tensors."""
        for name, shape in self._shapes.items():
            if (elements := prod(shape)) > LARGEST:
                return f"tensor {name} has {' x '.join(map(str, shape))} = {elements} elements; at most {LARGEST} fit"
        return None

    @cached_property
    def flops(self) -> int:
        """Return floating-point operations. A multiply-add counts as two."""
        return self.definition.flops(self.sizes)

    @cached_property
    def bytes(self) -> int:
        """Return the compulsory traffic in bytes: each needed input element read once, each output element written
        once.
        """
        return self._traffic[1]

    @property
    def tensor_bytes(self) -> dict[str, float]:
        """Return the bytes of each tensor by name."""
        return self._traffic[0]

    @cached_property
    def _traffic(self) -> tuple[dict[str, float], int]:
        """`tensor_bytes` and `bytes`, without an object for each tensor."""
        types, untouched = self.definition.element_types(self.sizes), self.definition.untouched(self.sizes)
        tensor_bytes, touched = {}, 0
        for name, shape in self._shapes.items():
            elements, dtype = prod(shape), types.get(name, self.dtype)
            size = dtypes.bytes_of(elements, dtype)
            tensor_bytes[name] = float(size)
            touched += dtypes.bytes_of(elements - untouched[name], dtype) if name in untouched else size
        return tensor_bytes, touched

    @cached_property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return self.definition.shapes(self.sizes, self.layout)

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by name, inputs first."""
        sizes = self.sizes
        untouched = self.definition.untouched(sizes)
        types = self.definition.element_types(sizes)
        tensors = {}
        for name, shape in self._shapes.items():
            role = "output" if name in self.definition.outputs else "input"
            dtype = types.get(name, self.dtype)
            tensors[name] = Tensor(name, shape, dtype, role, prod(shape) - untouched.get(name, 0))
        return tensors
