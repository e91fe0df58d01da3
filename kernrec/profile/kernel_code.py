"""What the compiler gets of a kernel's config: a job, the same for configs whose code cannot differ."""

import re
from functools import lru_cache
from pathlib import Path

from kernrec.compile.compiled import CompileJob, TritonTarget
from kernrec.kernel import Config, Kernel
from kernrec.kernel.triton_function import OPTIONS, signature
from kernrec.op import Problem

_MACRO = re.compile(r"[A-Za-z_]\w*")

CodeKey = tuple[tuple[str, str], ...]
"""All in which the codes of a kernel's configs differ; of equal keys the code is the same."""


@lru_cache(maxsize=16)
def unused_macros(kernel: Kernel) -> frozenset[str]:
    """The macros of tunables and layouts that the source does not mention: its code does not depend on them."""
    tunables = frozenset(tunable.macro for tunable in kernel.tunables)
    if kernel.source_name.endswith(".ptx"):
        return tunables
    words = set(_MACRO.findall(kernel.source)) | set(OPTIONS if kernel.triton else ())
    layouts = () if "LAYOUT_" in kernel.source else (f"LAYOUT_{layout.upper()}" for layout in kernel.layouts)
    return (tunables - words).union(layouts)


def used_macros(kernel: Kernel, config: Config, problem: Problem) -> dict[str, str]:
    """The macros of a config, without those of tunables that the source does not mention."""
    defines, unused = kernel.defines(config, problem.dtype, problem.layout), unused_macros(kernel)
    return {name: value for name, value in defines.items() if name not in unused}


def code_key(kernel: Kernel, config: Config, problem: Problem, sm: int) -> CodeKey:
    """What the code of a config depends on, beside the kernel's source."""
    items = used_macros(kernel, config, problem)
    if kernel.triton is not None:
        items |= {f"{name}:": kind for name, kind in signature(kernel, config, problem, sm).items()}
    return tuple(sorted(items.items()))


def compile_job_for(
    kernel: Kernel, config: Config, problem: Problem, sm: int, folder: Path | None = None
) -> CompileJob:
    """How the code of a config is compiled.

    Args:
        kernel: the kernel.
        config: the config; those that differ in macros which the source does not mention have equal jobs.
        problem: of its dtype and layout.
        sm: compute capability.
        folder: where a Triton source imports other files from.
    """
    target = None
    if kernel.triton is not None:
        types = signature(kernel, config, problem, sm)
        target = TritonTarget(kernel.launches[0].entry, types, kernel.triton.key, folder)
    return CompileJob(kernel.source, sm, used_macros(kernel, config, problem), kernel.source_name, (), target)
