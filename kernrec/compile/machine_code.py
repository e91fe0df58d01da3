"""Read the machine instructions of a cubin, with the PTX line of each instruction.

A cubin is an ELF file. Its section `.text.NAME` has the code of the function NAME. If the assembler writes line
information, the section `.nv_debug_line_sass` contains line programs (DWARF 2, section 6.2). A line program is byte
code that lists addresses with their PTX lines.
"""

import struct
from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby, pairwise
from operator import itemgetter
from typing import NamedTuple

from kernrec.compile.opcodes import PADDING, SIZED, access_bytes, opcode_of
from kernrec.util.cached_property import cached_property
from kernrec.util.light_dataclass import dataclass

LINE_INFORMATION = "--generate-line-info"
"""Option of the assembler that adds PTX lines to a cubin."""
_TEXT, _LINES = ".text.", ".nv_debug_line_sass"
_BYTES = 16
"""Bytes per machine instruction."""
_LINE = "i"
"""Type code of `array` for PTX lines."""
_SUBROUTINE, _SLOW_PATH = "$", "slowpath"
"""First character of the names of subroutines that the assembler adds, and a part of the names of slow paths."""
LEAVES = frozenset({"BRA", "EXIT", "RET", "BRX", "JMP", "BREAK"})
_LEADS = frozenset({"BRA", "BSSY", "CALL", "RET", "WARPSYNC"})
"""Opcodes of instructions that contain the address of another instruction."""
_TURING, _HOPPER = 75, 90
_NO_BITS = 8  # Type of an ELF section without content
_COPY, _ADVANCE_ADDRESS, _ADVANCE_LINE, _ADVANCE_BY_SPECIAL, _SET_ADDRESS = 1, 2, 3, 8, 2
"""Opcodes of line programs. `_SET_ADDRESS` is an extended opcode."""


class MachineInstruction(NamedTuple):
    position: int
    """Index of the instruction in the code of its function."""
    line: int
    """Line of the PTX, counted from 1, or 0 if unknown."""
    opcode: str
    name: str
    """Class of the instruction, such as `fma32` (see `opcodes.py`)."""
    moved_bytes: int
    """Bytes per lane that a load or store moves. Meaningless for textures and matrix loads, and 0 for other classes."""
    target: int | None
    """Position of the instruction whose address this instruction contains, such as a branch target, or None."""


@dataclass(frozen=True)
class MachineCode:
    """Machine code of a function. Its instructions are decoded on first use."""

    content: bytes
    """Encoded instructions of `_BYTES` bytes each, without subroutines."""
    lines: bytes
    """PTX line of each instruction, counted from 1, as 32-bit integers. 0 if unknown."""
    labels: tuple[int, ...]
    """Positions of instructions that have a symbol."""
    slow_paths: tuple[int, ...]
    """Positions of slow paths of divisions and roots."""
    sm: int

    @cached_property
    def decoded(self) -> tuple[tuple[MachineInstruction, ...], tuple[int, ...]]:
        """Return `instructions` and `starts`."""
        sm, end = self.sm, len(self.content) // _BYTES
        instructions, starts = [], {*self.labels}
        encoded = zip(struct.iter_unpack("<QQ", self.content), array(_LINE, self.lines), strict=True)
        for position, ((low, high), line) in enumerate(encoded):
            opcode, name = opcode_of(low, high, sm)
            target = None
            if opcode in _LEADS:
                target = _target(position, low, high, opcode, sm)
                starts.add(target)
            if opcode in LEAVES:
                starts.add(position + 1)
            moved = access_bytes(low, high, sm) if name in SIZED else 0
            instructions.append(MachineInstruction(position, line, opcode, name, moved, target))
        edges = [0, *sorted(start for start in starts if 0 < start < end), end]
        main: list[MachineInstruction] = []
        for first, last in pairwise(edges):
            block = instructions[first:last]
            if not any(ins.opcode == "CALL" and ins.target in self.slow_paths for ins in block):
                main += [ins for ins in block if ins.name != PADDING and ins.target != ins.position]
        return tuple(main), tuple(edges)

    @property
    def instructions(self) -> tuple[MachineInstruction, ...]:
        """Return the instructions, except basic blocks that call slow paths, and padding."""
        return self.decoded[0]

    @property
    def starts(self) -> tuple[int, ...]:
        """Return the ascending positions of the first instruction of each basic block, then the end of the code."""
        return self.decoded[1]

    def renumbered(self, skipped: int) -> "MachineCode":
        """Return a copy with `skipped` subtracted from each known PTX line."""
        lines = array(_LINE, self.lines)
        moved = array(_LINE, [line and line - skipped for line in lines])
        return MachineCode(self.content, moved.tobytes(), self.labels, self.slow_paths, self.sm)


