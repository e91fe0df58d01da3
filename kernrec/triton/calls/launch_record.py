"""Convert a launch of a Triton function to plain values."""

import importlib.machinery
import inspect
import math
import numbers
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kernrec.compile.triton_describe import layers_of, stated_options
from kernrec.compile.triton_load import is_layout, type_text
from kernrec.errors import KernrecError, unknown
from kernrec.kernel.triton_function import OPTIONS, item_names
from kernrec.op.dtype import ELEMENT_BYTES, canonical_dtype
from kernrec.profile.triton_call_file import extent_of, row_major

WIDEST_INDICES = 64 << 20
"""Maximum size in bytes of an integer array to store. Larger arrays are packed weights, not indices."""
_INDICES = ("i16", "u16", "i32", "u32", "i64", "u64", "bool")
"""Data types of arrays that may contain indices. 8-bit integers are assumed to be weights."""
_AS_BYTES = ("float8_e8m0fnu", "float4_e2m1fn_x2")
_ADDRESSES = 1 << 32
_LITERALS = (bool, int, float, str, type(None))


class NoCallError(KernrecError):
    """Raised if a call file cannot describe a launch. The message names the argument at fault and the reason."""


@dataclass
class LaunchRecord:
    """Launch of a Triton function, converted to plain values."""

    name: str
    """Name of the Triton function."""
    target: str
    """`module:function`, or `/path/kernels.py:function`."""
    arguments: dict[str, Any]
    """Arguments as literals or tables of a call file, keyed by parameter."""
    configs: list[dict[str, Any]]
    """Constants, compiler options and `grid` of each config."""
    contents: dict[str, np.ndarray] = field(default_factory=dict)
    """Arrays that affect the addresses of memory accesses, keyed by parameter."""
    notes: list[str] = field(default_factory=list)
    """Notes on launch options that the call file cannot contain."""

    @property
    def generated(self) -> Path | None:
        """Return the source file if a compiler such as Inductor generated it, or None."""
        file = Path(self.target.rpartition(":")[0])
        return file if any(part.startswith("torchinductor") for part in file.parts) else None


def record_of(
    function: Any, args: Sequence[Any], keywords: Mapping[str, Any], grid: Any, configs: Sequence[Any] | None
) -> LaunchRecord:
    """Convert a launch to a record.

    Args:
        function: `@triton.jit` function with all its decorators.
        keywords: Arguments, constants and options by name.
        grid: Number of blocks along each axis, or a function that computes them from all arguments and constants.
        configs: Configs of the autotuner after pruning, or None if the function is not autotuned.

    Raises:
        NoCallError: An argument has an unsupported type, or the function's source is not in a file.
    """
    layers = layers_of(function)
    jit = layers[-1]
    parameters = [parameter.name for parameter in jit.params]
    if len(args) > len(parameters):
        raise NoCallError(f"{len(args)} arguments, but the function has {len(parameters)} parameters")
    named = {**dict(zip(parameters, args, strict=False)), **keywords}
    options = {name: named.pop(name) for name in list(named) if name in OPTIONS and name not in parameters}
    options = {name: value for name, value in options.items() if type(value) is int}
    others = {name: named.pop(name) for name in list(named) if name not in parameters}
    constants = {parameter.name for parameter in jit.params if parameter.is_constexpr}
    record = LaunchRecord(jit.fn.__name__, target_of(jit), {}, [])
    record.notes += [f"{name} = {value!r:.40} of the launch" for name, value in others.items() if value is not None]
    tables = [{**config.kwargs, **stated_options(config)} for config in configs or ()] or [{}]
    blocks = _blocks_of_hooks(named, configs or ())
    for table in tables:
        names = {**named, **table}
        for layer in layers:
            for name, value in getattr(layer, "values", {}).items():
                if name not in named:
                    names[name] = table[name] = value(names)
        shape = grid({**names, **options}) if callable(grid) else grid
        extents = [int(extent) for extent in (shape if isinstance(shape, Sequence) else [shape])]
        listed = {name: constant(name, value) for name, value in table.items()}
        record.configs.append({**options, **listed, "grid": extents})
    for name, value in named.items():
        if any(name in table for table in tables):
            continue
        if name in constants:
            record.arguments[name] = constant(name, value)
        else:
            record.arguments[name] = _argument(record, name, value)
            if name in blocks:
                record.arguments[name]["block"] = blocks[name]
    return record


