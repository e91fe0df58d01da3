"""The picture of an explanation: roofline, all candidates with their front, and energy by component (Matplotlib)."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kernrec.errors import KernrecError, UsageError

if TYPE_CHECKING:
    from kernrec.recommender.explain import Explanation
    from kernrec.recommender.own import Ranked


def draw(path: Path, ranked: "Ranked", subject: "Explanation", other: "Explanation | None", limit: int) -> None:
    """Draws into `path`, by its ending SVG or PNG. Raises `KernrecError` without Matplotlib, or if it cannot write."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise KernrecError("--plot needs Matplotlib: pip install 'kernrec[plot]'") from None
    figure = Figure(figsize=(15, 4.6), layout="constrained")
    roof, cloud, bars = figure.subplots(1, 3)
    shown = [("config", subject)] + ([("against", other)] if other is not None else [])
    _roofline(roof, shown)
    _cloud(cloud, ranked, shown, limit)
    _bars(bars, shown)
    choice = subject.limited.choice
    figure.suptitle(f"{choice.kernel.name}, {choice.problem.key}, {choice.gpu.title}: predicted, not measured")
    temporary = path.with_name(f".{path.name}.part")
    try:
        figure.savefig(temporary, format=path.suffix[1:], dpi=120)
        temporary.replace(path)
    except OSError as error:
        raise UsageError(f"--plot {path} cannot be written: {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)


def _roofline(axes: Any, shown: "list[tuple[str, Explanation]]") -> None:
    roof = shown[0][1].roofline
    points = [explanation.roofline.intensity for _, explanation in shown]
    x = np.geomspace(min([*points, roof.ridge]) / 8, max([*points, roof.ridge]) * 8, 200)
    axes.loglog(x, np.minimum(x * roof.bandwidth, roof.peak_flops), color="black", label="attainable")
    for name, explanation in shown:
        axes.loglog([explanation.roofline.intensity], [explanation.roofline.achieved_flops], "o", label=name)
    axes.set(xlabel="operations per byte of DRAM traffic", ylabel="operations per second", title="roofline")
    axes.legend()


def _cloud(axes: Any, ranked: "Ranked", shown: "list[tuple[str, Explanation]]", limit: int) -> None:
    from kernrec.recommender.pareto import pareto_front

    latency, energy = ranked.latency_s[limit] * 1e6, ranked.energy_j[limit] * 1e3
    if latency.max() > 4 * latency.min():  # over less than that, a logarithmic axis has hardly a tick
        axes.set(xscale="log", yscale="log")
    axes.plot(latency, energy, ".", color="silver", markersize=3, label=f"{len(latency)} candidates")
    front = pareto_front(latency, energy)
    axes.plot(latency[front], energy[front], "-", color="black", label="front")
    for name, explanation in shown:
        choice = explanation.limited.choice
        axes.plot([choice.latency_s.value * 1e6], [choice.energy_j.value * 1e3], "o", label=name)
    axes.set(xlabel="latency, us", ylabel="energy, mJ", title="candidates")
    axes.legend()


def _bars(axes: Any, shown: "list[tuple[str, Explanation]]") -> None:
    names = list(dict.fromkeys(name for _, explanation in shown for name in explanation.energy_j))
    bottom = np.zeros(len(shown))
    for name in names:
        height = np.array([explanation.energy_j.get(name, 0.0) * 1e3 for _, explanation in shown])
        axes.bar([label for label, _ in shown], height, bottom=bottom, label=name, width=0.5)
        bottom += height
    axes.set(ylabel="energy, mJ", title="energy by component")
    axes.legend()
