"""Assign addresses to the variables and buffers of a launch, pack its arguments and order its clusters."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from math import prod
from typing import Any

import numpy as np

from kernrec.errors import UsageError, unknown
from kernrec.ptx.ir.declarations import OPAQUE_TYPES
from kernrec.ptx.ir.program import Function, Module
from kernrec.ptx.state.descriptors import Image, TensorMap
from kernrec.ptx.state.results import Array
from kernrec.util.light_dataclass import dataclass

MOST_THREADS = 1024
"""Maximum number of threads of a block (CUDA C++ Programming Guide, "Technical Specifications")."""
_MOST_GRID, _MOST_DEEP = (2**31 - 1, 65_535, 65_535), 64
"""Maximum number of blocks along each axis of a grid, and of threads along z of a block."""
# High bits of the generic addresses of each state space. Buffer i of global memory starts at (i + 1) << 40.
BUFFER_SHIFT = 40
WINDOW_SHIFT = 56
CODE_WINDOW = 0x7D
"""High bits of function addresses."""
IMAGE_WINDOW = 0x7E
"""High bits of texture and surface handles. No address has these high bits."""

_DYNAMIC_ALIGN = 16

RESERVED_BYTES = 1024
"""Bytes of shared memory per block that the system reserves on sm_80 and newer (CUDA C++ Programming Guide).

The emulator places them after the kernel's shared memory, because the PTX ISA does not state their address.
"""


class BufferPlace(str):
    """Pointer into a buffer, with an offset in bytes."""

    offset: int

    def __new__(cls, name: str, offset: int) -> "BufferPlace":
        place = super().__new__(cls, name)
        place.offset = offset
        return place


class Structure(bytes):
    """Structure that is passed by value, with the buffers to which its members point."""

    pointers: Sequence[tuple[int, str]]
    """Pairs (offset of the member in bytes, buffer)."""

    def __new__(cls, raw: bytes, pointers: Sequence[tuple[int, str]]) -> "Structure":
        structure = super().__new__(cls, raw)
        structure.pointers = pointers
        return structure


@dataclass(frozen=True)
class KernelLaunch:
    """Launch of a kernel in the emulator."""

    entry: str
    grid: Sequence[int]
    """Number of thread blocks along one to three axes, x first."""
    block: Sequence[int]
    """Threads per block along one to three axes, x first."""
    arguments: Sequence[Any]
    """Arguments in the order of the kernel's parameters.

    A pointer is the name of a buffer, a `BufferPlace`, or 0 for null. Other arguments are NumPy scalars of the
    parameter's size, ints for integer parameters, a `TensorMap` for a parameter of 128 bytes, or `bytes`.
    """
    buffers: Mapping[str, np.ndarray[Any, Any]]
    """Global memory as C-contiguous arrays, which the kernel changes in place unless they are read-only.

    The array for a `.global` variable has the variable's name.
    """
    shared_bytes: int = 0
    """Dynamic shared memory in bytes per block."""
    constants: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    """Contents of `__constant__` variables. Other variables keep their initial value."""
    images: Mapping[str, Image] = field(default_factory=dict)
    """Textures and surfaces by name. An argument with this name passes the handle, and a `.texref` or `.surfref`
    variable with this name uses the image."""
    cluster: Sequence[int] = ()
    """Thread blocks per cluster, x first. If it is empty, the kernel's code determines the size."""
    addresses: Mapping[str, int] = field(default_factory=dict)
    """Fixed addresses of `.global` variables."""
    grid_barrier: int = 0
    """Address of the eight-byte barrier of a cooperative launch, or 0."""


@dataclass(frozen=True)
class LaunchLayout:
    """Addresses, sizes and initial contents of the memory of a launch."""

    symbols: dict[str, int]
    """Address of each variable and parameter in its state space."""
    buffers: dict[str, Array]
    """Bytes of each buffer of global memory."""
    images: dict[int, Image]
    """Textures and surfaces by handle."""
    constants: bytes
    parameters: bytes
    """Bytes of the arguments as the kernel reads them."""
    shared_bytes: int
    """Shared memory in bytes per block, including dynamic memory and the part that the system reserves."""
    reserved_offset: int
    """Offset of the system's reserved part in shared memory."""
    local_bytes: int
    """Local memory in bytes per thread."""
    argument_bytes: int
    """Bytes per thread for the arguments and results of device functions."""
    shared_arrays: tuple[tuple[str, int, int], ...] = ()
    """Variables in shared memory as (name, start, size in bytes)."""


def impossible_shape(grid: Sequence[int], block: Sequence[int]) -> str:
    """Return why no GPU can run a launch of this size, or an empty string. Axis x is first."""
    threads = prod(block)
    if any(extent < 1 for extent in (*grid, *block)):
        return f"the grid {tuple(grid)} of blocks {tuple(block)} is empty"
    for axis, extent, most in zip("xyz", grid, _MOST_GRID, strict=False):
        if extent > most:
            return f"the grid has {extent} blocks along {axis}, and at most {most} are possible"
    if threads > MOST_THREADS:
        return f"a block has {threads} threads, and at most {MOST_THREADS} are possible"
    if len(block) > 2 and block[2] > _MOST_DEEP:
        return f"a block has {block[2]} threads along z, and at most {_MOST_DEEP} are possible"
    return ""


