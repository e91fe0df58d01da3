"""A kernel launch made ready: symbols laid out in the memories, arguments packed as parameters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernrec.errors import UsageError, unknown
from kernrec.ptx.ir.program import Function, Module
from kernrec.ptx.state.registers import BUFFER_SHIFT, Array

_DYNAMIC_ALIGN = 16


@dataclass
class Layout:
    """Addresses of symbols within their state spaces, sizes in bytes, and the initial contents of memories."""

    symbols: dict[str, int]
    buffers: dict[str, Array]
    constants: bytes
    parameters: bytes
    shared_bytes: int
    local_bytes: int
    argument_bytes: int


def lay_out(
    module: Module,
    function: Function,
    arguments: Sequence[Any],
    buffers: Mapping[str, np.ndarray[Any, Any]],
    shared_bytes: int,
    contents: Mapping[str, np.ndarray[Any, Any]],
) -> Layout:
    """Places the variables that `function` uses, and packs its arguments; `contents` is that of constant variables.

    Raises:
        UsageError: arguments, buffers or contents that do not fit.
    """
    for name, array in contents.items():
        if name not in module.variables or module.variables[name].space != "const":
            known = [v.name for v in module.variables.values() if v.space == "const"]
            raise unknown("__constant__ variable", name, known)
        if array.nbytes > module.variables[name].size:
            raise UsageError(
                f"__constant__ variable {name} has {module.variables[name].size} bytes, {array.nbytes} were given"
            )
    symbols: dict[str, int] = {}
    memories = {name: _octets(name, array) for name, array in buffers.items()}
    constants = bytearray()
    shared, local, argument = 0, 0, 0
    dynamic: list[str] = []
    dynamic_align = _DYNAMIC_ALIGN
    variables = [*module.variables.values(), *function.variables.values()]
    for variable in variables:
        if variable.space == "shared":
            if variable.external:
                dynamic.append(variable.name)
                dynamic_align = max(dynamic_align, variable.align)
            elif variable.name in function.symbols or variable.name in function.variables:
                shared = _align(shared, variable.align)
                symbols[variable.name] = shared
                shared += variable.size
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
        elif variable.space == "global" and variable.name not in memories:
            data = (variable.data or b"").ljust(max(variable.size, 1), b"\0")
            memories[variable.name] = np.frombuffer(data, np.uint8).copy()
    if dynamic or shared_bytes:
        shared = _align(shared, dynamic_align)
        symbols.update(dict.fromkeys(dynamic, shared))
        shared += shared_bytes
    addresses = {name: (i + 1) << BUFFER_SHIFT for i, name in enumerate(memories)}
    # A buffer that shares its name with a shared or constant variable is reached through arguments only.
    symbols = {**addresses, **symbols}
    for variable in variables:
        for offset, symbol, add in variable.pointers:
            pointer = np.frombuffer(((symbols.get(symbol, 0) + add) & (1 << 64) - 1).to_bytes(8, "little"), np.uint8)
            if variable.space == "global":
                memories[variable.name][offset : offset + 8] = pointer
            else:
                start = symbols[variable.name] + offset
                constants[start : start + 8] = pointer.tobytes()
    parameters = _parameters(function, arguments, addresses, symbols)
    return Layout(symbols, memories, bytes(constants), parameters, shared, local, argument)


def _align(value: int, to: int) -> int:
    return -(-value // to) * to


def _octets(name: str, array: np.ndarray[Any, Any]) -> Array:
    if not isinstance(array, np.ndarray) or not array.flags.c_contiguous:
        raise UsageError(f"buffer {name!r} must be a C-contiguous NumPy array")
    return array.reshape(-1).view(np.uint8)


def _parameters(
    function: Function, arguments: Sequence[Any], addresses: Mapping[str, int], symbols: dict[str, int]
) -> bytes:
    """The bytes of parameter space; adds the parameters' offsets to `symbols`."""
    where = f"kernel {function.name!r}"
    if len(arguments) != len(function.parameters):
        raise UsageError(f"{where} takes {len(function.parameters)} arguments, not {len(arguments)}")
    data = bytearray()
    for i, (parameter, argument) in enumerate(zip(function.parameters, arguments, strict=True)):
        if isinstance(argument, str):
            if argument not in addresses:
                raise unknown("buffer", argument, addresses)
            raw = addresses[argument].to_bytes(8, "little")
        elif isinstance(argument, bytes):
            raw = argument
        elif isinstance(argument, np.generic | np.ndarray):
            raw = argument.tobytes()
        elif isinstance(argument, int) and parameter.type[0] in "bus" and -(1 << 63) <= argument < 1 << 64:
            raw = (argument & (1 << 8 * parameter.size) - 1).to_bytes(parameter.size, "little")
        else:
            raise UsageError(
                f"argument {i} of {where} is {argument!r}; give a buffer's name, a NumPy scalar, an int or bytes"
            )
        if len(raw) != parameter.size:
            raise UsageError(
                f"argument {i} of {where} has {len(raw)} bytes, its .{parameter.type} parameter has {parameter.size}"
            )
        data += bytes(_align(len(data), parameter.align) - len(data))
        symbols[parameter.name] = len(data)
        data += raw
    return bytes(data)
