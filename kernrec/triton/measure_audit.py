"""Measure launches of Triton functions on this machine's GPU with Triton's benchmark, and store them in the database.

To measure a captured launch (`TritonCall`), this process imports the file of the Triton function.
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernrec.compile.triton_load import jit_function, module_of, python_value
from kernrec.compile.triton_version import triton_compiler
from kernrec.errors import KernrecError
from kernrec.kernel import Config, Kernel
from kernrec.kernel.expression import parse
from kernrec.kernel.triton_function import OPTIONS
from kernrec.model.analytical.spread import Source
from kernrec.profile.tensor_values import load_npy
from kernrec.profile.triton_call import kernel_of_triton
from kernrec.profile.triton_call_file import TritonCall, integers
from kernrec.recommender.serving.audit import ServingAudit
from kernrec.recommender.serving.compared import Comparison, Verdict
from kernrec.recommender.serving.engine_calls import Step, calls
from kernrec.recommender.serving.engine_defaults import Tiles, launched, stated_tiles
from kernrec.recommender.serving.engines import TunedFile
from kernrec.triton.machine import Machine
from kernrec.triton.records import Result, Trial, keep
from kernrec.triton.tuner import compile_error

Tensors = Callable[[Mapping[str, Any]], Any]
"""Function that creates a tensor on the GPU from a description: `{"dtype", "shape"}` or `{"values"}`."""
Benchmark = Callable[[Callable[[], object]], float]
"""Function that returns the median time of a launch in milliseconds."""
_TORCH = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "f8e4m3": "float8_e4m3fn", "i8": "int8"}


def measure_call(
    call: TritonCall,
    kernel: Kernel,
    configs: Sequence[Mapping[str, Any]],
    machine: Machine,
    tensors: Tensors | None = None,
    benchmark: Benchmark | None = None,
) -> list[tuple[Config, Result]]:
    """Measure some configs of a Triton launch, and store the results in the user's database, including failures.

    Args:
        call: The launch. Its grid must be a list of extents.
        kernel: Kernel that `kernel_of_triton` returns for this call. The database stores its name and hash.
        configs: Configs to measure: `tl.constexpr` constants and compiler options, named as in the call.
        machine: GPU of this process.
        tensors: Function that creates tensors. The default is `torch_tensor`.
        benchmark: Function that times a launch. The default is `triton.testing.do_bench`, which clears the L2 cache
            before each launch.

    Raises:
        KernrecError: torch is not installed, or a tensor of the call has a data type that cannot be measured.
        UsageError: The database cannot be written.
    """
    make, time_ms = tensors or torch_tensor, benchmark or _do_bench
    source = call.path.read_text(encoding="utf-8")
    function = jit_function(module_of(call.module, source, call.path.name, call.path.parent), call.function)
    arguments = {name: _value(value, make) for name, value in call.arguments.items()}
    results: list[tuple[Config, Result]] = []
    for config in configs:
        options = {name: config[name] for name in OPTIONS if name in config}
        constants = {name: value for name, value in config.items() if name not in OPTIONS}
        grid = _grid(call, {**constants, **options})
        passed = {**arguments, **constants, **options}

        def launch(grid: tuple[int, ...] = grid, passed: Mapping[str, Any] = passed) -> object:
            return function[grid](**passed)

        try:
            latency_ms = time_ms(launch)
            result = Result(latency_ms * 1e-3) if math.isfinite(latency_ms) else Result(error="it could not be timed")
        except Exception as error:
            result = _failed(error)
        names = {tunable.macro: tunable.name for tunable in kernel.tunables}
        results.append(({names[name]: int(value) for name, value in config.items() if name in names}, result))
    identity = hashlib.sha256(f"{kernel.hash} {triton_compiler()}".encode()).hexdigest()[:16]
    keep(Trial(kernel, identity, len(configs), results), machine, triton_compiler())
    return results


def _failed(error: Exception) -> Result:
    if (message := compile_error(error)) is not None:
        return Result(error=message, compiled=False)
    if type(error).__name__ == "OutOfResources":
        return Result(error=str(error)[:200])
    raise error


def _value(value: Any, make: Tensors) -> Any:
    if isinstance(value, list):
        return tuple(_value(item, make) for item in value)
    if not isinstance(value, Mapping):
        return value
    if value.keys() == {"python"}:
        return python_value(value["python"])
    return make(value)


def _grid(call: TritonCall, constants: Mapping[str, Any]) -> tuple[int, ...]:
    numbers = integers({**call.arguments, **constants})
    return tuple(int(parse(str(extent).lower()).evaluate(numbers)) for extent in call.grid)  # type: ignore[union-attr]


def torch_tensor(described: Mapping[str, Any]) -> Any:
    """Return a torch tensor on torch's current GPU.

    Args:
        described: `{"values": FILE}` with the .npy file of the values, or `{"dtype": ..., "shape": ...}` for random
            numbers: normally distributed floats, or uniformly distributed 8-bit integers.

    Raises:
        KernrecError: torch is not installed, or the data type is not supported.
    """
    try:
        import torch
    except ImportError:
        raise KernrecError(
            "measuring an engine's kernels needs torch: install the engine, which depends on it"
        ) from None
    if "values" in described:
        return torch.as_tensor(np.asarray(load_npy(Path(described["values"])))).cuda()
    if described["dtype"] not in _TORCH:
        raise KernrecError(f"a tensor of {described['dtype']} cannot be measured; {', '.join(_TORCH)} can")
    dtype = getattr(torch, _TORCH[described["dtype"]])
    shape = tuple(described["shape"])
    if dtype == torch.int8:
        return torch.randint(-127, 127, shape, dtype=dtype, device="cuda")
    # Fill one expert's weights at a time: drawing float16 numbers for all experts would take too much memory.
    if dtype.itemsize == 1:
        tensor = torch.empty(shape, dtype=dtype, device="cuda")
        for place in range(shape[0]):
            tensor[place] = torch.randn(shape[1:], dtype=torch.float16, device="cuda").to(dtype)
        return tensor
    return torch.randn(shape, dtype=dtype, device="cuda")


def _do_bench(launch: Callable[[], object]) -> float:
    import triton.testing

    return float(triton.testing.do_bench(launch, return_mode="median"))


TOP = 3
"""Number of configs to measure in addition to the serving engine's default config."""


