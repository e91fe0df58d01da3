"""What to change about a config: its neighbours in the space and other power limits, by what they should gain.

A config that was measured missed its prediction by something, of which a part is its own. Held against the predictions
of configs that nobody ran, a slow surprise would make every change look like a gain. So a config that was not measured
is taken to miss its prediction by as much as one that was: the gain is that from prediction to prediction.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from kernrec.recommender.estimate.estimates import SOURCES
from kernrec.recommender.explain.breakdown import Explanation, explain
from kernrec.recommender.explain.pick_config import cost_of
from kernrec.recommender.notes import sources_of
from kernrec.recommender.power_sweep import Ranked

_WORTH = 0.002
"""Gains below this are not worth a line: far inside the model's spread."""
_PAIR_WORTH = 0.01
"""A pair has to gain so much more than the better of its two changes alone."""
_SHOWN_CHANGES = 2
_COSTS = ("energy", "time", "power")


@dataclass(frozen=True)
class Change:
    """One change. what: `tile_y 2 -> 4`; gain: fraction of the objective saved; changes: of the figures that changed
    most, as fractions; energy, time: of the cost before, as fractions (-0.11 is 11 % less). source: of all
    these costs, the least sure of them.
    """

    what: str
    gain: float
    energy: float
    time: float
    changes: dict[str, float]
    source: str

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return vars(self)


def advise_changes(
    ranked: Ranked, position: int, limit: int = 0, objective: str = "energy", top: int = 5
) -> list[Change]:
    """The changes of one tunable, of two, or of the power limit that gain most in `objective`, best first.

    objective: `energy`, `latency` or `edp`. The figures are those of estimates of the changed config, not of rules.
    """
    latency, energy = _comparable(ranked, position, limit)
    costs = cost_of(latency, energy, objective)
    now = costs[limit, position]
    here = explain(ranked, position, limit)
    columns = {name: column[ranked.rows] for name, column in ranked.group.space.columns.items()}
    differs = np.stack([column != column[position] for column in columns.values()])
    distance = differs.sum(axis=0)
    found: list[tuple[float, int, int]] = []
    best_alone: dict[int, float] = {}
    for tunable in range(len(columns)):
        changed = np.flatnonzero((distance == 1) & differs[tunable])
        if len(changed):
            best = int(changed[costs[limit, changed].argmin()])
            best_alone[tunable] = 1.0 - float(costs[limit, best] / now)
            found.append((best_alone[tunable], limit, best))
    for one in range(len(columns)):
        for other in range(one):
            changed = np.flatnonzero((distance == 2) & differs[one] & differs[other])
            if len(changed):
                best = int(changed[costs[limit, changed].argmin()])
                gain = 1.0 - float(costs[limit, best] / now)
                if gain > max(best_alone.get(one, 0.0), best_alone.get(other, 0.0)) + _PAIR_WORTH:
                    found.append((gain, limit, best))
    lowest = int(costs[:, position].argmin())
    if lowest != limit:
        found.append((1.0 - float(costs[lowest, position] / now), lowest, position))
    found.sort(key=lambda entry: -entry[0])
    return [
        _advice(
            here,
            explain(ranked, other, there),
            gain,
            float(energy[there, other] / energy[limit, position] - 1.0),
            float(latency[there, other] / latency[limit, position] - 1.0),
        )
        for gain, there, other in found[:top]
        if gain > _WORTH
    ]


def _comparable(ranked: Ranked, position: int, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Latencies and energies (limits, C) that changes from the config at `position` are judged by."""
    latency, energy, here = ranked.latency_s.copy(), ranked.energy_j.copy(), ranked.costs[limit]
    if position in here.measured:
        others = np.setdiff1d(np.arange(len(ranked.rows)), list(here.measured))
        latency[limit, others] *= here.estimates.latency_s[position] / here.predicted.latency_s[position]
        energy[limit, others] *= here.estimates.energy_j[position] / here.predicted.energy_j[position]
    return latency, energy


def _advice(here: Explanation, there: Explanation, gain: float, energy: float, time: float) -> Change:
    changes = difference(here, there)
    shown = sorted((name for name in changes if name not in _COSTS), key=lambda name: -abs(changes[name]))
    before, after = here.limited, there.limited
    sources = sources_of([before.choice, after.choice])
    parts = [
        f"{name} {value} -> {after.choice.config[name]}"
        for name, value in before.choice.config.items()
        if after.choice.config[name] != value
    ]
    if after.power_limit_w != before.power_limit_w:
        parts.append(f"power limit {before.power_limit_w:g} W -> {after.power_limit_w:g} W")
    return Change(
        what=", ".join(parts),
        gain=gain,
        energy=energy,
        time=time,
        changes={name: changes[name] for name in shown[:_SHOWN_CHANGES] if abs(changes[name]) > _WORTH},
        source=min(sources, key=SOURCES.index),
    )


def difference(before: Explanation, after: Explanation) -> dict[str, float]:
    """How much each figure changes, as a fraction of what it was; from nothing counts as one."""
    found = {}
    for name, value in before.figures.items():
        new = after.figures[name]
        found[name] = new / value - 1.0 if value else float(new > 0)
    return found