@lru_cache(maxsize=4)
def read_machine_code(cubin: bytes, sm: int) -> dict[str, MachineCode]:
    """Return the machine code of each function in a cubin, keyed by PTX name.

    The result is empty if the cubin is damaged, or if its architecture `sm` is older than Turing.
    """
    if sm < _TURING:
        return {}
    try:
        sections = list(_sections(cubin))
        symbols = _symbols(dict(sections))
        lines = _lines(dict(sections), symbols)
        names: dict[int, dict[int, str]] = defaultdict(dict)
        for name, section, address in symbols:
            names[section][address // _BYTES] = name
        return {
            name.removeprefix(_TEXT): _code(content, sm, lines.get(index, {}), names[index])
            for index, (name, content) in enumerate(sections)
            if name.startswith(_TEXT)
        }
    except (struct.error, ValueError, IndexError, ArithmeticError):
        return {}


class _Symbol(NamedTuple):
    name: str
    section: int
    address: int


def _sections(file: bytes) -> Iterator[tuple[str, memoryview]]:
    """Yield the name and the content of each section of an ELF file."""
    content = memoryview(file)
    start, size, count, of_names = *struct.unpack_from("<Q", file, 0x28), *struct.unpack_from("<3H", file, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", file, start + size * index) for index in range(count)]
    for name, kind, _, _, offset, length in headers:
        yield _text(file, headers[of_names][4] + name), content[offset : offset + length * (kind != _NO_BITS)]


def _text(file: bytes, start: int) -> str:
    return file[start : file.index(b"\0", start)].decode("utf-8", errors="replace")


def _symbols(sections: Mapping[str, memoryview]) -> list[_Symbol]:
    names = bytes(sections.get(".strtab", b""))
    entries = struct.iter_unpack("<IBBHQQ", sections.get(".symtab", b""))
    return [_Symbol(_text(names, name), section, address) for name, _, _, section, address, _ in entries]


def _lines(sections: Mapping[str, memoryview], symbols: Sequence[_Symbol]) -> dict[int, dict[int, int]]:
    """Return PTX lines by address, keyed by the index of the code's section."""
    content = bytes(sections.get(_LINES, b""))
    relocations = [*struct.iter_unpack("<QQ", sections.get(f".rel{_LINES}", b""))]
    relocations += [entry[:2] for entry in struct.iter_unpack("<QQQ", sections.get(f".rela{_LINES}", b""))]
    functions = {place: symbols[info >> 32] for place, info in relocations}
    lines: dict[int, dict[int, int]] = defaultdict(dict)
    start = 0
    while start < len(content):
        end = start + 4 + struct.unpack_from("<I", content, start)[0]
        for place, group in groupby(_rows(content, start, end), itemgetter(0)):
            if (function := functions.get(place)) is not None:
                lines[function.section].update((function.address + address, line) for _, address, line in group)
        start = end
    return lines


def _rows(content: bytes, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield (offset of a function's relocation, address in the function, line) for each row of a line table.

    Args:
        start, end: offsets of the line program in `content`.
    """
    header, step, _, base, lines, first_special = struct.unpack_from("<IBBbBB", content, start + 6)
    specials = [(number // lines * step, base + number % lines) for number in range(256 - first_special)]
    place, function, address, line = start + 10 + header, 0, 0, 1
    while place < end:
        opcode = content[place]
        place += 1
        if opcode >= first_special:
            special = specials[opcode - first_special]
            address, line = address + special[0], line + special[1]
            yield function, address, line
        elif opcode == 0:
            length, place = _number(content, place)
            if content[place] == _SET_ADDRESS:
                function, address, line = place + 1, 0, 1
            place += length
        elif opcode == _COPY:
            yield function, address, line
        elif opcode == _ADVANCE_ADDRESS:
            steps, place = _number(content, place)
            address += steps * step
        elif opcode == _ADVANCE_LINE:
            more, place = _number(content, place, signed=True)
            line += more
        elif opcode == _ADVANCE_BY_SPECIAL:
            address += specials[-1][0]
        else:
            for _ in range(content[start + 14 + opcode]):  # Number of operands
                _, place = _number(content, place)


def _number(content: bytes, place: int, signed: bool = False) -> tuple[int, int]:
    """Read a number in LEB128 format. Return the number and the offset of its end."""
    result = shift = 0
    while True:
        byte = content[place]
        place += 1
        result |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (result - (1 << shift) if signed and byte & 0x40 else result), place


def _code(content: memoryview, sm: int, lines: Mapping[int, int], names: Mapping[int, str]) -> MachineCode:
    """Return the code of a function.

    Args:
        lines: PTX line by address. It also holds for the following addresses without a line.
        names: names of the symbols in the function's section, keyed by position.
    """
    end = min([len(content) // _BYTES, *(place for place, name in names.items() if name.startswith(_SUBROUTINE))])
    line, line_of_each = 0, array(_LINE)
    for address in range(0, end * _BYTES, _BYTES):
        line = lines.get(address, line)
        line_of_each.append(line)
    slow_paths = (place for place, name in names.items() if _SLOW_PATH in name)
    return MachineCode(bytes(content[: end * _BYTES]), line_of_each.tobytes(), tuple(names), tuple(slow_paths), sm)


def _target(position: int, low: int, high: int, opcode: str, sm: int) -> int:
    """Return the position whose address an instruction contains. The address is relative to the next instruction."""
    if opcode == "BSSY":
        distance = _signed(low >> 32, 32)
    elif sm < _HOPPER:
        distance = _signed((high << 32 | low >> 32), 50)
    else:
        distance = 4 * _signed((high << 30 | low >> 34) << 8 | low >> 16 & 0xFF, 56)
    return position + 1 + distance // _BYTES


def _signed(bits: int, width: int) -> int:
    bits &= (1 << width) - 1
    return bits - (bits >> (width - 1) << width)
