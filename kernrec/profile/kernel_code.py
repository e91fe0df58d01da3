"""Create the compilation job of a config. Configs with identical code have equal jobs."""

import re
from functools import lru_cache
from pathlib import Path

from kernrec.compile.compiled import Compiled, CompileJob, TritonTarget
from kernrec.compile.triton_launcher import DESCRIPTOR
from kernrec.errors import UsageError
from kernrec.kernel import Config, Kernel
from kernrec.kernel.binding import BoundLaunch
from kernrec.kernel.spec import PointerArgument, ScalarArgument
from kernrec.kernel.triton_function import OPTIONS, SPECIALIZED, TYPES
from kernrec.op import Problem

_MACRO = re.compile(r"[A-Za-z_]\w*")

CodeKey = tuple[tuple[str, str | int], ...]
"""Key of a config's code. Configs of a kernel with equal keys have identical code."""


@lru_cache(maxsize=16)
def unused_macros(kernel: Kernel) -> frozenset[str]:
    """Return the macros that the source does not use."""
    tunables = frozenset(tunable.macro for tunable in kernel.tunables)
    if kernel.source_name.endswith(".ptx"):
        return tunables
    words = set(_MACRO.findall(kernel.source)) | set(OPTIONS if kernel.triton else ())
    layouts = () if "LAYOUT_" in kernel.source else (f"LAYOUT_{layout.upper()}" for layout in kernel.layouts)
    dtypes = () if "DTYPE_" in kernel.source else (f"DTYPE_{dtype.upper()}" for dtype in kernel.dtypes)
    return (tunables - words).union(layouts, dtypes)


def code_key(job: CompileJob) -> CodeKey:
    types = {f"{name}:": kind for name, kind in job.triton.signature.items()} if job.triton else {}
    return tuple(sorted({**job.defines, **types}.items()))


def compile_job_for(
    kernel: Kernel, config: Config, problem: Problem, sm: int, folder: Path | None = None
) -> CompileJob:
    """Return the compilation job of a config. Configs that differ only in unused macros have equal jobs."""
    unused, problem = unused_macros(kernel), kernel.form(problem)
    target = None
    if kernel.triton is not None:
        types = _signature(kernel, config, problem, sm)
        target = TritonTarget(kernel.launches[0].entry, types, kernel.triton.key, folder, kernel.triton.module)
    defines = kernel.defines(config, problem.dtype, problem.layout)
    used = {name: value for name, value in defines.items() if name not in unused}
    options, whole = tuple(kernel.spec.get("options", ())), bool(kernel.spec.get("host_code"))
    return CompileJob(kernel.source, sm, used, kernel.source_name, options, target, whole)


def dynamic_shared_bytes(kernel: Kernel, bound: BoundLaunch, compiled: Compiled) -> int:
    """Return the dynamic shared memory of a launch in bytes, as requested from the CUDA driver."""
    # Triton determines the size of all shared memory itself, and `compile_triton` reports it as static.
    return bound.shared_bytes if kernel.triton is None else compiled.resources[bound.entry].static_smem_bytes


def _signature(kernel: Kernel, config: Config, problem: Problem, sm: int) -> dict[str, str]:
    """Return Triton's type of each parameter, such as `*fp16` or `i32`. Multiples of 16 have the suffix `:16`."""
    function = kernel.triton
    assert function is not None
    names = kernel.static_names(config, problem.dtype, problem.layout, sm)
    result = {}
    for name, argument in zip(function.parameters, kernel.launches[0].arguments, strict=False):
        if isinstance(argument, PointerArgument):
            dtype = problem.tensors[argument.name].dtype
            kind = f"*{TYPES.get(dtype, dtype)}"
        elif isinstance(argument, ScalarArgument):
            kind = TYPES.get(argument.ctype, argument.ctype)
        else:
            raise UsageError(f"{kernel.name}: {name}: a Triton function takes tensors and numbers, no textures")
        kind = function.types.get(name, kind)
        if (descriptor := function.descriptors.get(name)) is not None:
            block = ", ".join(str(int(extent.evaluate(names))) for extent in descriptor.block)
            kind = f"{DESCRIPTOR}<{kind.removeprefix('*')}[{block}]>"
        divisor = int(function.divisible[name].evaluate(names)) if name in function.divisible else 0
        result[name] = f"{kind}:{SPECIALIZED if divisor == 1 else divisor}" if divisor else kind
    return result
