"""`kernrec analyze`: find the best configs and power limits for a kernel from its source."""

import contextlib
import json
import os
import signal
import sys
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from kernrec.cli import options
from kernrec.cli.kernel_argument import AnalyzeOptions, kernel_argument, write_draft
from kernrec.cli.output import NotePrinter, print_json, print_notes
from kernrec.cli.progress import Ended, Lines, Steps, ended_by_signals
from kernrec.cli.recommendations import print_recommendations
from kernrec.errors import KernrecError, UsageError, unknown
from kernrec.util.human import counted

if TYPE_CHECKING:
    from kernrec.compile.pool import Processors
    from kernrec.gpu import GPU
    from kernrec.kernel import Kernel
    from kernrec.measure.measuring_device import KernelMeasurement
    from kernrec.measure.request import CollectResult
    from kernrec.op import Problem
    from kernrec.recommender import Answer
    from kernrec.recommender.analyze.kernel import Analysis

_RECORDED = "recorded"
"""Value of --effort that restricts the analysis to configs with measurements in the database."""


@options.takes(AnalyzeOptions)
def analyze(wanted: AnalyzeOptions) -> None:
    """Analyze your own kernel: compile and emulate its configs, and recommend the best configs and power limits.

    For a CUDA file, one table shows all kernels with the launches in the file's host code. For a PTX file, only block
    shape and power limit are recommended. Call files of `kernrec capture` (calls/*.toml) are analyzed one by one. No
    GPU is needed except for --measure.

    If a kernel has more than 10,000 configs, only configs that may be among the best are profiled. A first answer
    appears on standard error after 1 % of them. --effort exhaustive profiles all configs. To resume after an
    interruption, run the same command again.

    --init writes a draft of the kernel's spec. After an analysis, `kernrec recommend --kernel` answers at once.
    """
    if wanted.init:
        write_draft(wanted)
        return
    if not wanted.gpu:
        raise UsageError("--gpu is missing (`kernrec list gpus` lists them)")
    gpus = list(dict.fromkeys(name.strip() for name in wanted.gpu.split(",") if name.strip()))
    if wanted.source.is_dir() or (wanted.source.suffix == ".toml" and wanted.arguments):
        _analyze_calls(wanted, gpus)
        return
    from kernrec.cli.analyze_program import analyze_program, program_entries

    entries = program_entries(wanted)
    if len(entries) * len(gpus) > 1:
        from kernrec.compile.pool import processors_of

        with processors_of(_usable_cpus()) as processors:

            def run(single: AnalyzeOptions) -> "Analysis":
                try:
                    return _analyze(single, silent=True, notes=False, processors=processors)
                except KernrecError:
                    processors.kill()  # The processes may still be profiling other configs of this kernel.
                    raise

            analyze_program(wanted, entries, gpus, run)
    else:
        _analyze(wanted)


def _analyze_calls(wanted: AnalyzeOptions, gpus: list[str]) -> None:
    """Analyze call files for each GPU. Continue after a failure, and raise `KernrecError` at the end."""
    from kernrec.capture.call_file import is_cuda_call, read_cuda_call
    from kernrec.cli.analyze_program import ProgramTimes

    calls = [wanted.source, *map(Path, wanted.arguments or ())]
    if wanted.source.is_dir():
        calls = [*sorted(wanted.source.glob("*.toml")), *calls[1:]]
        if not calls:
            raise UsageError(f"{wanted.source} has no calls (*.toml) of `kernrec capture`")
    if odd := next((path for path in calls if path.suffix != ".toml"), None):
        raise UsageError(f"{odd}: a call of a captured program can only be combined with other .toml files")
    answers: list[dict[str, Any]] = []
    failed = 0
    for gpu in gpus:
        on_gpu = copy(wanted)
        on_gpu.gpu = gpu
        times = ProgramTimes(on_gpu)
        for path in calls:
            single = copy(on_gpu)
            single.source, single.arguments = path, None
            if not wanted.as_json:
                print(f"{path}:")
            try:
                if is_cuda_call(path):
                    times.add(read_cuda_call(path))
                answers.append({"call": str(path), **_analyze(single, silent=wanted.as_json).as_dict()})
            except KernrecError as error:
                failed += 1
                answers.append({"call": str(path), "gpu": gpu, "error": str(error)})
                print(f"kernrec: {path}: {error}", file=sys.stderr)
            sys.stdout.flush()
        if not wanted.as_json:
            times.print_table()
    if wanted.as_json:
        print_json(answers)
    if failed:
        raise KernrecError(
            f"{counted(failed, 'call')} of {len(calls) * len(gpus)} could not be analyzed; the reasons are above"
        )


