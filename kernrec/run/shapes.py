"""Represent the shapes of a built kernel: a dimension is fixed, or has several values that array shapes determine."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from operator import index
from typing import Any

from kernrec.errors import UsageError, unknown
from kernrec.op import Op, Problem
from kernrec.util.light_dataclass import dataclass


@dataclass(frozen=True, eq=False)
class Shapes:
    """Problems of an op in one dtype and layout."""

    op: Op
    dtype: str
    layout: str
    fixed: Mapping[str, int]
    """Dimensions with one value."""
    ranged: Mapping[str, Sequence[int]]
    """Dimensions with several values in ascending order: a `range`, or a tuple of numbers."""

    @classmethod
    def of(cls, op: Op, dtype: str | None, layout: str | None, dims: Mapping[str, Any]) -> "Shapes":
        """Create shapes from numbers, `range(1, 4097)`, or lists of numbers.

        Raises:
            UsageError: A dimension is unknown, missing, empty, not an integer or out of range, or the shapes of the
                arrays do not determine it.
        """
        fixed: dict[str, int] = {}
        ranged: dict[str, Sequence[int]] = {}
        names = [dim.name for dim in op.dims]
        for name, argument in dims.items():
            if name not in names:
                raise unknown(f"{op.name} dimension", name, names)
            values = _values(op.name, name, argument)
            if len(values) == 1:
                fixed[name] = values[0]
            else:
                ranged[name] = values
        least = op.problem(dtype, layout, **fixed, **{name: values[0] for name, values in ranged.items()})
        shapes = cls(op, least.dtype, least.layout, fixed, ranged)
        shapes.problem({name: values[-1] for name, values in ranged.items()})  # The largest value must also be valid.
        shapes._places  # noqa: B018 - and every dimension can be read
        return shapes

    def problem(self, values: Mapping[str, int]) -> Problem:
        """Return the problem with these values of the ranged dimensions."""
        return self.op.problem(self.dtype, self.layout, **self.fixed, **values)

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Return the names of the inputs, in the order of the arguments."""
        return tuple(name for name, tensor in self._least.tensors.items() if tensor.role == "input")

    @property
    def output(self) -> str:
        """Return the name of the output."""
        return self.op.outputs[0]

    @property
    def output_dtype(self) -> str:
        """Return the output's element type."""
        return self._least.tensors[self.output].dtype

    def read(self, shapes: Sequence[Sequence[int]]) -> Problem:
        """Return the problem of inputs with these shapes. Raises `UsageError` if the kernel was not built for the
        number of inputs, an axis or a dimension.
        """
        if len(shapes) != len(self.inputs):
            raise UsageError(
                f"{self.op.name} takes {len(self.inputs)} arrays ({', '.join(self.inputs)}); {len(shapes)} were given"
            )
        by_input = dict(zip(self.inputs, shapes, strict=True))
        for tensor, shape in by_input.items():
            self._check_axes(tensor, shape)
        values = {}
        for name, (tensor, axis) in self._places.items():
            values[name] = int(by_input[tensor][axis])
            if values[name] not in self.ranged[name]:
                accepted = _shown(self.ranged[name])
                size = f"{name} is {values[name]} (axis {axis} of {tensor})"
                raise UsageError(f"{size}; the kernel was built for {accepted}")
        problem = self.problem(values)
        for tensor, shape in by_input.items():
            expected = problem.tensors[tensor].shape
            if tuple(shape) != expected:
                raise UsageError(f"{tensor} has shape {tuple(shape)}; expected {expected} for {problem.key}")
        return problem

    @cached_property
    def output_axes(self) -> "tuple[int | tuple[int, int], ...] | None":
        """Return, for each output axis, its extent, or (number of an input, axis) with the same extent.

        Returns:
            None if an extent is computed, as for a convolution's output.
        """
        least = {name: values[0] for name, values in self.ranged.items()}
        axes: list[int | tuple[int, int]] = list(self._least.tensors[self.output].shape)
        for name, values in self.ranged.items():
            other = self.problem(least | {name: values[-1]}).tensors[self.output].shape
            for axis, extents in enumerate(zip(self._least.tensors[self.output].shape, other, strict=True)):
                if extents == (values[0], values[-1]):
                    tensor, place = self._places[name]
                    axes[axis] = self.inputs.index(tensor), place
                elif extents[0] != extents[1]:
                    return None
        return tuple(axes)

    def _check_axes(self, tensor: str, shape: Sequence[int]) -> None:
        expected = self._least.tensors[tensor].shape
        if len(shape) != len(expected):
            raise UsageError(f"{tensor} has shape {tuple(shape)}; expected {len(expected)} axes")

    @cached_property
    def _least(self) -> Problem:
        return self.problem({name: values[0] for name, values in self.ranged.items()})

    @cached_property
    def _places(self) -> dict[str, tuple[str, int]]:
        """Return (input, axis) with the extent of each ranged dimension."""
        places = {}
        least = {name: values[0] for name, values in self.ranged.items()}
        for name, values in self.ranged.items():
            other = self.problem(least | {name: values[-1]}).tensors
            place = None
            for tensor in self.inputs:
                here, there = self._least.tensors[tensor].shape, other[tensor].shape if tensor in other else ()
                if len(here) != len(there):
                    raise UsageError(
                        f"{name} from {values[0]} to {values[-1]} changes the axes of {tensor}; give it one value"
                    )
                for axis, extents in enumerate(zip(here, there, strict=True)):
                    if place is None and extents == (values[0], values[-1]):
                        place = tensor, axis
            if place is None:
                raise UsageError(f"{name} does not follow from the shapes of {', '.join(self.inputs)}; give one value")
            places[name] = place
        return places


def _values(op: str, name: str, argument: Any) -> Sequence[int]:
    if isinstance(argument, range):
        values: Sequence[int] = argument if argument.step > 0 else argument[::-1]
    elif isinstance(argument, list | tuple):
        values = tuple(sorted({_whole(op, name, value) for value in argument}))
    else:
        values = (_whole(op, name, argument),)
    if not values:
        raise UsageError(f"{op} dimension {name} has no value; expected a number, a range or a list of numbers")
    return values


def _whole(op: str, name: str, value: Any) -> int:
    if not isinstance(value, bool):
        try:
            return index(value)
        except TypeError:
            pass
    raise UsageError(f"{op} dimension {name} is {value!r:.40}; expected a number, a range or a list of numbers")


def _shown(values: Sequence[int]) -> str:
    if isinstance(values, range):
        return f"{values[0]} to {values[-1]}" + (f" in steps of {values.step}" if values.step > 1 else "")
    return ", ".join(map(str, values[:8])) + (", ..." if len(values) > 8 else "")
