"""Represent the code that a captured program loads: PTX from fat binaries, variables, and properties of kernels."""

import ctypes
import ctypes.util
import hashlib
import math
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from kernrec.errors import KernrecError
from kernrec.gpu import GPU
from kernrec.ptx import Module, ParseError, parse
from kernrec.ptx.analysis.liveness import live_registers
from kernrec.ptx.ir.inline import inlined
from kernrec.ptx.ir.program import Function, SourceLines, Variable
from kernrec.ptx.state.launch_layout import BUFFER_SHIFT, CODE_WINDOW, MOST_THREADS, WINDOW_SHIFT, impossible_shape

FAT_BINARY = b"\x50\xed\x55\xba"
_PTX, _CUBIN = 1, 2
_LZ4, _ZSTD = 0x2000, 0x8000
_ENTRY = struct.Struct("<HHIQI IHHI IIQ QQ")
_LARGEST = 1 << 30
UNCOMPRESSED = "compile with nvcc --no-compress"


class Image(NamedTuple):
    """PTX or machine code in a file that a program loads."""

    sm: int
    ptx: str | None
    """PTX text, or None if the image is machine code."""


def images_of(data: bytes) -> list[Image]:
    """Return the images in a fat binary, a cubin or PTX text. Raise `KernrecError` if they cannot be read."""
    if data.startswith(b"\x7fELF"):
        return [Image(int.from_bytes(data[0x30:0x32], "little") & 0xFF, None)]
    if not data.startswith(FAT_BINARY):
        text = data.rstrip(b"\0").decode("utf-8", "replace")
        return [Image(_target(text), text)]
    return list(_entries(data))


def _entries(data: bytes) -> Iterator[Image]:
    place = struct.unpack_from("<H", data, 6)[0]
    while place + _ENTRY.size <= len(data):
        kind, _, header, size, packed, _, _, _, sm, _, _, flags, _, unpacked = _ENTRY.unpack_from(data, place)
        if header < _ENTRY.size:
            raise KernrecError("the program's code is damaged: an entry of its fat binary has no header")
        content = data[place + header : place + header + size]
        if kind == _PTX:
            if flags & (_LZ4 | _ZSTD):
                content = _decompressed(content[:packed] if packed else content, unpacked, bool(flags & _ZSTD))
            text = content.rstrip(b"\0").decode("utf-8", "replace")
            yield Image(_target(text) or sm, text)
        elif kind == _CUBIN:
            yield Image(sm, None)
        place += header + size


def _target(ptx: str) -> int:
    match = re.search(r"^\s*\.target\s+sm_(\d+)", ptx, re.MULTILINE)
    return int(match[1]) if match else 0


def best_ptx(images: Sequence[Image], sm: int) -> str | None:
    """Return the PTX for the newest architecture up to `sm`. Return the PTX for the oldest architecture if all
    architectures are newer than `sm`. Return None if there is no PTX."""
    texts = sorted((image.sm, image.ptx) for image in images if image.ptx is not None)
    return next((ptx for target, ptx in reversed(texts) if target <= sm), texts[0][1] if texts else None)


def _decompressed(data: bytes, size: int, zstd: bool) -> bytes:
    if size > _LARGEST:
        raise KernrecError(f"a code image of {size} bytes in the program is too large; at most {_LARGEST} are read")
    try:
        return (_zstd if zstd else _lz4)(data, size)
    except IndexError:
        raise KernrecError(f"a compressed image of the program is damaged; {UNCOMPRESSED}") from None