def _analyze(
    wanted: AnalyzeOptions, silent: bool = False, notes: bool = True, processors: "Processors | None" = None
) -> "Analysis":
    """Analyze one kernel on one GPU, and print the result unless `silent` is set."""
    from kernrec import paths
    from kernrec.compile.compiled import CompileError
    from kernrec.gpu import find_gpu
    from kernrec.measure.campaign.results import EFFORTS

    gpu = find_gpu(wanted.gpu)
    kernel, left_out, folder = kernel_argument(wanted)
    called = kernel.triton is not None
    problem = wanted.request(None if called else wanted.shape, kernel=kernel.name).problem_of(kernel)
    effort = wanted.effort or "normal"
    if effort not in (*EFFORTS, _RECORDED):
        raise unknown("effort", effort, (*EFFORTS, _RECORDED))
    if effort == _RECORDED and wanted.measure:
        raise UsageError("--effort recorded profiles the configs of recorded rows; omit --measure")
    if wanted.effort and wanted.effort not in ("exhaustive", _RECORDED) and not wanted.measure:
        raise UsageError(f"--effort {effort} sets how much is measured; add --measure")
    database = wanted.db or paths.user_database()
    measuring = None
    if wanted.measure:
        from kernrec.measure.measuring_device import KernelMeasurement

        measurement = KernelMeasurement.prepared(kernel, problem, gpu, database, folder, effort)
        measuring = _Measuring(measurement)
    progress = Steps(f"{kernel.name}: preparing")
    try:
        with ended_by_signals(), progress:
            analysis = _analysis(kernel, problem, gpu, wanted, (database, folder), progress, processors)
    except KeyboardInterrupt as stop:
        print("kernrec: interrupted; finished work is kept. Run the same command to resume", file=sys.stderr)
        raise typer.Exit(128 + (stop.number if isinstance(stop, Ended) else signal.SIGINT)) from None
    except KernrecError as error:
        drafted = wanted.file.suffix == ".cu" and wanted.spec is None
        if measuring is None and drafted and not isinstance(error, CompileError):
            from kernrec.cli.analyze_program import enlarge

            if enlarge(wanted, str(error)):
                return _analyze(wanted, silent, notes, processors)
            if unset := next((note for note in left_out if note.startswith("read as zero")), None):
                raise type(error)(f"{error} ({unset})") from None
        if measuring is None or isinstance(error, UsageError | CompileError):
            raise
        measuring.alone(error, wanted.as_json)
        raise typer.Exit(0) from None
    collected = None
    if measuring is not None:
        collected = measuring.run()
        analysis = replace(analysis, answer=measurement.answer(wanted.query))
    if wanted.as_json and not silent:
        print_json(analysis.as_dict())
    elif not silent:
        print_recommendations(analysis.answer, notes=NotePrinter(wanted.why))
        _print_counts(analysis)
    from kernrec.store.database import LONGEST_SOURCE

    if len(kernel.source) > LONGEST_SOURCE:
        size = f"{len(kernel.source) / 2**20:.1f} MiB"
        left_out = [
            *left_out,
            f"not stored for `recommend --kernel`: the source has {size}, and a database stores at most 1 MiB",
        ]
    print_notes(left_out if notes else [])
    if measuring is not None and collected is not None:
        measuring.end(collected)
    return analysis


