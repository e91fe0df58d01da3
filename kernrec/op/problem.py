"""Define ops and problems. A problem is an op with fixed dimensions, dtype and layout.

Every query imports this module, so it does not import NumPy at run time.
"""

from collections.abc import Callable, Mapping
from dataclasses import field
from itertools import filterfalse, takewhile
from math import prod
from operator import index
from typing import TYPE_CHECKING, Any

from kernrec.errors import UsageError, nearest, unknown
from kernrec.op import dtype as dtypes
from kernrec.util.cached_property import cached_property
from kernrec.util.human import short
from kernrec.util.light_dataclass import dataclass

if TYPE_CHECKING:
    import numpy as np

Names = Mapping[str, int]
"""Value of each dimension of a problem, keyed by name."""

Normal = tuple[float, float]
"""Mean and standard deviation of a tensor's values."""

SPREAD_8BIT = 32.0
"""Standard deviation of 8-bit inputs. Smaller values would be rounded coarsely, and larger values would saturate."""

ANY_LAYOUT = "any"
"""Layout of problems whose op a kernel's spec declares."""

_KINDS = 1024
"""Maximum number of entries in `Op._kinds`, which caches pairs of dtype and layout."""

LARGEST = 2**31 - 1
"""Maximum of a dimension and of a tensor's number of elements, because kernels use 32-bit indices."""


@dataclass(frozen=True)
class Dim:
    """Dimension of an op, such as `m` of a matmul, with its default and range."""

    name: str
    meaning: str
    """Description for error messages and `kernrec list ops`."""
    default: int | str | None = None
    """Default value, or the name of an earlier dimension whose value is the default. None if users must set the
    dimension."""
    minimum: int = 1
    maximum: int = LARGEST
    late: bool = False
    """Whether the dimension is newer than its op. `Problem.dims` and `Problem.key` omit the dimension if it has its
    default value, so that older keys stay valid."""
    aliases: tuple[str, ...] = ()
    """Other names that users type, such as `seq_len` for `queries`."""


