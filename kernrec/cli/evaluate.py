"""`kernrec evaluate`: how good recommendations are on measured problems, against simpler ways to choose."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernrec.cli.table import print_table
from kernrec.cli.train import AsJson, Databases, GpuName, OpName, Threads, measurements, note
from kernrec.errors import unknown

if TYPE_CHECKING:
    from kernrec.training.evaluate_models import Score


def evaluate(
    op: OpName = None,
    gpu: GpuName = None,
    db: Databases = None,
    split: Annotated[str, typer.Option(help="What is held out whole: problem, gpu or kernel.")] = "problem",
    plot: Annotated[Path | None, typer.Option(help="Draw into this file, .svg or .png (extra `plot`).")] = None,
    threads: Threads = 2,
    as_json: AsJson = False,
) -> None:
    """Score learned and simpler recommendations on the measured problems of a database, held out whole.

    Coefficients that were calibrated are not used: they have seen what is held out, and are fitted again to the rest.
    """
    from kernrec.training.boosting import TrainingSettings
    from kernrec.training.evaluate_models import FEWEST, PUBLISHED, SPLITS
    from kernrec.training.evaluate_models import evaluate as judge

    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    if plot is not None:
        from kernrec.cli.plot_evaluation import check

        check(plot)
    _, found, _ = measurements(db, op, gpu, calibrated=False)
    scores, cases, parts = judge(found.groups, split, TrainingSettings(threads=threads), note)
    if parts < 2:
        note(f"one {split} alone: nothing can be held out, so nothing learned is scored ({2 - parts} more needed)")
    if not cases:
        note(f"no problem has {FEWEST} measured configs: nothing to choose among")
    if as_json:
        rows = [asdict(score) for score in scores]
        told = {"split": split, "parts": parts, "scores": rows, "published": PUBLISHED}
        print(json.dumps(_plain(told), indent=2))
    else:
        _print(scores, f"held out by {split}: {parts}")
        for who, figures in PUBLISHED.items():
            said = ", ".join(f"{name} {value:g}" for name, value in figures.items())
            note(f"published elsewhere, of other kernels on other cards: {said} ({who})")
    if cases:
        sizes = [len(case.latency_s) for case in cases]
        span = f"{min(sizes)} to {max(sizes)}" if min(sizes) < max(sizes) else f"{min(sizes)}"
        note(f"the space of a problem is what was measured of it: {span} configs")
    if plot is not None and cases:
        from kernrec.cli.plot_evaluation import draw

        draw(cases, plot)
        note(f"drawn into {plot}")


def _print(scores: "list[Score]", title: str) -> None:
    columns = [(name, "left" if name in ("quantity", "method") else "right") for name in _COLUMNS]
    rows = []
    for s in scores:
        values = [
            *s.efficiency.values(), s.accuracy, s.reduction, s.rank_correlation, s.median_error, s.coverage, s.width,
            s.front_recall, s.energy_saved, s.slowdown, s.frugal_saved, s.frugal_slowdown,
        ]  # fmt: skip
        shown = ["" if math.isnan(value) else f"{value:.3f}" for value in values]
        rows.append([s.quantity, s.method, str(s.problems), *shown])
    print_table(title, columns, rows)


_COLUMNS = (
    "quantity", "method", "problems", "eff@1", "eff@5", "eff@10", "accuracy", "reduction", "rank corr.", "median error",
    "coverage", "width", "front recall", "energy vs occupancy saved", "slowdown", "at 3 % slower saved", "slowdown",
)  # fmt: skip


def _plain(value: object) -> object:
    """NaN is null in JSON."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value
