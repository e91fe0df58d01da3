"""Bind one config to one problem: launches with every number fixed, for a device, the emulator or a report."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kernrec.errors import UsageError
from kernrec.kernel.image_layout import ImageArgument, ImageHandle
from kernrec.kernel.spec import SCALAR_RANGES, BytesArgument, Config, Kernel, PointerArgument, ScalarArgument
from kernrec.kernel.tensor_map import MapArgument, MapHandle, map_of
from kernrec.op import Problem
from kernrec.op.dtype import ELEMENT_BYTES
from kernrec.op.equivalent import tensor_names
from kernrec.util.light_dataclass import dataclass


@dataclass(frozen=True)
class Pointer:
    """Address of a tensor or workspace, passed to a kernel."""

    name: str
    null: bool = False
    """Whether to pass a null pointer, because the problem or config does not use it."""
    offset: int = 0
    """Offset of the pointer from the start of the tensor, in bytes."""


@dataclass(frozen=True)
class Scalar:
    """A number passed by value."""

    ctype: str
    """A key of `SCALAR_RANGES`."""
    value: int | float


@dataclass(frozen=True)
class Scratch:
    """Workspace to allocate before the launches, without initialization."""

    name: str
    dtype: str
    elements: int

    @property
    def bytes(self) -> int:
        return self.elements * ELEMENT_BYTES[self.dtype]


@dataclass(frozen=True)
class BoundLaunch:
    """One launch with every number fixed."""

    index: int
    """Index in `Kernel.launches`."""
    entry: str
    grid: tuple[int, int, int]
    """Thread blocks along x, y and z."""
    block: tuple[int, int, int]
    """Threads per block along x, y and z."""
    shared_bytes: int
    """Dynamic shared memory per block."""
    arguments: tuple[Pointer | Scalar | BytesArgument | ImageHandle | MapHandle, ...]
    trips: dict[str, int]
    """Executions of each loop body, summed over the grid."""

    @property
    def blocks(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]


Probe = tuple[BoundLaunch, dict[str, tuple[str, int]]]
"""Launch to emulate, and its buffers: name -> (dtype, number of elements)."""


def bind_launches(kernel: Kernel, config: Config, problem: Problem, sm: int) -> tuple[BoundLaunch, ...]:
    """Return the launches that run `config` on `problem`, in order; launches whose `when` is false are left out.

    Pointers and tensor maps use the problem's tensor names, even if the kernel's op names its tensors differently.
    `Kernel.misfit` checks whether the config fits the GPU.

    Raises:
        UsageError: The kernel does not have this config or does not implement this problem, or a number is out of
            range, such as an empty grid.
    """
    names = _names(kernel, config, problem, sm)
    scratch = _workspaces(kernel, names)
    launches = (_bound(kernel, index, names, problem, scratch) for index in range(len(kernel.launches)))
    return tuple(launch for launch in launches if launch is not None)


def workspaces(kernel: Kernel, config: Config, problem: Problem, sm: int) -> tuple[Scratch, ...]:
    """Return the workspaces that `config` needs on `problem`."""
    return _workspaces(kernel, _names(kernel, config, problem, sm))


def probe_problems(
    kernel: Kernel, launch: int, config: Config, dtype: str, layout: str, sm: int
) -> tuple[Problem, ...]:
    """Return the small problems on which to emulate launch number `launch` of a config for its profile."""
    names = kernel.static_names(config, dtype, layout, sm)  # The probe itself defines the dimensions.
    place = f"{kernel.name}: {kernel.launches[launch].entry}: probes"
    return tuple(
        kernel.definition.problem(
            dtype=dtype, layout=layout, **{dim: size.whole_number(names, 0, place) for dim, size in probe.items()}
        )
        for probe in kernel.launches[launch].probes
    )


def probe_launches(
    kernel: Kernel, launch: int, configs: Sequence[Config], dtype: str, layout: str, sm: int
) -> Iterator[Probe]:
    """Yield launch number `launch` on the probe problems of each config that performs this launch."""
    for config in configs:
        for problem in probe_problems(kernel, launch, config, dtype, layout, sm):
            names = kernel.namespace(config, problem, sm)
            scratch = _workspaces(kernel, names)
            bound = _bound(kernel, launch, names, problem, scratch)
            if bound is not None:
                sizes = {name: (tensor.dtype, tensor.elements) for name, tensor in problem.tensors.items()}
                yield bound, sizes | {space.name: (space.dtype, space.elements) for space in scratch}


def _names(kernel: Kernel, config: Config, problem: Problem, sm: int) -> dict[str, Any]:
    problem = kernel.form(problem)
    kernel.require(problem.dtype, problem.layout, sm)
    return kernel.namespace(kernel.config(config), problem, sm)


def _workspaces(kernel: Kernel, names: Mapping[str, Any]) -> tuple[Scratch, ...]:
    return tuple(
        Scratch(w.name, w.dtype, w.elements.whole_number(names, 0, f"{kernel.name}: workspace {w.name}"))
        for w in kernel.workspaces
        if w.when is None or w.when.evaluate(names)
    )


def _bound(
    kernel: Kernel, index: int, names: Mapping[str, Any], problem: Problem, scratch: Sequence[Scratch]
) -> BoundLaunch | None:
    """Return launch number `index` with every number fixed; None if its `when` is false."""
    launch = kernel.launches[index]
    if launch.when is not None and not launch.when.evaluate(names):
        return None
    place = f"{kernel.name}: {launch.entry}"
    x, y, z = (size.whole_number(names, 1, f"{place}: grid") for size in launch.grid)
    bx, by, bz = (size.whole_number(names, 1, f"{place}: block") for size in launch.block)
    trips = {loop: count.whole_number(names, 0, f"{place}: trips") for loop, count in launch.trips.items()}
    shared = launch.shared.whole_number(names, 0, f"{place}: shared")
    form, named = kernel.form(problem), tensor_names(problem, kernel.op)
    present = {*form.tensors, *(space.name for space in scratch)}
    arguments: list[Pointer | Scalar | BytesArgument | ImageHandle | MapHandle] = []
    for argument in launch.arguments:
        match argument:
            case PointerArgument(name, offset):
                actual, elements = named.get(name, name), 0
                if offset is not None and name in problem.tensors:
                    elements = offset.whole_number(names, 0, f"{place}: {name}")
                size = ELEMENT_BYTES[problem.tensors[actual].dtype] if elements else 0
                arguments.append(Pointer(actual, name not in present, elements * size))
            case BytesArgument():
                arguments.append(argument)
            case ScalarArgument(ctype):
                arguments.append(Scalar(ctype, _scalar(place, argument, names)))
            case MapArgument(name, extents):
                box = tuple(extent.whole_number(names, 1, f"{place}: map {name}") for extent in extents)
                arguments.append(map_of(problem.tensors[named.get(name, name)], box))
            case ImageArgument(name):
                tensor, image = problem.tensors[name], kernel.images[name]
                arguments.append(ImageHandle(name, tensor.dtype, *image.image_of(name, tensor.shape), image))
    return BoundLaunch(index, launch.entry, (x, y, z), (bx, by, bz), shared, tuple(arguments), trips)


def _scalar(place: str, argument: ScalarArgument, names: Mapping[str, Any]) -> int | float:
    ctype, value = argument.ctype, argument.value.evaluate(names)
    least, greatest = SCALAR_RANGES[ctype]
    if ctype[0] == "f" and isinstance(value, int | float) and least <= value <= greatest:
        return float(value)
    if ctype[0] != "f" and isinstance(value, int) and least <= value <= greatest:
        return int(value)
    kind = "a number" if ctype[0] == "f" else "an integer"
    raise UsageError(
        f"{place}: argument '{ctype} {argument.value.text}' is {value!r}, expected {kind} from {least} to {greatest}"
    )
