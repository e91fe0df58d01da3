"""Derive launches for `kernrec check` from the host code of a CUDA program."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from kernrec.checking.check_launch import LaunchLimits
from kernrec.checking.findings import Describer
from kernrec.compile.compiled import Compiled, CompileError, CompileJob
from kernrec.compile.pool import compile_many
from kernrec.errors import UsageError
from kernrec.gpu import GPU
from kernrec.interop.draft import Draft
from kernrec.interop.spec_draft import draft_spec
from kernrec.interop.spec_text import LaunchWords
from kernrec.kernel import Kernel, bind_launches
from kernrec.kernel.source_files import line_origins
from kernrec.op import Problem
from kernrec.profile.code_facts import variable_contents
from kernrec.profile.emulated_launch import kernel_launch
from kernrec.profile.kernel_code import compile_job_for
from kernrec.profile.launch_profile import entry_name
from kernrec.profile.ptx_kernel import LINE_INFO
from kernrec.profile.tensor_values import ELEMENTS, Tensors
from kernrec.ptx import KernelLaunch, Module, parse
from kernrec.ptx.ir.inline import inlined
from kernrec.util.light_dataclass import dataclass

_COMPILE_LIMIT_S = 120.0


@dataclass(frozen=True)
class ProgramLaunch:
    """Launch that is ready to be checked."""

    module: Module
    launch: KernelLaunch
    describer: Describer
    limits: LaunchLimits
    assumed: tuple[str, ...]
    unset: str
    """Note on variables that nothing set; empty if there are none."""
    kernel: Kernel
    config: dict[str, int]
    has_f64: bool
    """Whether a parameter is f64."""


def program_launch(path: Path, words: LaunchWords, gpu: GPU, seconds: float, budget: int) -> ProgramLaunch:
    """Return the launch of one kernel of a CUDA file.

    Args:
        path: The file.
        words: The kernel, and the user's specification of its launch.
        gpu: GPU to compile for.
        seconds: Maximum run time of the launch.
        budget: Maximum number of PTX instructions of a batch of blocks.

    Raises:
        UsageError: The file does not determine the launch of the kernel.
        CompileError: The compiler rejects the file.
    """
    draft = draft_spec(path, words, gpu.sm)
    if draft.missing:
        raise UsageError(f"{draft.entry} needs {'; '.join(draft.missing)}")
    kernel = draft.kernel()
    problem = kernel.definition.problem()
    config = _config(kernel, draft, problem, gpu)
    job = compile_job_for(kernel, config, problem, gpu.sm)
    compiled = compiled_with_lines(job)
    module = parse(compiled.ptx)
    (bound, *_) = bind_launches(kernel, config, problem, gpu.sm)
    entry = entry_name(module.functions, bound.entry)
    buffers = _buffers(kernel, problem, path.parent)
    constants, device = variable_contents(kernel, module, buffers)
    launch = kernel_launch(bound, {**buffers, **device}, constants, entry)
    origins = line_origins(path, words.include)
    describer = Describer(draft.entry, inlined(module, entry), compiled.ptx, origins, path.name)
    limits = LaunchLimits(seconds, budget, gpu.limits, compiled.resources.get(entry))
    types = [tensor.dtype for tensor in problem.tensors.values()] + re.findall(r'"(f64) ', draft.text)
    return ProgramLaunch(module, launch, describer, limits, draft.assumed, draft.unset, kernel, config, "f64" in types)


def compiled_with_lines(job: CompileJob) -> Compiled:
    """Compile a source with line information, in a separate process. Raises `CompileError` if the compiler rejects the
    source.
    """
    ((_, result),) = compile_many(
        [replace(job, options=(*job.options, LINE_INFO))], processes=1, timeout_s=_COMPILE_LIMIT_S
    )
    if isinstance(result, CompileError):
        raise result
    return result


def _config(kernel: Kernel, draft: Draft, problem: Problem, gpu: GPU) -> dict[str, int]:
    """Return the config with the host code's block size, or the first config if there is none."""
    block = (*(draft.launch.block if draft.launch and draft.launch.block else ()), 1, 1)[:3]
    values: list[dict[str, int]] = [{}]
    for tunable in kernel.tunables:
        values = [{**config, tunable.name: value} for config in values for value in tunable.values]
    fitting = [config for config in values if not kernel.misfit(config, problem, gpu.limits)] or values[:1]
    for config in fitting:
        if bind_launches(kernel, config, problem, gpu.sm)[0].block == block:
            return config
    return fitting[0]


def _buffers(kernel: Kernel, problem: Problem, folder: Path) -> dict[str, np.ndarray]:
    """Return buffers with random floating-point numbers, valid indices, and zeros for other integers."""
    buffers = Tensors(kernel, problem, folder).filled
    for name, tensor in problem.tensors.items():
        sample = kernel.initial_values.get(name)
        if tensor.dtype[0] in "iu" and (sample is None or sample.kind == "normal"):
            buffers[name] = np.zeros(tensor.elements, ELEMENTS[tensor.dtype])
    return buffers


def entries_of(path: Path, include: Sequence[str]) -> list[str]:
    """Return the kernels of a CUDA file; each instance of a template is a kernel."""
    from kernrec.interop.draft import kernel_names
    from kernrec.kernel.source_files import whole_source

    return kernel_names(whole_source(path, include))