def _analysis(
    kernel: "Kernel",
    problem: "Problem",
    gpu: "GPU",
    wanted: AnalyzeOptions,
    files: tuple[Path, Path],
    progress: Steps,
    processors: "Processors | None",
) -> "Analysis":
    from kernrec.recommender.analyze.kernel import analyze as run
    from kernrec.recommender.analyze.profile_configs import ProfilingOptions, recorded_configs

    def report(done: int, total: int) -> None:
        whole = f" of {total}" if total else ""
        progress.step(f"{kernel.name}: {done}{whole} configs", done, total)

    def first_front(answer: "Answer", profiled: int) -> None:
        with contextlib.redirect_stdout(sys.stderr):
            print_notes([f"a first answer, from {profiled} configs:"])
            print_recommendations(answer)

    database, folder = files
    profiling = ProfilingOptions(
        folder=folder,
        processes=processors or _usable_cpus(),
        budget=wanted.budget,
        only=recorded_configs(database, kernel, problem) if wanted.effort == _RECORDED else None,
        whole=wanted.effort == "exhaustive",
        progress=report,
        first_front=first_front,
    )
    return run(kernel, problem, gpu, database, wanted.query, profiling)


def _usable_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Measuring:
    """Measures a kernel, and reports progress and failures on standard error."""

    def __init__(self, measurement: "KernelMeasurement") -> None:
        from kernrec.cli.collect import Stop

        self._measurement, self._stop = measurement, Stop()

    def run(self) -> "CollectResult":
        from kernrec.measure.collect import collect

        with self._stop:
            collected = collect(self._measurement.request, Lines().show, self._stop)
        for result in collected.results:
            failed = [f"{n} {kind}, such as: {result.examples[kind]}" for kind, n in sorted(result.failures.items())]
            print_notes([f"{result.measured} measured, {result.earlier} already known", *failed])
        return collected

    def alone(self, why: KernrecError, as_json: bool) -> None:
        """Measure a kernel whose costs cannot be predicted, and print the results. Exit if the measurement was cut
        short."""
        from kernrec.cli.collect import print_collected

        print_notes([f"there are only measurements, no predictions: {why}"])
        collected = self.run()
        if not as_json:
            print_collected(collected, self._measurement.request)
        for best in self._measurement.best(collected) if as_json else ():
            print(json.dumps(best))
        self.end(collected)

    def end(self, collected: "CollectResult") -> None:
        """If the measurement ended early or measured no config, print the reason and exit with the matching status."""
        from kernrec.cli.collect import exit_early

        exit_early(collected, self._stop)
        if not any(result.best for result in collected.results):
            print("kernrec: no config could be measured; the reasons are above", file=sys.stderr)
            raise typer.Exit(1)


def _print_counts(analysis: "Analysis") -> None:
    notes = [
        f"{counted(analysis.answer.candidates, 'config')}: {analysis.profiled} profiled now,"
        f" {analysis.cached} before, {len(analysis.failed)} failed, {analysis.analysis_s:.1f} s"
    ]
    if analysis.left_out:
        from kernrec.model.search.partial_space import MARGIN, SEARCHES, WRONG

        notes.append(
            f"{analysis.left_out} configs were skipped (--effort exhaustive profiles them): none is expected to beat"
            f" the best by {100 * MARGIN:.0f} % in time or energy; this was correct in {SEARCHES - WRONG} of {SEARCHES}"
            " test searches"
        )
    counts: dict[str, int] = {}
    for failure in analysis.failed:
        message = failure.message.split(": ", 1)[-1]
        counts[message] = counts.get(message, 0) + 1
    notes += [f"{counted(count, 'config')} failed: {message}" for message, count in list(counts.items())[:5]]
    print_notes(notes)
