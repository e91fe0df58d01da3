"""Import results of other tools, such as autotuners and profilers, into a database."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from kernrec.errors import UsageError, unknown
from kernrec.gpu import GPU, find_gpu
from kernrec.gpu.find import UnknownGPU
from kernrec.interop.bind_rows import as_runs, bind_rows, by_problem, match_launches, names_of, other_code
from kernrec.interop.read_results import read_results
from kernrec.interop.results import (
    ForeignResult,
    ForeignResults,
    MappedColumn,
    ReadOptions,
    StatedProblem,
    to_measurements,
)
from kernrec.kernel import Kernel, find_kernel
from kernrec.kernel.library import kernel_names
from kernrec.op import Problem
from kernrec.store import Database
from kernrec.store.intake.plausible_times import implausible
from kernrec.util.human import counted


@dataclass(frozen=True)
class ImportedPart:
    """Summary of the imported results of one kernel and problem."""

    kernel: str
    problem: Problem
    results: int
    outcomes: Mapping[str, int]
    best_s: float | None


@dataclass(frozen=True)
class ImportSummary:
    """Summary of an imported file."""

    gpu: GPU
    parts: tuple[ImportedPart, ...]
    added: int
    """Number of measurements that were not in the database before."""
    dropped: int
    """Number of incomplete entries that were dropped from the end of a truncated file."""
    notes: tuple[str, ...] = ()

    @property
    def results(self) -> int:
        """Total number of imported results, including results that were in the database before."""
        return sum(part.results for part in self.parts)


_Parts = list[tuple[ForeignResults, Problem, str, str, str | None, str]]
"""Arguments of `to_measurements` for each kernel and problem."""


def import_results(
    database: Database,
    path: Path,
    wanted: Problem | StatedProblem,
    gpu: str | None = None,
    kernel: Kernel | str | None = None,
    recorder: str = "",
    mapped: tuple[MappedColumn, ...] = (),
    ignored: tuple[str, ...] = (),
) -> ImportSummary:
    """Add all results in a file to a database. Add none if the file is invalid.

    Args:
        wanted: The measured problem, or the part of the problem that neither the file nor the kernel's spec states.
        gpu: Name of the measured GPU. It is required if the file does not name the GPU, and must not contradict the
            file.
        kernel: Kernel with its source, or only its name. A kernel with source is stored, and the results become its
            measurements. kernrec's own measurements of the same config take precedence. A name is necessary if the file
            names no kernel, and selects a kernel if the file has several.
        recorder: Source of the measurements, such as a person, a paper or a repository.
        mapped: Columns of a table whose name or unit differs from kernrec's.
        ignored: Columns of a table, or names in the file's configs, that are not tunables.

    Raises:
        UsageError: The file is invalid, does not determine the measured problem, contains impossible times, or names a
            kernel of kernrec's library. With a spec, the error also means that results do not match the spec, belong to
            several kernels, or differ from the compiled source in registers or shared memory.
    """
    stated = StatedProblem.of(wanted) if isinstance(wanted, Problem) else wanted
    own = kernel if isinstance(kernel, Kernel) else None
    if own is not None:
        if own.name in kernel_names() and find_kernel(own.name).hash != own.hash:
            raise UsageError(f"{own.name} is the name of a library kernel; choose another name in the spec")
        tunables = names_of(own)
        names = (own.name, *(launch.entry for launch in own.launches))
    else:
        tunables, names = (), (str(kernel),) if kernel else ()
    file = _at_clock(read_results(path, ReadOptions(tunables, mapped, ignored, names)), gpu)
    measured_gpu = _measured_gpu(file, gpu, path)
    parts: _Parts = []
    try:
        if own is not None:
            groups, skipped = by_problem(file.results, stated, own.definition, own)
        else:
            groups, skipped = by_problem(_named(file, names[0] if names else None), stated)
        notes = [*file.notes, *skipped]
        for problem, rows in groups.items():
            if own is not None:
                bound, texts = _bound(replace(file, results=rows), ignored, own, problem, measured_gpu)
                notes += [text for text in texts if text not in notes]
                parts.append((bound, problem, measured_gpu.name, own.name, own.hash, recorder))
                continue
            for name in dict.fromkeys(str(row.kernel) for row in rows):
                mine = [row for row in rows if row.kernel == name]
                if name in kernel_names():
                    raise UsageError(
                        f"{name} is a library kernel, but these results may come from another source; choose "
                        "another name with --kernel"
                    )
                if wrong := implausible(_times(mine), problem, measured_gpu):
                    raise UsageError(wrong)
                parts.append((replace(file, results=mine), problem, measured_gpu.name, name, None, recorder))
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    if own is not None and file.not_run:
        notes.append(f"{file.not_run} configs without a result were skipped")
    summary = _add(database, parts, notes)
    if own is not None:
        for _, problem, *_ in parts:
            database.add_kernel(own, problem)
    return summary


def _named(file: ForeignResults, wanted: str | None) -> list[ForeignResult]:
    """Set the kernel name of each result. If the file has several kernels, keep only results of the kernel `wanted`."""
    names = {row.kernel for row in file.results}
    if None in names:
        name = wanted or file.kernel
        if name is None:
            raise UsageError("it does not name its kernel; name it with --kernel")
        return [replace(row, kernel=name) for row in file.results]
    if wanted is None or wanted in names:
        return [row for row in file.results if wanted in (None, row.kernel)]
    if len(names) > 1:
        raise unknown("kernel of the file", wanted, sorted(map(str, names)))
    return [replace(row, kernel=wanted) for row in file.results]


def _bound(
    file: ForeignResults, ignored: tuple[str, ...], kernel: Kernel, problem: Problem, measured_gpu: GPU
) -> tuple[ForeignResults, list[str]]:
    """Match the results of one problem with a kernel's configs, and check the matches. Return (results, notes)."""
    kernel.require(problem.dtype, problem.layout, measured_gpu.sm)
    if file.results[0].launch is not None:
        file = replace(file, results=match_launches(file.results, kernel, problem, measured_gpu))
    bound, excluded = bind_rows(file, kernel, problem, measured_gpu, ignored)
    rows = as_runs(bound.results) if ignored else bound.results
    if wrong := implausible(_times(rows), problem, measured_gpu):
        raise UsageError(wrong)
    other, note = other_code(rows, kernel, problem, measured_gpu)
    if other:
        raise UsageError(other)
    notes = [note] if note else []
    if skipped := len(bound.results) - len(rows):
        apart = max((max(row.samples_s) / min(row.samples_s) for row in rows if row.samples_s), default=1.0)
        notes.append(
            f"{counted(skipped, 'row')} repeated a config, up to a factor of {apart:.2f} apart in time; the median of"
            " each config was kept"
        )
    if excluded:
        notes.append(f"skipped {counted(excluded, 'failure')}: {kernel.name} excludes these configs")
    return replace(bound, results=rows), notes