def _lz4(data: bytes, size: int) -> bytes:
    out, place, end = bytearray(), 0, len(data)
    while place < end:
        token = data[place]
        place += 1
        count, place = _lz4_length(data, place, token >> 4)
        out += data[place : place + count]
        place += count
        if place >= end or len(out) >= size:
            break
        distance = data[place] | data[place + 1] << 8
        count, place = _lz4_length(data, place + 2, token & 15)
        count += 4
        start = len(out) - distance
        if distance == 0 or start < 0:
            raise KernrecError(f"a compressed image of the program is damaged; {UNCOMPRESSED}")
        piece = bytes(out[start : start + count])
        out += (piece * (count // len(piece) + 1))[:count]
    return bytes(out[:size])


def _lz4_length(data: bytes, place: int, count: int) -> tuple[int, int]:
    if count == 15:
        while data[place] == 255:
            count += 255
            place += 1
        count += data[place]
        place += 1
    return count, place


def _zstd(data: bytes, size: int) -> bytes:
    library = ctypes.util.find_library("zstd")
    if library is None:
        raise KernrecError(f"the program's code is compressed by zstd, and libzstd is not installed; {UNCOMPRESSED}")
    zstd = ctypes.CDLL(library)
    zstd.ZSTD_decompress.restype = ctypes.c_size_t
    zstd.ZSTD_decompress.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
    zstd.ZSTD_findFrameCompressedSize.restype = ctypes.c_size_t
    zstd.ZSTD_findFrameCompressedSize.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    buffer = ctypes.create_string_buffer(size)
    frame = zstd.ZSTD_findFrameCompressedSize(data, len(data))
    done = zstd.ZSTD_decompress(buffer, size, data, frame if frame <= len(data) else len(data))
    if done != size:
        raise KernrecError(f"a compressed image of the program is damaged; {UNCOMPRESSED}")
    return buffer.raw


CUDA_ERROR = {
    "success": 0, "value": 1, "configuration": 9, "function": 98, "image": 209, "ptx": 218, "symbol": 500,
    "address": 700, "resources": 701, "timeout": 702, "assert": 710, "launch": 719, "cooperative": 720, "unknown": 999,
}  # fmt: skip
"""Numbers of CUDA errors (`cudaError_t`), keyed by kernrec's names."""


class LaunchError(KernrecError):
    """Error for a launch that failed or that a GPU would reject. `number` identifies the CUDA error."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(text)
        self.number = number


@dataclass(frozen=True)
class FunctionFacts:
    """Properties of a kernel that a program can query."""

    name: str
    parameters: tuple[tuple[int, int], ...]
    """Size and offset of each parameter, in bytes."""
    static_shared: int
    local: int
    constant: int
    most_threads: int
    registers: int
    version: int
    """Compute capability of the PTX, such as 80."""

    @property
    def attributes(self) -> tuple[int, ...]:
        """Return the properties in the order that native/program.cpp expects."""
        return self.static_shared, self.constant, self.local, self.most_threads, self.registers, self.version

    def check(self, gpu: GPU, grid: Sequence[int], block: Sequence[int], shared: int) -> None:
        """Raise `LaunchError` if a GPU would reject a launch. `shared` is the dynamic shared memory in bytes."""
        threads, limits = math.prod(block), gpu.limits
        text = f"{self.name}<<<{'x'.join(map(str, grid))}, {'x'.join(map(str, block))}, {shared}>>>"
        if reason := impossible_shape(grid, block):
            raise LaunchError(CUDA_ERROR["configuration"], f"{text}: a GPU refuses this grid or block: {reason}")
        if threads > self.most_threads:
            most = f"it was compiled for at most {self.most_threads} threads in a block"
            raise LaunchError(CUDA_ERROR["resources"], f"{text}: {most}")
        if self.static_shared + shared > limits.smem_per_block:
            most = f"{gpu.title} has {limits.smem_per_block} bytes of shared memory for a block"
            raise LaunchError(CUDA_ERROR["value"], f"{text}: {most}")


class LoadedModule:
    """Code that a program loaded.

    Args:
        number: Number of the module in the program.
        images: Images in the module.
        texts: PTX of the module: empty, one text, or one text for each file that was linked.
        free_address: First address for variables that the program did not register.
    """

    def __init__(self, number: int, images: Sequence[Image], texts: Sequence[str], free_address: int) -> None:
        self.number, self._images, self._texts = number, images, texts
        self._free = free_address
        self.placed: dict[str, np.ndarray] = {}
        """Memory of each variable, keyed by name."""
        self.addresses: dict[str, int] = {}
        """Address of each variable in global memory, keyed by name."""
        self.buffers: dict[str, np.ndarray] = {}
        """Memory of each variable that the program did not register, keyed by name."""
        self.tables: dict[str, bytes] = {}
        """Initial contents of variables that contain addresses, keyed by name."""
        self._initial_constants: dict[str, np.ndarray] = {}
        self._facts: dict[str, FunctionFacts] = {}
        self._prepared = False

    @property
    def ptx(self) -> str:
        """Return the PTX of the module. The texts of linked files are joined."""
        return "\n".join(self._texts)

    @cached_property
    def linked(self) -> str:
        """Return the PTX of the linked files as a single file: only the first text keeps its header."""
        heads = (".version", ".target", ".address_size")
        bodies = [
            "\n".join(line for line in text.splitlines() if not line.lstrip().startswith(heads))
            for text in self._texts[1:]
        ]
        return "\n".join([self._texts[0], *bodies])

    @cached_property
    def lines(self) -> SourceLines:
        return SourceLines(self.linked)

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.ptx.encode()).hexdigest()[:10]

    @cached_property
    def module(self) -> Module:
        try:
            return parse(self.linked)
        except ParseError as error:
            raise LaunchError(CUDA_ERROR["ptx"], f"the program's PTX cannot be read: {error}") from None

    def place(self, name: str, memory: np.ndarray, address: int) -> None:
        """Set the memory and address of a variable, and copy its value to the memory."""
        if name in self.placed:
            if name in self.buffers:
                memory[:] = self.placed[name][: len(memory)]
                self.placed[name], self.addresses[name] = memory, address
            return
        self.placed[name] = memory
        if not self._texts or (variable := self.module.variables.get(name)) is None:
            return
        if variable.space == "global":
            self.addresses[name] = address
        if variable.data:
            memory[: len(variable.data)] = np.frombuffer(variable.data, np.uint8)[: len(memory)]

    def variable(self, name: str) -> Variable:
        """Return the declaration of a variable. Raise `LaunchError` if the PTX has no such variable."""
        if not self._texts or (variable := self.module.variables.get(name)) is None:
            raise LaunchError(CUDA_ERROR["symbol"], f"the program's PTX has no variable {name}")
        return variable

    def prepare(self) -> None:
        """Allocate variables that the program did not register, and replace symbols in initial values by addresses."""
        if self._prepared or not self._texts:
            return
        self._prepared = True
        variables = self.module.variables
        for variable in variables.values():
            if variable.space == "global" and variable.name not in self.placed and variable.type[-3:] != "ref":
                memory = np.zeros(max(variable.size, 1), np.uint8)
                self.buffers[variable.name] = memory
                self.place(variable.name, memory, self._free + (len(self.buffers) - 1 << BUFFER_SHIFT))
        codes = {name: CODE_WINDOW << WINDOW_SHIFT | i for i, name in enumerate(self.module.functions, 1)}
        for variable in variables.values():
            memory = self.placed.get(variable.name, self._initial(variable))
            for offset, symbol, add in variable.pointers:
                address = {**codes, **self.addresses}.get(symbol, 0) + add
                memory[offset : offset + 8] = np.frombuffer(address.to_bytes(8, "little"), np.uint8)
            if variable.pointers:
                self.tables[variable.name] = memory.tobytes()

    def _initial(self, variable: Variable) -> np.ndarray:
        memory = np.zeros(variable.size, np.uint8)
        if variable.data:
            memory[: len(variable.data)] = np.frombuffer(variable.data, np.uint8)
        if variable.space == "const" and variable.pointers:
            self._initial_constants[variable.name] = memory
        return memory

    def constants(self) -> dict[str, np.ndarray]:
        """Return the current content of each `__constant__` variable."""
        variables = self.module.variables
        registered = {
            name: m for name, m in self.placed.items() if name in variables and variables[name].space == "const"
        }
        return {**self._initial_constants, **registered}

    def facts(self, name: str) -> FunctionFacts:
        """Return the properties of a kernel. Raise `LaunchError` if the module has no PTX of this kernel."""
        if not self._texts:
            targets = ", ".join(f"sm_{sm}" for sm in sorted({image.sm for image in self._images})) or "nothing"
            raise LaunchError(
                CUDA_ERROR["image"],
                f"{name}: the program has machine code for {targets} and no PTX; compile it with"
                " -gencode arch=compute_80,code=compute_80 (or -arch=compute_80)",
            )
        if name not in self._facts:
            function = self.module.functions.get(name)
            if function is None or not function.entry:
                raise LaunchError(CUDA_ERROR["function"], f"the program's PTX has no kernel {name}")
            self._facts[name] = _facts(self.module, function)
        return self._facts[name]


def _facts(module: Module, function: Function) -> FunctionFacts:
    places, end = [], 0
    for parameter in function.parameters:
        offset = -(-end // parameter.align) * parameter.align
        places.append((parameter.size, offset))
        end = offset + parameter.size
    whole = inlined(module, function.name)
    most = function.directives.get("maxntid") or function.directives.get("reqntid")
    target = "".join(c for c in module.target.removeprefix("sm_") if c.isdigit())
    registers = min(max(live_registers(whole), 16), 255)
    threads = min(math.prod(most), MOST_THREADS) if most else MOST_THREADS
    shared, local, constant = (module.bytes_of(whole, space) for space in ("shared", "local", "const"))
    return FunctionFacts(function.name, tuple(places), shared, local, constant, threads, registers, int(target))
