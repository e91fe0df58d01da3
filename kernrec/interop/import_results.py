"""Import results of other tools, such as autotuners and profilers, into a database."""

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from kernrec.errors import UsageError, unknown
from kernrec.gpu import GPU, find_gpu
from kernrec.gpu.find import UnknownGPU
from kernrec.interop.bind_rows import (
    bind_rows,
    by_config,
    check_code,
    latencies_of,
    match_launches,
    measured_problem,
    median_row,
    names_of,
)
from kernrec.interop.read_results import read_results
from kernrec.interop.results import ForeignResults, MappedColumn, ReadOptions, StatedProblem, to_measurements
from kernrec.kernel import Kernel, find_kernel
from kernrec.kernel.library import kernel_names
from kernrec.op import Problem
from kernrec.store import Database
from kernrec.store.intake.plausible_times import implausible
from kernrec.util.human import counted


@dataclass(frozen=True)
class ImportedKernel:
    """Summary of the imported results of one kernel."""

    kernel: str
    results: int
    outcomes: Mapping[str, int]
    best_s: float | None


@dataclass(frozen=True)
class ImportSummary:
    """Summary of an imported file."""

    gpu: GPU
    problem: Problem
    kernels: tuple[ImportedKernel, ...]
    added: int
    """Number of measurements that were not in the database before."""
    dropped: int
    """Number of incomplete entries at the end of a truncated file."""
    notes: tuple[str, ...] = ()

    @property
    def results(self) -> int:
        """Total number of imported results, including those that the database already had."""
        return sum(each.results for each in self.kernels)


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
        wanted: Parts of the measured problem that neither the file nor the kernel's spec states.
        gpu: Name of the measured GPU. It is required if the file does not name the GPU.
        kernel: Measured kernel, or only its name. The results of a `Kernel` become its measurements, and the kernel
            is stored, too. A name is required if the file names no kernel. If the file names several kernels, only
            the results of this kernel are added.
        recorder: Source of the measurements, such as a person, a paper or a repository.
        mapped: Table columns to rename, or to convert to another unit.
        ignored: Columns of a table, or names in the file's configs, that are not tunables.

    Raises:
        UsageError: The file is invalid, does not determine the measured problem, or names a kernel of kernrec's
            library. Results that contradict the arguments, the spec or the compiled source also raise this error.
    """
    stated = StatedProblem.of(wanted) if isinstance(wanted, Problem) else wanted
    own = kernel if isinstance(kernel, Kernel) else None
    if own is not None:
        if own.name in kernel_names() and find_kernel(own.name).hash != own.hash:
            raise UsageError(f"{own.name} is the name of a library kernel; choose another name in the spec")
        options = ReadOptions(names_of(own), mapped, ignored, (own.name, *(launch.entry for launch in own.launches)))
    else:
        options = ReadOptions((), mapped, ignored, (str(kernel),) if kernel else ())
    file = read_results(path, options)
    states_problem = bool(own or stated.op or file.problem.op)
    measured_gpu = _measured_gpu(file, gpu, path, states_problem)
    file = _at_clock(file, measured_gpu)
    try:
        problem = measured_problem(file.problem, stated, own)
        if own is not None:
            bound = _bound(file, ignored, own, problem, measured_gpu)
            files, notes = {own.name: bound}, bound.notes
        else:
            files, notes = _by_kernel(file, *options.kernels), file.notes
        for name, each in files.items():
            if own is None and name in kernel_names():
                raise UsageError(
                    f"{name} is a library kernel, but these results may come from another source; choose "
                    "another name with --kernel"
                )
            if wrong := implausible(latencies_of(each.results), problem, measured_gpu):
                raise UsageError(wrong)
        if own is not None and (note := check_code(files[own.name].results, own, problem, measured_gpu)):
            notes = (*notes, note)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    if own is not None and file.not_run:
        notes = (*notes, f"{file.not_run} configs without a result were skipped")
    before = database.counts()["measurement"]
    kernel_hash = own.hash if own is not None else None
    rows = (
        to_measurements(each, problem, measured_gpu.name, name, kernel_hash, recorder) for name, each in files.items()
    )
    database.add_measurements(chain.from_iterable(rows))
    added = database.counts()["measurement"] - before
    if own is not None:
        database.add_kernel(own, problem)
    kernels = tuple(_summary(name, each) for name, each in files.items())
    return ImportSummary(measured_gpu, problem, kernels, added, file.dropped, notes)


def _summary(kernel: str, file: ForeignResults) -> ImportedKernel:
    outcomes = Counter(str(result.outcome) for result in file.results)
    return ImportedKernel(kernel, len(file.results), outcomes, min(latencies_of(file.results), default=None))


def _by_kernel(file: ForeignResults, wanted: str | None = None) -> dict[str, ForeignResults]:
    """Return the file's results for each kernel, or only for the kernel `wanted`."""
    names = {row.kernel: None for row in file.results}
    if None in names:
        if (name := wanted or file.kernel) is None:
            raise UsageError("it does not name its kernel; name it with --kernel")
        return {name: file}
    if wanted is not None and len(names) == 1:
        return {wanted: file}
    if wanted is not None and wanted not in names:
        raise unknown("kernel of the file", wanted, sorted(map(str, names)))
    return {
        str(name): replace(file, results=[row for row in file.results if row.kernel == name])
        for name in names
        if wanted in (None, name)
    }


