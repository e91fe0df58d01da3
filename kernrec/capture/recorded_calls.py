"""Record the launches of a captured program as call files: TOML files, with PTX and .npy files next to them.

    ptx = "saxpy-1f0c5d2a90.ptx"
    entry = "_Z5saxpyifPKfPf"
    grid = [4096]
    block = [256]
    launches = 100                # equal launches, which differ at most in floating-point numbers
    arguments = ["i32:1048576", "f32:2.0", "x=f32[1048576]", "y=f32[1048576]"]   # in the form of `kernrec check`

The contents of a buffer are written to a .npy file only if they affect memory accesses or run time. The PTX contains
the values of variables. In the emulator, buffer number i starts at address i << 40. A pointer to the inside of a buffer
is written as a number.
"""

import hashlib
import json
import re
import shutil
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from kernrec.capture.call_file import short_name
from kernrec.capture.launch_checks import LaunchChecks
from kernrec.capture.loaded_module import LoadedModule
from kernrec.errors import UsageError, cannot_be
from kernrec.ptx import Image, KernelLaunch
from kernrec.ptx.analysis.dependence import data_dependences, global_pointers, pointers_of
from kernrec.ptx.ir.inline import inlined
from kernrec.ptx.ir.operand import Address
from kernrec.ptx.ir.program import Function, Variable
from kernrec.ptx.state.launch_layout import BUFFER_SHIFT, IMAGE_WINDOW, WINDOW_SHIFT
from kernrec.util.files import write_whole

SLOTS = 80
"""Number of address ranges for allocations, as in native/core.cpp. Several allocations share the last range."""
PER_FUNCTION = 8
"""Maximum number of call files per kernel. Further launches are counted in the file with the closest thread count."""
LARGEST_CONTENT = 64 << 20
"""Maximum size in bytes of a buffer whose content is stored."""
_LARGEST_VARIABLE = 256 << 10
POINTER_BYTES = 8
_ELEMENTS = {
    "f16": "u16",
    "b16": "u16",
    "b8": "u8",
    "s8": "i8",
    "s16": "i16",
    "s32": "i32",
    "s64": "i64",
    "b32": "f32",
    "b64": "f64",
}


@dataclass
class Call:
    """Equal launches of a kernel."""

    name: str
    key: str
    lines: list[str]
    ptx: str
    threads: int
    contents: dict[str, np.ndarray]
    """Content of each buffer until `save_contents` moves it to a file."""
    files: list[str] = field(default_factory=list)
    launches: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def file(self) -> str:
        return f"{self.name}-{self.key}.toml"

    def save_contents(self, folder: Path) -> None:
        """Move the contents of buffers from memory to files in a folder."""
        for name, array in self.contents.items():
            self.files.append(f"{self.name}-{self.key}-{name}.npy")
            with (folder / self.files[-1]).open("wb") as file:
                np.save(file, array, allow_pickle=False)
        self.contents.clear()


class Recorder:
    """Collector of the launches of a program's processes. It writes call files at the end.

    Args:
        about: Comment for the first line of each call file.
        per_function: Maximum number of call files per kernel.
        checks: Checks to run for each launch instead of recording it, or None to record.
    """

    def __init__(self, about: str = "", per_function: int = PER_FUNCTION, checks: LaunchChecks | None = None) -> None:
        self._about, self._per_function, self.checks = about, per_function, checks
        self._calls: dict[str, dict[str, Call]] = {}
        self._lock = threading.Lock()
        self._scratch = TemporaryDirectory(prefix="kernrec-")
        """Folder for the contents of buffers, which can be larger than the main memory."""
        self.launches = 0
        self.called = False
        self.refused: set[str] = set()
        """Triton functions whose launches a call file cannot describe, with the reason."""

    @property
    def functions(self) -> int:
        """Return the number of different kernels that were launched."""
        return len(self._calls)

    def add(self, module: LoadedModule, launch: KernelLaunch, allocations: Mapping[int, int] | None = None) -> None:
        """Record a launch before it runs and changes its buffers.

        Args:
            allocations: Size in bytes of each allocation in the last address range, keyed by address.
        """
        if self.checks is not None:
            return
        with self._lock:
            self.launches += 1
            calls = self._calls.setdefault(f"{module.digest} {launch.entry}", {})
            described = _Description(module, launch, allocations or {})
            key = described.key(len(calls) < self._per_function)
            if key in calls:
                calls[key].launches += 1
            elif len(calls) < self._per_function:
                call = calls[key] = described.call(key)
                call.launches = 1
                call.save_contents(Path(self._scratch.name))
            else:
                threads = prod(launch.grid) * prod(launch.block)
                min(calls.values(), key=lambda call: abs(call.threads - threads)).launches += 1

    def write(self, folder: Path) -> list[Path]:
        """Write call files to a folder, and return their paths. Raise `UsageError` if the folder cannot be written."""
        files = []
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for calls in self._calls.values():
                for call in calls.values():
                    files.append(folder / call.file)
                    if not files[-1].exists():
                        self._write(folder, call)
        except OSError as error:
            raise UsageError(cannot_be("written", folder, error)) from None
        return files

    def _write(self, folder: Path, call: Call) -> None:
        ptx = f"{call.name}-{_digest(call.ptx.encode())}.ptx"
        if not (folder / ptx).exists():
            write_whole(folder / ptx, call.ptx.encode())
        for name in call.files:
            shutil.copyfile(Path(self._scratch.name, name), folder / name)
        head = [f"# {call.name}, {self._about}", *(f"# {note}" for note in call.notes), f'ptx = "{ptx}"']
        text = "\n".join([*head, f"launches = {call.launches}", *call.lines]) + "\n"
        write_whole(folder / call.file, text.encode())