def _add(database: Database, parts: _Parts, notes: Iterable[str]) -> ImportSummary:
    before = database.counts()["measurement"]
    database.add_measurements(chain.from_iterable(to_measurements(*part) for part in parts))
    figures = []
    for file, problem, _, kernel, *_ in parts:
        times = _times(file.results)
        outcomes = Counter(str(result.outcome) for result in file.results)
        figures.append(ImportedPart(kernel, problem, len(file.results), outcomes, min(times) if times else None))
    added = database.counts()["measurement"] - before
    file, _, gpu, *_ = parts[0]
    return ImportSummary(find_gpu(gpu), tuple(figures), added, file.dropped, tuple(notes))


def _times(results: Iterable[ForeignResult]) -> list[float]:
    return [result.latency_s for result in results if result.latency_s is not None]


_SAME_CLOCK = 0.02
"""Relative tolerance for comparing a clock with the base clock. Clocks change in steps of 15 MHz."""


def _at_clock(file: ForeignResults, name: str | None) -> ForeignResults:
    """Set the locked clock of results to the GPU's base clock if the median recorded clock is close to it."""
    clocks = sorted(result.sm_clock_hz for result in file.results if result.sm_clock_hz)
    if not clocks or (file.device is None and name is None):
        return file
    try:
        base_hz = find_gpu(name or str(file.device)).base_clock_hz
    except UnknownGPU:
        return file
    clock_hz = clocks[len(clocks) // 2]
    if base_hz is None or abs(clock_hz / base_hz - 1.0) > _SAME_CLOCK:
        return replace(file, notes=(*file.notes, f"the SMs ran at {clock_hz / 1e6:.0f} MHz"))
    locked = [replace(result, locked_sm_clock_hz=base_hz) for result in file.results]
    note = f"the SMs were held at the base clock, {base_hz / 1e6:.0f} MHz: the rows apply to that clock"
    return replace(file, results=locked, notes=(*file.notes, note))


def _measured_gpu(file: ForeignResults, name: str | None, path: Path) -> GPU:
    if name is None:
        if file.device is None:
            raise UsageError(f"{path} does not name its GPU; name it with --gpu")
        return find_gpu(file.device)
    measured_gpu = find_gpu(name)
    try:
        gpu_of_file = measured_gpu if file.device is None else find_gpu(file.device)
    except UnknownGPU:
        gpu_of_file = measured_gpu  # The catalog does not contain the file's GPU, so trust the user's --gpu.
    if gpu_of_file != measured_gpu:
        raise UsageError(f"{path} was measured on {file.device}, not on {measured_gpu.title}")
    return measured_gpu
