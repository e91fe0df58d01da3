"""`kernrec analyze` for several kernels or several GPUs."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from kernrec.cli.kernel_argument import AnalyzeOptions
from kernrec.cli.output import USUALLY, Column, print_columns, print_json, print_notes, quantities
from kernrec.errors import KernrecError, UsageError
from kernrec.util.human import counted
from kernrec.util.light_dataclass import dataclass

if TYPE_CHECKING:
    from kernrec.gpu import GPU
    from kernrec.recommender import Recommendation
    from kernrec.recommender.analyze.kernel import Analysis

Analyze = Callable[[AnalyzeOptions], "Analysis"]


@dataclass(frozen=True)
class _Row:
    """Row of the table: the analysis of one kernel on one GPU, or the reason why it failed."""

    entry: str
    gpu: str
    analysis: "Analysis | None" = None
    launched: "Recommendation | None" = None
    """Best config with the host code's block size, or None if there is none."""
    error: str = ""
    command: str = ""
    """Command that repeats a failed analysis, or an empty string after a success."""
    notes: tuple[str, ...] = ()
    """Notes on assumed or missing values."""

    def as_dict(self) -> dict[str, Any]:
        row: dict[str, Any] = {"entry": self.entry, "gpu": self.gpu}
        if self.analysis is None:
            return row | {"error": self.error, "command": self.command}
        analysis = self.analysis.as_dict()
        row |= {"launched": self.launched and self.launched.as_dict(), **analysis}
        return row | {"notes": [*self.notes, *analysis["notes"]]}


def program_entries(wanted: AnalyzeOptions) -> list[str | None]:
    """Return the kernels to analyze. [None] means the only kernel of a file."""
    if wanted.source.suffix != ".cu" or wanted.spec is not None or wanted.kernel_name is not None:
        return [wanted.kernel_name]
    from kernrec.interop.draft import kernel_names
    from kernrec.kernel.source_files import whole_source

    names = kernel_names(whole_source(wanted.source, wanted.words.include))
    return list(names) if len(names) > 1 else [None]


def analyze_program(wanted: AnalyzeOptions, entries: list[str | None], gpus: list[str], run: Analyze) -> None:
    """Analyze several kernels or several GPUs, and print a table.

    Args:
        entries: Names of the kernels. None selects the file's only kernel.
        run: Function that takes options, and analyzes one kernel on one GPU.

    Raises:
        UsageError: An option applies only to a single kernel.
        KernrecError: No kernel could be analyzed.
    """
    if wanted.measure:
        raise UsageError("--measure is for one kernel and one GPU: name the kernel as in file.cu:kernel")
    stated = [name for name in ("shape", "grid", "block", "arguments", "tune", "shared") if getattr(wanted, name)]
    if len(entries) > 1 and stated:
        raise UsageError(
            f"{wanted.source} has {counted(len(entries), 'kernel')} ({', '.join(map(str, entries))}), and"
            f" {'an argument' if stated[0] == 'arguments' else f'--{stated[0]}'} applies to one kernel; name the"
            f" kernel, as in {wanted.source.name}:{entries[0]}"
        )
    rows: list[_Row] = []
    for entry, gpu in product(entries, gpus):
        try:
            rows.append(_analyzed(wanted, entry, gpu, run))
        except typer.Exit:  # The user interrupted the analysis.
            if rows and not wanted.as_json:
                _print(wanted, rows)
            raise
    if wanted.as_json:
        print_json([row.as_dict() for row in rows])
    else:
        _print(wanted, rows)
    if not any(row.analysis for row in rows):
        raise KernrecError(f"no kernel of {wanted.source} could be analyzed; the reasons are above")


def _analyzed(wanted: AnalyzeOptions, entry: str | None, gpu: str, run: Analyze) -> _Row:
    from kernrec.recommender.request import Objective

    single = wanted.single(gpu, Path(f"{wanted.file}:{entry}") if entry else wanted.file)
    objective = Objective.LATENCY if wanted.query.objective is Objective.PARETO else wanted.query.objective
    single.query = replace(wanted.query, objective=objective, top=sys.maxsize, each_config=True)
    draft = analysis = failure = None
    try:
        draft = single.draft
        if draft is not None and draft.missing:
            return _Row(draft.entry, gpu, error=f"needs {'; '.join(draft.missing)}", command=draft.command(gpu))
        analysis = run(single)
    except KernrecError as error:
        failure = error
    draft = draft and single.draft  # The analysis may have replaced a draft whose buffers were too small.
    name = (draft.entry if draft else entry) or single.file.stem
    if analysis is None:
        from kernrec.interop.assumed_words import CORRECT
        from kernrec.interop.draft import analyze_command

        command = draft.command(gpu) if draft and draft.chosen else analyze_command(single.file, name, gpu)
        return _Row(name, gpu, error=str(failure).removesuffix(f"{CORRECT} {command}"), command=command)
    block = draft.launch.block if draft and draft.launch else None
    launched = None
    for each in analysis.answer.recommendations if block else ():
        if each.launches[0].block == (*(block or ()), 1, 1)[:3] and each.point == analysis.answer.point:
            launched = each
    return _Row(name, gpu, analysis, launched, notes=tuple(filter(None, [draft.note, draft.unset])) if draft else ())


