"""Answer for a whole network: layers, baselines and totals.

Totals are sums of count x layer. They assume that layers run one after another, with only the exchange between GPUs
added. Intervals of totals assume fully correlated errors, so they are the sums of the layers' bounds. Predictions of
one kernel on one GPU share most of their error (except the fraction `estimate.costs.OWN`, a config's own part), and all
kernels share the GPU's specifications. Assuming independent errors would make intervals of many layers far too narrow.
"""

from collections.abc import Mapping
from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from kernrec.gpu import GPU
from kernrec.model.prior.spread import SOURCES, Source
from kernrec.op.workload import Workload
from kernrec.recommender import tabular
from kernrec.recommender.json_form import IntervalNames, JsonForm, NetworkNames
from kernrec.recommender.networks.layer_answer import WORTH_IT, LayerAnswer
from kernrec.recommender.networks.memory import memory_json
from kernrec.recommender.request import Query
from kernrec.recommender.result import Estimate
from kernrec.util.human import counted, human
from kernrec.util.light_dataclass import dataclass

if TYPE_CHECKING:
    from kernrec.recommender.networks.exchange import Exchange
    from kernrec.recommender.networks.memory import Memory
    from kernrec.recommender.recommender import Recommender

RECOMMENDED, FASTEST, LOWEST_ENERGY = "kernrec", "kernrec, lowest latency", "kernrec, lowest energy"
HEURISTIC, MIXTURE = "occupancy heuristic", "mixture: kernrec where it is worth it"
"""Names of totals: kernrec's recommendations, their alternatives, and the mixture. The mixture uses kernrec where it is
worth it and a backend elsewhere. A backend's total is named after the backend. Every total uses the recommendation if
the backend has no baseline for a layer."""

MOST_OF_THE_TIME, MOST_SHOWN = 0.8, 10
"""Fraction of the time that the layers that matter take together, and their maximum number."""


