"""The figure of an explanation: roofline, all candidates with their front, and energy by component."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kernrec.cli.figure import new_figure, save_figure
from kernrec.cli.format import source_text
from kernrec.util.human import config_text, human

if TYPE_CHECKING:
    from kernrec.recommender.explain.breakdown import Explanation
    from kernrec.recommender.explain.report import Report

_LABELED = 12
"""Points of a front that are labeled with their power limit at most."""
_COLORS = ("C0", "C1")

Shown = list[tuple[str, "Explanation"]]
"""(label, explanation) of the config, and of the one it is compared with."""


def draw(path: Path, report: "Report") -> None:
    """Draw an explanation, and the config that it is compared with, into an SVG or PNG file.

    Raises:
        UsageError: the file cannot be written.
    """
    figure = new_figure(16, 5.6)
    roof, cloud, bars = figure.subplots(1, 3)
    shown = [("config", report.subject)] + ([("against", report.other)] if report.other is not None else [])
    _roofline(roof, shown)
    _cloud(cloud, report, shown)
    _bars(bars, shown)
    choice = report.subject.choice
    title = f"{choice.kernel.name} on {choice.gpu.title} at {choice.power_limit_w:g} W: {choice.problem.title}"
    figure.suptitle("\n".join([title, *(_title(name, explanation) for name, explanation in shown)]), fontsize=10)
    save_figure(figure, path)


def _title(name: str, explanation: "Explanation") -> str:
    """The line of the title that names a config."""
    choice = explanation.choice
    return f"{name} ({source_text(choice)}): {config_text(choice.config)}"


def _units(axis: Any, unit: str) -> None:
    """Label the ticks with numbers, SI prefix and unit: 200 us, 1.5 ms."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)) if axis.get_scale() == "log" else MaxNLocator(6))
    axis.set_major_formatter(FuncFormatter(lambda value, _: human(value, unit) if value else "0"))
    axis.set_minor_formatter(NullFormatter())


def _roofline(axes: Any, shown: Shown) -> None:
    """Draw the roofline of the GPU and the configs on it."""
    roof = shown[0][1].roofline
    points = [explanation.roofline for _, explanation in shown]
    ends = [*(point.intensity for point in points if point.flops), roof.ridge]
    x = np.geomspace(min(ends) / 6, max(ends) * 6, 200)
    axes.loglog(x, np.minimum(x * roof.bandwidth, roof.peak_flops), color="black")
    for (name, _), point, color in zip(shown, points, _COLORS, strict=False):
        if not point.flops:
            continue  # a kernel on whole numbers has no place under this roof
        share = point.achieved_flops / point.attainable_flops
        label = f"{name}: {human(point.achieved_flops, 'FLOP/s')}, {share * 100:.0f} % of attainable"
        axes.loglog([point.intensity], [point.achieved_flops], "o", color=color, label=label)
        axes.vlines(point.intensity, point.achieved_flops, point.attainable_flops, color, linestyle=":")
    peaks = f"DRAM {human(roof.bandwidth, 'B/s')}, peak {human(roof.peak_flops, 'FLOP/s')}"
    what = "counted operations" if roof.counted else "operations"
    axes.set(xlabel=f"{what} per byte of DRAM traffic", title=f"roofline: {peaks}")
    _units(axes.yaxis, "FLOP/s")
    axes.grid(True, color="0.92")
    # The roofline rises from the left, so the lower right corner is free.
    axes.set_ylim(
        top=roof.peak_flops * 2,
        bottom=min([p.achieved_flops for p in points if p.flops] or [roof.peak_flops * 1e-4]) / 8,
    )
    if any(point.flops for point in points):
        axes.legend(loc="lower right", fontsize=8)