def lay_out(module: Module, function: Function, launch: KernelLaunch, guarded: bool = False) -> LaunchLayout:
    """Assign addresses to the variables of a kernel, and pack the arguments of a launch.

    Args:
        guarded: whether to leave gaps between arrays in shared memory, which reveal accesses beyond an array.

    Raises:
        UsageError: arguments, buffers or constants do not fit the kernel.
    """
    contents = launch.constants
    for name, array in contents.items():
        if name not in module.variables or module.variables[name].space != "const":
            constants_ = [v.name for v in module.variables.values() if v.space == "const"]
            raise unknown("__constant__ variable", name, constants_)
        if array.nbytes > module.variables[name].size:
            raise UsageError(
                f"__constant__ variable {name} has {module.variables[name].size} bytes, {array.nbytes} were given"
            )
    handles = {name: IMAGE_WINDOW << WINDOW_SHIFT | i for i, name in enumerate(launch.images, 1)}
    for name, image in launch.images.items():
        if image.buffer not in launch.buffers:
            raise unknown("buffer", image.buffer, launch.buffers)
        if launch.buffers[image.buffer].nbytes < image.bytes:
            raise UsageError(
                f"image {name} has {image.bytes} bytes, its buffer {image.buffer} has"
                f" {launch.buffers[image.buffer].nbytes}"
            )
    symbols: dict[str, int] = {}
    memories = {name: _octets(name, array) for name, array in launch.buffers.items()}
    constants = bytearray()
    shared, of_thread = 0, {"local": 0, "param": 0}
    arrays: list[tuple[str, int, int]] = []
    dynamic: list[str] = []
    dynamic_align = _DYNAMIC_ALIGN
    variables = [*module.variables.values(), *function.variables.values()]
    for variable in variables:
        if variable.type in OPAQUE_TYPES:
            symbols[variable.name] = handles.get(variable.name, 0)
        elif variable.space == "shared":
            if variable.external:
                dynamic.append(variable.name)
                dynamic_align = max(dynamic_align, variable.align)
            elif variable.name in function.symbols or variable.name in function.variables:
                shared = _align(shared, variable.placed_align)
                symbols[variable.name] = shared
                arrays.append((variable.name, shared, variable.size))
                shared += variable.size
                if guarded:  # Leave enough bytes to detect an index that is off by one row.
                    shared += _align(min(max(variable.size, 256), 4096), _DYNAMIC_ALIGN)
        elif variable.space in of_thread:
            symbols[variable.name] = _align(of_thread[variable.space], variable.align)
            of_thread[variable.space] = symbols[variable.name] + variable.size
        elif variable.space == "const":
            constants += bytes(_align(len(constants), variable.align) - len(constants))
            symbols[variable.name] = len(constants)
            data = contents[variable.name].tobytes() if variable.name in contents else variable.data or b""
            constants += data.ljust(variable.size, b"\0")
        elif variable.space == "global" and variable.name not in memories and variable.name not in launch.addresses:
            data = (variable.data or b"").ljust(max(variable.size, 1), b"\0")
            memories[variable.name] = np.frombuffer(data, np.uint8).copy()
    if dynamic or launch.shared_bytes:
        shared = _align(shared, dynamic_align)
        symbols.update(dict.fromkeys(dynamic, shared))
        arrays.append((dynamic[0] if dynamic else "dynamic shared memory", shared, launch.shared_bytes))
        shared += launch.shared_bytes
    # Calls through pointers need the addresses of functions.
    codes = {name: CODE_WINDOW << WINDOW_SHIFT | i for i, name in enumerate(module.functions, 1)}
    addresses = {name: (i + 1) << BUFFER_SHIFT for i, name in enumerate(memories)}
    # A name in the code means the variable in shared or constant memory, even if a buffer has the same name.
    symbols = {**codes, **addresses, **symbols, **launch.addresses}
    for variable in variables:
        if variable.name in launch.addresses or variable.name in contents:
            continue
        for offset, symbol, add in variable.pointers:
            pointer = np.frombuffer(((symbols.get(symbol, 0) + add) & (1 << 64) - 1).to_bytes(8, "little"), np.uint8)
            if variable.space == "global":
                memories[variable.name][offset : offset + 8] = pointer
            else:
                start = symbols[variable.name] + offset
                constants[start : start + 8] = pointer.tobytes()
    parameters = pack_arguments(function, launch.arguments, {**addresses, **handles}, symbols)
    reserved = _align(shared, _DYNAMIC_ALIGN)
    if any(ins.opcode == "mov" and "%reserved_smem" in ins.text for ins in function.instructions):
        shared = reserved + RESERVED_BYTES
    images = {handles[name]: image for name, image in launch.images.items()}
    sizes = (shared, reserved, of_thread["local"], of_thread["param"])
    return LaunchLayout(symbols, memories, images, bytes(constants), parameters, *sizes, tuple(arrays))


