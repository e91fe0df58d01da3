"""The answer for one layer of a network: kernrec's choice, the baseline of a backend, and which of them runs it."""

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from kernrec.recommender.estimate.estimates import Source
from kernrec.recommender.lines import cold_costs
from kernrec.recommender.request import Objective
from kernrec.recommender.result import Choice, Estimate, Recommendation
from kernrec.util.config_short import short_config
from kernrec.util.light_dataclass import dataclass

if TYPE_CHECKING:
    from kernrec.recommender.lines import Line

PAYS = 0.05
"""Least fraction of what a stack takes for a layer that a config of one's own has to save: it must be built, tested and
maintained, and predictions of two programs are no surer."""

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
    """The baseline of the backend that is compared with; None where none was recorded."""
    objective: Objective = Objective.LATENCY
    alone: bool = False
    """Whether it is a problem by itself, with the costs that `recommend` gives it, and no layer of a network."""
    of_kernrec: bool = False
    """Whether the network's costs are those of kernrec's kernels, so that no backend runs a layer that they run."""

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
            if self.alone:
                return best.latency_s, best.energy_j
            return cold_costs(best.latency_s, best.energy_j, best.problem, best.gpu)
        costs = self.stack_costs
        assert costs is not None, "a layer has a choice or a line"
        return costs

    @cached_property
    def stack_costs(self) -> Costs | None:
        """Latency and energy of the stack; energy at the choice's power where nobody recorded the stack's."""
        if (line := self.line) is None:
            return None
        source = Source.MEASURED if line.source == "published" else Source.LEARNED
        assert line.energy_j is not None, "every baseline has a power"
        source_of_power = Source.PRIOR if line.power_predicted else source
        return replace(line.latency_s, source=source), replace(line.energy_j, source=source_of_power)

    @property
    def saved(self) -> float | None:
        """Fraction of the stack's cost (what the objective counts) that the choice saves; None without either."""
        if self.best is None or (stack := self.stack_costs) is None:
            return None
        return 1.0 - value_of(self.objective, self.costs) / value_of(self.objective, stack)

    @property
    def pays(self) -> bool | None:
        """Whether a custom kernel is worth it, also at the unfavorable ends of both intervals; None without a
        baseline."""
        if self.best is None:
            return False
        return None if self.saved is None else self.may_pay and self.certain

    @property
    def may_pay(self) -> bool:
        """Whether the choice is expected to save enough of the backend's cost."""
        return self.saved is not None and self.saved >= PAYS

    @property
    def certain(self) -> bool:
        """Whether the choice costs less than the backend at the unfavorable ends of both intervals."""
        backend = self.stack_costs
        assert backend is not None
        worst, best = ([replace(each, value=getattr(each, end)) for each in costs]
                       for costs, end in ((self.costs, "high"), (backend, "low")))  # fmt: skip
        return value_of(self.objective, (worst[0], worst[1])) < value_of(self.objective, (best[0], best[1]))

    @property
    def runs_backend(self) -> bool:
        """Whether the backend runs the layer: no config of kernrec's is worth it."""
        return self.line is not None and self.pays is False and not (self.of_kernrec and self.best is not None)

    @cached_property
    def run_costs(self) -> Costs:
        """Latency and energy of what runs the layer: the choice where it pays, else the backend."""
        return (self.runs_backend and self.stack_costs) or self.costs

    @property
    def program(self) -> tuple[str, str]:
        """Kernel and config of what runs the layer; the backend's name where it does."""
        if (best := self.best) is not None and not self.runs_backend:
            return best.kernel.name, short_config(best.config)
        return (self.line.name if self.line is not None else ""), ""

    @property
    def source(self) -> str:
        """Where the latency of what runs the layer comes from."""
        if self.best is not None and not self.runs_backend:
            return self.best.source
        return self.line.source if self.line is not None else ""

    @property
    def latency_s(self) -> float:
        """Seconds of all occurrences together, by what runs them."""
        return self.count * self.run_costs[0].value

    @property
    def energy_j(self) -> float:
        """Joules of all occurrences together, by what runs them."""
        return self.count * self.run_costs[1].value

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
            "run": self.program[0],
        }


def value_of(objective: Objective, costs: Costs) -> float:
    """The value that an objective counts; of a Pareto front the latency."""
    latency, energy = (np.array(estimate.value) for estimate in costs)
    scalar = Objective.LATENCY if objective is Objective.PARETO else objective
    return float(scalar.value_of(latency, energy))
