"""Convert a launch of a Triton function to a `Kernel`, for `kernrec analyze kernels.py:matmul --spec call.toml`.

A `TritonCall` (`kernrec.profile.triton_call_file`) states every argument, so the kernel has a single problem. The code
is specialized to argument values, as `triton.jit` does. Pointers are assumed to be aligned to 16 bytes, like those of
memory allocators.
"""

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from kernrec.compile.triton_describe import describe, described
from kernrec.compile.triton_version import fp_fusion, fp_fusion_note, untested_version
from kernrec.errors import UsageError, unknown
from kernrec.kernel import Kernel
from kernrec.kernel.expression import identifier, parse
from kernrec.kernel.source_files import fingerprint, read_text
from kernrec.kernel.spec import LIMITS
from kernrec.kernel.spec_reader import kernel_from
from kernrec.kernel.triton_function import OPTIONS, SCRATCH, fields_name, item_names
from kernrec.op.dtype import ELEMENT_BYTES, canonical_dtype
from kernrec.profile.tensor_values import load_npy
from kernrec.profile.triton_call_file import TritonCall, extent_of, integers, row_major

DEFAULTS = {"num_warps": 4, "num_stages": 3, "num_ctas": 1, "maxnreg": 0}
"""Triton's defaults for compiler options. A `maxnreg` of 0 means no limit."""
_MOST_DIMS = 16
_INTEGERS = ("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64")
_TENSOR_KEYS = {"dtype", "shape", "strides", "elements", "values", "contents", "aligned", "block", "padding"}
_RESERVED = ("dtype", "layout", "dtype_bytes", "sm", "i", "grid_x", "grid_y", "grid_z", *LIMITS)


def kernel_of_triton(call: TritonCall) -> tuple[Kernel, list[str]]:
    """Return the kernel that a `TritonCall` launches, with the listed configs, and notes for the user.

    Raises:
        UsageError: the function lacks `@triton.jit`, or arguments or configs do not fit it.
        NoCompilerError: Triton is not installed.
    """
    notes = [untested_version(), fp_fusion_note()]
    return _CallReader(call).kernel(), [note for note in notes if note]


