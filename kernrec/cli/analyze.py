"""`kernrec analyze`: find the best configs and power limits for a kernel from its source."""

import contextlib
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from kernrec.cli import options
from kernrec.cli.kernel_argument import AnalyzeOptions, write_draft
from kernrec.cli.output import NotePrinter, print_json, print_notes
from kernrec.cli.progress import Ended, Lines, Steps, ended_by_signals
from kernrec.cli.recommendations import print_recommendations
from kernrec.errors import KernrecError, UsageError, unknown
from kernrec.util.human import counted

if TYPE_CHECKING:
    from kernrec.compile.pool import Processors
    from kernrec.recommender import Answer
    from kernrec.recommender.analyze.kernel import Analysis

_RECORDED = "recorded"
"""Value of --effort that selects only configs with measurements."""


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
                    return _analyze(single, processors)
                except KernrecError:
                    processors.kill()
                    raise

            analyze_program(wanted, entries, gpus, run)
    elif wanted.measure:
        _measure(wanted, lambda analysis: _print(wanted, analysis, wanted.as_json))
    else:
        _print(wanted, _analyze(wanted), wanted.as_json)


def _analyze_calls(wanted: AnalyzeOptions, gpus: list[str]) -> None:
    """Analyze call files for each GPU. Continue after failures, and raise `KernrecError` at the end."""
    from kernrec.capture.call_file import is_cuda_call, read_cuda_call
    from kernrec.cli.analyze_program import print_times
    from kernrec.gpu import find_gpu

    calls = [wanted.source, *map(Path, wanted.arguments or ())]
    if wanted.source.is_dir():
        calls = [*sorted(wanted.source.glob("*.toml")), *calls[1:]]
        if not calls:
            raise UsageError(f"{wanted.source} has no calls (*.toml) of `kernrec capture`")
    if odd := next((path for path in calls if path.suffix != ".toml"), None):
        raise UsageError(f"{odd}: a call of a captured program can only be combined with other .toml files")
    answers: list[dict[str, Any]] = []

    def show(path: Path, single: AnalyzeOptions, analysis: "Analysis") -> None:
        answers.append({"call": str(path), **analysis.as_dict()})
        _print(single, analysis, as_json=None if wanted.as_json else False)

    failed = 0
    for gpu in gpus:
        on_gpu = find_gpu(gpu)
        times: dict[str, list[tuple[int, float]]] = {}
        for path in calls:
            single = wanted.single(gpu, path)
            single.arguments = None
            if not wanted.as_json:
                print(f"{path}:")
            try:
                if is_cuda_call(path):
                    call = read_cuda_call(path)
                    seconds = call.seconds(on_gpu, wanted.database, wanted.budget)
                    times.setdefault(call.entry, []).append((call.launches, seconds))
                if wanted.measure:
                    _measure(single, partial(show, path, single))
                else:
                    show(path, single, _analyze(single))
            except KernrecError as error:
                failed += 1
                answers.append({"call": str(path), "gpu": gpu, "error": str(error)})
                print(f"kernrec: {path}: {error}", file=sys.stderr)
            sys.stdout.flush()
        if times and not wanted.as_json:
            print_times(times, on_gpu)
    if wanted.as_json:
        print_json(answers)
    if failed:
        raise KernrecError(
            f"{counted(failed, 'call')} of {len(calls) * len(gpus)} could not be analyzed; the reasons are above"
        )


