"""Add up the costs of a network's layers.

A total is the sum of the costs of all layers and all-reduces. The intervals of totals assume fully correlated errors,
because kernels on one GPU share most of their error (`estimate.costs.OWN`).
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kernrec.model.analytical.spread import SOURCES, Source
from kernrec.recommender.json_form import IntervalNames, JsonForm
from kernrec.recommender.networks.exchange import Exchange
from kernrec.recommender.result import Comparison, Estimate, sum_of
from kernrec.util.light_dataclass import dataclass

if TYPE_CHECKING:
    from kernrec.recommender.baselines import Baseline

RECOMMENDED, FASTEST, LOWEST_ENERGY = "kernrec", "kernrec, lowest latency", "kernrec, lowest energy"
HEURISTIC, MIXTURE = "occupancy heuristic", "mixture: kernrec where it is worth it"
"""Names of two totals: with the occupancy heuristic's configs, and with kernrec's kernels where they are worth it."""

Costs = tuple[Estimate, Estimate]
"""Latency and energy of a layer."""


def costs_of(baseline: "Baseline") -> Costs:
    source = Source.MEASURED if baseline.source == "published" else Source(baseline.source)
    assert baseline.energy_j is not None, "every baseline has a power"
    source_of_power = Source.PREDICTED if baseline.power_predicted else source
    return replace(baseline.latency_s, source=source), replace(baseline.energy_j, source=source_of_power)


@dataclass(frozen=True)
class Total(IntervalNames, JsonForm):
    """Sum of latency and energy over all answered layers, for one way to run the network."""

    JSON = "name complete latency_s energy_j power_w source energy_source"

    name: str
    """Name of the way to run the network: a rule that selects configs, or a backend."""
    latency_s: Estimate
    energy_j: Estimate
    complete: bool = True
    """Whether the sum includes all layers of the network. If not, the network costs more than the sum."""

    @property
    def power_w(self) -> float:
        return self.energy_j.value / self.latency_s.value

    @property
    def source(self) -> str:
        """Source of the latency or of the energy, whichever is less certain."""
        return str(min(self.latency_s.source, self.energy_j.source, key=SOURCES.index))

    @classmethod
    def of(cls, name: str, layers: Iterable[tuple[int, Costs]], exchange: Exchange | None, complete: bool) -> "Total":
        """Add up the costs of layers, each with its number of occurrences, and the all-reduces."""
        counts, costs = zip(*layers, strict=True)
        latency, energy = (sum_of(each, counts) for each in zip(*costs, strict=True))
        if exchange is not None:  # The GPU waits for all-reduces at the mean power of the layers.
            computing, latency = latency, sum_of((latency, exchange.latency_s))
            energy = energy.scaled(latency.value / computing.value)
        return cls(name, latency, energy, complete)

    @property
    def label(self) -> str:
        """Name for display, which marks a total that excludes layers."""
        return self.name if self.complete else f"{self.name}, incomplete"

    def versus(self, other: "Total") -> Comparison:
        return Comparison(1.0 - self.energy_j.value / other.energy_j.value, self.latency_s / other.latency_s - 1.0)

    def as_dict(self) -> dict[str, Any]:
        return super().as_dict() | {"source": self.latency_s.source}


def today_name(backend: str) -> str:
    """Return the label of a network's total cost with a backend, such as `vLLM today`."""
    return f"{backend} today"
