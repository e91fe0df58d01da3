"""Derive the problem of a drafted spec from a CUDA kernel's parameters and the user's arguments.

Integer parameters become dimensions of the problem, and pointers become tensors. Arguments have these forms:

n=4096           value of a number (an integer becomes a dimension)
x=f32[n]         buffer of random values with a size for each axis: `f32[height,width]`
x=[n]            buffer of random values with the element type declared in the source
x=zeros:f32[n]   buffer of zeros
x=@values.npy    buffer with the content of a NumPy file
"""

import math
import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from kernrec.errors import UsageError, unknown
from kernrec.interop.spec_text import MARK, one_line, quoted
from kernrec.kernel.cuda_signature import Parameter, Signature, is_only_assigned, variable_types
from kernrec.kernel.declared_problem import RESERVED_DIMS
from kernrec.kernel.expression import identifier
from kernrec.kernel.spec import SCALAR_RANGES
from kernrec.op.dtype import ELEMENT_BYTES, canonical_dtype
from kernrec.profile.code_facts import CodeFacts, unset_note
from kernrec.profile.launch_arguments import read_description, read_structure
from kernrec.profile.tensor_values import load_npy
from kernrec.ptx.analysis.indexes import Index

_BUFFER = re.compile(r"(?:(zeros):)?([A-Za-z]\w*)?\[(.+)\]")
_VALUE = re.compile(r"(?:([a-z]+[0-9]+):)?([-+.\deEfF]+)")
_SCALARS = {
    "u8": "u8", "s8": "i8", "b8": "u8", "u16": "u16", "s16": "i16", "b16": "u16", "u32": "i32", "s32": "i32",
    "b32": "i32", "u64": "i64", "s64": "i64", "b64": "i64", "f32": "f32", "f64": "f64",
}  # fmt: skip
"""Data type of a parameter in a spec, keyed by PTX type. It is used if the type in the source is user-defined."""
_SIZE = re.compile(
    r"[nm]|n[xyz]|n_\w+|num_\w+|(?:\w*_)?(?:n?rows?|n?cols?|columns?|width|height|depth|size|len|length|count|elements)",
    re.IGNORECASE,
)
"""Names of parameters that cannot be negative, unlike a parameter such as `shift`."""
_LARGEST = 2**31 - 1


@dataclass
class SpecTensor:
    """Tensor of a drafted spec: the buffer to which a parameter points, or a device variable."""

    parameter: Parameter
    """Kernel parameter that points to the tensor, or device variable that contains the tensor."""
    role: str
    values: str | None = None
    dtype: str | None = None
    shape: tuple[str, ...] = ()
    """Extents as expressions. The tuple is empty until `size_buffers` sets the shape."""
    symbol: str | None = None
    """Name of the device variable in the compiled code, or None if the tensor is a kernel parameter."""

    def line(self, name: str) -> str:
        shape = ", ".join(map(quoted, self.shape)) if self.shape else MARK
        parts = [f"shape = [{shape}]", f"dtype = {quoted(self.dtype) if self.dtype else MARK}", f'role = "{self.role}"']
        if self.values is not None:
            parts.append(f"values = {quoted(self.values)}")
        if self.symbol is not None:
            parts.append(f"symbol = {quoted(self.symbol)}")
        star = "*" if self.parameter.pointer else ""
        return f"{name} = {{ {', '.join(parts)} }}  # {one_line(self.parameter.ctype)} {star}{self.parameter.name}"


