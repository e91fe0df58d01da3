"""The answer for a whole network: layers, what a stack takes for them today, and the totals.

Totals are sums of count x layer, so they hold for layers that run one after the other, with nothing between them.

Intervals of totals are the sums of the layers' bounds: every layer is taken to be wrong in the same direction at once.
Predictions of one kernel on one GPU share their error (`estimate.costs.OWN` has the share that is a config's own), and
kernels share the GPU's figures; were errors independent, the relative interval of a sum would shrink with the number of
layers, and promise far more than is known.
"""

from collections.abc import Mapping
from dataclasses import field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from kernrec.gpu import GPU
from kernrec.op.workload import Workload
from kernrec.recommender import tabular
from kernrec.recommender.estimate.estimates import SOURCES, Source
from kernrec.recommender.json_names import IntervalNames, NetworkNames
from kernrec.recommender.lines import cold_costs
from kernrec.recommender.request import Objective, Query
from kernrec.recommender.result import Choice, Estimate, Recommendation
from kernrec.util.config_short import short_config
from kernrec.util.human import counted, human
from kernrec.util.light_dataclass import dataclass

if TYPE_CHECKING:
    from kernrec.recommender.lines import Line
    from kernrec.recommender.recommender import Recommender

CHOICE, FASTEST, FRUGAL, HEURISTIC = "choice", "fastest", "most frugal", "occupancy heuristic"
STACK, MIXED = "stack today", "choice where it pays"
"""Names of totals: of the choice, and of the alternatives that it is compared with. `STACK` is every layer as the stack
runs it, `MIXED` the choice in the layers where it pays and the stack in all others. Layers that no stack was recorded
for run the choice in both."""

PAYS = 0.05
"""Least fraction of what a stack takes for a layer that a config of one's own has to save: it must be built, tested and
maintained, and predictions of two programs are no surer."""
MOST_OF_THE_TIME, MOST_SHOWN = 0.8, 10
"""The layers that matter: those that together take this share of the time, at most so many."""

Costs = tuple[Estimate, Estimate]
"""Latency and energy."""


@dataclass(frozen=True)
class LayerAnswer:
    """The answer for one layer of a network."""

    name: str
    count: int
    answer: Recommendation
    """Without choices where only stacks run the layer."""
    line: "Line | None" = None
    """The stack that is compared with: the fastest of those asked for; None where none was recorded."""
    objective: Objective = Objective.LATENCY

    def __repr__(self) -> str:
        return f"<LayerAnswer {self.name}, {self.count} times: {self.answer!r}>"

    @property
    def best(self) -> Choice | None:
        """The first choice; None where only stacks run the layer."""
        return self.answer.choices[0] if self.answer.choices else None

    @cached_property
    def costs(self) -> Costs:
        """Latency and energy of the choice, or of the stack where there is none."""
        if (best := self.best) is not None:
            return cold_costs(best.latency_s, best.energy_j, best.problem, best.gpu)
        costs = self.stack_costs
        assert costs is not None, "a layer has a choice or a line"
        return costs

    @cached_property
    def stack_costs(self) -> Costs | None:
        """Latency and energy of the stack."""
        if (line := self.line) is None:
            return None
        source = Source.MEASURED if line.source == "recorded" else Source.LEARNED
        assert line.energy_j is not None, "every baseline has a power"
        source_of_power = Source.PRIOR if line.power_predicted else source
        return replace(line.latency_s, source=source), replace(line.energy_j, source=source_of_power)

    @property
    def saved(self) -> float | None:
        """Fraction of the stack's cost (what the objective counts) that the choice saves; None without either."""
        if self.best is None or (stack := self.stack_costs) is None:
            return None
        return 1.0 - _counted(self.objective, self.costs) / _counted(self.objective, stack)

    @property
    def pays(self) -> bool | None:
        """Whether a config of one's own pays in this layer, also at the unfavorable ends of both intervals; None where
        no stack was recorded for it."""
        if self.best is None:
            return False
        return None if self.saved is None else self.may_pay and self.certain

    @property
    def may_pay(self) -> bool:
        """Whether the choice is expected to save enough of the stack's cost."""
        return self.saved is not None and self.saved >= PAYS

    @property
    def certain(self) -> bool:
        """Whether the choice costs less than the stack at the unfavorable ends of both intervals."""
        stack = self.stack_costs
        assert stack is not None
        latency, energy = self.costs
        worst = replace(latency, value=latency.high), replace(energy, value=energy.high)
        best = replace(stack[0], value=stack[0].low), replace(stack[1], value=stack[1].low)
        return _counted(self.objective, worst) < _counted(self.objective, best)

    @property
    def program(self) -> tuple[str, str]:
        """Kernel and config of the choice; the stack's name where there is none."""
        if (best := self.best) is not None:
            return best.kernel.name, short_config(best.config)
        return (self.line.name if self.line is not None else ""), ""

    @property
    def source(self) -> str:
        """Where the latency comes from."""
        if self.best is not None:
            return self.best.source
        return self.line.source if self.line is not None else ""

    @property
    def latency_s(self) -> float:
        """Seconds of all occurrences together."""
        return self.count * self.costs[0].value

    @property
    def energy_j(self) -> float:
        """Joules of all occurrences together."""
        return self.count * self.costs[1].value

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        line = None if self.line is None else self.line.as_dict()
        return {
            "name": self.name,
            "count": self.count,
            **self.answer.as_dict(),
            "line": line,
            "saved": self.saved,
            "pays": self.pays,
        }


