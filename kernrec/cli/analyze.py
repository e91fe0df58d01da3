"""`kernrec analyze`: a kernel of the user's own, from its source to the configs and power limits worth using."""

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from kernrec.cli import options
from kernrec.cli.choices import print_choices
from kernrec.cli.format import print_notes
from kernrec.cli.kernel_argument import AnalyzeOptions, kernel_argument
from kernrec.cli.output import print_json
from kernrec.cli.signals import ended_by_signals, exit_status
from kernrec.cli.steps import Steps
from kernrec.errors import KernrecError, UsageError, unknown

if TYPE_CHECKING:
    from pathlib import Path

    from kernrec.gpu import GPU
    from kernrec.kernel import Kernel
    from kernrec.measure.collect import CollectResult
    from kernrec.op import Problem
    from kernrec.recommender import Query, Recommendation
    from kernrec.recommender.analyze_kernel import Analysis
    from kernrec.recommender.profile_configs import Profiles


@options.takes(AnalyzeOptions)
def analyze(wanted: AnalyzeOptions) -> None:
    """Analyze a kernel of your own: compile and emulate its configs, and recommend the best with their power limits.

    No GPU is needed except for --measure. After an interruption the same command continues where it stopped. For a
    PTX file only block shape and power limit are recommended. Of a space of more than 10,000 configs those are profiled
    that may be among the best, and a first answer is printed on standard error after 1 % of them. A CUDA source needs
    a --spec, which names its tunables, launch and problem (the documentation, under Analyze, has one to begin with);
    `kernrec emulate` needs none.
    """
    from kernrec import paths
    from kernrec.compile.compiled import CompileError
    from kernrec.gpu import find_gpu

    form = wanted.printed.form
    if not wanted.gpu:
        raise UsageError("--gpu is missing (`kernrec gpus` lists what is known)")
    gpu = find_gpu(wanted.gpu)
    kernel, left_out, folder = kernel_argument(wanted)
    problem = wanted.request(wanted.shape if wanted.call is None else None, kernel=kernel.name).problem_of(kernel)
    if wanted.cluster and wanted.processes is not None:
        raise UsageError("--processes is for this machine; --cluster takes all cores of its nodes")
    if wanted.effort and not wanted.measure:
        raise UsageError("--effort says how much is measured; it goes with --measure")
    if wanted.measure and wanted.inputs != "random":
        raise UsageError(f"--inputs {wanted.inputs} is for predictions; --measure runs kernels on random numbers")
    database, effort = wanted.db or paths.user_database(), wanted.effort or "normal"
    measured = _Measured(kernel, problem, gpu, database, folder, effort) if wanted.measure else None
    progress = Steps(f"{kernel.name}: preparing")
    try:
        with ended_by_signals(), progress:
            analysis = _analysis(kernel, problem, gpu, wanted, (database, folder), progress)
    except KeyboardInterrupt as stop:
        progress.end()
        print("kernrec: interrupted; what is done is kept, the same command goes on from there", file=sys.stderr)
        raise typer.Exit(exit_status(stop)) from None
    except KernrecError as error:
        if measured is None or isinstance(error, UsageError | CompileError):
            raise
        progress.end()
        measured.alone(error, wanted.printed.as_json)
        return
    finally:
        progress.end()
    if measured is not None:
        measured.run()
        analysis = replace(analysis, recommendation=measured.recommendation(wanted.query))
    if wanted.printed.as_json:
        print_json(analysis.as_dict())
    else:
        print_choices(analysis.recommendation, form)
        _print_counts(analysis)
    print_notes(left_out)
    if measured is not None:
        measured.end()


def _analysis(
    kernel: "Kernel",
    problem: "Problem",
    gpu: "GPU",
    wanted: AnalyzeOptions,
    files: "tuple[Path, Path]",
    progress: Steps,
) -> "Analysis":
    """The analysis, reporting its progress; files: the database, and the folder of the kernel's files."""
    from kernrec.recommender.analyze_kernel import analyze as run
    from kernrec.recommender.profile_configs import ProfilingOptions

    def report(done: int, total: int) -> None:
        whole = f" of {total}" if total else ""
        progress.step(f"{kernel.name}: {done}{whole} configs", done, total)

    def first_front(answer: "Recommendation", profiled: int) -> None:
        progress.remove_line()
        with contextlib.redirect_stdout(sys.stderr):
            print_notes([f"a first answer, from {profiled} configs:"])
            print_choices(answer, wanted.printed.form)

    database, folder = files
    with _profiles(wanted.cluster) as profiles:
        profiling = ProfilingOptions(
            folder=folder,
            processes=(os.cpu_count() or 1) if wanted.processes is None else wanted.processes,
            budget=wanted.budget,
            whole=wanted.every,
            progress=report,
            profiles=profiles,
            first_front=first_front,
        )
        return run(kernel, problem, gpu, database, wanted.query, profiling)