def _align(value: int, to: int) -> int:
    return -(-value // to) * to


def _octets(name: str, array: np.ndarray[Any, Any]) -> Array:
    if not isinstance(array, np.ndarray) or not array.flags.c_contiguous:
        raise UsageError(f"buffer {name!r} must be a C-contiguous NumPy array")
    return array.reshape(-1).view(np.uint8)


def pack_arguments(
    function: Function, arguments: Sequence[Any], addresses: Mapping[str, int], symbols: dict[str, int]
) -> bytes:
    """Return the content of the parameter space, and add the offset of each parameter to `symbols`.

    Args:
        arguments: as in `KernelLaunch.arguments`.
        addresses: addresses of buffers and handles of images, keyed by name.
        symbols: dictionary that receives the offset of each parameter in bytes.

    Raises:
        UsageError: the arguments do not fit the kernel.
    """
    kernel = f"kernel {function.name!r}"
    if len(arguments) != len(function.parameters):
        raise UsageError(f"{kernel} takes {len(function.parameters)} arguments, not {len(arguments)}")
    data = bytearray()
    for i, (parameter, argument) in enumerate(zip(function.parameters, arguments, strict=True)):
        if isinstance(argument, str):
            if argument not in addresses:
                raise unknown("buffer", argument, addresses)
            place = addresses[argument] + (argument.offset if isinstance(argument, BufferPlace) else 0)
            raw = place.to_bytes(8, "little")
        elif isinstance(argument, TensorMap):
            if isinstance(argument.address, str) and argument.address not in addresses:
                raise unknown("buffer", argument.address, addresses)
            begin = argument.address if isinstance(argument.address, int) else addresses[argument.address]
            raw = argument.encode(begin)
        elif isinstance(argument, bytes):
            raw = argument
            for offset, name in argument.pointers if isinstance(argument, Structure) else ():
                raw = raw[:offset] + addresses[name].to_bytes(8, "little") + raw[offset + 8 :]
        elif isinstance(argument, np.generic | np.ndarray):
            raw = argument.tobytes()
        elif isinstance(argument, int) and parameter.type[0] in "bus" and -(1 << 63) <= argument < 1 << 64:
            raw = (argument & (1 << 8 * parameter.size) - 1).to_bytes(parameter.size, "little")
        else:
            raise UsageError(
                f"argument {i} of {kernel} is {argument!r}; give a buffer's name, a NumPy scalar, an int or bytes"
            )
        if len(raw) != parameter.size:
            raise UsageError(
                f"argument {i} of {kernel} has {len(raw)} bytes; its .{parameter.type} parameter needs {parameter.size}"
            )
        data += bytes(_align(len(data), parameter.align) - len(data))
        symbols[parameter.name] = len(data)
        data += raw
    return bytes(data)


@dataclass(frozen=True)
class Clusters:
    """Clusters of a grid."""

    grid: tuple[int, int, int]
    extents: tuple[int, int, int]
    """Thread blocks per cluster, x first."""

    @property
    def size(self) -> int:
        return prod(self.extents)

    @property
    def _clusters_by_axis(self) -> list[int]:
        return [extent // along for extent, along in zip(self.grid, self.extents, strict=True)]

    def complete(self, block_numbers: Sequence[int]) -> Sequence[int]:
        """Return all blocks of the clusters to which the given blocks of the grid belong."""
        if self.size == 1 or not len(block_numbers):
            return block_numbers
        clusters = np.unique(self._cluster_and_rank(np.asarray(block_numbers))[0])
        corners = np.unravel_index(clusters[:, None], self._clusters_by_axis, order="F")
        offsets = np.unravel_index(np.arange(self.size), self.extents, order="F")
        places = [corner * along + offset for corner, along, offset in zip(corners, self.extents, offsets, strict=True)]
        blocks: list[int] = np.ravel_multi_index(tuple(places), self.grid, order="F").reshape(-1).tolist()
        return blocks

    def ordered(self, block_numbers: Sequence[int]) -> Sequence[int]:
        """Sort blocks by cluster, and by rank within a cluster. Raise `UsageError` if a cluster is incomplete."""
        if self.size == 1:
            return block_numbers
        numbers = np.unique(np.asarray(block_numbers, np.int64))
        cluster, rank = self._cluster_and_rank(numbers)
        clusters, counts = np.unique(cluster, return_counts=True)
        if (counts != self.size).any():
            lacking = int(numbers[cluster == clusters[counts != self.size][0]][0])
            raise UsageError(
                f"block {lacking} runs together with all {self.size} blocks of its cluster; give whole clusters"
            )
        blocks: list[int] = numbers[np.lexsort((rank, cluster))].tolist()
        return blocks

    def _cluster_and_rank(self, block_numbers: Array) -> tuple[Array, Array]:
        places = np.unravel_index(block_numbers, self.grid, order="F")
        clusters, ranks = zip(*map(np.divmod, places, self.extents), strict=True)
        cluster = np.ravel_multi_index(clusters, self._clusters_by_axis, order="F")
        return cluster, np.ravel_multi_index(ranks, self.extents, order="F")
