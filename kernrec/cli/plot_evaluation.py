"""The figure of an evaluation: predicted against measured latency with intervals, and efficiency@k against k."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kernrec.cli.figure import new_figure, save_figure
from kernrec.training import scores
from kernrec.training.evaluate_models import METHODS
from kernrec.training.held_out_predictions import HeldOutProblem

_MOST_POINTS = 400  # of a problem; more would hide one another
_MOST_CHOICES = 100  # largest k of efficiency@k


def draw(problems: Sequence[HeldOutProblem], path: Path) -> None:
    """Draw the latency of all problems into an SVG or PNG file.

    Raises:
        UsageError: the file cannot be written.
    """
    figure = new_figure(11, 5)
    left, right = figure.subplots(1, 2)
    method = "learned" if any("learned" in problem.predicted for problem in problems) else "prior"
    for problem in problems:
        if method not in problem.predicted:
            continue
        count = len(problem.latency_s)
        shown = np.linspace(0, count - 1, min(count, _MOST_POINTS)).astype(int)
        measured, predicted = problem.latency_s[shown], problem.predicted[method]["latency"][shown]
        bars = None
        if method == "learned":
            bars = [predicted - problem.low["latency"][shown], problem.high["latency"][shown] - predicted]
        left.errorbar(measured, predicted, bars, fmt=".", ms=3, elinewidth=0.4, alpha=0.5)
    ends = [
        min(problem.latency_s.min() for problem in problems),
        max(problem.latency_s.max() for problem in problems),
    ]
    left.plot(ends, ends, color="black", linewidth=0.8)
    left.set(xscale="log", yscale="log", xlabel="measured latency (s)", ylabel=f"{method} latency (s), 90 % interval")
    longest = min(max(len(problem.latency_s) for problem in problems), _MOST_CHOICES)
    for name in METHODS:
        curves = [curve for problem in problems if (curve := _curve(problem, name, longest)) is not None]
        if curves:
            right.plot(np.arange(1, longest + 1), np.mean(curves, axis=0), label=f"{name} ({len(curves)})")
    right.set(xscale="log", xlabel="k", ylabel="efficiency@k (mean over problems)", ylim=(0, 1.02))
    right.legend(title="method (problems)")
    save_figure(figure, path)


def _curve(problem: HeldOutProblem, method: str, longest: int) -> np.ndarray | None:
    """efficiency@k of latency for k = 1 to `longest`; None where the method does not apply."""
    if method == "random":
        return np.array([scores.expected_random(problem.latency_s, k)[0] for k in range(1, longest + 1)])
    expected = problem.expected(method, "latency")
    if expected is None:
        return None
    curve = scores.efficiency_curve(problem.latency_s, scores.order_of(expected))[:longest]
    return np.append(curve, np.ones(longest - len(curve)))
