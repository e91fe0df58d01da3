"""Import of files of results into a database, and export from one."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import GPU, find_gpu
from kernrec.gpu.find import UnknownGPU
from kernrec.interop.bind_rows import bind_rows, names_of
from kernrec.interop.read_results import read_results
from kernrec.interop.repeated_rows import without_repeats
from kernrec.interop.results import ForeignResults, StoredAs, to_measurements
from kernrec.interop.same_code import other_code
from kernrec.interop.t4 import write_t4
from kernrec.interop.table import TableOptions
from kernrec.kernel import Kernel, find_kernel
from kernrec.kernel.library import kernel_names
from kernrec.op import Problem
from kernrec.store import Database
from kernrec.store.intake.plausible_times import implausible
from kernrec.store.measurement import Measurement, Outcome


@dataclass(frozen=True)
class Recording:
    """A file of results, and facts that it may lack."""

    path: Path
    gpu: str | None = None
    """The GPU that was measured; one that contradicts the file is an error."""
    recorder: str | None = None
    """Who measured, such as a person, a paper or a repository."""
    time: tuple[str, str] | None = None
    """Of a table: column and unit of the time."""
    ignored: tuple[str, ...] = ()
    """Columns, or names in configs, that say nothing of the config."""
    repeats: str | None = None
    """Which time counts of a config that has several, one of `repeated_rows.REPEATS`; None: with `ignored` that is an
    error."""


@dataclass(frozen=True)
class ImportSummary:
    """Figures of an import."""

    gpu: GPU
    kernel: str
    results: int
    """Results in the file."""
    added: int
    """Measurements that were new in the database."""
    outcomes: Mapping[str, int]
    best_s: float | None
    dropped: int
    """Incomplete entries at the end of a file that was cut short."""
    notes: tuple[str, ...] = ()
    """Sentences for the user."""


def import_results(
    database: Database, path: Path, problem: Problem, gpu: str | None = None, kernel: str | None = None
) -> ImportSummary:
    """Add the results of a T4 file or Kernel Tuner cache to a database, all or nothing.

    Args:
        database: to add them to.
        path: of the file.
        problem: that was measured.
        gpu: that was measured, if the file does not name it; one that contradicts the file is an error.
        kernel: name of the kernel, if the file does not name it.

    Raises:
        UsageError: for a bad file.
    """
    file = read_results(path)
    card = _card(file, gpu, path)
    name = kernel or file.kernel
    if name is None:
        raise UsageError(f"{path} does not name its kernel; name it with --kernel")
    if name in kernel_names():
        raise UsageError(
            f"{name} is a kernel of the library, and these results may be of another source;"
            " choose another name with --kernel"
        )
    if wrong := implausible(_times(file), problem, card):
        raise UsageError(f"{path}: {wrong}")
    return _add(database, file, problem, StoredAs(card.name, name))


def import_bound(database: Database, recording: Recording, kernel: Kernel, problem: Problem) -> ImportSummary:
    """Add recorded results as measurements of a kernel whose source is at hand, all or nothing.

    The rows get the kernel's own name and hash, and the kernel is stored with them: `analyze`, `explain`, `train` and
    `recommend --kernel` use them as if kernrec had measured them, by a protocol that everything kernrec measures goes
    before.

    Raises:
        UsageError: the file is bad; its rows do not fit the spec, or are of several kernels once columns are ignored;
            its times cannot be those of the problem on the GPU; or the registers and shared memory that it states are
            not those of the source.
    """
    path = recording.path
    if kernel.name in kernel_names() and find_kernel(kernel.name).hash != kernel.hash:
        raise UsageError(f"{kernel.name} is the name of another kernel, of the library; choose another in the spec")
    options = TableOptions(names_of(kernel), recording.time, recording.ignored)
    file = read_results(path, options)
    card = _card(file, recording.gpu, path)
    kernel.require(problem.dtype, problem.layout, card.sm)
    try:
        bound, excluded = bind_rows(file, kernel, problem, card, recording.ignored)
        rows, merged = without_repeats(bound.results, recording.ignored, recording.repeats)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    bound = replace(bound, results=rows)
    if wrong := implausible(_times(bound), problem, card):
        raise UsageError(f"{path}: {wrong}")
    other, note = other_code(bound.results, kernel, problem, card)
    if other:
        raise UsageError(f"{path}: {other}")
    notes = [text for text in (note, merged) if text]
    if excluded:
        notes.append(f"{excluded} failures were left out: {kernel.name} excludes their configs")
    if file.not_run:
        notes.append(f"{file.not_run} configs without a result were left out")
    stored = StoredAs(card.name, kernel.name, kernel.hash, recording.recorder)
    summary = _add(database, bound, problem, stored)
    database.add_kernel(kernel, problem)
    return replace(summary, notes=tuple(notes))


def _add(database: Database, file: ForeignResults, problem: Problem, stored: StoredAs) -> ImportSummary:
    """Add the results to a database."""
    before = database.counts()["measurement"]
    database.add_measurements(to_measurements(file, problem, stored))
    times = _times(file)
    return ImportSummary(
        find_gpu(stored.gpu),
        stored.kernel,
        len(file.results),
        database.counts()["measurement"] - before,
        Counter(result.outcome for result in file.results),
        min(times) if times else None,
        file.dropped,
    )


def _times(file: ForeignResults) -> list[float]:
    """The latencies of a file's results that ran."""
    return [result.latency_s for result in file.results if result.latency_s is not None]


