"""Static profiles of every code of a kernel, over several architectures, in parallel.

Codes are compiled for each architecture (registers differ), but emulated once per distinct PTX. What is known already
is left out, so a run that was interrupted goes on where it stopped.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass

from kernrec.compile.compiled import Compiled, CompileError, CompileJob
from kernrec.compile.pool import compile_many, processes_for, submit
from kernrec.errors import KernrecError
from kernrec.gpu import limits
from kernrec.kernel import Config, Kernel, Space
from kernrec.profile.probe_profile import LaunchProfile, profile_architectures
from kernrec.store import ProfileRow

Found = list[tuple[int, LaunchProfile]]

_AHEAD = 4  # codes waiting to be emulated, per process: keeps memory bounded while compilation runs ahead


@dataclass(frozen=True)
class VariantFailure:
    """A code that has no profile on one architecture, and why."""

    kernel: str
    fixed: Mapping[str, int | str]
    sm: int
    message: str


@dataclass(frozen=True)
class Variant:
    """One code of a kernel: what is fixed at compile time, and configs that run it, by architecture.

    configs: differ in launch-time tunables only; enough of them to probe every launch.
    """

    key: str
    dtype: str
    layout: str
    fixed: Mapping[str, int | str]
    configs: Mapping[int, Sequence[Config]]


def variants_of(kernel: Kernel, sms: Sequence[int]) -> list[Variant]:
    """Every code of a kernel over all its dtypes and layouts, with the architectures on which it can run."""
    found: dict[str, Variant] = {}
    for layout in kernel.layouts:
        for dtype in kernel.dtypes:
            for sm in sms:
                if sm < kernel.least_sm(dtype):
                    continue
                space = Space(kernel, sm, limits(sm), dtype, layout)
                members: dict[int, list[Config]] = {}
                for row, code in enumerate(space.variants.index.tolist()):
                    members.setdefault(code, []).append(space.config(row))
                for code, configs in members.items():
                    key = space.variants.keys[code]
                    if key not in found:
                        fixed = {t.name: configs[0][t.name] for t in kernel.tunables if not t.launch}
                        found[key] = Variant(key, dtype, layout, fixed | {"dtype": dtype, "layout": layout}, {})
                    found[key].configs[sm] = configs  # type: ignore[index]
    return list(found.values())


def profile_variants(
    kernel: Kernel,
    codes: Sequence[Variant],
    known: Collection[tuple[str, int]] = (),
    processes: int = 2,
) -> Iterator[list[ProfileRow] | VariantFailure]:
    """Profiles of `codes` as rows to store, a list a code, in order of completion; failures as they happen.

    known: (code key, sm) that need no work. A code that fails costs only itself and those that compile alike.
    """
    work = {code.key: [sm for sm in code.configs if (code.key, sm) not in known] for code in codes}
    # Layouts that the source does not ask for are one code to the compiler.
    unseen = () if "LAYOUT_" in kernel.source else tuple(f"LAYOUT_{layout.upper()}" for layout in kernel.layouts)
    alike: dict[tuple[tuple[str, str], ...], list[Variant]] = {}
    for code in codes:
        defines = kernel.defines(next(iter(code.configs.values()))[0], code.dtype, code.layout)
        alike.setdefault(tuple(item for item in defines.items() if item[0] not in unseen), []).append(code)
    wanted = {seen: sorted({sm for code in group for sm in work[code.key]}) for seen, group in alike.items()}
    by_job: dict[CompileJob, tuple[tuple[str, str], ...]] = {}

    def jobs() -> Iterator[CompileJob]:
        for seen, sms in wanted.items():
            for sm in sms:
                job = CompileJob(kernel.source, sm, dict(seen), kernel.source_name)
                by_job[job] = seen
                yield job

    compiled: dict[tuple[tuple[str, str], ...], dict[int, Compiled]] = {}
    missing = {seen: len(sms) for seen, sms in wanted.items()}
    waiting: dict[Future[list[Found]], list[Variant]] = {}
    with processes_for(processes) as pool:
        for job, result in compile_many(jobs(), processes):
            seen = by_job.pop(job)
            if isinstance(result, CompileError):
                for code in alike[seen]:
                    if job.sm in work[code.key]:
                        yield VariantFailure(kernel.name, code.fixed, job.sm, str(result))
            else:
                compiled.setdefault(seen, {})[job.sm] = result
            missing[seen] -= 1
            if missing[seen] == 0 and seen in compiled:
                group = alike[seen]
                members = [({sm: c.configs[sm] for sm in work[c.key]}, c.dtype, c.layout) for c in group]
                waiting[submit(pool, profile_architectures, kernel, members, compiled.pop(seen))] = group
            while len(waiting) >= _AHEAD * processes:
                yield from _collect(kernel, waiting)
        while waiting:
            yield from _collect(kernel, waiting)


def _collect(
    kernel: Kernel, waiting: dict[Future[list[Found]], list[Variant]]
) -> Iterator[list[ProfileRow] | VariantFailure]:
    for future in wait(waiting, return_when=FIRST_COMPLETED).done:
        group = waiting.pop(future)
        try:
            for code, found in zip(group, future.result(), strict=True):
                yield [profile.row(kernel, sm, code.key, code.fixed) for sm, profile in found]
        except KernrecError as error:
            for code in group:
                yield VariantFailure(kernel.name, code.fixed, min(code.configs), str(error))
