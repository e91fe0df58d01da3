"""The picture of an evaluation: predicted against measured with intervals, and efficiency@k against k."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernrec.errors import KernrecError, UsageError
from kernrec.training import scores
from kernrec.training.evaluate_models import METHODS, Case
from kernrec.util.optional import import_optional

ENDINGS = (".svg", ".png")
_MOST_POINTS = 400  # of a problem; more hide one another


def check(path: Path) -> None:
    """Raises before anything is computed where no picture could be drawn into `path`."""
    if path.suffix.lower() not in ENDINGS:
        raise UsageError(f"--plot {path}: a picture ends in {' or '.join(ENDINGS)}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--plot {path}: there is no folder {path.absolute().parent}")
    _pyplot()


def _pyplot() -> Any:
    import_optional("matplotlib", "--plot", "plot").use("Agg")
    from matplotlib import pyplot

    return pyplot


def draw(cases: Sequence[Case], path: Path) -> None:
    """Draw the latency of all cases into an SVG or PNG file."""
    pyplot = _pyplot()
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 5), layout="constrained")
    method = "learned" if any("learned" in case.predicted for case in cases) else "prior"
    for case in cases:
        if method not in case.predicted:
            continue
        shown = np.linspace(0, len(case.latency_s) - 1, min(len(case.latency_s), _MOST_POINTS)).astype(int)
        measured, predicted = case.latency_s[shown], case.predicted[method]["latency"][shown]
        bars = None
        if method == "learned":
            bars = [predicted - case.low["latency"][shown], case.high["latency"][shown] - predicted]
        left.errorbar(measured, predicted, bars, fmt=".", ms=3, elinewidth=0.4, alpha=0.5)
    ends = [min(case.latency_s.min() for case in cases), max(case.latency_s.max() for case in cases)]
    left.plot(ends, ends, color="black", linewidth=0.8)
    left.set(xscale="log", yscale="log", xlabel="measured latency (s)", ylabel=f"{method} latency (s), 90 % interval")
    longest = min(max(len(case.latency_s) for case in cases), 100)
    for name in METHODS:
        curves = [_curve(case, name, longest) for case in cases]
        known = [curve for curve in curves if curve is not None]
        if known:
            right.plot(np.arange(1, longest + 1), np.mean(known, axis=0), label=f"{name} ({len(known)})")
    right.set(xscale="log", xlabel="k", ylabel="efficiency@k (mean over problems)", ylim=(0, 1.02))
    right.legend(title="way to choose (problems)")
    try:
        figure.savefig(path)
    except OSError as error:
        raise KernrecError(f"cannot write {path}: {error.strerror}") from None
    finally:
        pyplot.close(figure)


def _curve(case: Case, method: str, longest: int) -> np.ndarray | None:
    if method == "random":
        return np.array([scores.expected_random(case.latency_s, k)[0] for k in range(1, longest + 1)])
    if method not in case.predicted or not np.isfinite(case.predicted[method]["latency"]).all():
        return None
    curve = scores.efficiency_curve(case.latency_s, scores.order_of(case.predicted[method]["latency"]))[:longest]
    return np.append(curve, np.ones(longest - len(curve)))
