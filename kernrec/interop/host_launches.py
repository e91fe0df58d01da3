"""Read grid, block and arguments of kernel launches from the host code of a CUDA program.

Host expressions become numbers, or expressions of kernel parameters and block extents.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernrec.interop.host_expressions import UnknownError, by_block, divided, is_number, number
from kernrec.interop.host_program import child, function_of, inputs_of, last_word, stripped, stripped_node
from kernrec.interop.host_values import HostValues
from kernrec.interop.spec_text import short_extents
from kernrec.kernel.cuda_program import nodes, text_of
from kernrec.op.dtype import ELEMENT_BYTES

if TYPE_CHECKING:
    from tree_sitter import Node

STRUCTURE = "structure"
_ALLOCATIONS = ("cudaMalloc", "cudaMallocManaged", "cudaMallocAsync", "cudaMallocHost", "cudaHostAlloc")


@dataclass(frozen=True)
class HostLaunch:
    """Kernel launch in the host code. A field is None if the program's text does not determine its value."""

    kernel: str
    """Name of the kernel, with template arguments if any."""
    grid: str | None
    """Comma-separated expressions for the number of blocks along each axis."""
    block: tuple[int, ...] | None
    shared: str | None
    arguments: tuple[str, ...]
    """Known arguments in the notation of `kernrec analyze`, such as `n=4096` and `x=[n]`."""


def host_launches(
    text: str, kernel: str, parameters: Sequence[tuple[str, str | None]], argv: Sequence[str] = ()
) -> tuple[HostLaunch, ...]:
    """Return the launches of a kernel in a program's host code.

    Args:
        kernel: Name of the kernel, without template arguments.
        parameters: Name of each kernel parameter, with the data type of the elements if it is a pointer. The type is
            None for a number, and `STRUCTURE` for a pointer to any other type.
        argv: Command-line arguments of the program, if known.
    """
    if "<<<" not in text:
        return ()
    program = HostValues(text, argv)
    launches = []
    for call in nodes(program.root, "call_expression"):
        configuration = next((child for child in call.named_children if child.type == "kernel_call_syntax"), None)
        name = text_of(child(call, "function"))
        name = name[name.partition("<")[0].rfind(":") + 1 :]  # Drop namespaces, because `kernel` has none.
        if configuration is not None and name.partition("<")[0].strip() == kernel:
            launches.append(_Launch(program, call, configuration, parameters).read(name))
    return tuple(launches)


def filled_variables(text: str) -> dict[str, str]:
    """Return the device variables that the host code sets with `cudaMemcpyToSymbol` or `cudaGetSymbolAddress`.

    The result maps each variable to its value, or to an empty string if the value is not a known integer.
    """
    if "cudaMemcpyToSymbol" not in text and "cudaGetSymbolAddress" not in text:
        return {}
    program, filled = HostValues(text), {}
    for call in nodes(program.root, "call_expression"):
        name = text_of(child(call, "function")).partition("<")[0]
        inputs = inputs_of(call)
        if name in ("cudaMemcpyToSymbol", "cudaMemcpyToSymbolAsync") and len(inputs) > 1:
            value = ""
            program.begin()
            with suppress(UnknownError):
                value = number(program.value(stripped_node(inputs[1])))
            filled[last_word(stripped(inputs[0]))] = value
        elif name == "cudaGetSymbolAddress" and len(inputs) > 1:
            filled[last_word(stripped(inputs[1]))] = ""
    return filled


class _Launch:
    """Converter of one kernel launch in the syntax tree to a `HostLaunch`."""

    def __init__(
        self, program: HostValues, call: "Node", configuration: "Node", parameters: Sequence[tuple[str, str | None]]
    ) -> None:
        program.begin()
        self.program, self.call = program, call
        self.configuration = [node for node in configuration.named_children if node.type != "comment"]
        self.arguments = inputs_of(call)
        self.parameters = parameters
        self.template = program.template_arguments(function_of(call))
        self.dimensions = {
            text_of(argument): name
            for (name, pointed), argument in zip(parameters, self.arguments, strict=False)
            if pointed is None and argument.type == "identifier"
        }

    def read(self, name: str) -> HostLaunch:
        grid = block = shared = None
        template = {name: text for name, text in self.template.items() if is_number(text)}
        with suppress(UnknownError, IndexError):
            block = tuple(int(number(extent)) for extent in self._axes(self.configuration[1], template))
        block = block if block and 0 not in block else None
        names = template | self.dimensions | self._block_names()
        with suppress(UnknownError, IndexError):
            axes = short_extents(self._axes(self.configuration[0], names))
            extents = zip(axes, "xyz", (*(block or ()), 0, 0, 0), strict=False)
            grid = ", ".join(by_block(text, axis, extent) for text, axis, extent in extents)
        with suppress(UnknownError, IndexError):
            if (text := self.program.value(self.configuration[2], names)) != "0":
                shared = text.replace(" // ", "/")
        values = tuple(
            value
            for (parameter, pointed), argument in zip(self.parameters, self.arguments, strict=False)
            if (value := self._argument(parameter, pointed, argument)) is not None
        )
        return HostLaunch(self._instance(name), grid, block, shared, values)

    def _instance(self, name: str) -> str:
        """Return the kernel's name with template arguments. Known arguments are replaced by their values."""
        values = next(nodes(self.call, "template_argument_list"), None)
        if values is None:
            return name
        texts = []
        numbers = {name: text for name, text in self.template.items() if is_number(text)}
        for node in values.named_children:
            try:
                texts.append(self.program.value(node, numbers))
            except UnknownError:
                text = " ".join(text_of(node).split())
                texts.append(self.template.get(text, text))
        return f"{name.partition('<')[0].strip()}<{', '.join(texts)}>"

    def _block_names(self) -> dict[str, str]:
        """Return names such as `block_x` for the host variables that hold the block's extents."""
        if len(self.configuration) < 2:
            return {}
        node = self.configuration[1]
        extents = zip("xyz", self.program.extents(node), strict=False)
        names = {text_of(extent): f"block_{axis}" for axis, extent in extents if extent.type == "identifier"}
        if node.type == "identifier":
            names |= {f"{text_of(node)}.{axis}": f"block_{axis}" for axis in "xyz"}
        return names

    def _argument(self, name: str, pointed: str | None, node: "Node") -> str | None:
        try:
            if pointed is None:
                value = self.program.value(node)
                return f"{name}={value}" if is_number(value) else None
            if stripped(node) in ("NULL", "nullptr"):
                return f"{name}=null"
            size = self._elements(node, 4 if pointed == STRUCTURE else ELEMENT_BYTES[pointed])
            return None if size == "0" else f"{name}={'f32' if pointed == STRUCTURE else ''}[{size}]"
        except (UnknownError, KeyError):
            return None

    def _elements(self, pointer: "Node", size: int) -> str:
        function, variable = function_of(pointer), stripped(pointer)
        for _ in range(8):
            for name in _ALLOCATIONS:
                for call in self.program.calls.get(name, ()):
                    inputs = inputs_of(call) if function_of(call) == function else []
                    if len(inputs) > 1 and stripped(inputs[0]) == variable:
                        return divided(self.program.value(inputs[1], self.dimensions), size)
            passed = self.program.passed(variable, function)
            if passed is None:
                break
            function, variable = function_of(passed), stripped(passed)
        raise UnknownError

    def _axes(self, node: "Node", names: Mapping[str, str]) -> list[str]:
        return [self.program.value(extent, names) for extent in self.program.extents(node)]
