"""Extract the properties of PTX that restrict how a kernel can be launched."""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from kernrec.kernel.cuda_signature import element_type, source_name, type_aliases, variable_types
from kernrec.kernel.spec import Kernel
from kernrec.op.dtype import ELEMENT_BYTES
from kernrec.ptx.analysis.dependence import pointers_of
from kernrec.ptx.analysis.indexes import Index, indexes_of
from kernrec.ptx.ir.declarations import OPAQUE_TYPES
from kernrec.ptx.ir.inline import inlined
from kernrec.ptx.ir.operand import Immediate, Register
from kernrec.ptx.ir.program import Function, Module
from kernrec.util.light_dataclass import dataclass

_BY_ALIGNMENT = {1: "u8", 2: "f16", 8: "f64"}
"""Probable element type of an array that PTX declares as bytes, keyed by alignment."""


@dataclass(frozen=True)
class DeviceVariable:
    """`__constant__` or `__device__` variable of a module."""

    name: str
    symbol: str
    size: int
    dtype: str
    """Data type of the elements. Without a source, this is a guess."""
    typed: bool
    """Whether the source states `dtype`."""
    unset: bool
    """Whether the kernel may read the variable although the code states no initial value."""

    @property
    def elements(self) -> int:
        return max(self.size // ELEMENT_BYTES[self.dtype], 1)

    @property
    def example(self) -> str:
        """Return a command-line argument that could set this variable."""
        return f"{self.name}={self.dtype}{f'[{self.elements}]' if self.elements > 1 else ':1'}"


def device_variables(module: Module, entry: str, source: str = "") -> tuple[DeviceVariable, ...]:
    """Return the variables in constant and global memory that a module declares. `source` may be empty."""
    used, types, aliases = _read(inlined(module, entry)), variable_types(source), type_aliases(source)
    variables = []
    for variable in module.variables.values():
        name = source_name(variable.name)
        if variable.space not in ("const", "global") or variable.type in OPAQUE_TYPES or not name[:1].isalpha():
            continue
        dtype, _ = element_type(types.get(name, ""), aliases)
        guess = "f32" if variable.type == "f32" else _BY_ALIGNMENT.get(variable.align, "f32")
        if variable.type[0] in "us" and variable.type[1:].isdigit():
            guess = variable.type.replace("s", "i")
        unset = variable.name in used and not variable.data and not variable.pointers and not variable.external
        variables.append(DeviceVariable(name, variable.name, variable.size, dtype or guess, dtype is not None, unset))
    return tuple(variables)


def _read(function: Function) -> set[str]:
    """Return the symbols of the variables that a kernel may read."""
    read: set[str] = set()
    for ins in function.instructions:
        if ins.opcode in ("ld", "ldu", "atom", "cp", "call"):
            pointers = pointers_of(function, ins) if ins.opcode != "call" else None
            if pointers is None:
                return set(function.symbols)
            read |= pointers
    return read


def unset_note(variables: Iterable[DeviceVariable], stated: Iterable[str]) -> str:
    """Return a note on variables that the kernel reads as zero, because neither the code nor an argument sets them."""
    names = set(stated)
    unset = [variable for variable in variables if variable.unset and variable.name not in names]
    if not unset:
        return ""
    more = ", ..." if len(unset) > 6 else ""
    shown = ", ".join(variable.name for variable in unset[:6])
    return f"read as zero, because no argument sets them: {shown}{more}; {unset[0].example} sets {unset[0].name}"


def assigned_variables(
    order: Sequence[object], parameters: int, variables: Iterable[DeviceVariable]
) -> dict[int, DeviceVariable]:
    """Return the device variables to which a launch assigns arguments, keyed by the argument's position in `order`.

    Arguments beyond the number of parameters set device variables of the same name.
    """
    by_name = {variable.name: variable for variable in variables}
    named = [place for place, each in enumerate(order) if isinstance(each, str) and each in by_name]
    further = max(len(order) - parameters, 0)
    return {place: by_name[str(order[place])] for place in named[max(len(named) - further, 0) :]}


def variable_contents(
    kernel: Kernel, module: Module, content: Mapping[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the contents that a spec gives to `__constant__` and to `__device__` variables, keyed by symbol."""
    spaces: tuple[dict[str, np.ndarray], dict[str, np.ndarray]] = {}, {}
    for name, symbol in kernel.constants.items():
        if (variable := module.variables.get(symbol)) is not None:
            spaces[variable.space != "const"][symbol] = content[name]
    return spaces


_AXES = "xyz"


@dataclass(frozen=True)
class CodeFacts:
    """Properties of a kernel's code that restrict its launch."""

    parameters: tuple[tuple[str, int], ...]
    reads_block: bool
    block_axes: int
    """Number of axes (1 to 3) along which the code reads the thread's position."""
    grid_axes: int
    """Number of axes (1 to 3) along which the code reads the block's position."""
    required_block: tuple[int, ...] | None
    """Required block size (`.reqntid`), or None."""
    most_threads: int | None
    """Maximum number of threads per block (`.maxntid`), or None."""
    static_shared: bool
    dynamic_shared: bool
    """Whether the code uses shared memory whose size the launch sets."""
    indexes: dict[str, Index]
    """Buffers whose values are indices into other buffers, keyed by PTX parameter."""
    names: tuple[str, ...]
    tiles: tuple[int, int, int] = (0, 0, 0)
    """Number of elements of a block's tile along each axis. 0 means that the code does not show the number."""
    variables: tuple[DeviceVariable, ...] = ()


def facts_of(module: Module, entry: str, source: str = "") -> CodeFacts:
    """Return the launch properties of a module's kernel. `source` may be empty."""
    function = module.functions[entry]
    registers = {o.name for ins in function.instructions for o in ins.operands if isinstance(o, Register)}
    variables = [v for v in module.variables.values() if v.name in function.symbols]
    shared = [v for v in (*variables, *function.variables.values()) if v.space == "shared"]
    most = function.directives.get("maxntid")
    required = function.directives.get("reqntid")
    return CodeFacts(
        tuple((parameter.type, parameter.size) for parameter in function.parameters),
        any(name.startswith("%ntid") for name in registers),
        _axes(registers, ("%tid", "%ntid")),
        _axes(registers, ("%ctaid", "%nctaid")),
        None if required is None else tuple(required),
        math.prod(most) if most else None,
        any(not variable.external for variable in shared),
        any(variable.external for variable in shared),
        indexes_of(inlined(module, entry)),
        tuple(parameter.name for parameter in function.parameters),
        _tiles(function),
        device_variables(module, entry, source),
    )


def _tiles(function: Function) -> tuple[int, int, int]:
    axes: dict[str, int] = {}  # Axis of the block index in a register, keyed by register
    tiles = [0, 0, 0]
    for ins in function.instructions:
        operands = ins.operands
        if ins.opcode == "mov" and isinstance(operands[1], Register) and operands[1].name.startswith("%ctaid."):
            axes |= {name: _AXES.index(operands[1].name[-1]) for name in ins.results}
        elif ins.opcode in ("shl", "mul", "mad") and "wide" not in ins.modifiers:
            position, factor = operands[1], operands[2]
            if isinstance(position, Register) and position.name in axes and isinstance(factor, Immediate):
                tile = 1 << (int(factor.value) & 31) if ins.opcode == "shl" else int(factor.value)
                axis = axes[position.name]
                if tile > 0:
                    tiles[axis] = min(tiles[axis] or tile, tile)
    return tiles[0], tiles[1], tiles[2]


def _axes(registers: set[str], names: tuple[str, ...]) -> int:
    return max((i + 1 for i, axis in enumerate(_AXES) for name in names if f"{name}.{axis}" in registers), default=1)
