"""Section 7 of the protocol: has the card become another? Two reference kernels, held against the session's start."""

from collections.abc import Mapping

from kernrec.measure.device.interface import CardSettings

LATENCY_DRIFT = 0.01
ENERGY_DRIFT = 0.02

References = Mapping[str, Mapping[str, float]]
"""By reference kernel: `latency_s`, and `energy_j` where it was measured."""


class DriftMonitor:
    """What the reference kernels cost at the start and since.

    After a drift the new state is what later looks are held against: the card may stay as it is now. `latency` and
    `energy` remain ratios to the session's start.
    """

    def __init__(self) -> None:
        self._first: dict[str, dict[str, float]] = {}
        self._base: dict[str, dict[str, float]] = {}
        self.latency: float | None = None
        self.energy: float | None = None

    def drifted(self, found: References) -> str | None:
        """What is not as it was, and by how much; None where nothing drifted."""
        ratios = [
            (name, words, costs[cost] / self._base[name][cost] - 1.0, allowed)
            for cost, words, allowed in (("latency_s", "latency", LATENCY_DRIFT), ("energy_j", "energy", ENERGY_DRIFT))
            for name, costs in found.items()
            if cost in costs and cost in self._base.get(name, {})
        ]
        texts = [f"{name} {words} {change:+.1%}" for name, words, change, allowed in ratios if abs(change) > allowed]
        return f"reference kernels drifted: {', '.join(texts)}" if texts else None

    def take(self, found: References) -> str | None:
        """Take in a measurement of the references; what drifted, as `drifted`."""
        error = self.drifted(found)
        for name, costs in found.items():
            for cost, value in costs.items():
                self._first.setdefault(name, {}).setdefault(cost, value)
                self._base.setdefault(name, {}).setdefault(cost, value)
        self.latency = _farthest(found, self._first, "latency_s")
        self.energy = _farthest(found, self._first, "energy_j") or self.energy
        if error is not None:
            self.rebase(found)
        return error

    def rebase(self, found: References) -> None:
        """Hold later looks against this one, as after somebody changed the card's settings."""
        for name, costs in found.items():
            self._base[name] = {**self._base.get(name, {}), **costs}


def _farthest(found: References, base: References, cost: str) -> float | None:
    ratios = [costs[cost] / base[name][cost] for name, costs in found.items() if cost in costs]
    return max(ratios, key=lambda ratio: abs(ratio - 1.0)) if ratios else None


def changes(before: CardSettings, after: CardSettings) -> str:
    """`power_limit_w 700 -> 500`: what is different."""
    pairs = [(name, getattr(before, name), getattr(after, name)) for name in vars(before)]
    return ", ".join(f"{name} {_shown(old)} -> {_shown(new)}" for name, old, new in pairs if old != new)


def _shown(value: object) -> str:
    return "default" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
