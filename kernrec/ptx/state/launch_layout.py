"""Assign addresses to the variables and buffers of a kernel launch, pack its arguments, and order its clusters of
blocks."""

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
"""Maximum number of threads of a block on every GPU (CUDA C++ Programming Guide, "Technical Specifications")."""
_MOST_GRID, _MOST_DEEP = (2**31 - 1, 65_535, 65_535), 64
"""Maximum number of blocks of a grid along each axis, and of threads of a block along z (same table as
`MOST_THREADS`)."""
# High bits of the generic addresses of each state space. Buffer i of global memory starts at (i + 1) << 40.
BUFFER_SHIFT = 40
WINDOW_SHIFT = 56
CODE_WINDOW = 0x7D
"""High bits of the addresses of functions."""
IMAGE_WINDOW = 0x7E
"""High bits of the handles of textures and surfaces. No address has these bits."""
WINDOWS = {"global": 0, "shared": 1, "local": 2, "const": 3, "param": 4}

_DYNAMIC_ALIGN = 16

RESERVED_BYTES = 1024
"""Bytes of shared memory per block that the system reserves on compute capability 8.0 and higher (CUDA C++ Programming
Guide). The PTX ISA, section 10.35, does not specify where they are. In the emulator, they follow the kernel's own
shared memory."""


class BufferPlace(str):
    """Pointer argument of a launch: the name of a buffer, and an offset from the buffer's start in bytes."""

    offset: int

    def __new__(cls, name: str, offset: int) -> "BufferPlace":
        place = super().__new__(cls, name)
        place.offset = offset
        return place


class Structure(bytes):
    """Argument of a launch that is a structure, with the buffers to which its members point."""

    pointers: Sequence[tuple[int, str]]
    """Pairs (offset of the member in bytes, name of the buffer)."""

    def __new__(cls, raw: bytes, pointers: Sequence[tuple[int, str]]) -> "Structure":
        structure = super().__new__(cls, raw)
        structure.pointers = pointers
        return structure


@dataclass(frozen=True)
class KernelLaunch:
    """Launch of a kernel in the emulator: the kernel, the grid, the arguments and the memory."""

    entry: str
    """Name of the kernel."""
    grid: Sequence[int]
    """Number of thread blocks: one to three extents, x first."""
    block: Sequence[int]
    """Number of threads per block: one to three extents, x first."""
    arguments: Sequence[Any]
    """Arguments in the order of the kernel's parameters. A pointer is the name of a buffer, a `BufferPlace` inside of a
    buffer, or 0 for a null pointer. Other arguments are NumPy scalars of the parameter's size, ints for integer
    parameters, a `TensorMap` for a parameter of 128 bytes, or `bytes`."""
    buffers: Mapping[str, np.ndarray[Any, Any]]
    """Global memory: C-contiguous arrays, keyed by name, which the kernel changes in place. It must not write an array
    that is not writeable. An array with the name of a `.global` variable is that variable's content."""
    shared_bytes: int = 0
    """Dynamic shared memory per block in bytes."""
    constants: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    """Content of `__constant__` variables, keyed by name. A variable that is not listed has its initial value."""
    images: Mapping[str, Image] = field(default_factory=dict)
    """Textures and surfaces, keyed by name. If the name is used as an argument, the handle is passed. A `.texref` or
    `.surfref` variable of the module refers to the image with the variable's name."""
    cluster: Sequence[int] = ()
    """Number of thread blocks per cluster: one to three extents, x first. If it is empty, clusters have the size that
    is compiled into the kernel. If the kernel has no such size, a cluster is one block."""
    addresses: Mapping[str, int] = field(default_factory=dict)
    """Fixed addresses of `.global` variables in `buffers`, to which pointers in the buffers already refer."""
    grid_barrier: int = 0
    """Address of the grid-wide barrier of a cooperative launch, or 0 if the launch is not cooperative. The barrier
    takes eight bytes in one of `buffers`."""


