"""Represent the shapes that a kernel is built for, and cache the recommended config of each shape.

Each dimension is fixed or has several values, which are read from the shapes of the inputs.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from operator import index
from typing import Any

from kernrec.compile import Compiled, CompileJob
from kernrec.compile.triton_version import has_triton
from kernrec.errors import KernrecError, UsageError, unknown
from kernrec.gpu import GPU
from kernrec.kernel import Kernel
from kernrec.op import Op, Problem
from kernrec.recommender import Query, Recommender
from kernrec.util.human import short_config
from kernrec.util.light_dataclass import dataclass


@dataclass(frozen=True, eq=False)
class Shapes:
    """Problems of one op, in one dtype and layout."""

    op: Op
    dtype: str
    layout: str
    fixed: Mapping[str, int]
    """Value of each dimension that has only one value."""
    ranged: Mapping[str, Sequence[int]]
    """Ascending values of each dimension that is not fixed: a `range` or a tuple."""

    @classmethod
    def of(cls, op: Op, dtype: str | None, layout: str | None, dims: Mapping[str, Any]) -> "Shapes":
        """Create the problems of an op.

        Args:
            dtype: Data type, by default the op's default.
            layout: Tensor layout, by default the op's default.
            dims: Value or values of each dimension: a number, a range such as `range(1, 4097)`, or a list of numbers.

        Raises:
            UsageError: A dimension is unknown, missing, empty, out of range, or not determined by the inputs' shapes.
        """
        fixed: dict[str, int] = {}
        ranged: dict[str, Sequence[int]] = {}
        names = [dim.name for dim in op.dims]
        for name, argument in op.canonical_dims(dims).items():
            if name not in names:
                raise unknown(f"{op.name} dimension", name, names)
            values = _values(op.name, name, argument)
            if len(values) == 1:
                fixed[name] = values[0]
            else:
                ranged[name] = values
        least = op.problem(dtype, layout, **fixed, **{name: values[0] for name, values in ranged.items()})
        shapes = cls(op, least.dtype, least.layout, fixed, ranged)
        shapes.problem({name: values[-1] for name, values in ranged.items()})  # Check the largest values.
        shapes._places  # noqa: B018 - Check that the inputs determine every dimension.
        return shapes

    def problem(self, values: Mapping[str, int]) -> Problem:
        return self.op.problem(self.dtype, self.layout, **self.fixed, **values)

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Names of the op's inputs, in order."""
        return tuple(name for name, tensor in self._least.tensors.items() if tensor.role == "input")

    @property
    def output(self) -> str:
        return self.op.outputs[0]

    @property
    def output_dtype(self) -> str:
        return self._least.tensors[self.output].dtype

    def read(self, shapes: Sequence[Sequence[int]]) -> Problem:
        """Return the problem for input arrays of these shapes. Raise `UsageError` if the kernel cannot run it."""
        if len(shapes) != len(self.inputs):
            raise UsageError(
                f"{self.op.name} takes {len(self.inputs)} arrays ({', '.join(self.inputs)}); {len(shapes)} were given"
            )
        by_input = dict(zip(self.inputs, shapes, strict=True))
        for tensor, shape in by_input.items():
            axes = len(self._least.tensors[tensor].shape)
            if len(shape) != axes:
                raise UsageError(f"{tensor} has shape {tuple(shape)}; expected {axes} axes")
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
        """Extent of each output axis: a number, or the (input, axis) with the same extent.

        None if an extent depends on the inputs in another way, as for a convolution.
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

    @cached_property
    def _least(self) -> Problem:
        return self.problem({name: values[0] for name, values in self.ranged.items()})

    @cached_property
    def _places(self) -> dict[str, tuple[str, int]]:
        """Map each dimension to (input, axis). The extent of the input along the axis is the dimension's value."""
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


@dataclass(frozen=True, eq=False)
class Variant:
    """A kernel with a config, which runs one or more problems."""

    kernel: Kernel
    config: Mapping[str, int]

    def __repr__(self) -> str:
        return f"<{self.kernel.name} {short_config(self.config)}>"

    def compile_job(self, problem: Problem, sm: int) -> CompileJob:
        """Return the job that compiles the variant for a problem and a compute capability, such as 90."""
        from kernrec.profile.kernel_code import compile_job_for

        return compile_job_for(self.kernel, self.config, problem, sm)

    def compiled(self, problem: Problem, sm: int) -> Compiled:
        """Return the compiled code for a problem and a compute capability."""
        from kernrec.compile import CompileCache
        from kernrec.compile.nvrtc import compile_job

        job = self.compile_job(problem, sm)
        if job.triton is not None:  # Triton's compiler changes the state of its process, so use another process.
            from kernrec.compile.triton_process import compile_apart

            return compile_apart(job, CompileCache.default())
        return compile_job(job, CompileCache.default())


class Target:
    """Shapes, GPU and query that a kernel is built for."""

    def __init__(self, recommender: Recommender, shapes: Shapes, gpu: GPU, query: Query) -> None:
        self._recommender = recommender if has_triton() else recommender.without_triton
        self.shapes, self.gpu, self.query = shapes, gpu, query
        self._by_problem: dict[Problem, Variant] = {}
        self._by_config: dict[tuple[object, ...], Variant] = {}

    def variant(self, problem: Problem) -> Variant:
        """Return the recommended kernel and config for a problem.

        Raise `KernrecError` if no kernel that runs the problem can be compiled.
        """
        if (variant := self._by_problem.get(problem)) is None:
            kernel, config = self._recommended(problem)
            key = kernel.name, *sorted(config.items())
            variant = self._by_problem[problem] = self._by_config.setdefault(key, Variant(kernel, config))
        return variant

    def _recommended(self, problem: Problem) -> tuple[Kernel, Mapping[str, int]]:
        answer = self._recommender.on(self.gpu, self.query.conditions).answer_op(problem, self.query)
        if not answer.recommendations:
            raise KernrecError(f"no kernel that compiles here can run {problem.key} on {self.gpu.name}")
        return answer.best.kernel, answer.best.config