def _blocks_of_hooks(named: Mapping[str, Any], configs: Sequence[Any]) -> dict[str, list[Any]]:
    """Return the block shape that the `pre_hook` of the configs sets for each tensor descriptor.

    If configs differ in an extent, the shape contains the name of the constant that equals the extent in each config.
    """
    hooked = [config for config in configs if getattr(config, "pre_hook", None) is not None]
    descriptors = {name: value for name, value in named.items() if hasattr(value, "block_shape")}
    if not hooked or not descriptors:
        return {}
    seen: dict[str, list[list[int]]] = {name: [] for name in descriptors}
    for config in hooked:
        config.pre_hook({**named, **config.all_kwargs()})
        for name, value in descriptors.items():
            seen[name].append([int(extent) for extent in value.block_shape])
    return {
        name: [_named_extent(name, extents, hooked) for extents in zip(*blocks, strict=True)]
        for name, blocks in seen.items()
    }


def _named_extent(name: str, extents: Sequence[int], configs: Sequence[Any]) -> Any:
    if len(set(extents)) == 1:
        return extents[0]
    for constant_name in configs[0].kwargs:
        if all(config.kwargs.get(constant_name) == n for config, n in zip(configs, extents, strict=True)):
            return constant_name
    raise NoCallError(
        f"argument {name}: a hook sets its block to {', '.join(map(str, extents))}, but no constant has these values"
    )


def target_of(jit: Any) -> str:
    """Return `module:function`, or `/path/kernels.py:function` if the module cannot be imported by name.

    Raises:
        NoCallError: The source is not in a file, or the function is defined inside another function.
    """
    function = jit.fn
    module, name = function.__module__, function.__qualname__
    file = inspect.getsourcefile(function)
    if file is None or not Path(file).is_file():
        raise NoCallError("its source is not in a file")
    if not name.isidentifier():
        raise NoCallError(f"it is defined inside another function ({name}); define it at the top level of a file")
    if module != "__main__" and _importable(module, Path(file)):
        return f"{module}:{name}"
    return f"{Path(file).resolve()}:{name}"


def _importable(module: str, file: Path) -> bool:
    """Return whether the module can be imported by name from any working directory."""
    if "site-packages" in file.parts or "dist-packages" in file.parts:
        return importlib.machinery.PathFinder.find_spec(module.partition(".")[0]) is not None
    here = {Path.cwd(), Path(sys.path[0] or ".").resolve()}
    folders = [folder for folder in sys.path if Path(folder or ".").resolve() not in here]
    spec = importlib.machinery.PathFinder.find_spec(module.partition(".")[0], folders)
    places = [spec.origin, *(spec.submodule_search_locations or ())] if spec is not None else []
    return any(place and Path(place).resolve() in (file.resolve(), *file.resolve().parents) for place in places)


def constant(name: str, value: Any) -> Any:
    """Return a `tl.constexpr` value for a call file. Raise `NoCallError` if Python source cannot express it."""
    value = getattr(value, "value", value) if type(value).__name__ == "constexpr" else value
    if isinstance(value, bool) or type(value) in (int, str):
        return value
    if type(value) is float and math.isfinite(value):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if type(value).__module__.startswith("triton.language") or is_layout(value):
        return {"python": type_text(value)}
    if hasattr(value, "params") and hasattr(value, "fn"):
        return {"python": target_of(value)}
    if _is_literal(value):
        return {"python": repr(value)}
    raise NoCallError(f"argument {name}: {type(value).__name__} is a type that a call cannot hold")


def _is_literal(value: Any) -> bool:
    if type(value) in (tuple, list):
        return all(_is_literal(item) for item in value)
    return type(value) in _LITERALS


