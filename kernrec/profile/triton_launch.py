"""Add the arguments of Triton's launcher to an emulated launch: tensor maps and scratch memory."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kernrec.compile.triton_launcher import DescribedMap, LauncherNeeds, needs_of
from kernrec.errors import KernrecError
from kernrec.kernel.spec import Kernel
from kernrec.kernel.triton_function import SCRATCH, TritonDescriptor
from kernrec.op import Problem
from kernrec.op.dtype import ELEMENT_BYTES
from kernrec.profile.emulated_launch import MOVED_AS
from kernrec.ptx import KernelLaunch, TensorMap

SCRATCH_BUFFER = "launcher_scratch"


def with_launcher_arguments(kernel: Kernel, problem: Problem, launch: KernelLaunch, ptx: str) -> KernelLaunch:
    """Add scratch memory to a launch and expand its descriptors; return it unchanged if it needs neither.

    Args:
        launch: launch with the function's arguments; a descriptor is the name of its tensor.
        ptx: the compiler's PTX, with a comment that describes the launch.

    Raises:
        KernrecError: the descriptors differ from those that the code was compiled for.
    """
    needs, function = needs_of(ptx), kernel.triton
    if needs is None or function is None:
        return launch
    maps = iter(needs.maps)
    arguments: list[Any] = []
    for name, value in zip(function.parameters, launch.arguments[:-SCRATCH], strict=True):
        if (descriptor := function.descriptors.get(name)) is None:
            arguments.append(value)
        elif needs.maps:
            arguments += _map_arguments(str(value), problem.tensors[str(value)].dtype, descriptor, next(maps))
        else:
            arguments += _pointer_arguments(value, descriptor)
    return replace(launch, arguments=[*arguments, *_scratch(needs, launch)], buffers=_buffers(needs, launch))


def _map_arguments(tensor: str, dtype: str, descriptor: TritonDescriptor, described: DescribedMap) -> list[Any]:
    """Return the arguments of a tensor map, then its shape and strides."""
    if len(described.box) != len(descriptor.shape) or described.packed:
        raise KernrecError(f"descriptor of {tensor}: the compiler created an unsupported map: {described}")
    size = ELEMENT_BYTES[dtype]
    strides = tuple(size * stride for stride in reversed(descriptor.strides[:-1]))
    extents, box = descriptor.shape[::-1], described.box[::-1]
    kind = MOVED_AS.get(dtype, dtype)
    moved = TensorMap(tensor, kind, extents, strides, box, described.swizzle, fill_nan=descriptor.fill_nan)
    return [moved, *_numbers(np.int32, descriptor.shape), *_numbers(np.int64, descriptor.strides)]


def _pointer_arguments(value: Any, descriptor: TritonDescriptor) -> list[Any]:
    """Return the arguments of a descriptor that is passed without a tensor map; shape and strides are passed twice."""
    shape, strides = descriptor.shape, descriptor.strides
    flags = _numbers(np.uint8, (descriptor.fill_nan, 0))
    parts = [value, *_numbers(np.int64, shape), *_numbers(np.int64, strides), *flags]
    return [*parts, *_numbers(np.int32, shape), *_numbers(np.int64, strides)]


def _numbers(kind: type, values: Sequence[int]) -> list[Any]:
    return [kind(value) for value in values]


def _scratch(needs: LauncherNeeds, launch: KernelLaunch) -> list[Any]:
    return [SCRATCH_BUFFER if needs.scratch else np.uint64(0), launch.arguments[-1]]


def _buffers(needs: LauncherNeeds, launch: KernelLaunch) -> dict[str, Any]:
    scratch = {SCRATCH_BUFFER: np.zeros(needs.scratch * math.prod(launch.grid), np.uint8)} if needs.scratch else {}
    return {**launch.buffers, **scratch}
