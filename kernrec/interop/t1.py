"""Read a T1 file as a kernel.

T1 is a JSON format (schema 1.0.0) in which autotuners exchange descriptions of tuning problems. kernrec interprets a
file as Kernel Tuner and KTT do:

- The grid is `ProblemSize` divided by `GridDivX`, `GridDivY` and `GridDivZ`. If they are missing, the grid is
  `GlobalSize`, in blocks for CUDA and in threads for OpenCL (`GlobalSizeType`).
- Tuning parameters become macros of the same name.
- An argument with `MemoryType` Symbol (`MemType` Constant) is written to the `__constant__` variable of this name, and
  is also passed if the kernel has a parameter for it.
- `FillType` Random means uniform random numbers up to `FillValue`.
- `ReferenceData` defines the expected outputs.
- Other members, such as Search and Budget, are ignored.
"""

import json
import re
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from kernrec.errors import UsageError, cannot_be, unknown
from kernrec.interop.python_expressions import Translator, read_values
from kernrec.interop.spec_text import refuse_marks
from kernrec.kernel import Kernel, expression, load_kernel
from kernrec.kernel.expression import is_identifier
from kernrec.kernel.source_files import fingerprint, read_source, read_text
from kernrec.kernel.spec_reader import kernel_from
from kernrec.op.dtype import ELEMENT_BYTES
from kernrec.util.files import read_input

_LARGEST_FILE = 1 << 20
_TYPES = {
    "bool": "u8", "int8": "i8", "uint8": "u8", "int16": "i16", "uint16": "u16", "int32": "i32", "uint32": "u32",
    "int64": "i64", "uint64": "u64", "half": "f16", "float": "f32", "double": "f64", "custom": "u8",
    "int": "i32", "uint": "u32",
}  # fmt: skip
_VECTOR = re.compile(r"(half|float|double|int|uint)(2|3|4|8|16)")
_ROLES = {"ReadOnly": "input", "WriteOnly": "output", "ReadWrite": "inout"}
_MEMORIES = ("Scalar", "Vector", "Local", "Symbol")
_AXES = "XYZ"


def load_t1(path: Path, source: Path | None = None) -> tuple[Kernel, list[str]]:
    """Return the kernel that a T1 file describes, and notes on ignored parts of the description.

    Args:
        source: Source file of the kernel. The default is the file that the T1 file names.

    Raises:
        UsageError: The T1 file or the source is invalid.
    """
    try:
        data = json.loads(read_input(path, _LARGEST_FILE, path.name))
    except OSError as error:
        raise UsageError(cannot_be("read", path.name, error)) from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path.name}: not JSON: {str(error)[:80]}") from None
    reader = _T1Reader(path.name, data)
    file = source or path.parent / str(reader.kernel.get("KernelFile"))
    text = read_source(file)
    spec = reader.spec(file.name, text)
    fingerprint(spec, path.parent, path.name)
    return kernel_from(spec, path.name, text), reader.notes