def _bound(
    file: ForeignResults, ignored: tuple[str, ...], kernel: Kernel, problem: Problem, gpu: GPU
) -> ForeignResults:
    kernel.require(problem.dtype, problem.layout, gpu.sm)
    excluded = 0
    if file.results[0].launch is not None:
        matched = match_launches(file.results, kernel, problem, gpu)
    else:
        matched, excluded = bind_rows(file, kernel, problem, gpu, ignored)
    # Keep the median row of each config if columns are ignored. Otherwise, keep all rows, because they are repetitions.
    variants = by_config(matched) if ignored else [[row] for row in matched]
    rows = [median_row(each) for each in variants]
    notes = list(file.notes)
    if skipped := len(matched) - len(rows):
        apart = max((max(times) / min(times) for each in variants if (times := latencies_of(each))), default=1.0)
        notes.append(
            f"{counted(skipped, 'row')} repeated a config, up to a factor of {apart:.2f} apart in time; the median of"
            " each config was kept"
        )
    if excluded:
        notes.append(f"skipped {counted(excluded, 'failure')}: {kernel.name} excludes these configs")
    return replace(file, results=rows, notes=tuple(notes))


_SAME_CLOCK = 0.02
"""Relative tolerance for comparing a clock with the base clock."""


def _at_clock(file: ForeignResults, gpu: GPU) -> ForeignResults:
    """Set the results' locked clock to the GPU's base clock if the median recorded clock is close to the base clock."""
    clocks = sorted(result.sm_clock_hz for result in file.results if result.sm_clock_hz)
    if not clocks:
        return file
    base_hz, clock_hz = gpu.base_clock_hz, clocks[len(clocks) // 2]
    if base_hz is None or abs(clock_hz / base_hz - 1.0) > _SAME_CLOCK:
        return replace(file, notes=(*file.notes, f"the SMs ran at {clock_hz / 1e6:.0f} MHz"))
    locked = [replace(result, locked_sm_clock_hz=base_hz) for result in file.results]
    note = f"the SMs were held at the base clock, {base_hz / 1e6:.0f} MHz: the rows apply to that clock"
    return replace(file, results=locked, notes=(*file.notes, note))


def _measured_gpu(file: ForeignResults, name: str | None, path: Path, states_problem: bool) -> GPU:
    if name is None:
        if file.device is None:
            also = "" if states_problem else ", and what was measured with --op and --shape, or --kernel and --spec"
            raise UsageError(f"{path} does not name its GPU; name it with --gpu{also}")
        return find_gpu(file.device)
    measured_gpu = find_gpu(name)
    with suppress(UnknownGPU):  # If the catalog does not contain the file's GPU, trust the user's --gpu.
        if file.device is not None and find_gpu(file.device) != measured_gpu:
            raise UsageError(f"{path} was measured on {file.device}, not on {measured_gpu.title}")
    return measured_gpu
