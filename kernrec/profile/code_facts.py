"""Extract properties of a kernel's PTX that determine possible launches."""

import math

from kernrec.profile.device_variables import DeviceVariable, device_variables
from kernrec.ptx.analysis.indexes import Index, indexes_of
from kernrec.ptx.ir.inline import inlined
from kernrec.ptx.ir.operand import Register
from kernrec.ptx.ir.program import Function, Module, Variable
from kernrec.util.light_dataclass import dataclass

_AXES = "xyz"


@dataclass(frozen=True)
class CodeFacts:
    """Launch properties that a kernel's code determines."""

    parameters: tuple[tuple[str, int], ...]
    """PTX type and bytes of each parameter."""
    reads_block: bool
    """Whether the code reads the block size."""
    block_axes: int
    """Number of block axes with positions that the code reads, 1 to 3."""
    grid_axes: int
    """Number of grid axes with positions that the code reads, 1 to 3."""
    required_block: tuple[int, ...] | None
    """Block size that the code was compiled for (`.reqntid`); None if any size is possible."""
    most_threads: int | None
    """Maximum threads per block (`.maxntid`); None if not stated."""
    static_shared: bool
    """Whether the code has shared memory of fixed size."""
    dynamic_shared: bool
    """Whether the code has shared memory whose size the launch sets."""
    indexes: dict[str, Index]
    """Buffers that contain indices into other buffers, by parameter name in the code."""
    names: tuple[str, ...]
    """Names of the parameters in the code."""
    variables: tuple[DeviceVariable, ...] = ()
    """`__constant__` and `__device__` variables of the module."""


def facts_of(module: Module, entry: str, source: str = "") -> CodeFacts:
    """Return the launch properties of the kernel `entry` of a module.

    Args:
        source: CUDA C++ of the module; empty if unavailable.
    """
    function = module.functions[entry]
    registers = {o.name for ins in function.instructions for o in ins.operands if isinstance(o, Register)}
    shared = [v for v in _variables(module, function) if v.space == "shared"]
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
        device_variables(module, entry, source),
    )


def _variables(module: Module, function: Function) -> list[Variable]:
    return [v for v in module.variables.values() if v.name in function.symbols] + list(function.variables.values())


def _axes(registers: set[str], names: tuple[str, ...]) -> int:
    return max((i + 1 for i, axis in enumerate(_AXES) for name in names if f"{name}.{axis}" in registers), default=1)
