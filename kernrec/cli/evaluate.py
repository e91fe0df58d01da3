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
    from kernrec.recommender.evaluation import Score


def evaluate(
    op: OpName = None,
    gpu: GpuName = None,
    db: Databases = None,
    split: Annotated[str, typer.Option(help="What is held out whole: problem, gpu or kernel.")] = "problem",
    plot: Annotated[Path | None, typer.Option(help="Draw into this file, .svg or .png (extra `plot`).")] = None,
    threads: Threads = 2,
    as_json: AsJson = False,
) -> None:
    """Score learned and simpler recommendations on the measured problems of a database, held out whole."""
    from kernrec.model.learner import Settings
    from kernrec.recommender.evaluation import FEWEST, SPLITS
    from kernrec.recommender.evaluation import evaluate as judge

    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    if plot is not None:
        from kernrec.cli.plot_evaluation import check

        check(plot)
    _, found, _ = measurements(db, op, gpu)
    scores, cases, parts = judge(found.groups, split, Settings(threads=threads), note)
    if parts < 2:
        note(f"one {split} alone: nothing can be held out, so nothing learned is scored ({2 - parts} more needed)")
    if not cases:
        note(f"no problem has {FEWEST} measured configs: nothing to choose among")
    if as_json:
        rows = [asdict(score) for score in scores]
        print(json.dumps({"split": split, "parts": parts, "scores": _plain(rows)}, indent=2))
    else:
        _print(scores, f"held out by {split}: {parts}")
    if plot is not None and cases:
        from kernrec.cli.plot_evaluation import draw

        draw(cases, plot)
        note(f"drawn into {plot}")


def _print(scores: "list[Score]", title: str) -> None:
    columns = [
        ("quantity", "left"), ("method", "left"), ("problems", "right"), ("eff@1", "right"), ("eff@5", "right"),
        ("eff@10", "right"), ("accuracy", "right"), ("reduction", "right"), ("median error", "right"),
        ("coverage", "right"), ("width", "right"), ("front recall", "right"), ("energy saved", "right"),
        ("slowdown", "right"),
    ]  # fmt: skip
    rows = []
    for s in scores:
        rest = s.accuracy, s.reduction, s.median_error, s.coverage, s.width, s.front_recall, s.energy_saved, s.slowdown
        values = [*(s.efficiency[k] for k in (1, 5, 10)), *rest]
        shown = ["" if math.isnan(value) else f"{value:.3f}" for value in values]
        rows.append([s.quantity, s.method, str(s.problems), *shown])
    print_table(title, columns, rows)


def _plain(value: object) -> object:
    """NaN is null in JSON."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value