@dataclass(frozen=True)
class Total(IntervalNames, JsonForm):
    """Sum over all answered layers, with one config for each."""

    JSON = "name latency_s energy_j power_w source energy_source"

    name: str
    """Name of the total: the selection of configs or the backend."""
    latency_s: Estimate
    energy_j: Estimate

    @property
    def power_w(self) -> float:
        """Mean power in watts."""
        return self.energy_j.value / self.latency_s.value

    @property
    def source(self) -> str:
        """Least certain source of latency and energy."""
        return str(min(self.latency_s.source, self.energy_j.source, key=SOURCES.index))

    def versus(self, other: "Total") -> tuple[float, float]:
        """Return the relative changes of latency and energy from another total to this total."""
        return (
            self.latency_s.value / other.latency_s.value - 1.0,
            self.energy_j.value / other.energy_j.value - 1.0,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; keys contain the unit."""
        return super().as_dict() | {"source": self.latency_s.source}


class TotalSum:
    """Sum of layers; its source is the least certain source of any layer."""

    def __init__(self) -> None:
        self._sums = np.zeros((2, 3))
        self._sources = [len(SOURCES) - 1] * 2

    def add(self, count: int, latency: Estimate, energy: Estimate) -> None:
        """Add a layer that the network has `count` times."""
        for row, estimate in enumerate((latency, energy)):
            self._sums[row] += (count * estimate.value, count * estimate.low, count * estimate.high)
            self._sources[row] = min(self._sources[row], SOURCES.index(Source(estimate.source)))

    def wait(self, latency: Estimate) -> None:
        """Add waiting time at unchanged mean power."""
        self._sums[1] *= (self._sums[0, 0] + latency.value) / self._sums[0, 0]
        self._sums[0] += (latency.value, latency.low, latency.high)
        self._sources[0] = min(self._sources[0], SOURCES.index(latency.source))

    def result(self, name: str) -> Total:
        """Return the current total under this name."""
        latency, energy = (
            Estimate(float(bounds[0]), float(bounds[1]), float(bounds[2]), SOURCES[source])
            for bounds, source in zip(self._sums, self._sources, strict=True)
        )
        return Total(name, latency, energy)


def _changed(change: float, what: str) -> str:
    return f"{abs(change) * 100:.2g} % {'less' if change < 0 else 'more'} {what}"


_PREFERRED = {RECOMMENDED: 1, MIXTURE: 2, FASTEST: 3, LOWEST_ENERGY: 4, HEURISTIC: 5}
"""Order of names among equal totals; the backend's total comes before all of them."""


@dataclass(frozen=True)
class NetworkAnswer(NetworkNames, JsonForm):
    """Recommendation for each layer of a network on a GPU, and the totals."""

    JSON = (
        "workload batch tp gpu objective power_limit_w locked_clock_hz inputs backends backend headline fits memory"
        " exchange dtypes layouts_chosen layers left_out totals notes"
    )

    workload: Workload
    gpu: GPU
    query: Query
    layers: tuple[LayerAnswer, ...]
    """Layers in the order of the network."""
    left_out: tuple[str, ...]
    """Layers that no total includes, with the reason."""
    totals: tuple[Total, ...]
    """Totals, best by the objective first."""
    adjusted: tuple[str, ...] = ()
    """Notes on layers answered in another data type or layout, because no kernel runs them as requested on this GPU."""
    layouts_chosen: Mapping[str, str] = field(default_factory=dict)
    """Layouts other than the op's default that were selected for layers with a free layout, by op."""
    backend: str = ""
    """Backend that has a total; empty if there is none."""
    headline_name: str = RECOMMENDED
    """Name of the total that represents the network."""
    exchange: "Exchange | None" = None
    """All-reduces of a tensor-parallel group; None for one GPU."""
    memory: "Memory | None" = None
    """Memory that one GPU needs."""

    def __repr__(self) -> str:
        chosen = self.headline
        cost = f"{human(chosen.latency_s.value, 's')}, {human(chosen.energy_j.value, 'J')} {chosen.source}"
        kind = ", ".join(self.dtypes)
        return f"<NetworkAnswer {self.workload.name} {kind} on {self.gpu.name}: {len(self.layers)} layers, {cost}>"

    def __str__(self) -> str:
        return tabular.network_text(self)

    def _repr_html_(self) -> str:
        return tabular.network_html(self)

    def to_arrow(self) -> Any:
        """Return the top recommendation of each layer (or its baseline) as a `pyarrow.Table`.

        Raises:
            KernrecError: PyArrow is not installed.
        """
        rows = [
            {"layer": layer.name, "count": layer.count} | row
            for layer in self.layers
            for row in tabular.plain_rows(layer.answer)[:1]
        ]
        return tabular.arrow_table(rows)

    @property
    def recommendation(self) -> Total:
        """Total of kernrec's recommendations."""
        return self.total(RECOMMENDED)

    @property
    def headline(self) -> Total:
        """Total that represents the network: the backend's total, or else kernrec's."""
        return self.total(self.headline_name)

    @property
    def today(self) -> Total | None:
        """Total of the backend; None if there is none."""
        return next((total for total in self.totals if self.backend and total.name == f"{self.backend} today"), None)

    @property
    def fits(self) -> bool:
        """Whether the network fits into the GPU's memory."""
        return self.memory is None or self.memory.fits(self.gpu)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Data types of the layers."""
        return tuple(dict.fromkeys(layer.answer.problem.dtype for layer in self.layers))

    @property
    def sources(self) -> tuple[str, ...]:
        """Sources of the layers' latencies."""
        return tuple(dict.fromkeys(str(layer.source) for layer in self.layers))

    @cached_property
    def _by_time(self) -> tuple[LayerAnswer, ...]:
        return tuple(sorted(self.layers, key=lambda layer: -layer.latency_s))

    @cached_property
    def _seconds(self) -> float:
        return sum(layer.latency_s for layer in self.layers)

    def dominant(self, most: int = 3) -> list[tuple[str, float]]:
        """Return the layers that take most of the time, with their fractions; the exchange counts as one layer."""
        parts = {layer.name: layer.latency_s for layer in self._by_time}
        if self.exchange is not None:
            parts["all-reduces"] = self.exchange.latency_s.value
        whole = sum(parts.values())
        return [(name, parts[name] / whole) for name in sorted(parts, key=lambda name: -parts[name])[:most]]

    @property
    def layers_that_matter(self) -> tuple[LayerAnswer, ...]:
        """Layers that together take most of the time, longest first."""
        taken = 0.0
        for number, layer in enumerate(self._by_time[:MOST_SHOWN], 1):
            taken += layer.latency_s
            if taken >= MOST_OF_THE_TIME * self._seconds:
                return self._by_time[:number]
        return self._by_time[:MOST_SHOWN]

    def longest(self, most: int | None = None) -> tuple[LayerAnswer, ...]:
        """Return the `most` longest layers, longest first; None returns `layers_that_matter`."""
        return self.layers_that_matter if most is None else self._by_time[:most]

    @property
    def paying(self) -> tuple[LayerAnswer, ...]:
        """Layers in which a custom kernel is worth it."""
        return tuple(layer for layer in self.layers if layer.worth_it)

    @property
    def advice(self) -> str:
        """Sentence on where a custom kernel is worth it; empty without a backend for most of the operations."""
        if (backend := self.today) is None:
            return ""
        with_baseline, count = [layer.baseline for layer in self.layers if layer.baseline is not None], len(self.layers)
        names = ", ".join(dict.fromkeys(baseline.backend for baseline in with_baseline))
        rest = f"{len(with_baseline)} of {count} layer types and kernrec's kernels in the others"
        rest = rest if len(with_baseline) < count else f"all {count} layer types"
        whole = f"{backend.name}: {'the fastest of ' * (', ' in names)}{names} in {rest}."
        unsure = sum(layer.may_be_worth_it and not layer.worth_it for layer in self.layers)
        more = (
            f" In {counted(unsure, 'layer type')} one may be, within the estimates' error: measure it."
            if unsure
            else ""
        )
        if not self.paying:
            sure = " for certain" * bool(unsure)
            least = f"{100 * WORTH_IT:.0f} %{sure}"
            return f"{whole} Custom kernels would not save {least} in any layer. Keep your backend.{more}"
        time, energy = self.total(MIXTURE).versus(backend)
        judged = sum(layer.worth_it is not None for layer in self.layers)
        return (
            f"{whole} Custom kernels are worth it in {len(self.paying)} of {judged} layer types that it has:"
            f" {_changed(time, 'time')} and {_changed(energy, 'energy')} overall.{more}"
        )

    @property
    def distinct_totals(self) -> tuple[Total, ...]:
        """Distinct totals; among equal totals, the first name in `_PREFERRED` is kept."""
        distinct: dict[Any, Total] = {}
        for total in sorted(self.totals, key=lambda total: _PREFERRED.get(total.name, 0)):
            distinct.setdefault((total.latency_s, total.energy_j), total)
        return tuple(total for total in self.totals if any(total is each for each in distinct.values()))

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the reader."""
        lines = (note for layer in self.layers for note in layer.answer.notes)
        return tuple(dict.fromkeys([*self.adjusted, *(f"not in the totals: {line}" for line in self.left_out), *lines]))

    def total(self, name: str) -> Total:
        """Return the total with this name."""
        return next(total for total in self.totals if total.name == name)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; keys contain the unit."""
        document = super().as_dict() | {"backend": self.backend or None, "headline": self.headline_name}
        if self.memory is None:
            del document["fits"], document["memory"]
            return document
        return document | memory_json(self.memory, self.gpu)

    def as_dict_with_regrets(self, recommender: "Recommender") -> dict[str, Any]:
        """Return plain values for JSON, with the regret (expected loss) of each layer and the network by objective.

        The network's regret is the sum of its layers' regrets, as a fraction of their total cost.
        """
        document = self.as_dict()
        lost: dict[str, float] = {}
        spent: dict[str, float] = {}
        for layer, values in zip(self.layers, document["layers"], strict=True):
            regrets = recommender.regrets(layer.answer) if layer.best is not None else ()
            values["regret"] = {str(regret.objective): regret.as_dict() for regret in regrets}
            for regret in regrets:
                _, cost, _ = regret.contenders[0]
                name = str(regret.objective)
                lost[name] = lost.get(name, 0.0) + layer.count * cost * regret.expected
                spent[name] = spent.get(name, 0.0) + layer.count * cost
        return document | {"regret": {name: {"expected": lost[name] / spent[name]} for name in lost}}