class _Description:
    """Description of a captured launch, in the form that a call file (TOML) stores."""

    def __init__(self, module: LoadedModule, launch: KernelLaunch, allocations: Mapping[int, int]) -> None:
        self._module, self._launch, self._allocations = module, launch, allocations
        self._function = inlined(module.module, launch.entry)
        self._matters = bool(data_dependences(self._function))
        self._names = list(launch.buffers)
        order: dict[int, int] = {}  # Number of each buffer in the call file, keyed by the buffer's address.
        self._buffers: list[np.ndarray] = []
        self._arguments: list[tuple[Variable, bytes, int, int]] = []
        """Tuple (parameter, value, buffer number from 1, offset in bytes) per argument. Number 0 means no buffer."""
        for parameter, raw in zip(self._function.parameters, launch.arguments, strict=True):
            address, number, offset = int.from_bytes(raw, "little"), 0, 0
            if parameter.size == POINTER_BYTES and (place := self._buffer_at(address)) is not None:
                start, buffer = place
                if start not in order:
                    self._buffers.append(buffer)
                number, offset = order.setdefault(start, len(order) + 1), address - start
            self._arguments.append((parameter, raw, number, offset))

    def _buffer_at(self, address: int) -> tuple[int, np.ndarray] | None:
        """Return the first address and the memory of the buffer that contains an address, or None."""
        slot = address >> BUFFER_SHIFT
        if not 1 <= slot <= len(self._names):
            return None
        start, buffer = slot << BUFFER_SHIFT, self._launch.buffers[self._names[slot - 1]]
        for first, size in self._allocations.items():
            if first <= address < first + size:
                return first, buffer[first - start : first - start + size]
        return (start, buffer) if slot != SLOTS and address < start + buffer.nbytes else None

    def _image_at(self, handle: int) -> Image | None:
        number = (handle & (1 << WINDOW_SHIFT) - 1) - 1
        images = list(self._launch.images.values())
        return images[number] if handle >> WINDOW_SHIFT == IMAGE_WINDOW and 0 <= number < len(images) else None

    def _words(self, structure: bytes, memory_of: dict[int, np.ndarray]) -> list[str]:
        """Return PTX values that initialize a structure: bytes, or words of 8 bytes if the structure contains pointers.

        The memory of each pointer is added to `memory_of`, keyed by address.
        """
        words = [int.from_bytes(structure[i : i + 8], "little") for i in range(0, len(structure), 8)]
        places = [self._buffer_at(word) for word in words]
        if len(structure) % POINTER_BYTES or not any(places):
            return list(map(str, structure))
        memory_of.update(place for place in places if place)
        return [
            f"generic({_variable(place[0])})+{word - place[0]}" if place else str(word)
            for word, place in zip(words, places, strict=True)
        ]

    def key(self, exact: bool) -> str:
        """Return a hash of the kernel, the launch's size and its arguments, except floating-point numbers.

        If `exact` is true, the hash also depends on the contents of buffers that affect addresses or run time.
        """
        launch = self._launch
        shape = [self._module.digest, launch.entry, launch.grid, launch.block, launch.shared_bytes]
        arguments = [
            [number, offset] if number else raw.hex()
            for parameter, raw, number, offset in self._arguments
            if parameter.type not in ("f16", "f32", "f64")
        ]
        contents: list[object] = [buffer.nbytes for buffer in self._buffers]
        if exact and self._matters:
            contents += [_digest(buffer) for buffer in self._buffers if buffer.nbytes <= LARGEST_CONTENT]
        return _digest(json.dumps([shape, arguments, contents]).encode())

    def call(self, key: str) -> Call:
        launch, name = self._launch, short_name(self._launch.entry)
        types, pointers = _element_types(self._function), global_pointers(self._function)
        arguments, contents, notes, structures = [], {}, [], {}
        memory_of: dict[int, np.ndarray] = {}  # Memory that pointers in structures refer to, keyed by address.
        named: set[int] = set()
        for parameter, raw, number, offset in self._arguments:
            if number and number not in named:
                named.add(number)
                buffer, kind = self._buffers[number - 1], types.get(parameter.name, "u8")
                if buffer.nbytes < _NUMPY[kind].itemsize:
                    kind = "u8"
                dtype = _NUMPY[kind]
                count = buffer.nbytes // dtype.itemsize
                described = f"{kind}[{count}]"
                if self._matters and (pointers is None or parameter.name in pointers[0]):
                    if buffer.nbytes <= LARGEST_CONTENT:
                        contents[f"b{number}"] = np.array(buffer[: count * dtype.itemsize]).view(dtype)
                        described = f"@{name}-{key}-b{number}.npy"
                    else:
                        notes.append(f"b{number}: {buffer.nbytes} bytes are too many to store: its values are random")
                arguments.append(f"b{number}={described}")
                if offset:
                    notes.append(f"b{number} is passed from byte {offset} on; the call passes it from its start")
            elif number:
                arguments.append(f"u64:{(number << BUFFER_SHIFT) + offset}")
            elif (image := self._image_at(int.from_bytes(raw, "little"))) is not None:
                texture, texels = f"t{len(arguments)}", self._launch.buffers[image.buffer]
                arguments.append(_texture(texture, image, f"{name}-{key}-{texture}.npy" if self._matters else ""))
                if self._matters:
                    contents[texture] = texels[: image.bytes].view(image.dtype).reshape(_shape(image)).copy()
            elif (value := _scalar(parameter, raw)) is not None:
                arguments.append(value)
            else:
                structures[parameter.name] = self._words(raw, memory_of)
        values = {
            name: memory.tobytes()
            for name, memory in self._module.placed.items()
            if name in self._function.symbols and memory.nbytes <= _LARGEST_VARIABLE
        }
        # Omit variables that hold addresses of functions: the PTX defines them, and the functions will have other
        # addresses when the file is analyzed.
        values = {name: data for name, data in values.items() if data != self._module.tables.get(name)}
        ptx = _with_structures(_with_values(self._module.ptx, values), launch.entry, structures)
        if memory_of:
            head = re.search(r"^\s*\.address_size.*\n", ptx, re.MULTILINE)
            end = head.end() if head else 0
            declared = [_memory(address, memory, self._matters) for address, memory in memory_of.items()]
            ptx = ptx[:end] + "".join(declared) + ptx[end:]
        lines = [f"entry = {json.dumps(launch.entry)}", f"grid = {list(launch.grid)}", f"block = {list(launch.block)}"]
        lines += [f"shared = {launch.shared_bytes}"] if launch.shared_bytes else []
        lines.append(f"arguments = {json.dumps(arguments)}")
        return Call(name, key, lines, ptx, prod(launch.grid) * prod(launch.block), contents, notes=notes)


