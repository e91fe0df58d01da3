"""Effects of power limits and clocks, predicted and recorded: a part of `tools/evidence power`.

Prints energy and the clock of least energy over recorded sweeps of clocks; the time of a solver under caps; and the
throughput of large products that a card's limit holds back, with the card's own recordings left out of the fit.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from front import Table

from evidence.recordings import power as recordings
from evidence.recordings.power import Load
from evidence.recordings.power_of_products import REACHED
from kernrec.gpu import find_gpu
from kernrec.model.prior.launch_costs import NominalCosts
from kernrec.model.prior.power import PowerModel

from .fit_power import Coefficients, Predictor

_FEWEST = 4
"""Clocks of a sweep, at least."""


def show_sweeps(loads: Sequence[Load], fitted: Callable[[str], Coefficients], suffix: str) -> None:
    """Print, for sweeps over clocks with recorded times, the error of energy for the recorded time, how often the clock
    of least energy is right or next to it, and the energy that it loses; arguments of `sweeps_over_clocks`.

    suffix: of the table's title.
    """
    table = Table(f"\nsweeps over clocks, energy for the recorded times; {suffix}")
    for name, rows in sweeps_over_clocks(loads, fitted).items():
        steps, errors, lost = np.array(rows).T
        table.row({
            "recording": name, "sweeps": len(rows), "energy": f"{np.median(errors):.1%}",
            "best clock": f"{np.mean(steps == 0):.0%}", "within a step": f"{np.mean(steps <= 1):.0%}",
            "energy lost": f"{np.mean(lost):.1%}", "at most": f"{np.max(lost):.1%}",
        })  # fmt: skip


def sweeps_over_clocks(
    loads: Sequence[Load], fitted: Callable[[str], Coefficients]
) -> dict[str, list[tuple[int, float, float]]]:
    """By recording its sweeps: (steps between the predicted and the recorded clock of least energy, median error of
    energy for the recorded times, share of energy that the predicted clock loses).

    Args:
        loads: of which those count that name their time.
        fitted: the coefficients for a card.
    """
    sweeps: dict[tuple[str, str, float | None], list[Load]] = defaultdict(list)
    for load in loads:
        if load.latency_s and load.clock_hz and not load.doubt and "GEMM" not in load.recording:
            sweeps[load.recording, load.about.split(" MHz")[-1], load.limit_w].append(load)
    by_recording: dict[str, list[tuple[int, float, float]]] = defaultdict(list)
    for (name, _, _), sweep in sweeps.items():
        clocks = {load.clock_hz for load in sweep}
        if len(clocks) == len(sweep) >= _FEWEST:
            ordered = sorted(sweep, key=lambda load: load.clock_hz)
            seconds, recorded_w = np.array([(load.latency_s, load.power_w) for load in ordered]).T
            predicted_w = Predictor(ordered)(fitted(ordered[0].gpu))
            if ordered[0].limit_w:
                predicted_w = np.minimum(predicted_w, ordered[0].limit_w)
            joules = recorded_w * seconds
            best, chosen = int(np.argmin(joules)), int(np.argmin(predicted_w * seconds))
            error = float(np.median(np.abs(predicted_w / recorded_w - 1.0)))
            by_recording[name].append((abs(best - chosen), error, joules[chosen] / joules[best] - 1.0))
    return by_recording


def show_solver(data: Path) -> None:
    """Print the time of a solver under caps, given its power and time at the lowest clock and at no cap."""
    loads = sorted(recordings.solver_under_caps(data), key=lambda load: (load.clock_hz, load.limit_w))
    model = PowerModel.for_gpu(find_gpu(loads[0].gpu))
    slowest = max((load for load in loads if load.clock_hz == loads[0].clock_hz), key=lambda load: load.limit_w or 0.0)
    volts = float(model.voltage(slowest.clock_hz)) ** 2
    core_j = (slowest.power_w - float(model.power_at(slowest.clock_hz, {}))) * slowest.latency_s / volts
    launch = NominalCosts(slowest.latency_s * slowest.clock_hz / model.boost_hz, 0.0, 0.0, core_j, 0.0)
    off: dict[str, list[float]] = defaultdict(list)
    for load in loads:
        limited = model.apply_power_limit(launch, load.limit_w, load.clock_hz)
        capped = load.power_w > 0.97 * (load.limit_w or np.inf)
        name = "held back by the cap" if capped else "at its clock"
        off[name].append(float(limited.latency_s[0]) / load.latency_s)
        off[f"power {name}"].append(float(limited.power_w[0]) / load.power_w)
    table = Table("\nf64 solver on an A100 over clocks and caps, from one row: predicted over recorded")
    for name in ("at its clock", "held back by the cap"):
        time, power = np.array(off[name]), np.array(off[f"power {name}"])
        low, high = time.min(), time.max()
        table.row({
            "": name, "rows": len(time), "time": float(np.median(time)), "from": low, "to": high,
            "power": float(np.median(power)),
        })  # fmt: skip


def show_held(
    title: str, loads: Sequence[Load], shipped: Coefficients, left_out: Mapping[str, Coefficients]
) -> dict[str, dict[str, float]]:
    """Print the throughput of products at the default limit over the recorded; by load, `fitted` and `left out`.

    Args:
        title: of the table.
        loads: whose clock is the one that their throughput implies.
        shipped: the coefficients.
        left_out: by card, those that were fitted without it.
    """
    held: dict[str, dict[str, float]] = {}
    table = Table(f"\n{title} that reach {REACHED:g} of the rate: throughput, predicted over recorded")
    for load in loads:
        ratios = {"fitted": _throughput(load, shipped)}
        if load.gpu in left_out:
            ratios["left out"] = _throughput(load, left_out[load.gpu])
        name = f"{load.recording}, {load.power_w:.0f} W"
        held[name] = ratios
        table.row({"": name, "GHz": load.clock_hz * 1e-9, **ratios})
    return held


def _throughput(load: Load, coefficients: Coefficients) -> float:
    """Of a load that runs at its power limit, over the recorded."""
    model = PowerModel.of_coefficients(find_gpu(load.gpu), coefficients)
    core_j, dram_j = model.dynamic(load.rates)
    launch = NominalCosts(load.clock_hz / model.boost_hz, 0.0, 0.0, core_j, dram_j)
    return 1.0 / float(model.apply_power_limit(launch, load.power_w).latency_s[0])
