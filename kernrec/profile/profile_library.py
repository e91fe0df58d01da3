"""Compute static profiles of every variant of a kernel for several architectures in parallel.

Variants are compiled for each architecture, because registers differ, but each distinct PTX is emulated only once.
Stored profiles are skipped, so an interrupted run continues where it stopped.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace

from kernrec.compile.compiled import Compiled, CompileError, CompileJob
from kernrec.compile.pool import Processors, ProcessorsLostError, processors_of
from kernrec.errors import KernrecError
from kernrec.gpu import limits
from kernrec.kernel import Config, Kernel, Space
from kernrec.profile.kernel_code import CodeKey, code_key, compile_job_for
from kernrec.profile.launch_profile import LaunchProfile
from kernrec.profile.probe_profile import Variant, profile_architectures
from kernrec.store import ProfileRow
from kernrec.util.light_dataclass import dataclass

_Profiles = list[list[tuple[int, LaunchProfile]]]  # (architecture, profile) pairs of several variants
_MOST_WAITING = 4  # This limits the variants waiting per process, and so memory.


@dataclass(frozen=True)
class VariantFailure:
    """Variant without a profile on one architecture."""

    kernel: str
    """Name of the kernel."""
    fixed: Mapping[str, int | str]
    """Compile-time values, as in `Variant.fixed`."""
    sm: int
    message: str


def variants_of(kernel: Kernel, sms: Sequence[int]) -> list[Variant]:
    """Return every variant of a kernel over all data types and layouts, with its architectures."""
    variants: list[Variant] = []
    configs_of: dict[str, dict[int, Sequence[Config]]] = {}
    for layout in kernel.layouts:
        for dtype in kernel.dtypes:
            for sm in sms:
                if sm < kernel.least_sm(dtype):
                    continue
                space = Space(kernel, sm, limits(sm), dtype, layout)
                by_variant: dict[int, list[Config]] = {}
                for row, index in enumerate(space.variants.index.tolist()):
                    by_variant.setdefault(index, []).append(space.config(row))
                for index, configs in by_variant.items():
                    key = space.variants.keys[index]
                    if key not in configs_of:
                        tunables = {name: configs[0][name] for name in kernel.compile_time_tunables}
                        fixed: dict[str, int | str] = {**tunables, "dtype": dtype, "layout": layout}
                        configs_of[key] = {}
                        variants.append(Variant(key, dtype, layout, fixed, configs_of[key]))
                    configs_of[key][sm] = configs
    return variants


def profile_variants(
    kernel: Kernel,
    variants: Sequence[Variant],
    stored: Collection[tuple[str, int]] = (),
    processors: Processors | int = 2,
    timeout_s: float = 120.0,
) -> Iterator[list[ProfileRow] | VariantFailure]:
    """Yield the profiles of `variants` as rows, one list per variant in order of completion, and failures.

    A failing variant affects only itself and variants with the same code.

    Args:
        stored: (variant key, architecture) pairs that need no work.
        processors: processors for compiling and emulating, or a number of processes on this machine.
        timeout_s: time limit of one compilation in seconds.
    """
    codes: dict[CodeKey, list[Variant]] = {}
    for variant in variants:
        left = {sm: configs for sm, configs in variant.configs.items() if (variant.key, sm) not in stored}
        if left:
            code = code_key(_job(kernel, variant, next(iter(left))))
            codes.setdefault(code, []).append(replace(variant, configs=left))
    sms = {code: sorted({sm for variant in group for sm in variant.configs}) for code, group in codes.items()}
    code_of: dict[CompileJob, CodeKey] = {}

    def jobs() -> Iterator[CompileJob]:
        for code, group in codes.items():
            for sm in sms[code]:
                job = _job(kernel, group[0], sm)
                code_of[job] = code
                yield job

    compiled: dict[CodeKey, dict[int, Compiled]] = {code: {} for code in codes}
    missing = {code: len(sms[code]) for code in codes}
    waiting: dict[Future[_Profiles], list[Variant]] = {}
    with processors_of(processors) as opened:
        for job, result in opened.compile(jobs(), timeout_s):
            code = code_of.pop(job)
            group = codes[code]
            if isinstance(result, CompileError):
                refused = [variant for variant in group if job.sm in variant.configs]
                yield from (VariantFailure(kernel.name, v.fixed, job.sm, str(result)) for v in refused)
            else:
                compiled[code][job.sm] = result
            missing[code] -= 1
            if not missing[code] and compiled[code]:
                waiting[opened.submit(profile_architectures, kernel, group, compiled.pop(code))] = group
            while len(waiting) >= _MOST_WAITING * opened.count:
                yield from _collect(kernel, waiting)
        while waiting:
            yield from _collect(kernel, waiting)


def _job(kernel: Kernel, variant: Variant, sm: int) -> CompileJob:
    """Return the compilation job of a variant, whose code does not depend on the problem's dimensions."""
    config = next(iter(variant.configs.values()))[0]
    dims = kernel.definition.dims
    least = {dim.name: max(dim.minimum, 1) if dim.default is None else dim.minimum for dim in dims}
    return compile_job_for(kernel, config, kernel.definition.problem(variant.dtype, variant.layout, **least), sm)


def _collect(
    kernel: Kernel, waiting: dict[Future[_Profiles], list[Variant]]
) -> Iterator[list[ProfileRow] | VariantFailure]:
    """Yield the results of finished tasks; wait for at least one."""
    for future in wait(waiting, return_when=FIRST_COMPLETED).done:
        group = waiting.pop(future)
        try:
            for variant, profiles in zip(group, future.result(), strict=True):
                yield [profile.row(kernel, sm, variant.key, variant.fixed) for sm, profile in profiles]
        except ProcessorsLostError:
            raise
        except KernrecError as error:
            for variant in group:
                yield VariantFailure(kernel.name, variant.fixed, min(variant.configs), str(error))