@dataclass
class SpecArguments:
    """Dimensions, tensors and launch arguments of a drafted spec."""

    names: dict[str, str] = field(default_factory=dict)
    """Names of dimensions in the spec, keyed by the name in the source. Each name in the spec is also a key."""
    dims: dict[str, int | None] = field(default_factory=dict)
    """Value of each dimension, keyed by name in the spec. None marks a value that the user must fill in."""
    tensors: dict[str, SpecTensor] = field(default_factory=dict)
    passed: list[str] = field(default_factory=list)
    """Arguments of the launch, in the notation of the spec."""
    stated: dict[str, str] = field(default_factory=dict)
    """The user's descriptions of buffers (`f32[n]`), keyed by tensor name."""
    missing: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    places: dict[str, str] = field(default_factory=dict)
    """Name of the tensor or dimension for each parameter, keyed by the parameter's name in the compiled code."""
    variables: list[str] = field(default_factory=list)
    """Device variables that are tensors, keyed by name in the source."""
    unset: str = ""
    """Note on device variables without a value, or an empty string."""
    taken: set[str] = field(default_factory=lambda: set(RESERVED_DIMS))
    """Names that are already in use."""

    def new_name(self, name: str, suffix: str) -> str:
        """Return a name for the spec that is not in use. Append `suffix` if the name in the source is in use."""
        name = identifier(name)
        while name in self.taken:
            name = identifier(f"{name}_{suffix}")
        self.taken.add(name)
        return name

    def add_dim(self, name: str, source_name: str, value: int | None) -> None:
        self.dims[name] = value
        self.names |= {name: name, source_name: name}

    def size_buffers(self, expression: Callable[[str, str], str]) -> None:
        """Set the shape of every buffer. `expression(option, text)` translates the option's text for the spec."""
        by_size: dict[str, list[str]] = {}
        for name, tensor in self.tensors.items():
            if tensor.symbol is not None and name not in self.stated:
                continue
            if (text := self.stated.get(name)) is not None:
                self._describe(tensor, f"argument {tensor.parameter.name}={text}", text, expression)
                continue
            tensor.dtype = tensor.parameter.dtype
            size = self._usual_size(tensor.parameter.lanes)
            if tensor.dtype is None or size is None:
                self.missing.append(f"{tensor.parameter.name}={tensor.dtype or 'TYPE'}[ELEMENTS]")
            if size is not None:
                tensor.shape = (size,)
                by_size.setdefault(size, []).append(tensor.parameter.name)
        self.assumed += [f"{size} elements in {', '.join(names)}" for size, names in by_size.items()]

    def fill_indexes(self, indexes: Mapping[str, Index]) -> None:
        """Fill each index array with indices that cover the whole indexed tensor. Call `size_buffers` first.

        Args:
            indexes: Description of each index array in the compiled code, keyed by the array's parameter.
        """
        for parameter, index in indexes.items():
            name = self.places.get(parameter, "")
            tensor = self.tensors.get(name)
            if tensor is None or tensor.values is not None or tensor.role != "input" or (tensor.dtype or "f")[0] == "f":
                continue
            steps = {self.places.get(target, ""): step for target, step in index.targets.items()}
            texts = {target: self._step(target, *step) for target, step in steps.items()}
            if None not in texts.values():
                indexed = ", ".join(f"{target} {text}".removesuffix(" 1") for target, text in texts.items())
                tensor.values = f"{'offsets' if index.ascending else 'index'} {indexed}"
                over = "ascending" if index.ascending else "uniform"
                self.assumed.append(f"{tensor.parameter.name} {over} over {' and '.join(texts)}")

    def _step(self, target: str, count: int, parameters: Sequence[str]) -> str | None:
        """Convert `count` bytes, times the value of each kernel parameter in `parameters`, to elements of `target`.

        Return None if a dimension or the element type is unknown.
        """
        tensor, dims = self.tensors.get(target), [self.places.get(parameter, "") for parameter in parameters]
        if tensor is None or tensor.dtype is None or not tensor.shape or any(dim not in self.dims for dim in dims):
            return None
        elements, rest = divmod(count, ELEMENT_BYTES[tensor.dtype])
        return None if rest else " * ".join([*([str(elements)] if elements > 1 or not dims else []), *dims])

    def add_parameter(
        self, name: str, parameter: Parameter, role: str, compiled: tuple[str, int], text: str | None
    ) -> str:
        """Add a kernel parameter as a tensor or dimension, and return the launch's argument.

        Args:
            name: Name of the tensor or dimension in the spec.
            role: `input`, `output` or `inout` if the parameter is a tensor.
            compiled: (type, bytes) of the parameter in the compiled code.
            text: The user's value, or None.
        """
        kind, size = compiled
        if text is not None and text.startswith("struct(") and "]" in text:
            return self._add_structure(name, text)
        if text is not None and (special := _special(text)):
            return special
        if parameter.pointer:
            self.tensors[name] = SpecTensor(parameter, role)
            if text is not None:
                self.stated[name] = text
            return name
        dtype = parameter.dtype if parameter.dtype in SCALAR_RANGES else _SCALARS.get(kind)
        if parameter.dtype == "f16":
            dtype = "f16"
        elif dtype is None or size > 8 or (parameter.dtype is None and "exture" in parameter.ctype):
            missing = f"{parameter.name}=struct(FIELDS), for {size} bytes of {parameter.ctype}"
            if "exture" in parameter.ctype or "urface" in parameter.ctype:
                missing = f"a --spec for {parameter.name}, which is passed as {parameter.ctype}"
            self.missing.append(missing)
            return "?"
        if dtype[0] == "f":
            self.assumed += [f"{parameter.name} = 1"] if text is None else []
            value = _fraction(parameter.name, text)
            return _special(f"struct(f16:{value})") if dtype == "f16" else f"{dtype} {value}"
        whole = None if text is None else _whole(parameter.name, text, dtype)
        if whole is not None and whole < 0 and _SIZE.fullmatch(parameter.name):
            raise UsageError(f"argument {parameter.name}={whole}: expected a size, at least 0")
        if whole is not None and not 0 <= whole <= _LARGEST:  # Dimensions have no such sizes.
            return f"{dtype} {whole}"
        if whole is None:
            self.missing.append(f"{parameter.name}={'BYTE' if dtype in ('i8', 'u8') else 'NUMBER'}")
        self.add_dim(name, parameter.name, whole)
        return f"{dtype} {name}"

    def _add_structure(self, name: str, text: str) -> str:
        """Add a tensor for each buffer to which a structure such as `struct(i32:4,f32[16])` points."""
        raw, pointers = read_structure(text.removeprefix("struct(").removesuffix(")"))
        passed = f"bytes {raw.hex()}"
        for number, (offset, buffer) in enumerate(pointers):
            member = self.new_name(f"{name}_{number}", "member")
            self.tensors[member] = SpecTensor(Parameter(member, False, True, None, 1, "member of a structure"), "inout")
            self.stated[member] = buffer
            passed += f" {member}@{offset}"
        return passed

    def problem_lines(self) -> list[str]:
        """Return the lines of the `[problem]` table without its header."""
        if not self.dims:
            return ['# flops = "..."  # floating-point operations of the launch, if TFLOP/s are to be shown']
        sizes = ", ".join(f"{name} = {MARK if size is None else size}" for name, size in self.dims.items())
        return [
            "# The whole numbers among the parameters; `--shape` gives other values.",
            f"dims = {{ {sizes} }}",
            f'# flops = "2 * {next(iter(self.dims))}"  # floating-point operations, if TFLOP/s are to be shown',
        ]

    def tensor_lines(self) -> list[str]:
        """Return the lines of the `[problem.tensors]` table without its header."""
        if not self.tensors:
            return ['nothing = { shape = ["1"] }  # the kernel takes no pointer']
        lines = [
            "# role: input, output or inout (read and written). values: normal, zeros, integers 0 100, a .npy file."
        ]
        return lines + [tensor.line(name) for name, tensor in self.tensors.items()]

    def _usual_size(self, lanes: int) -> str | None:
        names = [name for name, size in self.dims.items() if size != 0]
        if len(names) > 2:
            sizes = {name: size for name in names if (size := self.dims[name]) is not None}
            if len(sizes) < len(names):
                return None
            names = [name for name in names if name in sorted(sizes, key=lambda name: -sizes[name])[:2]]
        if not names:
            return None
        return " * ".join([*names, *([str(lanes)] if lanes > 1 else [])])

    def _describe(self, tensor: SpecTensor, flag: str, text: str, expression: Callable[[str, str], str]) -> None:
        if text.startswith("@"):
            path = Path(text[1:])
            array = load_npy(path)
            tensor.dtype = f"{array.dtype.kind}{8 * array.dtype.itemsize}"
            tensor.shape = tuple(map(str, array.shape)) or ("1",)
            tensor.values = str(path.resolve())
        elif tensor.symbol is not None and (value := _VALUE.fullmatch(text)):
            tensor.dtype, tensor.shape = canonical_dtype(value[1]) if value[1] else tensor.parameter.dtype, ("1",)
            tensor.values = f"constant {_fraction(tensor.parameter.name, value[2])}"
        else:
            match = _BUFFER.fullmatch(text)
            if match is None:
                raise UsageError(f"{flag[:80]}: expected x=f32[n], x=zeros:f32[n] or x=@values.npy")
            tensor.dtype = canonical_dtype(match[2]) if match[2] else tensor.parameter.dtype
            tensor.shape = tuple(expression(flag[:80], axis) for axis in match[3].split(","))
            if not match[2] and tensor.parameter.lanes > 1:
                tensor.shape = (*tensor.shape, str(tensor.parameter.lanes))
            tensor.values = "zeros" if match[1] else tensor.values
            if tensor.dtype is None:
                raise UsageError(
                    f"{flag[:80]}: {tensor.parameter.ctype} is not a supported type; write for example x=f32[n]"
                )
        if tensor.dtype not in ELEMENT_BYTES:
            raise UsageError(f"{flag[:80]}: {unknown('element type', tensor.dtype, ELEMENT_BYTES)}")


