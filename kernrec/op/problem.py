"""What an op is, and a problem: an op with every dimension, dtype and layout fixed.

An `Op` is data plus a few functions of its dimensions. To add one, write a module like `matmul.py` and list it
in `registry.py`; everything else (validation, keys, inputs, workload files) follows. Nothing here imports NumPy:
problems are made on the path of every query.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from operator import index
from typing import TYPE_CHECKING, Any

from kernrec.errors import UsageError, unknown
from kernrec.op import dtype as dtypes
from kernrec.util.names import short

if TYPE_CHECKING:
    import numpy as np

Names = Mapping[str, int]
"""The value of every dimension, given and derived, by name."""

Normal = tuple[float, float]
"""Mean and standard deviation of a tensor's values."""

LARGEST = 2**31 - 1
"""The largest dimension, and the most elements in one tensor: the kernels index with 32-bit integers."""


@dataclass(frozen=True)
class Dim:
    """One dimension of an op.

    default: a number, the name of an earlier dimension whose value it takes, or None: it has to be given.
    late: it joined the op when problems were stored already. At its default, which is a number, a problem's `dims`
    and `key` are without it, so that those stored before are still the same problems.
    """

    name: str
    meaning: str
    default: int | str | None = None
    minimum: int = 1
    maximum: int = LARGEST
    late: bool = False


@dataclass(frozen=True)
class Tensor:
    """One tensor of a problem, dense, last axis fastest; `touched` elements must be read or written at least once."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: str
    """`input` or `output`."""
    touched: int

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * dtypes.ELEMENT_BYTES[self.dtype]


def _nothing(names: Names) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, eq=False)
class Op:
    """An operator: its dimensions and what follows from them.

    `derive` gives the derived dimensions and raises `UsageError` when the given ones do not fit together;
    `shapes` gives each tensor's shape for a layout, inputs first; `flops` counts a multiply-add as two;
    `untouched` names the tensors of which some elements need never be read, with how many; `reference` computes
    the outputs in float64 from float64 inputs; `values` names the inputs whose values are not of mean 0 and standard
    deviation 1, with theirs. `dtypes` and `layouts` begin with the default.
    """

    name: str
    title: str
    aliases: tuple[str, ...]
    dims: tuple[Dim, ...]
    dtypes: tuple[str, ...]
    layouts: tuple[str, ...]
    outputs: tuple[str, ...]
    workload: str
    """The workload set that stands for the op when no shape is given."""
    shapes: Callable[[Names, str], dict[str, tuple[int, ...]]]
    flops: Callable[[Names], int]
    reference: "Callable[[Names, str, Mapping[str, np.ndarray]], dict[str, np.ndarray]]"
    derive: Callable[[Names], dict[str, int]] = _nothing
    untouched: Callable[[Names], dict[str, int]] = _nothing
    values: Callable[[Names], dict[str, Normal]] = _nothing
    finishing: Callable[[Names], dict[str, float]] = _nothing
    """What is done to results that the plain op leaves as they are, and that the profiles of its kernels do not hold:
    counts by metric of `ptx.counts`, for 32 results."""
    element_types: Mapping[str, str] = field(default_factory=dict)
    """The tensors whose elements are not of the problem's dtype, with theirs."""

    @cached_property
    def late(self) -> dict[str, int]:
        """The dimensions that joined late, with their defaults."""
        return {dim.name: dim.default for dim in self.dims if dim.late and isinstance(dim.default, int)}

    def problem(self, /, dtype: str | None = None, layout: str | None = None, **dims: Any) -> "Problem":
        """The problem with these dimensions, whole numbers by name; those left out take their defaults.

        Raises `UsageError` for a dimension that is unknown, missing, not a whole number or out of range, for dimensions
        that do not fit together, for a tensor of more than `LARGEST` elements, and for an unknown dtype or layout.
        """
        sizes = self._sizes(dims)
        names = sizes | self.derive(sizes)
        canonical = dtypes.canonical_dtype(dtype) if dtype is not None else None
        chosen_dtype = self._choose("dtype", canonical, dtype, self.dtypes)
        chosen_layout = self._choose(
            "layout", str(layout).strip().lower() if layout is not None else None, layout, self.layouts
        )
        for name, shape in self.shapes(names, chosen_layout).items():
            if (elements := prod(shape)) > LARGEST:
                extents = " x ".join(map(str, shape))
                raise UsageError(
                    f"{self.name} tensor {name} would have {extents} = {elements} elements; at most {LARGEST} fit"
                )
        stated = tuple([item for item in sizes.items() if item not in self.late.items()])
        return Problem(self.name, stated, chosen_dtype, chosen_layout, self)

    def _sizes(self, given: Mapping[str, Any]) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for dim in self.dims:
            value = given.get(dim.name)
            if value is None:
                value = sizes[dim.default] if isinstance(dim.default, str) else dim.default
            if value is None:
                raise self._missing(given)
            sizes[dim.name] = value if type(value) is int else self._whole(dim, value)
            if not dim.minimum <= sizes[dim.name] <= dim.maximum:
                raise UsageError(
                    f"{self.name} dimension {dim.name}{f' ({dim.meaning})' if dim.meaning else ''} is {short(value)}; "
                    f"accepted are {dim.minimum} to {dim.maximum}"
                )
        for name in given:
            if name not in sizes:
                raise unknown(f"{self.name} dimension", name, sizes)
        return sizes

    def _missing(self, given: Mapping[str, Any]) -> UsageError:
        known = {dim.name for dim in self.dims}
        for name in given:
            if name not in known:  # more likely a slip of the keyboard than a dimension forgotten
                return unknown(f"{self.name} dimension", name, [dim.name for dim in self.dims])
        required = [dim.name for dim in self.dims if dim.default is None]
        optional = [f"{dim.name}={dim.default}" for dim in self.dims if dim.default is not None]
        message = f"{self.name} is missing {', '.join(n for n in required if given.get(n) is None)}; "
        message += f"required are {', '.join(required)}"
        return UsageError(message + (f", the defaults of the others are {', '.join(optional)}" if optional else ""))

    def _whole(self, dim: Dim, value: Any) -> int:
        if not isinstance(value, bool):
            try:
                return index(value)  # NumPy integers have one, floats do not
            except TypeError:
                pass
        raise UsageError(
            f"{self.name} dimension {dim.name} ({dim.meaning}) is {short(value)}; a whole number is accepted"
        )

    def _choose(self, kind: str, folded: str | None, given: object, accepted: tuple[str, ...]) -> str:
        if folded is None:
            return accepted[0]
        if folded not in accepted:
            raise unknown(f"{self.name} {kind}", str(given)[:40], accepted)
        return folded


