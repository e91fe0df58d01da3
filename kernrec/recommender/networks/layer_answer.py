"""Answer for one layer of a network: kernrec's recommendation, a backend's baseline, and the selected program."""

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from kernrec.model.prior.estimate import Source
from kernrec.op import Problem
from kernrec.recommender.baselines import cold_costs
from kernrec.recommender.json_form import FormerNames
from kernrec.recommender.request import Objective
from kernrec.recommender.result import Answer, Estimate, Recommendation
from kernrec.util.human import short_config
from kernrec.util.light_dataclass import dataclass

if TYPE_CHECKING:
    from kernrec.recommender.baselines import Baseline

WORTH_IT = 0.05
"""Minimum fraction of a layer's baseline cost that a custom kernel must save to justify development, testing and
maintenance. A comparison of two predictions is no more accurate than this."""

Costs = tuple[Estimate, Estimate]
"""Latency and energy."""


@dataclass(frozen=True)
class LayerAnswer(FormerNames):
    """Answer for one layer of a network."""

    name: str
    count: int
    answer: Answer
    """Answer for the layer's problem; without recommendations if only backends run it."""
    baseline: "Baseline | None" = None
    """Baseline of the reference backend; None if none was recorded."""
    objective: Objective = Objective.LATENCY
    alone: bool = False
    """Whether the problem is independent of a network, so that its costs are those of `recommend`."""
    whole: Problem | None = None
    """Problem of all items, if kernels need several passes; a backend runs them in one call."""
    of_kernrec: bool = False
    """Whether the network counts kernrec's kernels, so that no backend replaces them."""

    def __repr__(self) -> str:
        return f"<LayerAnswer {self.name}, {self.count} times: {self.answer!r}>"

    @property
    def best(self) -> Recommendation | None:
        """Top recommendation; None if only backends run the layer."""
        return self.answer.recommendations[0] if self.answer.recommendations else None

    @cached_property
    def costs(self) -> Costs:
        """Latency and energy of the recommendation; of the baseline if there is no recommendation."""
        if (best := self.best) is not None:
            if self.alone:
                return best.latency_s, best.energy_j
            return cold_costs(best.latency_s, best.energy_j, best.problem, best.gpu)
        costs = self.baseline_costs
        assert costs is not None, "a layer has a recommendation or a baseline"
        return costs

    @cached_property
    def baseline_costs(self) -> Costs | None:
        """Latency and energy of the baseline; None if there is none."""
        if (baseline := self.baseline) is None:
            return None
        source = Source.MEASURED if baseline.source == "published" else Source(baseline.source)
        assert baseline.energy_j is not None, "every baseline has a power"
        source_of_power = Source.PRIOR if baseline.power_predicted else source
        return replace(baseline.latency_s, source=source), replace(baseline.energy_j, source=source_of_power)

    @property
    def saved(self) -> float | None:
        """Fraction of the baseline's cost that the recommendation saves; None if either of them is missing."""
        if self.best is None or (backend := self.baseline_costs) is None:
            return None
        return 1.0 - value_of(self.objective, self.costs) / value_of(self.objective, backend)

    @property
    def worth_it(self) -> bool | None:
        """Whether a custom kernel is worth it even at the unfavorable ends of both intervals.

        None if there is no baseline.
        """
        if self.best is None:
            return False
        return None if self.saved is None else self.may_be_worth_it and self.certain

    @property
    def may_be_worth_it(self) -> bool:
        """Whether the recommendation is expected to save at least `WORTH_IT` of the baseline's cost."""
        return self.saved is not None and self.saved >= WORTH_IT

    @property
    def certain(self) -> bool:
        """Whether the recommendation costs less than the baseline even at the unfavorable ends of both intervals."""
        backend = self.baseline_costs
        assert backend is not None
        worst, best = ([replace(each, value=getattr(each, end)) for each in costs]
                       for costs, end in ((self.costs, "high"), (backend, "low")))  # fmt: skip
        return value_of(self.objective, (worst[0], worst[1])) < value_of(self.objective, (best[0], best[1]))

    @property
    def runs_backend(self) -> bool:
        """Whether the backend runs the layer, because no kernel of kernrec is worth it."""
        return self.baseline is not None and self.worth_it is False and not (self.of_kernrec and self.best is not None)

    @cached_property
    def run_costs(self) -> Costs:
        """Latency and energy of the program that runs the layer: kernrec where it is worth it, else the backend."""
        return (self.runs_backend and self.baseline_costs) or self.costs

    @property
    def program(self) -> tuple[str, str]:
        """Kernel and config that run the layer, or the name of the backend."""
        if (best := self.best) is not None and not self.runs_backend:
            return best.kernel.name, short_config(best.config)
        return (self.baseline.name if self.baseline is not None else ""), ""

    @property
    def source(self) -> str:
        """Source of the latency of the program that runs the layer."""
        if self.best is not None and not self.runs_backend:
            return self.best.source
        return self.baseline.source if self.baseline is not None else ""

    @property
    def latency_s(self) -> float:
        """Seconds of all occurrences of the layer, by the program that runs it."""
        return self.count * self.run_costs[0].value

    @property
    def energy_j(self) -> float:
        """Joules of all occurrences of the layer, by the program that runs it."""
        return self.count * self.run_costs[1].value

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        baseline = None if self.baseline is None else self.baseline.as_dict()
        return {
            "name": self.name,
            "count": self.count,
            **self.answer.as_dict(),
            "baseline": baseline,
            "saved": self.saved,
            "worth_it": self.worth_it,
            "run": self.program[0],
        }


def value_of(objective: Objective, costs: Costs) -> float:
    """Return the value that an objective minimizes; for a Pareto front, the latency."""
    latency, energy = (np.array(estimate.value) for estimate in costs)
    scalar = Objective.LATENCY if objective is Objective.PARETO else objective
    return float(scalar.value_of(latency, energy))