class _CallReader:
    def __init__(self, call: TritonCall) -> None:
        self.call = call
        self.source = read_text(call.path, call.path.name)
        self.names: dict[str, str] = {}  # kernrec's name of each Triton parameter.
        self.tensors: dict[str, dict[str, Any]] = {}
        self.dims: dict[str, int] = {}
        self.defines: dict[str, str] = {}
        self.types: dict[str, str] = {}  # Triton's type of each tensor whose format in memory differs
        self.descriptors: dict[str, dict[str, Any]] = {}
        self.unaligned: set[str] = set()
        self.numbers = integers(call.arguments)
        # If an argument has the name of a compiler option, Triton also sets the option.
        self.options = {name: call.arguments[name] for name in OPTIONS if type(call.arguments.get(name)) is int}

    def kernel(self) -> Kernel:
        call = self.call
        arguments = {name: self.argument(name, value) for name, value in call.arguments.items()}
        described = self.description(arguments)
        arguments = {name: self.items(name, value) for name, value in arguments.items()}
        parameters = {parameter["name"]: parameter for parameter in described["parameters"]}
        self.check(parameters, described["configs"])
        columns, rows, tunables = self.configs(described["configs"])
        passed: dict[str, tuple[str, str, bool]] = {}
        for name, parameter in parameters.items():
            if name not in described["configs"][0]["constants"]:
                value = arguments.get(name, parameter["value"])
                if isinstance(value, list):
                    for item_name, item in zip(item_names(name, len(value)), value, strict=True):
                        passed[item_name] = self.passed({**parameter, "name": item_name, "type": ""}, item, True)
                else:
                    passed[name] = self.passed(parameter, value, name in arguments)
        passed = {name: argument for name, argument in passed.items() if argument[0]}
        tensors = self.tensors or {"nothing": {"shape": [1]}}
        types = [tensor["dtype"] for tensor in self.tensors.values()]
        floating = [dtype for dtype in types if dtype not in _INTEGERS]
        problem: dict[str, Any] = {"dims": self.dims, "tensors": tensors, "dtype": [*floating, *types, "f32"][0]}
        if call.flops is not None:
            problem["flops"] = str(self.number(f"{call.place}: flops", call.flops, self.numbers))
        spec = {
            "name": identifier(call.function),
            "source": call.path.name,
            "problem": problem,
            "tunables": tunables,
            "configs": {"columns": columns, "rows": rows},
            "defines": self.defines,
            "triton": {
                "parameters": list(passed),
                "divisible": {name: 1 for name, (_, _, multiple) in passed.items() if multiple},
                "types": {name: kind for name, (_, kind, _) in passed.items() if kind},
                **({"descriptors": self.descriptors} if self.descriptors else {}),
                "key": described["key"] + ("" if fp_fusion() else " unfused"),
                **({"module": call.module} if call.module else {}),
            },
            "launch": [
                {
                    "entry": call.function,
                    "grid": ["grid_x", "grid_y", "grid_z"],
                    "block": ["32 * num_warps"],
                    "arguments": [*(text for text, _, _ in passed.values()), *["u64 0"] * SCRATCH],
                    # Triton keeps num_stages - 1 loop steps in shared memory: one in use, the others prefetched.
                    "prefetch": "max(num_stages - 2, 0)",
                }
            ],
        }
        fingerprint(spec, call.path.parent, call.place)
        return kernel_from(spec, call.place, self.source)

    def description(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the description of the function, including each config's grid."""
        call = self.call
        request = {
            "source": self.source,
            "name": call.path.name,
            "folder": str(call.path.resolve().parent),
            "module": call.module,
            "function": call.function,
            "arguments": arguments,
            "configs": call.configs,
            "grid": call.grid if isinstance(call.grid, str) else None,
        }
        if call.decorated is not None:
            return describe(call.decorated, call.grid if callable(call.grid) else None, request)
        return described(request)

    def check(self, parameters: Mapping[str, Any], configs: Sequence[Mapping[str, Any]]) -> None:
        """Raise `UsageError` if an argument is unknown, missing or given twice."""
        call, arguments = self.call, self.call.arguments
        place = f"{call.place}: {call.function}"
        for name in arguments:
            if name not in parameters:
                raise UsageError(f"{place}: {unknown('parameter', name, parameters)}")
        for config in configs:
            constants = config["constants"]
            for name in constants:
                if name not in parameters:
                    choices = [*parameters, *OPTIONS]
                    raise UsageError(f"{place}: configs: {unknown('meta-parameter', name, choices)}")
                if name in arguments:
                    raise UsageError(f"{place}: {name} is an argument and a meta-parameter of a config; give it once")
            for name in configs[0]["constants"]:
                if name not in constants:
                    raise UsageError(f"{place}: {name} is in some configs and missing in others")
            for name, parameter in parameters.items():
                if name not in arguments and name not in constants and not parameter["default"]:
                    raise UsageError(f"{place}: the value of parameter {name} is missing")

    def argument(self, name: str, value: Any) -> Any:
        """Return an argument in the form that the process with the function expects. Add tensors to `tensors`."""
        place = f"{self.call.place}: {name}"
        if isinstance(value, Mapping) and value.keys() == {"fields", "items"}:
            fields, items = value["fields"], value["items"]
            if not (isinstance(fields, list) and isinstance(items, list) and len(fields) == len(items)):
                raise UsageError(f"{place}: a named tuple needs as many fields as items")
            if not all(isinstance(field, str) and field.isidentifier() for field in fields):
                raise UsageError(f"{place}: fields {fields!r:.60}: expected names")
            return {"fields": fields, "items": self.argument(name, items)}
        if isinstance(value, list):
            return [self.argument(*item) for item in zip(item_names(name, len(value)), value, strict=True)]
        if not isinstance(value, Mapping):
            if value is None or isinstance(value, bool | int | float | str):
                return value
            raise UsageError(f"{place}: expected a number, text, a table with dtype and shape, or a list of these")
        if value.keys() == {"python"} and isinstance(value["python"], str):
            return dict(value)
        return self.tensor(place, name, value)

    def items(self, name: str, value: Any) -> Any:
        """Return the items of a named tuple, and store its field names. Return other arguments unchanged."""
        if not isinstance(value, Mapping) or "fields" not in value:
            return value
        self.defines[fields_name(name)] = repr(" ".join(value["fields"]))
        return value["items"]

    def tensor(self, place: str, name: str, value: Mapping[str, Any]) -> dict[str, Any]:
        """Convert a tensor for the process that loads the function, and add it to `tensors`."""
        file = str(value.get("values", "")).endswith(".npy")
        if (not {"dtype", "shape"} <= value.keys() and not file) or value.keys() - _TENSOR_KEYS:
            keys = ", ".join(map(str, value)) or "nothing"
            raise UsageError(f"{place}: a tensor has dtype and shape, or values = 'file.npy'; given are {keys}")
        array = load_npy(Path(value["values"])) if file else None
        dtype = str(value.get("dtype", "" if array is None else f"{array.dtype.kind}{8 * array.dtype.itemsize}"))
        dtype = dtype if dtype == "bool" else canonical_dtype(dtype)
        if "shape" in value:
            extents = value["shape"] if isinstance(value["shape"], list | tuple) else [value["shape"]]
            shape = [self.number(f"{place}: shape", extent, self.numbers, 0) for extent in extents]
        else:
            shape = [int(extent) for extent in array.shape]  # type: ignore[union-attr]
        strides = value.get("strides")
        if strides is not None and not (
            isinstance(strides, list) and len(strides) == len(shape) and all(type(stride) is int for stride in strides)
        ):
            raise UsageError(f"{place}: strides {strides!r:.60}: expected {len(shape)} whole numbers, one per extent")
        if dtype == "bool":
            dtype, self.types[name] = "u8", "*i1"
        if dtype not in ELEMENT_BYTES:
            raise UsageError(f"{place}: {unknown('dtype', value.get('dtype', dtype), ELEMENT_BYTES)}")
        if "block" in value:
            self.descriptors[name] = self.descriptor(place, value, shape, strides)
        if value.get("aligned", True) is not True:
            self.unaligned.add(name)
        count = array.size if array is not None else extent_of(shape, strides)
        values = str(value.get("values", "normal"))
        if "contents" in value and dtype in _INTEGERS:
            values = f"unknown {value['contents']}"
        self.tensors[self.name(name)] = {
            "shape": [str(max(count, int(value.get("elements", 0)) if array is None else 0))],
            "dtype": dtype,
            "role": "inout",
            "values": values,
        }
        return {"dtype": dtype, "shape": shape} | ({"strides": strides} if strides is not None else {})

    def descriptor(
        self, place: str, value: Mapping[str, Any], shape: Sequence[int], strides: Sequence[int] | None
    ) -> dict[str, Any]:
        """Return a tensor descriptor as a spec declares it. The config may decide the lengths of the block's axes."""
        block = value["block"]
        if not isinstance(block, list) or len(block) != len(shape):
            raise UsageError(f"{place}: block {block!r:.60}: expected {len(shape)} numbers or constants, one per axis")
        if (padding := value.get("padding", "zero")) not in ("zero", "nan"):
            raise UsageError(f"{place}: {unknown('padding', str(padding), ('zero', 'nan'))}")
        extents = []
        for extent in block:
            if isinstance(extent, str) and not set(parse(extent.lower()).names) <= self.numbers.keys():
                extents.append(extent.lower())  # The config decides the value of this constant.
            else:
                extents.append(str(self.number(f"{place}: block", extent, self.numbers)))
        return {
            "shape": list(shape),
            "strides": list(strides if strides is not None else row_major(shape)),
            "block": extents,
            "fill_nan": padding == "nan",
        }

    def configs(
        self, configs: Sequence[Mapping[str, Any]]
    ) -> tuple[list[str], list[list[int]], dict[str, dict[str, Any]]]:
        """Return (names of columns, rows, tunables) for a spec's table of configs."""
        always = ("num_warps", "num_stages", *self.options)
        options = [name for name in OPTIONS if name in always or any(name in c["options"] for c in configs)]
        constants = [name for name in configs[0]["constants"] if name not in options]
        values = {name: [config["constants"][name] for config in configs] for name in constants}
        default = {**DEFAULTS, **self.options}
        values |= {name: [config["options"].get(name, default[name]) for config in configs] for name in options}
        for name in constants:
            if any(not isinstance(value, int) for value in values[name]):
                if any(value != values[name][0] for value in values[name]):
                    raise UsageError(f"{self.call.place}: {name}: values that differ between configs must be integers")
                # A tunable must be an integer, so define other constants in the source.
                self.defines[name] = _literal(values.pop(name)[0])
        tunables = {
            self.name(name): {"values": sorted({int(value) for value in values[name]}), "define": name}
            for name in values
        }
        rows: dict[tuple[int, ...], list[int]] = {}
        for index, config in enumerate(configs):
            row = {name: int(values[name][index]) for name in values}
            rows.setdefault(tuple(row.values()), [*row.values(), *self.grid(config, row)])
        return [*tunables, "grid_x", "grid_y", "grid_z"], list(rows.values()), tunables

    def grid(self, config: Mapping[str, Any], row: Mapping[str, int]) -> list[int]:
        if config["grid"] is not None:
            return list(config["grid"])
        names = {**self.numbers, **{name.lower(): value for name, value in row.items()}}
        extents = [self.number(f"{self.call.place}: grid", extent, names) for extent in self.call.grid]  # type: ignore[union-attr]
        if not 1 <= len(extents) <= 3:
            raise UsageError(f"{self.call.place}: grid has {len(extents)} extents; 1 to 3 are expected")
        return [*extents, 1, 1][:3]

    def passed(self, parameter: Mapping[str, Any], value: Any, stated: bool) -> tuple[str, str, bool]:
        """Return (argument in a launch of a spec, Triton type, whether the value is a known multiple of 16).

        The argument is empty for constants. The type is empty if the argument states it, as in `i32 64`.
        """
        name, specialized = parameter["name"], parameter["specialized"]
        if parameter["constant"] or value is None or (isinstance(value, Mapping) and "python" in value):
            if stated and name not in self.options:
                self.defines[name] = _literal(value)
            return "", "", False
        aligned = specialized and parameter["aligned"]
        if isinstance(value, Mapping):
            divisible = aligned and name not in self.unaligned and name not in self.descriptors
            return self.name(name), self.types.get(name, ""), divisible
        if isinstance(value, str):
            raise UsageError(f"{self.call.place}: {name} is text, which only a tl.constexpr parameter can be")
        if isinstance(value, bool):
            return f"u8 {int(value)}", "u1", False
        if isinstance(value, float):
            if not math.isfinite(value):
                raise UsageError(f"{self.call.place}: {name} is {value}; a finite number is expected")
            return f"f32 {Decimal(value):.40f}", parameter["type"], False
        if value == 1 and specialized and not parameter["type"]:
            self.defines[name] = "1"
            return "", "", False
        kind = parameter["type"] or ("i32" if -(2**31) <= value < 2**31 else "i64")
        text = str(value)
        if 0 <= value < 2**31 and len(self.dims) < _MOST_DIMS:
            text = self.name(name)
            self.dims[text] = value
        return f"{kind} {text}", "", aligned and value % 16 == 0

    def name(self, name: str) -> str:
        """Return a unique lower-case name for a parameter or tunable."""
        if name not in self.names:
            chosen = identifier(name)
            while chosen in self.names.values() or chosen in _RESERVED:
                chosen += "_"
            self.names[name] = chosen
        return self.names[name]

    def number(self, place: str, value: Any, names: Mapping[str, int], least: int = 1) -> int:
        """Return a number, or the value of an expression with the variables `names`."""
        if isinstance(value, str):
            expression = parse(value.lower())
            for name in expression.names:
                if name not in names:
                    raise UsageError(f"{place}: {value!r:.60}: {unknown('name', name, names)}")
            value = expression.evaluate(names)
        if type(value) is not int or value < least:
            raise UsageError(f"{place}: {value!r:.60}: expected a whole number from {least}")
        return value


def _literal(value: Any) -> str:
    return str(value["python"]) if isinstance(value, Mapping) else repr(value)
