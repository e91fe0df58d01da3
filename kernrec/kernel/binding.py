"""One config on one problem: launches with every number fixed, for a device, the emulator or a report."""

from typing import Any

from kernrec.errors import UsageError
from kernrec.kernel.expression import Expression
from kernrec.kernel.image_layout import ImageArgument, ImageHandle
from kernrec.kernel.spec import SCALAR_RANGES, WORKSPACE_BYTES, Config, Kernel, PointerArgument
from kernrec.kernel.tensor_map import MapArgument, MapHandle, map_of
from kernrec.op import Problem
from kernrec.util.light_dataclass import dataclass


@dataclass(frozen=True)
class Pointer:
    """The address of a tensor or workspace, passed to a kernel."""

    name: str
    null: bool = False
    """Whether the problem or config does not use it; a null pointer is passed."""


@dataclass(frozen=True)
class Scalar:
    """A number passed by value."""

    ctype: str
    """A key of `SCALAR_RANGES`."""
    value: int | float


@dataclass(frozen=True)
class Scratch:
    """A workspace to allocate before the launches; it does not need to be initialized."""

    name: str
    dtype: str
    elements: int

    @property
    def bytes(self) -> int:
        return self.elements * WORKSPACE_BYTES[self.dtype]


@dataclass(frozen=True)
class BoundLaunch:
    """One launch with every number fixed."""

    index: int
    """Position in `Kernel.launches`."""
    entry: str
    """The name of the function."""
    grid: tuple[int, int, int]
    """In blocks."""
    block: tuple[int, int, int]
    """In threads."""
    shared_bytes: int
    """Dynamic shared memory."""
    arguments: tuple[Pointer | Scalar | ImageHandle | MapHandle, ...]
    """In parameter order."""
    trips: dict[str, int]
    """Executions of each loop body, summed over the grid."""

    @property
    def blocks(self) -> int:
        """Blocks in the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def threads(self) -> int:
        """Threads per block."""
        return self.block[0] * self.block[1] * self.block[2]


def bind_launches(kernel: Kernel, config: Config, problem: Problem, sm: int) -> tuple[BoundLaunch, ...]:
    """The launches that run `config` on `problem`, in order; those whose `when` is false are left out.

    Whether the config fits the GPU is not checked here; `Kernel.misfit` does that.

    Raises:
        UsageError: The kernel does not have this config or does not implement this problem, or a number is out of
            range, such as an empty grid.
    """
    names = _names(kernel, config, problem, sm)
    present = {*problem.tensors, *(scratch.name for scratch in _workspaces(kernel, names))}
    bound = []
    for index, launch in enumerate(kernel.launches):
        if launch.when is not None and not launch.when.evaluate(names):
            continue
        place = f"{kernel.name}: {launch.entry}"
        x, y, z = (_whole(f"{place}: grid", size, names, 1) for size in launch.grid)
        bx, by, bz = (_whole(f"{place}: block", size, names, 1) for size in launch.block)
        arguments: list[Pointer | Scalar | ImageHandle | MapHandle] = []
        for argument in launch.arguments:
            if isinstance(argument, PointerArgument):
                arguments.append(Pointer(argument.name, argument.name not in present))
            elif isinstance(argument, MapArgument):
                box = tuple(_whole(f"{place}: map {argument.name}", extent, names, 1) for extent in argument.box)
                arguments.append(map_of(problem.tensors[argument.name], box))
            elif isinstance(argument, ImageArgument):
                tensor, image = problem.tensors[argument.name], kernel.images[argument.name]
                extents, layers = image.image_of(argument.name, tensor.shape)
                arguments.append(ImageHandle(argument.name, tensor.dtype, extents, layers, image))
            else:
                arguments.append(Scalar(argument.ctype, _scalar(place, argument.ctype, argument.value, names)))
        trips = {loop: _whole(f"{place}: trips", count, names, 0) for loop, count in launch.trips.items()}
        shared = _whole(f"{place}: shared", launch.shared, names, 0)
        bound.append(BoundLaunch(index, launch.entry, (x, y, z), (bx, by, bz), shared, tuple(arguments), trips))
    return tuple(bound)


def workspaces(kernel: Kernel, config: Config, problem: Problem, sm: int) -> tuple[Scratch, ...]:
    """The workspaces that `config` needs on `problem`."""
    return _workspaces(kernel, _names(kernel, config, problem, sm))


def probe_problems(
    kernel: Kernel, launch: int, config: Config, dtype: str, layout: str, sm: int
) -> tuple[Problem, ...]:
    """The small problems on which launch number `launch` of a config is emulated for its profile."""
    op = kernel.definition
    problems = []
    for probe in kernel.launches[launch].probes:
        # Lets that need the problem's dimensions cannot be used here: the probe itself defines the dimensions.
        names: dict[str, Any] = {**kernel.config(config), "sm": sm, "dtype": dtype, "layout": layout}
        names["dtype_bytes"] = WORKSPACE_BYTES[dtype]
        for name, let in kernel.lets.items():
            if let.names <= names.keys():
                names[name] = let.evaluate(names)
        place = f"{kernel.name}: {kernel.launches[launch].entry}: probes"
        dims = {dim: _whole(place, size, names, 0) for dim, size in probe.items()}
        problems.append(op.problem(dtype=dtype, layout=layout, **dims))
    return tuple(problems)


def _names(kernel: Kernel, config: Config, problem: Problem, sm: int) -> dict[str, Any]:
    if problem.op != kernel.op:
        raise UsageError(f"kernel {kernel.name} computes {kernel.op}, not {problem.op}")
    kernel.require(problem.dtype, problem.layout, sm)
    return kernel.namespace(kernel.config(config), problem, sm)


def _workspaces(kernel: Kernel, names: dict[str, Any]) -> tuple[Scratch, ...]:
    return tuple(
        Scratch(w.name, w.dtype, _whole(f"{kernel.name}: workspace {w.name}", w.elements, names, 0))
        for w in kernel.workspaces
        if w.when is None or w.when.evaluate(names)
    )


def _whole(place: str, expression: Expression, names: dict[str, Any], least: int) -> int:
    value = expression.evaluate(names)
    if not isinstance(value, int) or value < least:
        raise UsageError(f"{place}: {expression.text!r} is {value!r}, expected an integer of at least {least}")
    return int(value)


def _scalar(place: str, ctype: str, expression: Expression, names: dict[str, Any]) -> int | float:
    value = expression.evaluate(names)
    least, greatest = SCALAR_RANGES[ctype]
    if ctype[0] == "f" and isinstance(value, int | float) and least <= value <= greatest:
        return float(value)
    if ctype[0] != "f" and isinstance(value, int) and least <= value <= greatest:
        return int(value)
    kind = "a number" if ctype[0] == "f" else "an integer"
    raise UsageError(
        f"{place}: argument '{ctype} {expression.text}' is {value!r}, expected {kind} from {least} to {greatest}"
    )
