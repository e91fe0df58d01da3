"""Describe a Triton function before compiling it: its parameters, configs and grids, and the cache key of its code.

A process with limits on time and memory executes the user's file. kernrec caches the result until the user changes the
file or an imported file in the same folder.
"""

import hashlib
import json
import math
import sys
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from kernrec import paths
from kernrec.compile.triton_process import answer_of, answer_request
from kernrec.compile.triton_version import triton_compiler
from kernrec.errors import UsageError
from kernrec.kernel.triton_function import OPTIONS
from kernrec.util.files import write_whole

_LIMIT_S = 60.0
# Seconds for loading an installed module, which may import torch and a serving engine.
_PACKAGE_LIMIT_S = 240.0

Description = dict[str, Any]
"""Description of a Triton function as a table.

The keys are `parameters`, `configs` (with `constants`, `options` and `grid`), `key` (cache key of the code) and `files`
(digests of the files that affect the description).
"""


def described(request: Mapping[str, Any], limit_s: float | None = None) -> Description:
    """Return the description of a Triton function, including the grid of each config for the given arguments.

    Args:
        request: table with these keys:
            source, name, folder: text, name and folder of the file.
            module: installed module of the function, or an empty string for a file.
            function: name of the function.
            arguments: number, text, or table with `dtype` and `shape` for each parameter.
            configs: tables, with or without a `grid`, or None for the autotuner's configs.
            grid: name of the file's grid function, or None.
        limit_s: time limit in seconds. The default is 60 for a file and 240 for an installed module.

    Raises:
        UsageError: the file or the function is invalid.
        NoCompilerError: Triton is not installed.
    """
    text = json.dumps(request)
    key = hashlib.sha256(f"{triton_compiler()} {text}".encode()).hexdigest()
    path = paths.cache() / "triton" / f"{key}.json"
    with suppress(OSError, ValueError, KeyError, TypeError):
        cached: Description = json.loads(path.read_text(encoding="utf-8"))
        if all(_digest(Path(file)) == digest for file, digest in cached["files"].items()):
            return cached
    limit_s = limit_s or (_PACKAGE_LIMIT_S if request["module"] else _LIMIT_S)
    answer: Description = answer_of("kernrec.compile.triton_describe", text, request["name"], limit_s=limit_s)
    if "refused" in answer:
        raise UsageError(answer["refused"])
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(answer).encode())
    return answer


def describe(function: Any, grid: Callable[..., Any] | None, request: Mapping[str, Any]) -> Description:
    """Return the description of a function in this process.

    Args:
        function: function with `@triton.jit`, possibly autotuned.
        grid: function from a dictionary of arguments and constants to a grid, or None to compute no grids.
        request: `arguments` and `configs`, as in `described`.
    """
    layers = layers_of(function)
    jit = layers[-1]
    parameters = [
        {
            "name": parameter.name,
            "constant": parameter.is_constexpr,
            "default": parameter.has_default,
            "value": parameter.default if parameter.has_default else None,
            "type": parameter.annotation_type.removeprefix("*"),
            "pointer": parameter.annotation_type.startswith("*"),
            "specialized": not parameter.do_not_specialize,
            "aligned": not parameter.do_not_specialize_on_alignment,
        }
        for parameter in jit.params
    ]
    arguments = {name: _argument(value) for name, value in request["arguments"].items()}
    configs = []
    for constants, options, extents in _chosen_configs(request.get("configs"), layers):
        # If a compiler option and a parameter have the same name, a launch's keyword argument sets both.
        for p in parameters:
            name, default = p["name"], p["value"]
            if name in OPTIONS and name not in arguments and (name in options or type(default) is int):
                constants[name] = options[name] = options.get(name, default)
        names = {**arguments, **constants}
        for layer in layers:
            # `triton.heuristics` computes constants from the arguments.
            for name, value in getattr(layer, "values", {}).items():
                # A captured launch may already have a value for the constant `name`.
                if name not in arguments and name not in constants:
                    names[name] = constants[name] = value(names)
        unknown = constants.keys() - {parameter["name"] for parameter in parameters}
        # Do not evaluate the grid if a name is unknown: the caller rejects such a config.
        shape = list(_extents(extents)) if extents is not None else None
        if shape is None and grid and not unknown:
            shape = list(_extents(_called(grid, {**names, **options})))
        configs.append({"constants": constants, "options": options, "grid": shape})
    return {"parameters": parameters, "configs": configs, "key": jit.cache_key, "files": {}}


