"""Explain one kernel of a CUDA file: where its time goes, and what to change in each source line."""

from collections.abc import Callable
from pathlib import Path

from kernrec.checking.limits import LAUNCH_BUDGET
from kernrec.checking.program_launches import program_launch
from kernrec.errors import KernrecError
from kernrec.gpu import GPU
from kernrec.interop.spec_text import LaunchWords
from kernrec.profile.line_costs import line_costs
from kernrec.recommender.analyze.kernel import analyze
from kernrec.recommender.analyze.profile_configs import ProfilingOptions
from kernrec.recommender.context import Context
from kernrec.recommender.explain.line_advice import LineAdvice, line_advice
from kernrec.recommender.explain.report import Report, report
from kernrec.recommender.request import Objective, Query, Request
from kernrec.util.light_dataclass import dataclass


@dataclass(frozen=True)
class SourceReport:
    """Explanation of a kernel with the launch in its file."""

    report: Report
    advice: tuple[LineAdvice, ...]
    """Advice by line, largest gain first."""
    notes: tuple[str, ...]

    @property
    def what_to_do(self) -> str:
        """Advice with the largest gain in the source or, without any, for the config."""
        return self.advice[0].sentence if self.advice else self.report.what_to_do


def explain_source(path: Path, words: LaunchWords, gpu: GPU, database: Path, objective: Objective) -> SourceReport:
    """Explain a kernel with the launch of its host code.

    Args:
        path: The file.
        words: The kernel, and the user's specification of its launch.
        database: Database for the profiles.
        objective: Objective for changes of the config.

    Raises:
        UsageError: The file does not determine the launch of the kernel.
        KernrecError: The kernel does not compile, or cannot be profiled.
    """
    made = program_launch(path, words, gpu, 10.0, LAUNCH_BUDGET)
    problem = made.kernel.definition.problem()
    query = Query(objective)
    analyze(made.kernel, problem, gpu, database, query, ProfilingOptions(folder=path.parent))
    name = f"{path.name}:{made.kernel.name}"  # Other files may have a kernel with this name.
    about = Request(gpu.name, None, name, dict(problem.dims), problem.dtype, problem.layout, query)
    explained = report(about, Context([database]), made.config)
    notes = [*made.assumed, *([made.unset] if made.unset else [])]
    try:
        advice = line_advice(
            explained.subject, line_costs(made.module, made.launch, made.describer.place), _reader(path), made.has_f64
        )
    except KernrecError as error:
        advice = []
        notes.append(f"no advice by line: {error}")
    return SourceReport(explained, tuple(advice), tuple(notes))


def _reader(path: Path) -> Callable[[str, int], str]:
    """Return a function that returns lines of the file and of headers next to it."""

    def line_of(file: str, line: int) -> str:
        source = path if file == path.name else path.parent / file
        if not source.is_file():
            return ""
        lines = source.read_text(encoding="utf-8", errors="replace").splitlines()
        return lines[line - 1] if 0 < line <= len(lines) else ""

    return line_of
