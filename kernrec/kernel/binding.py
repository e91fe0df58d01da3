"""Evaluate the launches of a kernel for one config and one problem, and pack their arguments for the CUDA driver.

The driver copies arguments when it queues a launch, so the same packed arguments serve many launches.
"""

import ctypes
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kernrec.errors import KernrecError, UsageError
from kernrec.kernel.spec import SCALAR_RANGES, BytesArgument, Config, Kernel, PointerArgument, ScalarArgument
from kernrec.kernel.tensor_map import EncodedMap, ImageArgument, ImageHandle, MapArgument, MapHandle, map_of
from kernrec.op import Problem
from kernrec.op.dtype import ELEMENT_BYTES
from kernrec.op.equivalent import tensor_names
from kernrec.util.light_dataclass import dataclass


@dataclass(frozen=True)
class Pointer:
    """Pointer argument of a bound launch."""

    name: str
    null: bool = False
    """Whether to pass a null pointer, because the tensor is not used."""
    offset: int = 0
    """Offset in bytes from the start of the tensor."""


@dataclass(frozen=True)
class Scalar:
    ctype: str
    """C type, a key of `SCALAR_RANGES`."""
    value: int | float


@dataclass(frozen=True)
class Scratch:
    """Workspace to allocate before the launches. Its initial content does not matter."""

    name: str
    dtype: str
    elements: int

    @property
    def bytes(self) -> int:
        return self.elements * ELEMENT_BYTES[self.dtype]


@dataclass(frozen=True)
class BoundLaunch:
    """Launch of a kernel in which every expression has a value."""

    index: int
    """Index in `Kernel.launches`."""
    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    """Dynamic shared memory in bytes per block."""
    arguments: tuple[Pointer | Scalar | BytesArgument | ImageHandle | MapHandle, ...]
    trips: dict[str, int]
    """Executions of each loop body, summed over all thread blocks, keyed by the loop's name."""

    @property
    def blocks(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]


Probe = tuple[BoundLaunch, dict[str, tuple[str, int]]]
"""Launch to emulate, and the data type and number of elements of each buffer."""


def bind_launches(kernel: Kernel, config: Config, problem: Problem, sm: int) -> tuple[BoundLaunch, ...]:
    """Return the launches that run `config` on `problem`, in order.

    Pointers and tensor maps have the tensor names of `problem`, even if the kernel implements an equivalent op with
    different names. Use `Kernel.misfit` to check whether the GPU can run the config.

    Raises:
        UsageError: the kernel lacks this config or problem, or a number is out of range, such as an empty grid.
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
    """Return the small problems (probes) on which a launch of a config is profiled."""
    # Use no dimensions of the user's problem, because each probe defines its own.
    names = kernel.static_names(config, dtype, layout, sm)
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
    """Yield the probes of the launch with index `launch` for each config. Skip configs without this launch."""
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
    """Return a launch with the values of its expressions, or None if its condition `when` is false."""
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


C_TYPES: dict[str, Any] = {
    "i8": ctypes.c_int8, "u8": ctypes.c_uint8, "i16": ctypes.c_int16, "u16": ctypes.c_uint16,
    "i32": ctypes.c_int32, "u32": ctypes.c_uint32, "i64": ctypes.c_int64, "u64": ctypes.c_uint64,
    "f32": ctypes.c_float, "f64": ctypes.c_double,
}  # fmt: skip


class _Place(ctypes.c_void_p):
    offset = 0


class PackedArguments:
    """Arguments of a launch in the CUDA driver's format. Addresses can change between launches."""

    def __init__(self, values: Iterable[Any], names: Sequence[str | None] = ()) -> None:
        """Pack `ctypes` values. `names[i]` is the tensor or workspace at which value i points, or None."""
        self._values = list(values)
        self.slots: dict[str, list[Any]] = {}
        """Packed addresses of each tensor or workspace."""
        for name, value in zip(names, self._values, strict=False):
            if name is not None:
                self.slots.setdefault(name, []).append(value)
        self._pointers = (ctypes.c_void_p * len(self._values))(*map(_address, self._values))
        self.address = ctypes.addressof(self._pointers)
        """Address of the array that the driver reads."""

    @classmethod
    def bound(cls, launch: BoundLaunch) -> "PackedArguments":
        """Pack a launch's arguments, with null addresses. Raise `KernrecError` if kernrec cannot pass an argument."""
        pairs = [_packed(launch.entry, argument) for argument in launch.arguments]
        return cls([value for value, _ in pairs], [name for _, name in pairs])

    def set_address(self, name: str, address: int) -> None:
        for value in self.slots.get(name, ()):
            value.value = address + getattr(value, "offset", 0)


def _packed(entry: str, argument: Any) -> tuple[Any, str | None]:
    """Return a packed argument, and the tensor or workspace whose address it holds, or None."""
    match argument:
        case Scalar(ctype, value):
            return C_TYPES[ctype](value), None
        case Pointer(name, null, offset):
            place = _Place(0)
            place.offset = offset
            return place, None if null else name
        case BytesArgument(raw, ()):
            return (ctypes.c_char * len(raw)).from_buffer_copy(raw), None
        case BytesArgument():
            raise KernrecError(f"{entry} takes a structure with pointers, which kernrec cannot launch")
        case MapHandle(name):
            return EncodedMap(argument), name
    raise KernrecError(f"{entry} takes a texture ({argument.name}), which kernrec cannot launch")


def _address(value: Any) -> int:
    return value.address if isinstance(value, EncodedMap) else ctypes.addressof(value)