def _cloud(axes: Any, report: "Report", shown: Shown) -> None:
    """Draw latency and energy of all candidates, the fronts and the configs."""
    from kernrec.recommender.estimate.estimates import MEASURED
    from kernrec.recommender.pareto import pareto_front

    candidates, point = report.candidates, report.point
    latency, energy = candidates.latency_s[point], candidates.energy_j[point]
    measured = candidates.latency_source[point] == MEASURED
    heuristic = candidates.kernels[0].heuristic
    limits = [point.limit_w(candidates.gpu) for point in candidates.points]
    chosen = [explanation.choice for _, explanation in shown]
    all_s, all_j = candidates.latency_s.ravel(), candidates.energy_j.ravel()
    everywhere, front = pareto_front(all_s, all_j), pareto_front(latency, energy)
    # The front and the configs fill the view; most other candidates would squeeze them into a corner.
    low_s, high_s = _view([*all_s[everywhere], *latency[front], *(choice.latency_s.value for choice in chosen)])
    low_j, high_j = _view([*all_j[everywhere], *energy[front], *(choice.energy_j.value for choice in chosen)])
    beyond = int(((latency > high_s) | (energy > high_j)).sum())
    left_out = f" ({beyond} of them outside)" if beyond else ""
    axes.plot(latency, energy, ".", color="0.7", markersize=4, label=f"{len(latency)} candidates{left_out}")
    if measured.any():
        axes.plot(latency[measured], energy[measured], "x", color="0.3", label=f"{int(measured.sum())} measured")
    over = f"front over power limits {min(limits):g} to {max(limits):g} W"
    axes.plot(all_s[everywhere], all_j[everywhere], ".-", color="C2", linewidth=2, markersize=9, label=over)
    for place in everywhere if len(everywhere) <= _LABELED else ():
        text, point_of = f"{limits[place // len(latency)]:g} W", (all_s[place], all_j[place])
        axes.annotate(text, point_of, xytext=(6, 4), textcoords="offset points", fontsize=7, color="C2", clip_on=True)
    axes.plot(latency[front], energy[front], "k.-", markersize=5, label=f"front at {limits[point]:g} W")
    if latency[heuristic] <= high_s and energy[heuristic] <= high_j:
        axes.plot([latency[heuristic]], [energy[heuristic]], "^", color="C3", label="occupancy heuristic")
    else:
        times = (
            f"{latency[heuristic] / latency.min():.2g} x the time, {energy[heuristic] / energy.min():.2g} x the energy"
        )
        axes.plot([], [], "^", color="C3", label=f"occupancy heuristic outside: {times}")
    for (name, _), choice, color in zip(shown, chosen, _COLORS, strict=False):
        axes.plot([choice.latency_s.value], [choice.energy_j.value], "o", color=color, label=name)
    axes.set(xlabel="latency", ylabel="energy", title="candidates", xlim=(low_s, high_s), ylim=(low_j, high_j))
    _units(axes.xaxis, "s")
    _units(axes.yaxis, "J")
    axes.grid(True, color="0.92")
    axes.legend(fontsize=8, loc="upper right")


def _view(values: list[float]) -> tuple[float, float]:
    """Return the ends of an axis on which some values take about half, and at least a fifth of their size."""
    low, high = min(values), max(values)
    room = max(high - low, 0.2 * low)
    return low - 0.1 * room, high + 0.8 * room


def _bars(axes: Any, shown: Shown) -> None:
    """Draw the energy of each component of the configs."""
    joules: dict[str, list[float]] = {}
    for index, (_, explanation) in enumerate(shown):
        for name, value in explanation.energy_j.items():
            joules.setdefault(name, [0.0] * len(shown))[index] = value
    names = sorted((name for name in joules if max(joules[name]) > 0), key=lambda name: max(joules[name]))
    height = 0.8 / len(shown)
    places = np.arange(len(names))
    for index, ((label, explanation), color) in enumerate(zip(shown, _COLORS, strict=False)):
        values = [joules[name][index] for name in names]
        whole = sum(explanation.energy_j.values())
        positions = places + height * ((len(shown) - 1) / 2 - index)
        bars = axes.barh(positions, values, height, color=color, label=f"{label}: {human(whole, 'J')}")
        texts = [f" {human(value, 'J')}, {value / whole * 100:.0f} %" if value else "" for value in values]
        axes.bar_label(bars, texts, fontsize=8)
    axes.set_yticks(places, names)
    axes.set(xlabel="energy", title="energy by component, in predicted shares")
    axes.margins(x=0.25)
    _units(axes.xaxis, "J")
    axes.legend(loc="lower right", fontsize=8)