def measure_audit(
    audit: ServingAudit,
    machine: Machine,
    progress: Callable[[str], None] | None = None,
    tensors: Tensors | None = None,
    benchmark: Benchmark | None = None,
) -> int:
    """Measure configs that may be faster than a serving engine's default configs, and store the results.

    Measure nothing for a number of tokens if its best config was already measured. Later audits use the results.

    Args:
        audit: Comparison of the engine's default configs with better configs, for each of the engine's tuned files.
        machine: GPU of this process. It must be the GPU of the audit.
        progress: Function to call with a one-line message before measuring for each number of tokens.
        tensors: As in `measure_call`.
        benchmark: As in `measure_call`.

    Raises:
        KernrecError: torch is not installed.
    """
    count = 0
    for audited in audit.files:
        for made in audited.comparisons:
            if made.verdict is Verdict.LEAVE or made.best_cost.source == Source.MEASURED:
                continue
            if progress is not None:
                progress(f"{audited.file.name}: {made.tokens} tokens measured")
            count += _measure(audit, audited.file, made, machine, tensors, benchmark)
    return count


def _measure(
    audit: ServingAudit,
    file: TunedFile,
    made: Comparison,
    machine: Machine,
    tensors: Tensors | None,
    benchmark: Benchmark | None,
) -> int:
    engine, count = audit.served.engine, 0
    launches = [launched(engine, file, config) for config in (*(c for c, _ in made.ranked[:TOP]), made.own)]
    for product in range(file.launches):
        step = Step(file, audit.served, made.tokens, product)
        wanted = [_tiles(stated_tiles(tiles, step.rows)) for tiles in launches]
        # Pass all compared configs, because measurements are stored for a kernel with exactly these configs.
        for call, _ in calls(step, made.compared):
            chosen = [config for config in call.configs or () if _tiles(config) in wanted]
            if chosen:
                kernel, _ = kernel_of_triton(call)
                count += len(measure_call(call, kernel, chosen, machine, tensors, benchmark))
    return count


def _tiles(config: Tiles) -> tuple[int, ...]:
    names = [*(f"BLOCK_SIZE_{axis}" for axis in "MNK"), "GROUP_SIZE_M", "num_warps", "num_stages"]
    return tuple(config.get(name, 0) for name in names)