def _argument(record: LaunchRecord, name: str, value: Any) -> Any:
    """Convert an argument of the kernel. Add arrays that affect addresses to the record."""
    if value is None:
        return {"python": "None"}
    if isinstance(value, bool) or type(value) in (int, float):
        return value
    if type(value).__name__ == "SymInt" or (isinstance(value, numbers.Integral) and not hasattr(value, "shape")):
        return int(value)
    if isinstance(value, numbers.Real) and not hasattr(value, "data_ptr"):
        return float(value)
    if isinstance(value, tuple):
        items = [_argument(record, *item) for item in zip(item_names(name, len(value)), value, strict=True)]
        fields = getattr(value, "_fields", None)
        return items if fields is None else {"fields": list(fields), "items": items}
    if hasattr(value, "block_shape") and hasattr(value, "base"):
        return _descriptor(record, name, value)
    if not hasattr(value, "dtype"):
        raise NoCallError(f"argument {name}: {type(value).__name__} is a type that a call cannot hold")
    return _tensor(record, name, value)


def _descriptor(record: LaunchRecord, name: str, value: Any) -> dict[str, Any]:
    table = _tensor(record, name, value.base)
    table |= {"shape": [int(n) for n in value.shape], "strides": [int(n) for n in value.strides]}
    table["block"] = [int(n) for n in value.block_shape]
    if getattr(value, "padding", "zero") != "zero":
        table["padding"] = value.padding
    return table


def _tensor(record: LaunchRecord, name: str, value: Any) -> dict[str, Any]:
    value = getattr(value, "base", value) if type(value).__name__ == "TensorWrapper" else value
    spelled = str(value.dtype).rpartition(".")[2]
    dtype = "u8" if spelled in _AS_BYTES else canonical_dtype(spelled)
    if dtype not in (*ELEMENT_BYTES, "bool"):
        raise NoCallError(f"argument {name}: {unknown('dtype', spelled, ELEMENT_BYTES)}")
    shape = [int(extent) for extent in getattr(value, "shape", ())]
    table: dict[str, Any] = {"dtype": dtype, "shape": shape}
    strides = _strides(value)
    if strides is not None and strides != row_major(shape):
        table["strides"] = strides
    behind = _elements_behind(value)
    if behind is not None and behind > extent_of(shape, strides):
        table["elements"] = behind
    address = _address(value)
    if address is not None and address % 16:
        table["aligned"] = False
    if dtype in _INDICES:
        _keep_contents(record, name, value, table)
    return table


def _strides(value: Any) -> list[int] | None:
    """Return the strides of a tensor or array in elements."""
    stride = getattr(value, "stride", None)
    if callable(stride):
        return [int(n) for n in stride()]
    strides = getattr(value, "strides", None)
    if strides is not None and hasattr(value, "itemsize"):
        return [int(n) // int(value.itemsize) for n in strides]
    return None


def _elements_behind(value: Any) -> int | None:
    """Return the number of elements from a tensor's start to the end of its memory, or None if unknown."""
    try:
        held = value.untyped_storage().nbytes()
        return int((held - value.storage_offset() * value.element_size()) // value.element_size())
    except Exception:  # A value that is no torch tensor, or has no memory, raises various errors.
        return None


def _address(value: Any) -> int | None:
    try:
        return int(value.data_ptr())
    except Exception:  # Fake and meta tensors have no memory, and raise various errors.
        return None


def _keep_contents(record: LaunchRecord, name: str, value: Any, table: dict[str, Any]) -> None:
    """Store an array's values in the record. Store the reason in `table` if the values are unavailable."""
    count = table.get("elements") or extent_of(table["shape"], table.get("strides"))
    size = ELEMENT_BYTES.get(table["dtype"], 1)
    if count * size > WIDEST_INDICES:
        table["contents"] = "too large to be kept"
        return
    array = _array(value, count)
    if array is None:
        table["contents"] = "not kept: the tensor had none"
        return
    if array.dtype.itemsize == 8 and array.size and (array.astype(np.uint64) >= _ADDRESSES).all():
        table["contents"] = "not kept: addresses of other arrays"
        return
    record.contents[name] = array.view(np.uint8) if array.dtype == np.bool_ else array


def _array(value: Any, count: int) -> np.ndarray | None:
    if isinstance(value, np.ndarray):
        return np.lib.stride_tricks.as_strided(value, (count,), (value.itemsize,)).copy()
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        as_array = getattr(value, "__array__", None)
        return None if as_array is None else np.ascontiguousarray(as_array()).reshape(-1)
    if value.device.type == "meta" or type(value).__name__ in ("FakeTensor", "FunctionalTensor"):
        return None
    flat = torch.as_strided(value.detach(), (count,), (1,))
    return np.array(flat.cpu().numpy())