@dataclass(frozen=True)
class Tensor:
    """Tensor of a problem, contiguous and row-major."""

    name: str
    shape: tuple[int, ...]
    """Elements along each axis. The last axis is contiguous."""
    dtype: str
    """Key of `ELEMENT_BYTES`, or a type that `FORMATS` uses for weights or scales."""
    role: str
    """`input` or `output`."""
    touched: int
    """Elements that every kernel must read or write at least once."""

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
    """Operation such as a matmul, defined by functions of its dimensions."""

    name: str
    title: str
    """Formula for `kernrec list ops`."""
    aliases: tuple[str, ...]
    dims: tuple[Dim, ...]
    dtypes: tuple[str, ...]
    """Accepted data types, the default first."""
    layouts: tuple[str, ...]
    """Accepted layouts, the default first."""
    outputs: tuple[str, ...]
    workload: str
    """Name of the shipped workload that kernrec uses if the user states no shape."""
    shapes: Callable[[Names, str], dict[str, tuple[int, ...]]]
    """Function that returns the shape of each tensor, inputs first, given the dimensions and the layout."""
    flops: Callable[[Names], int]
    """Function that returns the number of floating-point operations. A multiply-add counts as two."""
    reference: "Callable[[Names, str, Mapping[str, np.ndarray]], dict[str, np.ndarray]]"
    """Function that computes the float64 outputs from the dimensions, the layout and the float64 inputs."""
    of_dtype: Callable[[str], dict[str, int]] = _nothing
    """Function that returns the derived dimensions that depend only on the data type."""
    derive: Callable[[Names], dict[str, int]] = _nothing
    """Function that returns all other derived dimensions. It raises `UsageError` for inconsistent dimensions."""
    untouched: Callable[[Names], dict[str, int]] = _nothing
    """Function that returns the number of elements of each tensor that no kernel needs to read."""
    values: Callable[[Names], dict[str, Normal]] = _nothing
    """Function that returns the mean and standard deviation of each input that is not standard normal."""
    finishing: Callable[[Names], dict[str, float]] = _nothing
    """Function that counts instructions and memory accesses of the epilogue (not in profiles) per 32 results."""
    element_types: Callable[[Names], Mapping[str, str]] = _nothing
    """Function that returns the dtype of each tensor whose dtype differs from the problem's."""
    dtype_layouts: Mapping[str, str] = field(default_factory=dict)
    """Default layout for each dtype whose default layout is not the first of `layouts`."""

    @cached_property
    def late(self) -> dict[str, int]:
        """Return the default value of each dimension with `Dim.late`, keyed by name."""
        return {dim.name: dim.default for dim in self.dims if dim.late and isinstance(dim.default, int)}

    @cached_property
    def _ranges(self) -> list[tuple[str, int | str | None, int, int, Dim]]:
        return [(dim.name, dim.default, dim.minimum, dim.maximum, dim) for dim in self.dims]

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset([dim.name for dim in self.dims])

    @cached_property
    def _kinds(self) -> dict[tuple[str | None, str | None], tuple[str, str]]:
        return {}

    def _kind(self, dtype: str | None, layout: str | None) -> tuple[str, str]:
        canonical = dtypes.canonical_dtype(dtype) if dtype is not None else None
        chosen = self._choose("dtype", canonical, dtype, self.dtypes)
        wanted = str(layout).strip().lower() if layout is not None else self.dtype_layouts.get(chosen)
        return chosen, self._choose("layout", wanted, layout, self.layouts)

    def problem(self, /, dtype: str | None = None, layout: str | None = None, **dims: Any) -> "Problem":
        """Return a problem of this op.

        Args:
            dtype: any spelling of an accepted data type. None selects the default.
            layout: accepted layout. None selects the default.
            dims: dimensions as integers, by name or alias. Omitted dimensions get their default values.

        Raises:
            UsageError: a dimension is unknown, missing, not an integer, out of range or inconsistent with the others.
                Also raised if the dtype or layout is unknown.
        """
        sizes = self._sizes(dims)
        try:
            kind = self._kinds.get((dtype, layout))
        except TypeError:  # The value may not be hashable.
            kind = None
        if kind is None:
            kind = self._kind(dtype, layout)
            if isinstance(dtype, str | None) and isinstance(layout, str | None) and len(self._kinds) < _KINDS:
                self._kinds[dtype, layout] = kind
        named = self.named(sizes, kind[0])
        stated = tuple(filterfalse(self.late.items().__contains__, sizes.items()))
        problem = Problem(self.name, stated, *kind, self)
        vars(problem)["sizes"] = named
        return problem

    def named(self, sizes: Names, dtype: str) -> dict[str, int]:
        """Add the derived dimensions to `sizes`. Raise `UsageError` if dimensions are inconsistent."""
        names = {**sizes, **self.of_dtype(dtype)}
        names.update(self.derive(names))
        return names

    def canonical_dims(self, dims: Mapping[str, Any]) -> dict[str, Any]:
        """Replace aliases and positions in the keys of `dims` by names of dimensions. Unknown names stay as they are.

        The key `"1"` stands for the first dimension. Positions are accepted for all dimensions before the first
        dimension with a default, and for an op's only dimension.

        Raises:
            UsageError: a dimension has two values, or a position has no dimension.
        """
        names = {alias: dim.name for dim in self.dims for alias in (dim.name, *dim.aliases)}
        leading = takewhile(lambda dim: dim.default is None or len(self.dims) == 1, self.dims)
        names |= {str(number): dim.name for number, dim in enumerate(leading, 1)}
        written: dict[str, str] = {}
        for name in dims:
            if name.isdigit() and name not in names:
                stated = [dim for dim in self.dims if dim.default is None] or self.dims
                example = ",".join([f"{dim.name}=..." for dim in stated])
                raise UsageError(
                    f"{self.name} cannot match these sizes to its dimensions; name them, such as {example}"
                )
            if (first := written.setdefault(names.get(name, name), name)) != name:
                raise UsageError(f"{self.name} dimension {names[name]} is given twice, as {first} and as {name}")
        return {dimension: dims[name] for dimension, name in written.items()}

    def _sizes(self, dims: Mapping[str, Any]) -> dict[str, int]:
        if not dims.keys() <= self._names:
            dims = self.canonical_dims(dims)
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
        for name in dims:
            if name not in self._names:  # A misspelled name is more likely than a forgotten dimension, so report it.
                return unknown(f"{self.name} dimension", name, [dim.name for dim in self.dims])
        required = [dim.name for dim in self.dims if dim.default is None]
        optional = [f"{dim.name}={dim.default}" for dim in self.dims if dim.default is not None]
        message = f"{self.name} is missing {', '.join(n for n in required if dims.get(n) is None)}; "
        message += f"required: {', '.join(required)}"
        return UsageError(message + (f"; optional: {', '.join(optional)}" if optional else ""))

    def _whole(self, dim: Dim, value: Any) -> int:
        if not isinstance(value, bool):
            try:
                return index(value)  # Accept NumPy integers, but not floats.
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
    """Op with fixed dimensions, dtype and layout, as `Op.problem` creates it.

    Problems are hashable and compare by value. Their properties are computed once, so callers must not modify them.
    """

    op: str
    dims: tuple[tuple[str, int], ...]
    """(name, value) of each given dimension in the op's order. A default value is omitted if `Dim.late` is True."""
    dtype: str
    layout: str
    definition: Op = field(repr=False, compare=False)

    def __hash__(self) -> int:
        return self._hash

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_hash"}  # Hashes differ by process.

    @cached_property
    def _hash(self) -> int:
        return hash((self.op, self.dims, self.dtype, self.layout))

    @property
    def dim(self) -> dict[str, int]:
        """Return the dimensions as a dictionary for `Op.problem`."""
        return dict(self.dims)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Return all dimensions, including derived dimensions such as a convolution's output height."""
        return self.definition.named({**self.definition.late, **dict(self.dims)}, self.dtype)

    @cached_property
    def names(self) -> dict[str, int | str]:
        """Return the variables that expressions in a kernel's spec may use: sizes, `dtype`, `layout`, `dtype_bytes`."""
        size = dtypes.ELEMENT_BYTES.get(self.dtype, 1)  # Kernels for quantized formats do not use this size.
        return {**self.sizes, "dtype": self.dtype, "layout": self.layout, "dtype_bytes": size}

    @property
    def key(self) -> str:
        """Return the text that identifies the problem, such as `matmul[m=1,n=2,k=3]f32,nn`."""
        dims = ",".join([f"{name}={value}" for name, value in self.dims])
        return f"{self.op}[{dims}]{self.dtype},{self.layout}"

    @property
    def title(self) -> str:
        """Return a readable key. If a spec declares the problem, show the outputs' types, not dtype and layout."""
        if self.layout != ANY_LAYOUT:
            return self.key
        types = dict.fromkeys(tensor.dtype for tensor in self.tensors.values() if tensor.role != "input")
        return self.key.removesuffix(f"{self.dtype},{self.layout}") + ",".join(types)

    def as_dict(self) -> dict[str, Any]:
        """Return the problem as plain values, in the form that databases and journals store."""
        return {"key": self.key, "op": self.op, "dims": self.dim, "dtype": self.dtype, "layout": self.layout}

    @property
    def too_large(self) -> str | None:
        """Describe the first tensor that is too large for 32-bit indices, or return None if there is none."""
        for name, shape in self.definition.shapes(self.sizes, self.layout).items():
            if (elements := prod(shape)) > LARGEST:
                return f"tensor {name} has {' x '.join(map(str, shape))} = {elements} elements; at most {LARGEST} fit"
        return None

    @cached_property
    def flops(self) -> int:
        """Return the number of floating-point operations. A multiply-add counts as two."""
        return self.definition.flops(self.sizes)

    @cached_property
    def bytes(self) -> int:
        """Return the minimum memory traffic in bytes: read each needed element and write each output once."""
        return self.traffic[1]

    @property
    def tensor_bytes(self) -> dict[str, float]:
        """Return the bytes of each tensor, keyed by name."""
        return self.traffic[0]

    @cached_property
    def traffic(self) -> tuple[dict[str, float], int, int]:
        """Return (`tensor_bytes`, `bytes`, number of elements of the largest tensor). Create no `Tensor` objects,
        because their creation takes longer."""
        definition, sizes = self.definition, self.sizes
        types, untouched = definition.element_types(sizes), definition.untouched(sizes)
        tensor_bytes, touched, largest = {}, 0, 0
        for name, shape in definition.shapes(sizes, self.layout).items():
            elements, dtype = prod(shape), types.get(name, self.dtype)
            size = dtypes.bytes_of(elements, dtype)
            tensor_bytes[name] = float(size)
            touched += dtypes.bytes_of(elements - untouched[name], dtype) if name in untouched else size
            if elements > largest:
                largest = elements
        return tensor_bytes, touched, largest

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors, inputs first."""
        sizes = self.sizes
        untouched = self.definition.untouched(sizes)
        types = self.definition.element_types(sizes)
        tensors = {}
        for name, shape in self.definition.shapes(sizes, self.layout).items():
            role = "output" if name in self.definition.outputs else "input"
            dtype = types.get(name, self.dtype)
            tensors[name] = Tensor(name, shape, dtype, role, prod(shape) - untouched.get(name, 0))
        return tensors