_NUMPY: dict[str, np.dtype[Any]] = {
    "f32": np.dtype("<f4"), "f64": np.dtype("<f8"), "u8": np.dtype("u1"), "i8": np.dtype("i1"), "u16": np.dtype("<u2"),
    "i16": np.dtype("<i2"), "u32": np.dtype("<u4"), "i32": np.dtype("<i4"), "u64": np.dtype("<u8"), 
    "i64": np.dtype("<i8"),
}  # fmt: skip


def _shape(image: Image) -> list[int]:
    """Return the shape of an array of texels: layers, then axes from slowest to fastest, then channels."""
    layers, channels = ([count] if count > 1 else [] for count in (image.layers, image.channels))
    return [*layers, *reversed(image.extents), *channels]


def _texture(name: str, image: Image, file: str) -> str:
    """Describe a texture in a call file. Without a `file`, its texels are random."""
    sampler = image.sampler
    modes = [sampler.filter, sampler.address, *(["normalized"] if sampler.normalized else [])]
    modes += ["unit_range"] if sampler.unit_range else []
    modes += [f"channels={image.channels}"] if image.channels > 1 else []
    modes += [f"axes={len(image.extents)}"] if image.layers > 1 else []
    content = f"@{file}" if file else f"{image.element}[{'x'.join(map(str, _shape(image)))}]"
    return f"{name}=texture({','.join(modes)}):{content}"


