"""Convert launches to the emulator's form, and run all launches of a config on the CPU."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kernrec.compile.triton_launcher import DescribedMap, needs_of
from kernrec.errors import KernrecError
from kernrec.kernel.binding import BoundLaunch, Pointer, bind_launches, workspaces
from kernrec.kernel.spec import BytesArgument, Config, Kernel
from kernrec.kernel.tensor_map import ImageHandle, ImageLayout, MapHandle
from kernrec.kernel.triton_function import SCRATCH, TritonDescriptor
from kernrec.op import Problem
from kernrec.op.dtype import ELEMENT_BYTES
from kernrec.profile.tensor_values import ELEMENTS
from kernrec.ptx import BufferPlace, Counts, Image, KernelLaunch, Module, Sampler, Structure, TensorMap, emulate

MOVED_AS = {"f8e4m3": "u8", "f8e5m2": "u8", "i8": "u8", "i16": "u16", "i32": "s32", "i64": "s64", "tf32": "f32"}
"""Element type that represents a data type in a tensor map, keyed by data type."""
_ODD = 0x5B
"""Initial value of integer workspaces. Kernels must not depend on it."""


def emulate_config(
    kernel: Kernel,
    config: Config,
    problem: Problem,
    sm: int,
    module: Module,
    tensors: Mapping[str, np.ndarray],
    *,
    count: bool = True,
    check_races: bool = False,
    budget: int = 20_000_000,
) -> list[tuple[BoundLaunch, Counts]]:
    """Run all launches of a config on a problem. They write their outputs to `tensors`.

    Args:
        sm: compute capability for which the config was compiled, such as 86.
        module: PTX of the config.
        tensors: inputs and outputs by name, in their memory format (bf16 as 16-bit integers).
        check_races: whether a data race in shared memory is an error.
        budget: maximum number of PTX instructions of a batch of blocks.

    Returns:
        Each launch with its event counts.

    Raises:
        EmulationError: access out of bounds, race, deadlock, or unsupported instruction.
    """
    scratch = {}
    for space in workspaces(kernel, config, problem, sm):
        kind = np.dtype(ELEMENTS[space.dtype])
        # Do not fill workspaces with zeros, because a kernel must not depend on their initial content.
        scratch[space.name] = np.full(space.elements, np.nan if kind.kind == "f" else _ODD, kind)
    launches = bind_launches(kernel, config, problem, sm)
    buffers = {**tensors, **scratch}
    return [
        (bound, emulate(module, kernel_launch(bound, buffers), count=count, check_races=check_races, budget=budget))
        for bound in launches
    ]


def kernel_launch(
    bound: BoundLaunch,
    buffers: Mapping[str, np.ndarray],
    constants: Mapping[str, np.ndarray] | None = None,
    entry: str | None = None,
) -> KernelLaunch:
    """Convert a launch to the emulator's form. `entry` is the kernel's PTX name."""
    images = {
        f"texture {a.name}": image_of(a.name, a.dtype, a.extents, a.layers, a.layout)
        for a in bound.arguments
        if isinstance(a, ImageHandle)
    }
    return KernelLaunch(
        entry or bound.entry,
        bound.grid,
        bound.block,
        _arguments(bound),
        buffers,
        bound.shared_bytes,
        constants or {},
        images,
    )


def image_of(name: str, dtype: str, extents: tuple[int, ...], layers: int, layout: ImageLayout) -> Image:
    """Return the emulator's texture or surface for a tensor. Raise `UsageError` if the tensor is unsuitable."""
    sampler = Sampler(layout.filter, layout.address, layout.normalized, layout.unit_range)
    return Image(name, extents, dtype, layout.channels, layers, sampler=sampler)