def _print(wanted: AnalyzeOptions, rows: list[_Row]) -> None:
    shown = [row for row in rows if row.analysis is not None]
    if shown:
        best = [row.analysis.answer.best for row in shown if row.analysis]
        now = [row.launched or recommendation for row, recommendation in zip(shown, best, strict=True)]
        own = any(row.launched for row in shown)
        columns = [Column("kernel", "left", [row.entry for row in shown])]
        if len({row.gpu for row in rows}) > 1:
            columns.append(Column("GPU", "left", [recommendation.gpu.name for recommendation in best]))
        columns += [
            Column("grid", "right", [_extents(recommendation.launches[0].grid) for recommendation in now]),
            Column("block", "right", [_extents(recommendation.launches[0].block) for recommendation in now]),
            quantities("time", "s", [recommendation.latency_s.value for recommendation in now]),
            quantities("energy", "J", [recommendation.energy_j.value for recommendation in now]),
            Column("bottleneck", "left", [recommendation.bottleneck for recommendation in now], USUALLY),
        ]
        if own:
            gain = [b.latency_s.value / n.latency_s.value - 1 for b, n in zip(best, now, strict=True)]
            blocks = [_config(row, recommendation) for row, recommendation in zip(shown, best, strict=True)]
            columns.append(Column("best block", "right", blocks))
            columns.append(
                Column("change", "right", [f"{100 * each:+.1f} %" if each < -0.0005 else "" for each in gain])
            )
        title = f"{wanted.file.name}, predicted; grid and block as in the host code, if it states them"
        print_columns(title, columns)
    notes = []
    for row in rows:
        if row.analysis is None:
            notes.append(f"{row.entry} on {row.gpu}: {row.error}")
            notes.append(f"    {row.command}")
    notes += dict.fromkeys(f"{row.entry}: {note}" for row in rows for note in row.notes)
    if shown:
        example = shown[0]
        from kernrec.interop.draft import analyze_command

        notes.append(f"one kernel in detail: {analyze_command(wanted.file, example.entry, example.gpu)}")
    print_notes(notes)


def _extents(extents: tuple[int, ...]) -> str:
    from kernrec.interop.spec_text import short_extents

    return "x".join(map(str, short_extents(extents)))


def _config(row: _Row, best: "Recommendation") -> str:
    """Return the block size of the best config, or all tunables if it has more than a block size."""
    if row.launched is best:
        return "as launched"
    if all(name.startswith("block_") for name in best.config):
        return _extents(best.launches[0].block)
    return " ".join(f"{name}={value}" for name, value in best.config.items())


def print_times(times: Mapping[str, Sequence[tuple[int, float]]], gpu: "GPU") -> None:
    """Print the predicted times of a program's kernels on a GPU.

    Args:
        times: (launches, seconds per launch) of each captured call, keyed by kernel.
    """
    from kernrec.capture.call_file import short_name

    totals = {name: sum(count * each for count, each in calls) for name, calls in times.items()}
    launches = {name: sum(count for count, _ in calls) for name, calls in times.items()}
    names, whole = sorted(totals, key=lambda name: -totals[name]), sum(totals.values())
    columns = [
        Column("time", "right", [f"{100 * totals[name] / whole:.1f} %" for name in names]),
        quantities("total", "s", [totals[name] for name in names]),
        Column("launches", "right", [f"{launches[name]}" for name in names]),
        quantities("mean", "s", [totals[name] / launches[name] for name in names]),
        quantities("least", "s", [min(each for _, each in times[name]) for name in names]),
        quantities("most", "s", [max(each for _, each in times[name]) for name in names]),
        Column("kernel", "left", [short_name(name) for name in names]),
    ]
    print_columns(f"GPU time of the program on {gpu.title}, by kernel", columns)
    launched = counted(sum(launches.values()), "launch")
    print_notes([f"{launched}, {whole * 1e3:.4g} ms in all: predicted, never measured; without copies and gaps"])
