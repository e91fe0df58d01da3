"""Static profiles of every variant of a kernel, over several architectures, in parallel.

Variants are compiled for each architecture (registers differ), but emulated once per distinct PTX. What is known
already is left out, so an interrupted run goes on where it stopped.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace

from kernrec.compile.compiled import Compiled, CompileError, CompileJob
from kernrec.compile.pool import Processors, ProcessorsLostError, processors_of
from kernrec.errors import KernrecError
from kernrec.gpu import limits
from kernrec.kernel import Config, Kernel, Space
from kernrec.op import Problem
from kernrec.profile.kernel_code import CodeKey, code_key, compile_job_for
from kernrec.profile.probe_profile import LaunchProfile, Variant, profile_architectures
from kernrec.store import ProfileRow

_Profiles = list[list[tuple[int, LaunchProfile]]]  # of several variants: (architecture, profile)
_MOST_WAITING = 4  # variants to be emulated, per process: bounds memory while compilation runs ahead


@dataclass(frozen=True)
class VariantFailure:
    """A variant that has no profile on one architecture, and why."""

    kernel: str
    """Name of the kernel."""

    fixed: Mapping[str, int | str]
    """`Variant.fixed`."""

    sm: int
    """The architecture."""

    message: str
    """Why."""


def variants_of(kernel: Kernel, sms: Sequence[int]) -> list[Variant]:
    """Every variant of a kernel over all its dtypes and layouts, with the architectures on which it can run."""
    configs_of: dict[str, dict[int, Sequence[Config]]] = {}
    variants: list[Variant] = []
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
                        tunables = {t.name: configs[0][t.name] for t in kernel.tunables if not t.launch}
                        fixed: dict[str, int | str] = {**tunables, "dtype": dtype, "layout": layout}
                        configs_of[key] = {}
                        variants.append(Variant(key, dtype, layout, fixed, configs_of[key]))
                    configs_of[key][sm] = configs
    return variants


def profile_variants(
    kernel: Kernel,
    variants: Sequence[Variant],
    known: Collection[tuple[str, int]] = (),
    processors: Processors | int = 2,
    timeout_s: float = 120.0,
) -> Iterator[list[ProfileRow] | VariantFailure]:
    """Profiles of `variants` as rows to store, a list for each variant, in order of completion; failures as they occur.

    A variant that fails costs only itself and those that compile to the same code.

    Args:
        kernel: the kernel.
        variants: from `variants_of`.
        known: (variant key, architecture) that need no work.
        processors: to compile and to emulate with; a number: so many processes of this machine.
        timeout_s: limit for one compilation.
    """
    work = {variant.key: [sm for sm in variant.configs if (variant.key, sm) not in known] for variant in variants}
    alike: dict[CodeKey, list[Variant]] = {}
    for variant in variants:
        sm, configs = next(iter(variant.configs.items()))
        alike.setdefault(code_key(kernel, configs[0], _any_problem(kernel, variant), sm), []).append(variant)
    wanted = {macros: sorted({sm for v in group for sm in work[v.key]}) for macros, group in alike.items()}
    by_job: dict[CompileJob, CodeKey] = {}

    def jobs() -> Iterator[CompileJob]:
        for macros, sms in wanted.items():
            variant = alike[macros][0]
            for sm in sms:
                configs = next(iter(variant.configs.values()))
                job = compile_job_for(kernel, configs[0], _any_problem(kernel, variant), sm)
                by_job[job] = macros
                yield job

    compiled: dict[CodeKey, dict[int, Compiled]] = {}
    missing = {macros: len(sms) for macros, sms in wanted.items()}
    waiting: dict[Future[_Profiles], list[Variant]] = {}
    with processors_of(processors) as opened:
        for job, result in opened.compile(jobs(), timeout_s):
            macros = by_job.pop(job)
            if isinstance(result, CompileError):
                for variant in alike[macros]:
                    if job.sm in work[variant.key]:
                        yield VariantFailure(kernel.name, variant.fixed, job.sm, str(result))
            else:
                compiled.setdefault(macros, {})[job.sm] = result
            missing[macros] -= 1
            if missing[macros] == 0 and macros in compiled:
                group = alike[macros]
                to_do = [replace(v, configs={sm: v.configs[sm] for sm in work[v.key]}) for v in group]
                waiting[opened.submit(profile_architectures, kernel, to_do, compiled.pop(macros))] = group
            while len(waiting) >= _MOST_WAITING * opened.count:
                yield from _collect(kernel, waiting)
        while waiting:
            yield from _collect(kernel, waiting)


def _any_problem(kernel: Kernel, variant: Variant) -> Problem:
    """A problem of a variant's dtype and layout: code does not depend on its dimensions."""
    op = kernel.definition
    least = {dim.name: max(dim.minimum, 1) if dim.default is None else dim.minimum for dim in op.dims}
    return op.problem(variant.dtype, variant.layout, **least)


def _collect(
    kernel: Kernel, waiting: dict[Future[_Profiles], list[Variant]]
) -> Iterator[list[ProfileRow] | VariantFailure]:
    """The results of the tasks that are done; waits for one at least."""
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