@dataclass(frozen=True)
class LaunchLayout:
    """Addresses of the symbols, sizes of the memories, and initial contents of memory for one launch."""

    symbols: dict[str, int]
    """Address of each variable and parameter in its state space."""
    buffers: dict[str, Array]
    """Content of global memory as bytes, keyed by buffer."""
    images: dict[int, Image]
    """Textures and surfaces, keyed by handle."""
    constants: bytes
    parameters: bytes
    """Content of the parameter space: the packed arguments."""
    shared_bytes: int
    """Shared memory per block in bytes: static, dynamic and, if the kernel uses it, the system's reserved part."""
    reserved_offset: int
    """Start of the part of shared memory that the system reserves."""
    local_bytes: int
    """Local memory per thread in bytes."""
    argument_bytes: int
    """Bytes per thread for the arguments and results of device functions."""
    shared_arrays: tuple[tuple[str, int, int], ...] = ()
    """Variables in shared memory, each as (name, start, size in bytes)."""


def impossible_shape(grid: Sequence[int], block: Sequence[int]) -> str:
    """Return why no GPU can run a launch with this grid and block (x first), or an empty text if a GPU can."""
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
    """Assign an address to each variable that a kernel uses, and pack the arguments of a launch.

    Args:
        module: the module.
        function: the kernel that is launched.
        launch: the launch.
        guarded: Whether to put unused bytes between the arrays in shared memory, to detect accesses beyond an array.

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
    shared, local, argument = 0, 0, 0
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
                shared += variable.size + (_guard(variable.size) if guarded else 0)
        elif variable.space == "local":
            local = _align(local, variable.align)
            symbols[variable.name] = local
            local += variable.size
        elif variable.space == "param":
            argument = _align(argument, variable.align)
            symbols[variable.name] = argument
            argument += variable.size
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
    # Functions need addresses, too, for calls through pointers.
    codes = {name: CODE_WINDOW << WINDOW_SHIFT | i for i, name in enumerate(module.functions, 1)}
    addresses = {name: (i + 1) << BUFFER_SHIFT for i, name in enumerate(memories)}
    # A variable in shared or constant memory hides a buffer with its name, to which only arguments can refer.
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
    sizes = (shared, reserved, local, argument)
    return LaunchLayout(symbols, memories, images, bytes(constants), parameters, *sizes, tuple(arrays))


def _guard(size: int) -> int:
    """Return the unused bytes to put after an array, enough to detect an index that is off by one row."""
    return _align(min(max(size, 256), 4096), _DYNAMIC_ALIGN)


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
        function: The kernel.
        arguments: As in `KernelLaunch.arguments`.
        addresses: Addresses of buffers and handles of images, keyed by name.
        symbols: Dictionary that receives the offset of each parameter in bytes.

    Raises:
        UsageError: The arguments do not fit the kernel.
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
    """How the blocks of a grid are divided into clusters."""

    grid: tuple[int, int, int]
    """Number of thread blocks in the grid, x first."""
    extents: tuple[int, int, int]
    """Number of thread blocks per cluster along each axis, x first."""

    @property
    def size(self) -> int:
        """Return the number of thread blocks per cluster."""
        return self.extents[0] * self.extents[1] * self.extents[2]

    def complete(self, block_numbers: Sequence[int]) -> Sequence[int]:
        """Return all blocks of every cluster that contains one of the given blocks."""
        if self.size == 1 or not len(block_numbers):
            return block_numbers
        clusters = np.unique(self._cluster_and_rank(np.asarray(block_numbers))[0])
        ranks = np.arange(self.size)
        numbers, scale, rest = np.zeros((len(clusters), self.size), np.int64), 1, clusters
        for extent, along in zip(self.grid, self.extents, strict=True):
            numbers += (rest % (extent // along) * along)[:, None] * scale + ranks % along * scale
            rest, ranks, scale = rest // (extent // along), ranks // along, scale * extent
        blocks: list[int] = numbers.reshape(-1).tolist()
        return blocks

    def ordered(self, block_numbers: Sequence[int]) -> Sequence[int]:
        """Return the given blocks ordered by cluster and, within a cluster, by rank.

        Raises:
            UsageError: a cluster is not complete.
        """
        if self.size == 1:
            return block_numbers
        numbers = np.unique(np.asarray(block_numbers))
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
        cluster, rank = np.zeros_like(block_numbers), np.zeros_like(block_numbers)
        scale, blocks, rest = 1, 1, block_numbers
        for extent, along in zip(self.grid, self.extents, strict=True):
            position, rest = rest % extent, rest // extent
            cluster, rank = cluster + position // along * scale, rank + position % along * blocks
            scale, blocks = scale * (extent // along), blocks * along
        return cluster, rank