def _arguments(bound: BoundLaunch) -> list[Any]:
    arguments: list[Any] = []
    for argument in bound.arguments:
        if isinstance(argument, Pointer):
            name = BufferPlace(argument.name, argument.offset) if argument.offset else argument.name
            arguments.append(0 if argument.null else name)
        elif isinstance(argument, BytesArgument):
            arguments.append(Structure(argument.raw, argument.pointers))
        elif isinstance(argument, ImageHandle):
            arguments.append(f"texture {argument.name}")
        elif isinstance(argument, MapHandle):
            kind = MOVED_AS.get(argument.dtype, argument.dtype)
            arguments.append(
                TensorMap(argument.name, kind, argument.extents, argument.strides, argument.box, argument.swizzle)
            )
        else:
            arguments.append(np.dtype(ELEMENTS[argument.ctype]).type(argument.value))
    return arguments


def argument_mismatch(module: Module, name: str, bound: BoundLaunch) -> str | None:
    """Return why a launch's arguments do not fit the PTX kernel `name`, or None if they fit."""
    passed = [
        a.nbytes if isinstance(a, np.generic) else len(a) if isinstance(a, bytes) else 8 for a in _arguments(bound)
    ]
    expected = [parameter.size for parameter in module.functions[name].parameters]
    if passed == expected:
        return None
    sizes = [", ".join(map(str, some)) or "none" for some in (expected, passed)]
    return f"{bound.entry} takes arguments of {sizes[0]} bytes; given: {sizes[1]}"


SCRATCH_BUFFER = "launcher_scratch"


def with_launcher_arguments(kernel: Kernel, problem: Problem, launch: KernelLaunch, ptx: str) -> KernelLaunch:
    """Add the arguments that Triton's launcher passes: scratch memory, and tensor maps or pointers for descriptors.

    Args:
        launch: launch with the function's own arguments. A descriptor is given as the name of its tensor.
        ptx: PTX with the comment of `kernrec.compile.triton_launcher`.

    Raises:
        KernrecError: the descriptors do not match the compiled code.
    """
    needs, function = needs_of(ptx), kernel.triton
    if needs is None or function is None:
        return launch
    maps, buffers = iter(needs.maps), dict(launch.buffers)
    arguments: list[Any] = []
    for name, value in zip(function.parameters, launch.arguments[:-SCRATCH], strict=True):
        if (descriptor := function.descriptors.get(name)) is None:
            arguments.append(value)
        elif needs.maps:
            arguments += _map_arguments(str(value), problem.tensors[str(value)].dtype, descriptor, next(maps))
        else:
            arguments += _pointer_arguments(value, descriptor)
    if needs.scratch:
        buffers[SCRATCH_BUFFER] = np.zeros(needs.scratch * math.prod(launch.grid), np.uint8)
    scratch = SCRATCH_BUFFER if needs.scratch else np.uint64(0)
    return replace(launch, arguments=[*arguments, scratch, launch.arguments[-1]], buffers=buffers)


def _map_arguments(tensor: str, dtype: str, descriptor: TritonDescriptor, described: DescribedMap) -> list[Any]:
    if len(described.box) != len(descriptor.shape) or described.packed:
        raise KernrecError(f"descriptor of {tensor}: the compiler created an unsupported map: {described}")
    size = ELEMENT_BYTES[dtype]
    strides = tuple(size * stride for stride in reversed(descriptor.strides[:-1]))
    extents, box = descriptor.shape[::-1], described.box[::-1]
    kind = MOVED_AS.get(dtype, dtype)
    moved = TensorMap(tensor, kind, extents, strides, box, described.swizzle, fill_nan=descriptor.fill_nan)
    return [moved, *_numbers(np.int32, descriptor.shape), *_numbers(np.int64, descriptor.strides)]


def _pointer_arguments(value: Any, descriptor: TritonDescriptor) -> list[Any]:
    """Return Triton's arguments for a descriptor without a tensor map."""
    shape, strides = descriptor.shape, descriptor.strides
    flags = _numbers(np.uint8, (descriptor.fill_nan, 0))
    parts = [value, *_numbers(np.int64, shape), *_numbers(np.int64, strides), *flags]
    return [*parts, *_numbers(np.int32, shape), *_numbers(np.int64, strides)]


def _numbers(kind: type, values: Sequence[int]) -> list[Any]:
    return [kind(value) for value in values]
