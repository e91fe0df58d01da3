"""Check by registers and shared memory whether recorded rows belong to a kernel's source.

A few recorded configs are compiled for the recorded GPU. Shared memory does not depend on the compiler and must agree.
Register counts differ between compilers, in some configs by a lot, so their median difference decides. In a recording
of the benchmark convolution, register counts were equal in 4 of 7 configs, and differed by 3 %, 200 % and 290 % in 3.
"""

import statistics
from collections.abc import Sequence

from kernrec.compile.compiled import Compiled, NoCompilerError
from kernrec.compile.pool import compile_many
from kernrec.gpu import GPU
from kernrec.interop.results import ForeignResult
from kernrec.kernel import Kernel, bind_launches
from kernrec.op import Problem
from kernrec.profile.kernel_code import compile_job_for
from kernrec.profile.launch_profile import entry_name
from kernrec.util.human import config_text

SAMPLE = 6
"""Number of configs to compile."""
_REGISTERS = 0.25
"""Median relative difference of registers beyond which the source counts as different."""


def other_code(results: Sequence[ForeignResult], kernel: Kernel, problem: Problem, gpu: GPU) -> tuple[str | None, str]:
    """Return (reason why the recorded code differs from the kernel's or None, note or empty).

    Args:
        results: results of the kernel's configs.
        kernel: the kernel with its source.
        problem: the measured problem.
        gpu: the measured GPU.
    """
    stated = [r for r in results if r.registers is not None or r.smem_bytes is not None]
    if not stated:
        return None, ""
    chosen = stated[:: max(len(stated) // SAMPLE, 1)][:SAMPLE]
    jobs = {compile_job_for(kernel, _config(kernel, r), problem, gpu.sm): r for r in chosen}
    differences: list[float] = []
    compared = 0
    try:
        for job, compiled in compile_many(iter(jobs), 1):
            if not isinstance(compiled, Compiled):
                continue
            result, compared = jobs[job], compared + 1
            config = _config(kernel, result)
            launch = bind_launches(kernel, config, problem, gpu.sm)[0]
            used = compiled.resources[entry_name(compiled.resources, launch.entry)]
            shared = used.static_smem_bytes + launch.shared_bytes
            reserved = gpu.limits.smem_reserved_per_block  # Some tools include dynamic shared memory.
            if result.smem_bytes is not None and result.smem_bytes not in (shared, shared + reserved):
                return (
                    f"{config_text(config)} was recorded with {result.smem_bytes} bytes of shared memory, but "
                    f"{kernel.source_name} uses {shared}: it is not the measured source"
                ), ""
            if result.registers:
                differences.append(abs(used.registers - result.registers) / result.registers)
    except NoCompilerError as error:
        return None, f"registers and shared memory were not compared: {error}"
    if differences and (middle := statistics.median(differences)) > _REGISTERS:
        return (
            f"registers differ by {middle:.0%} in the median of {len(differences)} configs from those that"
            f" {kernel.source_name} needs on {gpu.arch}: it is not the measured source"
        ), ""
    return None, f"registers and shared memory of {compared} recorded configs agree with {kernel.source_name}"


def _config(kernel: Kernel, result: ForeignResult) -> dict[str, int]:
    return {tunable.name: int(result.config[tunable.name]) for tunable in kernel.tunables}
