"""Read the description of a Triton launch from a TOML file, written by hand or captured (`kernrec.triton.calls`).

    function = "package.kernels:matmul"   # or "kernels.py:matmul"; optional if the command names it
    grid = "grid"                   # a function of the file, called with all arguments and constants by name;
                                    # or extents: ["ceil_div(M, BLOCK_M) * ceil_div(N, BLOCK_N)"]
    flops = "2 * M * N * K"         # optional

    [arguments]                     # keyed by parameter
    a = { dtype = "f16", shape = ["M", "K"] }
    b = { dtype = "f16", shape = [64, 128], strides = [256, 1] }   # a view
    expert = { values = "routing-{M}.npy" }   # values that affect addresses or branches; {M} is an integer argument
    M = 4096
    strides = [1024, 1]             # a tuple
    bounds = { fields = ["low", "high"], items = [0, 9] }   # a named tuple
    ACTIVATION = "relu"             # a tl.constexpr parameter
    DTYPE = { python = "tl.float16" }   # a tl.constexpr parameter with a value of Python or Triton

    [[configs]]                     # optional: replaces the list of @triton.autotune
    BLOCK_M = 128
    num_warps = 4
    grid = [32, 1]                  # optional: replaces the common grid

`configs = "E=8,N=14336,device_name=NVIDIA_L40S.json"` reads the configs from another tool's file
(`kernrec.interop.read_results`). Captured tensors may have more keys: `elements` (size of the memory from the tensor's
start), `aligned = false` (an address that is not a multiple of 16 bytes), `contents` (why no values were stored).
"""

import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from kernrec.errors import UsageError, unknown
from kernrec.kernel.source_files import read_toml
from kernrec.util.light_dataclass import dataclass

_KEYS = ("function", "grid", "flops", "arguments", "configs")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True)
class TritonCall:
    """Launch of a Triton function."""

    path: Path
    """File with the function."""
    function: str
    arguments: Mapping[str, Any]
    """Arguments keyed by parameter: a number, text, None, or a table for a tensor or another constant."""
    grid: str | Sequence[Any] | Callable[..., Any]
    """Extents as numbers or expressions, a function, or the name of a function in the file."""
    configs: Sequence[Mapping[str, Any]] | None = None
    """Configs, or None for the autotuner's configs or Triton's default options."""
    flops: str | None = None
    """Expression for the floating-point operations, or None."""
    place: str = "the call"
    """Name of this launch in error messages."""
    module: str = ""
    """Installed module to import, or an empty string to execute the file."""
    decorated: Any = field(default=None, compare=False)
    """Function object if this process has loaded the function, or None."""


def read_call(path: Path, target: str | None = None, changed: Mapping[str, int] | None = None) -> TritonCall:
    """Read the description of a Triton launch from a TOML file.

    Args:
        target: `kernels.py:matmul` or `package.kernels:matmul`, or None if the file names the function.
        changed: new values of integer arguments.

    Raises:
        UsageError: the file cannot be read or does not describe a launch.
    """
    data = read_toml(path, path.name)
    for key in data:
        if key not in _KEYS:
            raise UsageError(f"{path.name}: {unknown('key', key, _KEYS)}")
    named = data.get("function")
    if target is None and not isinstance(named, str):
        raise UsageError(f'{path.name}: function is missing: "kernels.py:matmul" or "package.kernels:matmul"')
    source, module, function = function_place(
        str(named) if target is None else target, path.parent if target is None else Path()
    )
    arguments, configs, grid = data.get("arguments"), data.get("configs"), data.get("grid")
    if not isinstance(arguments, dict):
        raise UsageError(
            f"{path.name}: [arguments] is missing: values of the parameters, such as a = {{ dtype, shape }}"
        )
    if configs is not None and not (isinstance(configs, list) and all(isinstance(c, dict) and c for c in configs)):
        raise UsageError(f"{path.name}: configs: expected [[configs]] tables such as BLOCK_M = 128")
    if grid is None and configs and all("grid" in config for config in configs):
        grid = []
    if not isinstance(grid, str | list):
        raise UsageError(f'{path.name}: grid is missing: a function of the file, or ["ceil_div(M, BLOCK_M)"]')
    spelling = {name.lower(): name for name, value in arguments.items() if type(value) is int}
    for name, value in (changed or {}).items():
        if name.lower() not in spelling:
            raise unknown("integer argument", name, spelling.values())
        arguments[spelling[name.lower()]] = value
    for argument in arguments.values():  # Files with values are relative to the folder of the TOML file.
        items = argument.get("items", argument) if isinstance(argument, dict) else argument
        for value in items if isinstance(items, list) else [items]:
            if isinstance(value, dict) and str(value.get("values", "")).endswith(".npy"):
                value["values"] = str((path.parent / _filled(value["values"], arguments)).resolve())
    return TritonCall(source, function, arguments, grid, configs, data.get("flops"), path.name, module=module)


def function_place(target: str, folder: Path = Path()) -> tuple[Path, str, str]:
    """Return the file, module and name of a function. The module is empty if `target` names a file in `folder`."""
    source, separator, function = target.rpartition(":")
    if separator and function.isidentifier():
        if source.endswith(".py"):
            return folder / source, "", function
        if _MODULE.fullmatch(source):
            return _file_of(source), source, function
    raise UsageError(f"{target!r:.80}: a Triton function is given as kernels.py:matmul or package.kernels:matmul")


def _file_of(module: str) -> Path:
    """Return the file of a module without importing its package."""
    top, *inner = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        raise UsageError(f"{module}: the package {top} is not installed in the Python that runs kernrec")
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    if not inner and spec.origin is not None:
        return Path(spec.origin)
    for folder in folders:
        place = folder.joinpath(*inner)
        for file in (place.with_name(f"{place.name}.py"), place / "__init__.py"):
            if file.is_file():
                return file
    raise UsageError(f"{module}: the installed package {top} has no such module")


def extent_of(shape: Sequence[int], strides: Sequence[int] | None) -> int:
    """Return the number of elements in memory from a tensor's first to its last element, at least 1."""
    if 0 in shape:
        return 1
    strides = strides if strides is not None else row_major(shape)
    return 1 + sum((extent - 1) * max(stride, 0) for extent, stride in zip(shape, strides, strict=True))


def row_major(shape: Sequence[int]) -> list[int]:
    """Return the strides of a contiguous tensor, in elements."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * max(shape[axis + 1], 1)
    return strides


def _filled(name: str, arguments: Mapping[str, Any]) -> str:
    numbers = integers(arguments)

    def value_of(place: re.Match[str]) -> str:
        if place[1].lower() not in numbers:
            raise unknown(f"integer argument in {name!r:.60}:", place[1], numbers)
        return str(numbers[place[1].lower()])

    return re.sub(r"\{(\w+)\}", value_of, name)


def integers(arguments: Mapping[str, Any]) -> dict[str, int]:
    """Return the integer arguments, keyed by lower-case name."""
    return {name.lower(): value for name, value in arguments.items() if type(value) is int}