@dataclass(frozen=True)
class Problem:
    """An op with every dimension, dtype and layout fixed; made by `Op.problem`, hashable, equal by value.

    What follows from its fields is worked out once, and is not to be written to.
    """

    op: str
    dims: tuple[tuple[str, int], ...]
    """Name and value of each dimension in the op's order, without the late ones that are at their default."""
    dtype: str
    layout: str
    definition: Op = field(repr=False, compare=False)

    @property
    def dim(self) -> dict[str, int]:
        """`dims` by name: what makes the problem again."""
        return dict(self.dims)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """All dimensions by name, the derived ones (an output's height and width) included."""
        sizes = {**self.definition.late, **dict(self.dims)}
        sizes.update(self.definition.derive(sizes))
        return sizes

    @cached_property
    def names(self) -> dict[str, int | str]:
        """What an expression of a kernel may name: `sizes`, `dtype`, `layout` and `dtype_bytes`."""
        return {
            **self.sizes,
            "dtype": self.dtype,
            "layout": self.layout,
            "dtype_bytes": dtypes.ELEMENT_BYTES[self.dtype],
        }

    @property
    def key(self) -> str:
        """The canonical name, such as `matmul[m=1,n=2,k=3]f32,nn`; `problem_from_key` reads it back."""
        dims = ",".join(f"{name}={value}" for name, value in self.dims)
        return f"{self.op}[{dims}]{self.dtype},{self.layout}"

    def as_dict(self) -> dict[str, Any]:
        """Plain values: all that a database or a journal keeps of it."""
        return {"key": self.key, "op": self.op, "dims": self.dim, "dtype": self.dtype, "layout": self.layout}

    @property
    def flops(self) -> int:
        """Floating-point operations, a multiply-add counted as two."""
        return self.definition.flops(self.sizes)

    @property
    def bytes(self) -> int:
        """Compulsory traffic in bytes: each element that matters read once, each element of the result written once."""
        return sum(tensor.touched * dtypes.ELEMENT_BYTES[tensor.dtype] for tensor in self.tensors.values())

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name, inputs first."""
        sizes = self.sizes
        untouched = self.definition.untouched(sizes)
        tensors = {}
        for name, shape in self.definition.shapes(sizes, self.layout).items():
            role = "output" if name in self.definition.outputs else "input"
            dtype = self.definition.element_types.get(name, self.dtype)
            tensors[name] = Tensor(name, shape, dtype, role, prod(shape) - untouched.get(name, 0))
        return tensors