def _card(file: ForeignResults, name: str | None, path: Path) -> GPU:
    if name is None:
        if file.device is None:
            raise UsageError(f"{path} does not name its GPU; name it with --gpu")
        return find_gpu(file.device)
    card = find_gpu(name)
    try:
        card_of_file = card if file.device is None else find_gpu(file.device)
    except UnknownGPU:
        card_of_file = card  # a name that the catalog does not know contradicts nothing
    if card_of_file != card:
        raise UsageError(f"{path} was measured on {file.device}, not on {card.title}")
    return card


def export_t4(
    database: Database, gpu: GPU, problems: list[Problem] | None, op: str, kernel: str | None
) -> tuple[str, int]:
    """The measurements of one kernel, problem and GPU as a T4 document; of several sources, those of the last measured.

    Args:
        problems: among which to look; None: all of the op.
        kernel: its name; None: the only one that was measured.

    Returns:
        The document, and how many measurements were left out: quarantined ones, for which T4 has no word, and those of
        an older source.

    Raises:
        KernrecError: if there is nothing to export.
        UsageError: if several pairs of kernel and problem were measured.
    """
    keys = None if problems is None else {problem.key for problem in problems}
    measured: dict[tuple[str, str], list[Measurement]] = {}
    replayed = 0
    for problem in database.rows("problem", op=op):
        if keys is not None and problem["key"] not in keys:
            continue
        for measurement in database.measurements(gpu=gpu.name, problem_id=problem["problem_id"]):
            if measurement.device.mig:  # says nothing about the whole card
                continue
            if measurement.origin.replayed:  # another tuner would take it for measured
                replayed += 1
            elif kernel is None or measurement.identity.kernel == kernel:
                measured.setdefault((measurement.identity.kernel, str(problem["key"])), []).append(measurement)
    if not measured and replayed:
        raise KernrecError(f"{database.path} holds only replayed rows of that: export the recording they came from")
    if not measured:
        raise KernrecError(f"{database.path} holds no such measurement on {gpu.name} (`kernrec db info` lists them)")
    if len(measured) > 1:
        some = "; ".join(f"{name} on {key}" for name, key in sorted(measured)[:3])
        raise UsageError(
            f"{len(measured)} pairs of kernel and problem were measured, but a file holds one: choose with --shape and"
            f" --kernel ({some} ...)"
        )
    (((name, key), measurements),) = measured.items()
    last = max(measurements, key=lambda measurement: measurement.origin.measured_at).identity.kernel_hash
    chosen = [measurement for measurement in measurements if measurement.identity.kernel_hash == last]
    device = next((measurement.device.device for measurement in chosen if measurement.device.device), gpu.title)
    metadata = {"device_name": device, "kernel_name": name, "problem": key, "tool": "kernrec"}
    written = [measurement for measurement in chosen if measurement.outcome != Outcome.QUARANTINED]
    written.sort(key=lambda measurement: (measurement.origin.measured_at, str(measurement.identity.config)))
    return write_t4(written, metadata), len(measurements) - len(written)