def _element_types(function: Function) -> dict[str, str]:
    """Return an element type for each pointer parameter: the type of the first memory access through the pointer."""
    types: dict[str, str] = {}
    for ins in function.instructions:
        if ins.opcode not in ("ld", "st", "red", "atom") or not any(isinstance(o, Address) for o in ins.operands):
            continue
        if {"param", "shared", "local", "const"} & {*ins.modifiers}:
            continue
        kind = next((m for m in reversed(ins.modifiers) if re.fullmatch(r"[bsuf]\d+", m)), "")
        kind = _ELEMENTS.get(kind, kind)
        for name in (pointers_of(function, ins) or ()) if kind in _NUMPY else ():
            types.setdefault(name, kind)
    return types


def _scalar(parameter: Variable, raw: bytes) -> str | None:
    if f"{8 * parameter.size}" != parameter.type[1:] or len(raw) != parameter.size:
        return None
    kind = f"u{8 * parameter.size}" if parameter.type[0] == "b" else _ELEMENTS.get(parameter.type, parameter.type)
    return f"{kind}:{np.frombuffer(raw, _NUMPY[kind])[0].item()!r}" if kind in _NUMPY else None


def _with_values(ptx: str, values: Mapping[str, bytes]) -> str:
    for name, data in values.items():
        numbers = ", ".join(map(str, data))
        space = r"(\.(?:global|const)\s+(?:\.attribute\([^)]*\)\s*)?)"
        match = re.search(rf"{space}(\.align\s+\d+\s+)?(\.\w+)\s+{re.escape(name)}\b[^;]*;", ptx)
        if match and any(data):
            align = match[2] or f".align {max(int(match[3][2:]) // 8, 1)} "
            ptx = f"{ptx[: match.start()]}{match[1]}{align}.b8 {name}[{len(data)}] = {{{numbers}}};{ptx[match.end() :]}"
    return ptx


def _variable(address: int) -> str:
    return f"kernrec_memory_{address:x}"


def _memory(address: int, memory: np.ndarray, with_values: bool) -> str:
    written = with_values and memory.nbytes <= _LARGEST_VARIABLE
    values = f" = {{{', '.join(map(str, memory.tolist()))}}}" if written else ""
    return f".global .align 16 .b8 {_variable(address)}[{memory.nbytes}]{values};\n"


def _with_structures(ptx: str, entry: str, structures: Mapping[str, Sequence[str]]) -> str:
    """Replace structures that a kernel receives by value with constants in the PTX.

    Args:
        structures: Values from `_words` for each parameter.
    """
    start = ptx.index("{", match.end()) if (match := re.search(rf"\.entry\s+{re.escape(entry)}\s*\(", ptx)) else 0
    for name, words in structures.items():
        declared = re.compile(
            rf",?\s*\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+{re.escape(name)}(?:\[\d+\])?(?=\s*[,)])"
        )
        if match is None or (parameter := declared.search(ptx, match.end(), start)) is None:
            continue
        kind = "u64" if any(word.startswith("generic") for word in words) else "b8"
        align = parameter[1] or len(words)
        constant = f".const .align {align} .{kind} {name}[{len(words)}] = {{{', '.join(words)}}};\n"
        head = ptx[match.end() : parameter.start()] + ptx[parameter.end() : start]
        end = _end_of_body(ptx, start)
        # Replace all loads through registers, because compilers load all parameters but structures by name.
        body = re.sub(rf"\bld\.param(\S*)([^;]*\[(?:{re.escape(name)}\b|%))", r"ld.const\1\2", ptx[start:end])
        body = body.replace("cvta.param", "cvta.const")
        before = ptx[: match.end()]
        line = before.rfind("\n", 0, before.rfind(".entry")) + 1
        ptx = before[:line] + constant + before[line:] + head.lstrip(",") + body + ptx[end:]
        match = re.search(rf"\.entry\s+{re.escape(entry)}\s*\(", ptx)
        start = ptx.index("{", match.end()) if match else 0
    return ptx


def _end_of_body(ptx: str, start: int) -> int:
    depth = 0
    for match in re.finditer(r"[{}]", ptx[start:]):
        depth += 1 if match[0] == "{" else -1
        if depth == 0:
            return start + match.end()
    return len(ptx)


def _digest(content: bytes | np.ndarray) -> str:
    return hashlib.sha256(content.tobytes() if isinstance(content, np.ndarray) else content).hexdigest()[:10]