class _T1Reader:
    """Converter of one T1 file to the content of a kernel.toml."""

    def __init__(self, title: str, data: Any) -> None:
        self.title = title
        self.notes: list[str] = []
        top = self.table("the file", data)
        self.general = self.table("General", top.get("General", {}))
        space = self.table("ConfigurationSpace", self.need(top, "ConfigurationSpace"))
        self.kernel = self.table("KernelSpecification", self.need(top, "KernelSpecification"))
        self.parameters = [self.table("TuningParameters", p) for p in self.list(space, "TuningParameters")]
        self.conditions = [self.table("Conditions", c) for c in self.list(space, "Conditions", [])]
        language = self.need(self.kernel, "Language")
        if language != "CUDA":
            raise UsageError(f"{title}: Language is {language!r:.40}; only CUDA can be analyzed")
        for key in ("KernelName", "KernelFile"):
            if not isinstance(self.need(self.kernel, key), str):
                raise UsageError(f"{title}: {key}: expected text")

    def spec(self, source_name: str, source: str) -> dict[str, Any]:
        tunables: dict[str, Any] = {}
        names: dict[str, str] = {}
        values: dict[str, list[int]] = {}
        for parameter in self.parameters:
            name = str(self.need(parameter, "Name"))
            numbers = self.numbers(f"{self.title}: TuningParameters {name}", self.need(parameter, "Values"))
            identifier = self.identifier(name, tunables)
            tunables[identifier] = {"values": numbers, "define": name}
            names[name], values[name] = identifier, numbers
        sizes = self.list(self.kernel, "ProblemSize", [])
        if not all(type(size) is int and size > 0 for size in sizes) or len(sizes) > 3:
            raise UsageError(f"{self.title}: ProblemSize: expected one to three positive integers, got {sizes!r:.60}")
        self.translator = Translator(names, values, len(sizes))
        constraints = [
            self.translator.expression(f"{self.title}: Conditions[{i}]", str(self.need(condition, "Expression")))
            for i, condition in enumerate(self.conditions)
        ]
        tensors, arguments, shared = self.arguments(source, values)
        block = [self.size("LocalSize", axis, "1") for axis in _AXES]
        launch = {
            "entry": self.kernel["KernelName"],
            "grid": self.grid(len(sizes), block),
            "block": block,
            "shared": " + ".join(shared) or "0",
            "arguments": arguments,
        }
        return {
            "name": expression.identifier(str(self.general.get("BenchmarkName") or self.kernel["KernelName"])),
            "source": source_name,
            "problem": {
                "dims": dict(zip(("problem_size_x", "problem_size_y", "problem_size_z"), sizes, strict=False)),
                "tensors": tensors,
            },
            "tunables": tunables,
            "constraints": constraints,
            "defines": {"kernel_tuner": 1, **self.defines()},
            "launch": [launch],
        }

    def identifier(self, name: str, taken: Mapping[str, Any]) -> str:
        identifier = name.lower().lstrip("_")
        while identifier in taken or not is_identifier(identifier):
            identifier = f"t_{identifier}"
            if len(identifier) > 60:
                raise UsageError(f"{self.title}: {name!r:.60} is not a valid name for a parameter")
        return identifier

    def numbers(self, what: str, stated: object) -> list[int]:
        values = read_values(what, stated)
        if not values:
            raise UsageError(f"{what}: Values is empty")
        if not all(isinstance(value, int) or (isinstance(value, float) and value.is_integer()) for value in values):
            raise UsageError(f"{what}: only whole numbers can be tuned, got {values!r:.60}")
        return list(dict.fromkeys(int(value) for value in values))

    def grid(self, dimensions: int, block: list[str]) -> list[str]:
        divided = [
            self.list(self.kernel, key) for letter in _AXES if self.kernel.get(key := f"GridDiv{letter}") is not None
        ]
        if dimensions and (divided or "GlobalSize" not in self.kernel):
            grid = []
            for axis, letter in enumerate(_AXES[:dimensions]):
                # Kernel Tuner's default: divide the grid's x extent by the block's x extent.
                divisors = self.list(self.kernel, f"GridDiv{letter}", [block[axis]] if axis == 0 else [])
                texts = [self.translate(f"GridDiv{letter}", divisor) for divisor in divisors]
                whole = f"problem_size_{letter.lower()}"
                grid.append(f"ceil_div({whole}, {' * '.join(f'({t})' for t in texts)})" if texts else whole)
            return grid
        kind = self.kernel.get("GlobalSizeType") or self.kernel["Language"]
        sizes = [self.size("GlobalSize", axis, "1") for axis in _AXES]
        if kind == "OpenCL":
            return [f"ceil_div({size}, {local})" for size, local in zip(sizes, block, strict=True)]
        return sizes

    def size(self, key: str, axis: str, default: str) -> str:
        table = self.table(key, self.need(self.kernel, key))
        return self.translate(f"{key}.{axis}", table.get(axis, default))

    def translate(self, key: str, text: Any) -> str:
        return self.translator.expression(f"{self.title}: {key}", str(text))

    def arguments(self, source: str, values: Mapping[str, list[int]]) -> tuple[dict[str, Any], list[str], list[str]]:
        """Return the tensors, the launch arguments and the sizes in bytes of dynamic shared memory."""
        tensors: dict[str, Any] = {}
        passed: list[tuple[str, bool]] = []
        shared: list[str] = []
        references = self.references()
        if self.kernel.get("SharedMemory"):
            shared.append(self.translate("SharedMemory", self.kernel["SharedMemory"]))
        parameters = _parameters(source, self.kernel["KernelName"])
        if "Arguments" not in self.kernel and parameters != 0:
            takes = f", and {self.kernel['KernelName']} takes {parameters}" if parameters else ""
            raise UsageError(f"{self.title}: KernelSpecification: Arguments is missing{takes}")
        for i, entry in enumerate(self.list(self.kernel, "Arguments", [])):
            argument = self.table(f"Arguments[{i}]", entry)
            name = str(argument.get("Name", f"argument_{i}"))
            what = f"{self.title}: argument {name}"
            dtype, width = self.type(what, argument)
            memory = argument.get("MemoryType", "Vector")
            if memory == "Scalar":
                if width != 1 or dtype == "f16":
                    raise UsageError(f"{what}: a scalar of type {argument['Type']} cannot be passed")
                value = argument.get("FillValue", 0)
                if not isinstance(value, int | float):
                    raise UsageError(f"a scalar's FillValue is {value!r:.40}, expected a number")
                passed.append((f"{dtype} {_decimal(float(value)) if dtype[0] == 'f' else int(value)}", False))
                continue
            if memory == "Local":
                size = self.translator.expression(f"{what}: Size", str(argument.get("Size", 1)))
                shared.append(f"({size}) * {width * ELEMENT_BYTES[dtype]}")
                continue
            if memory not in ("Vector", "Symbol"):
                raise UsageError(f"{what}: {unknown('MemoryType', memory, _MEMORIES)}")
            size = self.elements(what, argument, values)
            identifier = self.identifier(name, {**tensors, "i": 0})
            symbol = re.search(rf"__constant__[^;=]*\b{re.escape(name)}\b", source) is not None
            if memory == "Symbol" and not symbol:
                raise UsageError(f"{what}: the source has no __constant__ {name}")
            role = "constant" if symbol else _ROLES.get(argument.get("AccessType", "ReadWrite"), "inout")
            tensors[identifier] = {
                "shape": [f"({size}) * {width}" if width > 1 else size],
                "dtype": dtype,
                "role": role,
                "values": self.fill(what, argument, dtype),
            }
            if symbol and identifier != name:
                tensors[identifier]["symbol"] = name
            passed.append((identifier, symbol))
            if tensors[identifier]["role"] in ("output", "inout") and name in references:
                tensors[identifier]["reference"] = self.fill(what, references[name], dtype)
        if not all("reference" in t for t in tensors.values() if t["role"] in ("output", "inout")):
            for tensor in tensors.values():
                tensor.pop("reference", None)
            if references:
                self.notes.append("ReferenceData was ignored: it does not cover every output")
        if parameters is None or parameters < len(passed):
            passed = [entry for entry in passed if not entry[1]]
        return tensors, [text for text, _ in passed], shared

    def references(self) -> dict[str, dict[str, Any]]:
        """Return the expected contents of the kernel's arguments, keyed by argument name."""
        data = self.table("ReferenceData", self.kernel.get("ReferenceData") or {})
        arguments = [self.table("ReferenceArguments", g) for g in self.list(data, "ReferenceArguments", [])]
        pairs = [self.table("ValidationPairs", pair) for pair in self.list(data, "ValidationPairs", [])]
        named = {str(argument.get("Name")): argument for argument in arguments}
        for pair in pairs:
            if self.need(pair, "ReferenceName") not in named:
                raise UsageError(
                    f"{self.title}: {unknown('argument of ReferenceData', pair['ReferenceName'], list(named))}"
                )
        return {str(self.need(pair, "TargetName")): named[pair["ReferenceName"]] for pair in pairs}

    def type(self, what: str, argument: Mapping[str, Any]) -> tuple[str, int]:
        """Return (element type of an argument, number of elements per vector, such as 4 for float4)."""
        kind = str(self.need(argument, "Type"))
        if kind in _TYPES:  # int8 is an integer of 8 bits, not a vector of eight.
            return _TYPES[kind], int(argument.get("TypeSize", 1)) if kind == "custom" else 1
        if match := _VECTOR.fullmatch(kind):
            return _TYPES[match[1]], int(match[2])
        raise UsageError(f"{what}: {unknown('Type', kind, _TYPES)}")

    def elements(self, what: str, argument: Mapping[str, Any], values: Mapping[str, list[int]]) -> str:
        text = self.translator.expression(f"{what}: Size", str(argument.get("Size", 1)))
        for name, identifier in self.translator.names.items():
            if re.search(rf"\b{identifier}\b", text):
                if len(values[name]) > 1:
                    raise UsageError(f"{what}: Size depends on {name}, which has several values: write max({name})")
                text = re.sub(rf"\b{identifier}\b", str(values[name][0]), text)
        return text

    def fill(self, what: str, argument: Mapping[str, Any], dtype: str) -> str:
        kind, value = argument.get("FillType", "Constant"), argument.get("FillValue", 0)
        if kind in ("Constant", "Random") and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise UsageError(f"{what}: FillValue: expected a number, got {value!r:.40}")
        if kind == "Constant":
            return f"constant {_decimal(value)}" if value else "zeros"
        if kind == "Random":
            return f"integers 0 {max(int(value), 1)}" if dtype[0] in "iu" else f"uniform 0 {_decimal(value or 1)}"
        source = str(argument.get("DataSource", ""))
        if kind in ("Generator", "Script"):
            inner = Translator({"i": "i"}, {}, self.translator.dimensions)
            return f"expression {inner.expression(f'{what}: DataSource', source)}"
        if kind == "BinaryRaw":
            return f"raw {source}"
        raise UsageError(f"{what}: FillType {kind!r:.40} is not one of Constant, Random, Generator, Script, BinaryRaw")

    def defines(self) -> dict[str, str]:
        defines = {}
        for option in self.list(self.kernel, "CompilerOptions", []):
            text = str(option)
            if match := re.fullmatch(r"-D\s*([A-Za-z_]\w*)(?:=(.*))?", text):
                defines[match[1]] = match[2] or "1"
            elif not re.fullmatch(r"-{1,2}std[= ].*|-O\d|-lineinfo", text):
                self.notes.append(f"compiler option {text!r} was ignored")
        return defines

    def table(self, key: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise UsageError(f"{self.title}: {key}: expected an object, got {value!r:.40}")
        return value

    def list(self, table: Mapping[str, Any], key: str, default: Any = None) -> list[Any]:
        value = table.get(key)
        value = default if value is None else value
        if not isinstance(value, list):
            raise UsageError(f"{self.title}: {key}: expected a list, got {value!r:.40}")
        return value

    def need(self, table: Mapping[str, Any], key: str) -> Any:
        if key not in table:
            raise UsageError(f"{self.title}: {key} is missing: this is not an autotuner's problem in the T1 format")
        return table[key]


def _decimal(value: float) -> str:
    return f"{Decimal(repr(value)):f}"


def _parameters(source: str, name: str) -> int | None:
    match = re.search(rf"\b{re.escape(name)}\s*\(([^()]*)\)\s*\{{", source)
    if match is None or "#" in match[1]:
        return None
    return match[1].count(",") + 1 if match[1].strip() else 0


def load_spec(spec: Path, source: Path) -> tuple[Kernel, list[str]]:
    """Return the kernel that a kernel.toml or a T1 file (.json) describes, and notes on ignored parts.

    Raises:
        UsageError: The spec is invalid, or a kernel.toml describes another source file.
    """
    if spec.suffix == ".json":
        return load_t1(spec, source)
    refuse_marks(read_text(spec, str(spec)), str(spec))
    kernel = load_kernel(spec)
    if not source.is_file():
        raise UsageError(cannot_be("read", source, FileNotFoundError()))
    if kernel.source_name != source.name or spec.resolve().parent != source.resolve().parent:
        raise UsageError(f"{spec} describes {spec.parent / kernel.source_name}, not {source}")
    return kernel, []