def layers_of(function: Any) -> list[Any]:
    """Return a decorated function and the functions that it wraps, outermost first."""
    layers = [function]
    while hasattr(layers[-1], "fn") and not hasattr(layers[-1], "params"):
        layers.append(layers[-1].fn)
    return layers


def stated_options(config: Any) -> dict[str, int]:
    """Return the compiler options of a `triton.Config`, without the default `num_ctas=1`."""
    options = {name: getattr(config, name, None) for name in OPTIONS}
    return {name: value for name, value in options.items() if value is not None and (name, value) != ("num_ctas", 1)}


def _chosen_configs(
    tables: Sequence[Mapping[str, Any]] | None, layers: Sequence[Any]
) -> list[tuple[dict[str, Any], dict[str, int], Any]]:
    """Return the constants, compiler options and grid of each config in `tables`, or else in the autotuner.

    A function without an autotuner has one config without constants and options.
    """
    if tables is not None:
        return [
            (
                {name: _argument(value) for name, value in config.items() if name not in (*OPTIONS, "grid")},
                {name: value for name, value in config.items() if name in OPTIONS},
                config.get("grid"),
            )
            for config in tables
        ]
    autotuner = next((layer for layer in layers if hasattr(layer, "configs")), None)
    if autotuner is None:
        return [({}, {}, None)]
    return [(dict(config.kwargs), stated_options(config), None) for config in autotuner.configs]


def _called(grid: Callable[..., Any], names: Mapping[str, Any]) -> Any:
    try:
        return grid(names)
    except KeyError as error:
        raise UsageError(f"the grid uses {error}, which is neither an argument nor in the config") from None


def _extents(grid: Any) -> tuple[int, ...]:
    extents = tuple(int(extent) for extent in (grid if isinstance(grid, Sequence) else (grid,)))
    if not 1 <= len(extents) <= 3 or any(extent < 1 for extent in extents):
        raise UsageError(f"the grid is {grid!r:.60}; expected 1 to 3 extents of at least 1")
    return (*extents, 1, 1)[:3]


class _TensorArgument:
    """Tensor without data. A grid function or heuristic may read its shape, type and address."""

    def __init__(self, dtype: str, shape: Sequence[int], strides: Sequence[int] | None = None) -> None:
        self.dtype, self.shape = dtype, tuple(shape)
        self.ndim = len(self.shape)
        self._strides = None if strides is None else tuple(strides)

    def numel(self) -> int:
        return math.prod(self.shape)

    def size(self, axis: int | None = None) -> Any:
        return self.shape if axis is None else self.shape[axis]

    def stride(self, axis: int | None = None) -> Any:
        if (strides := self._strides) is None:
            row_major = [1]
            for extent in reversed(self.shape[1:]):
                row_major.insert(0, row_major[0] * extent)
            strides = tuple(row_major)
        return strides if axis is None else strides[axis]

    def data_ptr(self) -> int:
        return 1 << 30


def _argument(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_argument, value))
    if not isinstance(value, Mapping):
        return value
    if "fields" in value:
        return namedtuple("Arguments", value["fields"])(*map(_argument, value["items"]))
    if "python" in value:
        from kernrec.compile.triton_load import python_value

        return python_value(value["python"])
    return _TensorArgument(value["dtype"], value["shape"], value.get("strides"))


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _imported(folder: Path) -> dict[str, str]:
    """Return the digests of the files that were imported from a folder."""
    files = {}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file and Path(file).is_file() and folder in Path(file).resolve().parents:
            files[file] = _digest(Path(file))
    return files


def _answer(request: Mapping[str, Any]) -> Description:
    from kernrec.compile.triton_load import jit_function, module_of

    folder = Path(request["folder"]) if request["folder"] else None
    module = module_of(request["module"], request["source"], request["name"], folder)
    jit_function(module, request["function"])
    grid = None
    if request["grid"] is not None:
        grid = getattr(module, request["grid"], None)
        if not callable(grid):
            raise UsageError(f"{request['name']}: has no function {request['grid']!r} for the grid")
    answer = describe(getattr(module, request["function"]), grid, request)
    files = _imported(folder) if folder is not None else {}
    return answer | {"files": files}


def _plain(value: Any) -> Any:
    """Convert a Triton type or function to a table that JSON can represent."""
    if hasattr(value, "params") and hasattr(value, "fn"):
        return {"python": f"{value.fn.__module__}:{value.fn.__qualname__}"}
    if type(value).__module__.startswith("triton"):
        from kernrec.compile.triton_load import type_text

        return {"python": type_text(value)}
    raise UsageError(f"the value {value!r:.60} of a config is not a number, text or one of Triton's types")


if __name__ == "__main__":
    sys.exit(answer_request(_answer, _plain))