def _analyze(wanted: AnalyzeOptions, processors: "Processors | None" = None) -> "Analysis":
    from kernrec.compile.compiled import CompileError
    from kernrec.recommender.analyze.kernel import analyze as run
    from kernrec.recommender.analyze.profile_configs import ProfilingOptions, recorded_configs

    effort = _effort(wanted)
    kernel, notes, folder = wanted.subject
    problem = wanted.problem
    progress = Steps(f"{kernel.name}: preparing")

    def report(done: int, total: int) -> None:
        whole = f" of {total}" if total else ""
        progress.step(f"{kernel.name}: {done}{whole} configs", done, total)

    def first_front(answer: "Answer", profiled: int) -> None:
        with contextlib.redirect_stdout(sys.stderr):
            print_notes([f"a first answer, from {profiled} configs:"])
            print_recommendations(answer)

    profiling = ProfilingOptions(
        folder=folder,
        processes=processors or _usable_cpus(),
        budget=wanted.budget,
        only=recorded_configs(wanted.database, kernel, problem) if effort == _RECORDED else None,
        whole=wanted.effort == "exhaustive",
        progress=report,
        first_front=first_front,
    )
    try:
        with ended_by_signals(), progress:
            return run(kernel, problem, wanted.on_gpu, wanted.database, wanted.query, profiling)
    except KeyboardInterrupt as stop:
        print("kernrec: interrupted; finished work is kept. Run the same command to resume", file=sys.stderr)
        raise typer.Exit(128 + (stop.number if isinstance(stop, Ended) else signal.SIGINT)) from None
    except KernrecError as error:
        if wanted.draft is not None and not wanted.measure and not isinstance(error, CompileError):
            if wanted.enlarge(str(error)):
                return _analyze(wanted, processors)
            from kernrec.checking.findings import readable

            unset = next((f" ({note})" for note in notes if note.startswith("read as zero")), "")
            raise type(error)(f"{readable(str(error))}{unset}") from None
        raise


def _effort(wanted: AnalyzeOptions) -> str:
    if not (effort := wanted.effort):
        return "normal"
    from kernrec.measure.campaign.results import EFFORTS

    if effort not in (*EFFORTS, _RECORDED):
        raise unknown("effort", effort, (*EFFORTS, _RECORDED))
    if effort == _RECORDED and wanted.measure:
        raise UsageError("--effort recorded analyzes only configs that already have measurements; omit --measure")
    if effort not in ("exhaustive", _RECORDED) and not wanted.measure:
        raise UsageError(f"--effort {effort} sets how much is measured; add --measure")
    return effort


def _measure(wanted: AnalyzeOptions, show: "Callable[[Analysis], None]") -> None:
    """Analyze a kernel, measure it on this machine's GPU, and show the results with `show`.

    If the kernel's costs cannot be predicted, print only the measurements.
    """
    from kernrec.cli.collect import Stop, exit_early, print_collected
    from kernrec.compile.compiled import CompileError
    from kernrec.measure.collect import collect
    from kernrec.measure.measuring_device import KernelMeasurement

    kernel, _, folder = wanted.subject
    stop, place = Stop(), (wanted.on_gpu, wanted.database, folder)
    measurement = KernelMeasurement.prepared(kernel, wanted.problem, *place, _effort(wanted))
    analysis = None
    try:
        analysis = _analyze(wanted)
    except KernrecError as error:
        if isinstance(error, UsageError | CompileError):
            raise
        print_notes([f"there are only measurements, no predictions: {error}"])
    with stop:
        collected = collect(measurement.request, Lines().show, stop)
    for result in collected.results:
        failed = [f"{n} {kind}, such as: {result.examples[kind]}" for kind, n in sorted(result.failures.items())]
        print_notes([f"{result.measured} measured, {result.earlier} already known", *failed])
    if analysis is not None:
        show(replace(analysis, answer=measurement.answer(wanted.query)))
    elif wanted.as_json:
        for best in measurement.best(collected):
            print(json.dumps(best))
    else:
        print_collected(collected, measurement.request)
    exit_early(collected, stop)
    if not any(result.best for result in collected.results):
        print("kernrec: no config could be measured; the reasons are above", file=sys.stderr)
        raise typer.Exit(1)


def _usable_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _print(wanted: AnalyzeOptions, analysis: "Analysis", as_json: bool | None) -> None:
    """Print an analysis as a table or as JSON, with notes. If `as_json` is None, print only notes."""
    from kernrec.store.database import LONGEST_SOURCE

    if as_json:
        print_json(analysis.as_dict())
    elif as_json is not None:
        print_recommendations(analysis.answer, notes=NotePrinter(wanted.why))
        print_notes(_counts(analysis))
    kernel, notes, _ = wanted.subject
    print_notes(notes)
    if len(kernel.source) > LONGEST_SOURCE:
        size = f"{len(kernel.source) / 2**20:.1f} MiB"
        print_notes(
            [f"not stored for `recommend --kernel`: the source has {size}, and a database stores at most 1 MiB"]
        )


def _counts(analysis: "Analysis") -> list[str]:
    from kernrec.checking.findings import readable

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
    counts = Counter(readable(failure.message.split(": ", 1)[-1]) for failure in analysis.failed)
    return notes + [f"{counted(count, 'config')} failed: {message}" for message, count in list(counts.items())[:5]]