@contextlib.contextmanager
def _profiles(cluster: str | None) -> "Iterator[Profiles | None]":
    """Compiles and emulates configs on a cluster; None: this machine does."""
    if cluster is None:
        yield None
        return
    from kernrec.cluster.ray_processors import RayProcessors
    from kernrec.recommender.profile_configs import profiles_with

    with RayProcessors(cluster, lambda text: print_notes([text])) as processors:
        yield profiles_with(processors)


class _Measured:
    """The part that needs a GPU; making it raises whatever stands in the way, before anything long is done."""

    def __init__(
        self, kernel: "Kernel", problem: "Problem", gpu: "GPU", database: "Path", folder: "Path", effort: str
    ) -> None:
        from kernrec.measure.campaign.plan import check_memory
        from kernrec.measure.campaign.results import EFFORTS
        from kernrec.measure.collect import CollectRequest
        from kernrec.measure.device.nvml import card_of

        if effort not in EFFORTS:
            raise unknown("effort", effort, EFFORTS)
        self._kernel, self._problem, self._gpu = kernel, problem, gpu
        card = card_of(gpu)
        check_memory(problem, gpu)
        problems = [(problem.key, problem)]
        self._wanted = CollectRequest(
            problems, database, gpu=card.uuid, effort=EFFORTS[effort], kernel=kernel, folder=folder
        )
        self._collected: CollectResult | None = None
        self._status = 0

    def run(self) -> None:
        """Measure; what happens, and what failed, is shown on standard error."""
        from kernrec.cli.measuring import Stop
        from kernrec.cli.progress import display
        from kernrec.measure.collect import collect

        stop = Stop()
        with stop, display() as show:
            self._collected = collect(self._wanted, show, stop)
        self._status = stop.status if self._collected.stopped else 0
        for result in self._collected.results:
            failed = [f"{n} {kind}, such as: {result.examples[kind]}" for kind, n in sorted(result.failures.items())]
            print_notes([f"{result.measured} measured, {result.earlier} known before", *failed])

    def alone(self, why: KernrecError, as_json: bool) -> None:
        """Measure what nothing can be predicted of: the answer is what was measured."""
        from kernrec.cli.collect import print_collected

        print_notes([f"nothing is predicted, and measurements are all there is: {why}"])
        self.run()
        assert self._collected is not None
        if not as_json:
            print_collected(self._collected, self._wanted)
        for result in self._collected.results if as_json else ():
            best = {"fastest": result.best, "frugal": result.frugal}
            shown = ("config", "latency_s", "energy_j", "device")
            rows = {}
            for name, measurement in best.items():
                columns = {} if measurement is None else measurement.columns()
                rows[name] = {key: columns[key] for key in shown} if columns else None
            print(json.dumps({"kernel": self._kernel.name, "problem": result.problem, "gpu": self._gpu.name} | rows))
        self.end()

    def recommendation(self, query: "Query") -> "Recommendation":
        """The recommendation from the database, measurements included."""
        from kernrec.recommender import Recommender

        return Recommender([self._wanted.database]).answer_kernel(self._kernel, self._problem, self._gpu, query)

    def end(self) -> None:
        """Exits with the status of what ended the measuring early, if anything did, and says what that was."""
        collected = self._collected
        if collected is not None and collected.error is not None:
            print(f"kernrec: {collected.error}", file=sys.stderr)
            raise typer.Exit(1)
        if self._status:
            print("kernrec: interrupted; what was measured is kept", file=sys.stderr)
            raise typer.Exit(self._status)
        if collected is not None and not any(result.best for result in collected.results):
            print("kernrec: no config could be measured; the reasons are above", file=sys.stderr)
            raise typer.Exit(1)


def _print_counts(analysis: "Analysis") -> None:
    notes = [
        f"{analysis.recommendation.candidates} configs: {analysis.profiled} profiled now, {analysis.cached} before,"
        f" {len(analysis.failures)} failed, {analysis.seconds:.1f} s"
    ]
    if analysis.left_out:
        from kernrec.model.search.partial_space import MARGIN, SEARCHES, WRONG

        notes.append(
            f"{analysis.left_out} configs were left out (--all profiles them): none is expected to take"
            f" {100 * MARGIN:.0f} % less time or energy than the best, which was right in {SEARCHES - WRONG} of"
            f" {SEARCHES} searches of recorded spaces"
        )
    counts: dict[str, int] = {}
    for failure in analysis.failures:
        message = failure.message.split(": ", 1)[-1]
        counts[message] = counts.get(message, 0) + 1
    notes += [f"{count} configs failed: {message}" for message, count in list(counts.items())[:5]]
    print_notes(notes)