def read_arguments(
    source: str,
    signature: Signature,
    facts: CodeFacts,
    stated: Sequence[str],
    expressions: str,
    filled: Mapping[str, str] = MappingProxyType({}),
) -> SpecArguments:
    """Derive dimensions, tensors and launch arguments of a spec from a kernel's parameters.

    Args:
        stated: The user's arguments, such as `n=4096` or `x=f32[n]`.
        expressions: The user's expressions for the launch and for shapes. They may use names from `stated`, which then
            become dimensions.
        filled: Device variables that the host code sets, mapped to their values. Unknown values are empty strings.

    Raises:
        UsageError: A name is not a parameter, a value is invalid, or source and compiled code have different
            parameters.
    """
    if len(facts.parameters) != len(signature.parameters):
        raise UsageError(
            f"{signature.name} declares {len(signature.parameters)} parameters, but its compiled code has"
            f" {len(facts.parameters)}: give a --spec"
        )
    variables = {variable.name: variable for variable in facts.variables}
    declared = variable_types(source)
    values = _by_name(signature, stated, {*re.findall(r"[A-Za-z_]\w*", expressions), *variables, *declared})
    arguments = SpecArguments()
    for parameter, (kind, size), code_name in zip(signature.parameters, facts.parameters, facts.names, strict=True):
        name = arguments.new_name(parameter.name, "ptr" if parameter.pointer else "size")
        arguments.places[code_name] = name
        role = "input"
        if parameter.pointer and parameter.written:
            role = "output" if is_only_assigned(source, signature.name, parameter.name) else "inout"
        text = values.get(parameter.name)
        arguments.passed.append(arguments.add_parameter(name, parameter, role, (kind, size), text))
    parameters = {parameter.name for parameter in signature.parameters}
    for variable in facts.variables:
        text, host_value = values.get(variable.name), filled.get(variable.name)
        if variable.name in parameters or (text is None and (host_value is None or not variable.unset)):
            continue
        name = arguments.new_name(variable.name, "variable")
        ctype = declared.get(variable.name, variable.dtype)
        tensor = SpecTensor(Parameter(variable.name, False, False, variable.dtype, 1, ctype), "constant")
        tensor.symbol, tensor.dtype, tensor.shape = variable.symbol, variable.dtype, (str(variable.elements),)
        tensor.values = f"constant {host_value}" if host_value else None
        arguments.tensors[name] = tensor
        arguments.variables.append(variable.name)
        if text is not None:
            arguments.stated[name] = text
        elif host_value:
            arguments.assumed.append(f"{variable.name} = {host_value}")
        else:
            arguments.assumed.append(f"{variable.name} random")
    arguments.unset = unset_note(facts.variables, arguments.variables)
    for stated_name in (each for each in values if each not in {*parameters, *variables, *declared}):
        if (name := identifier(stated_name)) in arguments.taken:
            raise UsageError(f"argument {stated_name}: the name {name} is taken by a parameter")
        arguments.add_dim(name, stated_name, _whole(stated_name, values[stated_name], "i32"))
    return arguments


