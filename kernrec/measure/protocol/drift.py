"""Detect changes of the GPU: compare its two reference kernels with their costs at the start of the session."""

from collections.abc import Mapping

from kernrec.measure.device.interface import CardSettings

LATENCY_DRIFT = 0.01
"""Minimum relative change of a reference kernel's latency that counts as drift."""
ENERGY_DRIFT = 0.02

References = Mapping[str, Mapping[str, float]]
"""`latency_s`, and `energy_j` if it was measured, by reference kernel."""


class DriftMonitor:
    """Costs of the reference kernels at the start of a session and since.

    After a drift, the new costs become the baseline, because the GPU may keep its new state.
    """

    def __init__(self) -> None:
        self._first: dict[str, dict[str, float]] = {}
        self._baseline: dict[str, dict[str, float]] = {}
        self.latency: float | None = None
        """Latest latency relative to the session's start, of the kernel that changed most."""
        self.energy: float | None = None
        """Latest energy relative to the session's start, of the kernel that changed most."""

    def drifted(self, costs: References) -> str | None:
        """Describe the changes beyond the limits; return None if there are none."""
        changes = [
            (name, words, costs_of[cost] / self._baseline[name][cost] - 1.0, limit)
            for cost, words, limit in (("latency_s", "latency", LATENCY_DRIFT), ("energy_j", "energy", ENERGY_DRIFT))
            for name, costs_of in costs.items()
            if cost in costs_of and cost in self._baseline.get(name, {})
        ]
        texts = [f"{name} {words} {change:+.1%}" for name, words, change, limit in changes if abs(change) > limit]
        return f"reference kernels drifted: {', '.join(texts)}" if texts else None

    def update(self, costs: References) -> str | None:
        """Store a measurement of the reference kernels; return the result of `drifted`."""
        error = self.drifted(costs)
        for name, costs_of in costs.items():
            for cost, value in costs_of.items():
                self._first.setdefault(name, {}).setdefault(cost, value)
                self._baseline.setdefault(name, {}).setdefault(cost, value)
        self.latency = _largest_change(costs, self._first, "latency_s")
        self.energy = _largest_change(costs, self._first, "energy_j") or self.energy
        if error is not None:
            self.rebase(costs)
        return error

    def rebase(self, costs: References) -> None:
        """Make a measurement the baseline, for example after somebody changed the GPU's settings."""
        for name, costs_of in costs.items():
            self._baseline[name] = {**self._baseline.get(name, {}), **costs_of}


def _largest_change(costs: References, base: References, cost: str) -> float | None:
    ratios = [costs_of[cost] / base[name][cost] for name, costs_of in costs.items() if cost in costs_of]
    return max(ratios, key=lambda ratio: abs(ratio - 1.0)) if ratios else None


def describe_changes(before: CardSettings, after: CardSettings) -> str:
    """Describe the settings that differ: `power_limit_w 700 -> 500`."""
    pairs = [(name, getattr(before, name), getattr(after, name)) for name in vars(before)]
    return ", ".join(f"{name} {_shown(old)} -> {_shown(new)}" for name, old, new in pairs if old != new)


def _shown(value: object) -> str:
    return "default" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