def _counted(objective: Objective, costs: Costs) -> float:
    """The value that an objective counts; of a Pareto front the latency."""
    latency, energy = (np.array(estimate.value) for estimate in costs)
    scalar = Objective.LATENCY if objective is Objective.PARETO else objective
    return float(scalar.value_of(latency, energy))


@dataclass(frozen=True)
class Total(IntervalNames):
    """The sum over all answered layers, with one config for each of them."""

    name: str
    """Which config of each layer is counted."""
    latency_s: Estimate
    energy_j: Estimate

    @property
    def power_w(self) -> float:
        """Mean power of the whole."""
        return self.energy_j.value / self.latency_s.value

    @property
    def source(self) -> str:
        """The least sure source of its latency and energy."""
        return str(min(self.latency_s.source, self.energy_j.source, key=SOURCES.index))

    def versus(self, other: "Total") -> tuple[float, float]:
        """Latency and energy over those of another total, less 1."""
        return (
            self.latency_s.value / other.latency_s.value - 1.0,
            self.energy_j.value / other.energy_j.value - 1.0,
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; keys carry their unit."""
        return {
            "name": self.name,
            **self.latency_s.as_dict("latency", "s"),
            **self.energy_j.as_dict("energy", "j"),
            "power_w": self.power_w,
            "source": self.latency_s.source,
            "energy_source": self.energy_j.source,
        }


class TotalSum:
    """Adds up layers; a total is as sure as the least sure of them."""

    def __init__(self) -> None:
        self._sums = np.zeros((2, 3))
        self._sources = [len(SOURCES) - 1] * 2

    def add(self, count: int, latency: Estimate, energy: Estimate) -> None:
        """Add a layer that the network has `count` times."""
        for row, estimate in enumerate((latency, energy)):
            self._sums[row] += (count * estimate.value, count * estimate.low, count * estimate.high)
            self._sources[row] = min(self._sources[row], SOURCES.index(Source(estimate.source)))

    def result(self, name: str) -> Total:
        """The total so far, under this name."""
        latency, energy = (
            Estimate(float(bounds[0]), float(bounds[1]), float(bounds[2]), SOURCES[source])
            for bounds, source in zip(self._sums, self._sources, strict=True)
        )
        return Total(name, latency, energy)


@dataclass(frozen=True)
class NetworkAnswer(NetworkNames):
    """The choice for each layer of a network on a GPU, and the totals."""

    workload: Workload
    gpu: GPU
    query: Query
    layers: tuple[LayerAnswer, ...]
    """In the order of the network."""
    left_out: tuple[str, ...]
    """Layers that are in no total, with the reason."""
    totals: tuple[Total, ...]
    """The choice first, then the alternatives."""
    adjusted: tuple[str, ...] = ()
    """Layers that are asked in another dtype or layout, because no kernel runs them so on this GPU."""
    layouts_chosen: Mapping[str, str] = field(default_factory=dict)
    """By op, the layout of layers whose layout nobody fixed, where it is not the op's default."""

    def __repr__(self) -> str:
        chosen = self.choice
        cost = f"{human(chosen.latency_s.value, 's')}, {human(chosen.energy_j.value, 'J')} {chosen.source}"
        kind = ", ".join(self.dtypes)
        return f"<NetworkAnswer {self.workload.name} {kind} on {self.gpu.name}: {len(self.layers)} layers, {cost}>"

    def __str__(self) -> str:
        return tabular.network_text(self)

    def _repr_html_(self) -> str:
        return tabular.network_html(self)

    def to_arrow(self) -> Any:
        """The first choice of each layer (its line where it has none) as a `pyarrow.Table`.

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
    def choice(self) -> Total:
        """The total of what was chosen."""
        return self.totals[0]

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The data types of the layers."""
        return tuple(dict.fromkeys(layer.answer.problem.dtype for layer in self.layers))

    @property
    def sources(self) -> tuple[str, ...]:
        """Where the latencies of the layers come from."""
        return tuple(dict.fromkeys(str(layer.source) for layer in self.layers))

    @cached_property
    def _by_time(self) -> tuple[LayerAnswer, ...]:
        return tuple(sorted(self.layers, key=lambda layer: -layer.latency_s))

    @property
    def layers_that_matter(self) -> tuple[LayerAnswer, ...]:
        """Those that together take most of the time, the longest first."""
        taken = 0.0
        for number, layer in enumerate(self._by_time[:MOST_SHOWN], 1):
            taken += layer.latency_s
            if taken >= MOST_OF_THE_TIME * self.choice.latency_s.value:
                return self._by_time[:number]
        return self._by_time[:MOST_SHOWN]

    def longest(self, most: int | None = None) -> tuple[LayerAnswer, ...]:
        """The layers that take most time, the longest first; those that matter where no number is given."""
        return self.layers_that_matter if most is None else self._by_time[:most]

    @property
    def paying(self) -> tuple[LayerAnswer, ...]:
        """The layers where a config of one's own pays."""
        return tuple(layer for layer in self.layers if layer.pays)

    @property
    def advice(self) -> str:
        """Where to run a config of one's own, as a sentence; empty where no stack is known for most of the time."""
        if all(total.name != STACK for total in self.totals):
            return ""
        mixed, stack = self.total(MIXED), self.total(STACK)
        names = ", ".join(dict.fromkeys(layer.line.stack for layer in self.layers if layer.line is not None))
        how = ", the fastest of each layer" if "," in names else ""
        lined, count = sum(layer.line is not None for layer in self.layers), len(self.layers)
        rest = f" in {lined} of {count} distinct layers, the choice in the others" if lined < count else ""
        whole = f"Stack today: {names}{how}{rest}."
        unsure = sum(layer.may_pay and not layer.pays for layer in self.layers)
        more = f" In {counted(unsure, 'distinct layer')} one may, within the estimates' error: measure it."
        more *= bool(unsure)
        if not self.paying:
            least = f"{100 * PAYS:.0f} % of a layer{' for certain' * bool(unsure)}"
            return f"{whole} No config of one's own saves {least}: stay with the stack.{more}"
        time, energy = mixed.versus(stack)
        judged = sum(layer.pays is not None for layer in self.layers)
        changed = "layer with a line" if judged == 1 else "layers with a line"
        return (
            f"{whole} A config of one's own pays in {len(self.paying)} of {judged} distinct {changed}: with"
            f" them the whole takes {100 * (1 + time):.0f} % of the stack's time and {100 * (1 + energy):.0f} % of its"
            f" energy.{' Stay with the stack in the others.' if judged > len(self.paying) else ''}{more}"
        )

    @property
    def distinct_totals(self) -> tuple[tuple[tuple[str, ...], Total], ...]:
        """The totals that differ, with their names: the first one has those of the ones that are the same.

        Where the choice pays everywhere the total of where it pays is the choice's, which `advice` says.
        """
        first, *others = self.totals
        same = [each.name for each in others if (each.latency_s, each.energy_j) == (first.latency_s, first.energy_j)]
        names = (first.name, *(name for name in same if name != MIXED))
        return ((names, first), *(((t.name,), t) for t in others if t.name not in same))

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines that the reader has to know."""
        lines = (note for layer in self.layers for note in layer.answer.notes)
        return tuple(dict.fromkeys([*self.adjusted, *(f"not in the totals: {line}" for line in self.left_out), *lines]))

    def total(self, name: str) -> Total:
        """The total of this name."""
        return next(total for total in self.totals if total.name == name)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; keys carry their unit."""
        return {
            "workload": self.workload.title,
            "batch": self.workload.batch,
            "tp": self.workload.tp,
            "gpu": self.gpu.name,
            "objective": self.query.objective,
            "power_limit_w": self.query.point.limit_w(self.gpu),
            "locked_clock_hz": self.query.clock_hz,
            "inputs": self.query.inputs,
            "stacks": list(self.query.stacks),
            "dtypes": list(self.dtypes),
            "layouts_chosen": dict(self.layouts_chosen),
            "layers": [layer.as_dict() for layer in self.layers],
            "left_out": list(self.left_out),
            "totals": [total.as_dict() for total in self.totals],
            "notes": list(self.notes),
        }

    def as_dict_with_regrets(self, recommender: "Recommender") -> dict[str, Any]:
        """Plain values for JSON, with the expected regret of each objective: of each layer, and of the whole.

        The whole loses what its layers lose, each as often as the network has it; as a share of what all of them cost.
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