def _special(text: str) -> str:
    """Translate a null pointer, a pointer or a structure to the spec's notation. Return "" for any other text."""
    if re.fullmatch(r"null(?:ptr)?", text):
        return "u64 0"
    if match := re.fullmatch(r"([A-Za-z_]\w*)\s*\+\s*(\d{1,18})", text):
        return f"{identifier(match[1])} + {match[2]}"
    if text.startswith(("struct(", "bytes:")):
        described = read_description(text)
        return f"bytes {described.hex()}" if isinstance(described, bytes) else ""
    return ""


def _by_name(signature: Signature, stated: Sequence[str], mentioned: Container[str]) -> Mapping[str, str]:
    names = [parameter.name for parameter in signature.parameters]
    values: dict[str, str] = {}
    for text in stated:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not value:
            raise UsageError(f"argument {text!r:.60}: expected a parameter and its value, such as n=4096 or x=f32[n]")
        if name not in names and name not in mentioned:
            raise unknown(f"parameter of the kernel {signature.name}:", name, names)
        if name in values:
            raise UsageError(f"argument {name} was given twice")
        values[name] = value
    return values


def _whole(name: str, text: str, dtype: str) -> int:
    try:
        value = {"true": 1, "false": 0}[text.lower()] if text.lower() in ("true", "false") else int(text, 0)
    except ValueError:
        raise UsageError(
            f"argument {name}={text[:40]}: expected a whole number, because {name} is of type {dtype}"
        ) from None
    low, high = SCALAR_RANGES[dtype]
    if not low <= value <= high:
        raise UsageError(f"argument {name}={text[:40]}: {dtype} holds {low} to {high}")
    return value


def _fraction(name: str, text: str | None) -> float:
    try:
        value = 1.0 if text is None else float(re.sub(r"(?<=[0-9.])[fF]$", "", text))  # Accept C's `1e-6f`.
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"argument {name}={(text or '')[:40]}: expected a number")
    return value
