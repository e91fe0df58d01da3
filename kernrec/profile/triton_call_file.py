"""A call of a Triton function, as a TOML file describes it, written by hand or captured (`kernrec.triton.calls`).

    function = "package.kernels:matmul"   # or "kernels.py:matmul"; where the command names it, it may be left out
    grid = "grid"                   # a function of the file, called with all arguments and constants by name;
                                    # or extents: ["ceil_div(M, BLOCK_M) * ceil_div(N, BLOCK_N)"]
    flops = "2 * M * N * K"         # optional

    [arguments]                     # by parameter
    a = { dtype = "f16", shape = ["M", "K"] }
    b = { dtype = "f16", shape = [64, 128], strides = [256, 1] }   # a view
    expert = { values = "routing-{M}.npy" }   # an array: addresses or branches depend on its values; {M}: of an integer
    M = 4096
    ACTIVATION = "relu"             # of a tl.constexpr parameter, as are { python = "None" }, { python = "tl.float16" }

    [[configs]]                     # optional: instead of the list of @triton.autotune
    BLOCK_M = 128
    num_warps = 4
    grid = [32, 1]                  # optional: instead of the grid of all

`configs = "E=8,N=14336,device_name=NVIDIA_L40S.json"` takes the list from a file of another tool
(`kernrec.interop.config_list`). Further keys of a tensor: `elements`, from its first to the end of its memory;
`aligned = false` where its address is no multiple of 16 bytes; `contents`, why its values were not kept.
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
    """A call of a Triton function."""

    path: Path
    """The file with the function."""
    function: str
    arguments: Mapping[str, Any]
    """By parameter: a number, text, None, `{"dtype", "shape"}` or `{"values"}` of a tensor, or `{"python"}`."""
    grid: str | Sequence[Any] | Callable[..., Any]
    """Name of a function of the file; extents as numbers or expressions; or a function."""
    configs: Sequence[Mapping[str, Any]] | None = None
    """None: those of the function's autotuner, else one with Triton's defaults."""
    flops: str | None = None
    """Floating-point operations, an expression."""
    place: str = "the call"
    """Its name in errors."""
    configs_file: Path | None = None
    """A file of another tool that holds the configs; whoever reads it puts them into `configs`."""
    module: str = ""
    """The name by which the file is imported where it is installed; empty: it is executed."""
    decorated: Any = field(default=None, compare=False)
    """The function itself, where this process has it; None: a process of its own loads the file."""


def read_call(path: Path, target: str | None = None, changed: Mapping[str, int] | None = None) -> TritonCall:
    """The call that a TOML file describes.

    Args:
        target: `kernels.py:matmul`, the file with the function and its name, or `package.kernels:matmul`; None: the
            file says it.
        changed: values of integer arguments that replace those of the file.

    Raises:
        UsageError: the file cannot be read or is not such a description.
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
        raise UsageError(f"{path.name}: [arguments] is missing: the value of each parameter, a = {{ dtype, shape }}")
    configs_file, configs = (path.parent / configs, None) if isinstance(configs, str) else (None, configs)
    if configs is not None and not (isinstance(configs, list) and all(isinstance(c, dict) and c for c in configs)):
        raise UsageError(f"{path.name}: configs: expected [[configs]] tables such as BLOCK_M = 128, or a file")
    if grid is None and configs and all("grid" in config for config in configs):
        grid = []
    if not isinstance(grid, str | list):
        raise UsageError(f'{path.name}: grid is missing: a function of the file, or ["ceil_div(M, BLOCK_M)"]')
    spelling = {name.lower(): name for name, value in arguments.items() if type(value) is int}
    for name, value in (changed or {}).items():
        if name.lower() not in spelling:
            raise unknown("integer argument", name, spelling.values())
        arguments[spelling[name.lower()]] = value
    for value in arguments.values():  # files of values are beside the call
        if isinstance(value, dict) and str(value.get("values", "")).endswith(".npy"):
            value["values"] = str((path.parent / _filled(value["values"], arguments)).resolve())
    return TritonCall(
        source,
        function,
        arguments,
        grid,
        configs,
        data.get("flops"),
        path.name,
        configs_file=configs_file,
        module=module,
    )


def function_place(target: str, folder: Path = Path()) -> tuple[Path, str, str]:
    """(file, module or empty, name) of a function.

    Args:
        target: `kernels.py:matmul`, or `package.kernels:matmul` of what is installed, which is not imported here.
        folder: that a file is beside.

    Raises:
        UsageError: it is neither, or the module is not installed.
    """
    source, separator, function = target.rpartition(":")
    if separator and function.isidentifier():
        if source.endswith(".py"):
            return folder / source, "", function
        if _MODULE.fullmatch(source):
            return _file_of(source), source, function
    raise UsageError(f"{target!r:.80}: a Triton function is given as kernels.py:matmul or package.kernels:matmul")


def _file_of(module: str) -> Path:
    """The file of a module, found without importing its package: that may take seconds, and a GPU."""
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
    """The elements from the first to the last of a tensor, at least one."""
    if 0 in shape:
        return 1
    strides = strides if strides is not None else row_major(shape)
    return 1 + sum((extent - 1) * max(stride, 0) for extent, stride in zip(shape, strides, strict=True))


def row_major(shape: Sequence[int]) -> list[int]:
    """The strides of a tensor without gaps."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * max(shape[axis + 1], 1)
    return strides


def _filled(name: str, arguments: Mapping[str, Any]) -> str:
    """A file's name with the values of integer arguments in the place of `{their names}`."""
    numbers = integers(arguments)

    def value_of(place: re.Match[str]) -> str:
        if place[1].lower() not in numbers:
            raise unknown(f"integer argument in {name!r:.60}:", place[1], numbers)
        return str(numbers[place[1].lower()])

    return re.sub(r"\{(\w+)\}", value_of, name)


def integers(arguments: Mapping[str, Any]) -> dict[str, int]:
    """The integer arguments by their names in lower case."""
    return {name.lower(): value for name, value in arguments.items() if type(value) is int}
