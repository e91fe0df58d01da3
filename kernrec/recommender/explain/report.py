"""Report of `kernrec explain`: breakdown of a config, an optional comparison, and the most valuable changes."""

from collections.abc import Mapping
from typing import Any

from kernrec.recommender.candidates import CandidateSet
from kernrec.recommender.context import Context
from kernrec.recommender.explain.breakdown import Explanation, explain
from kernrec.recommender.explain.pick_config import explainable, pick_config, point_number, recommended
from kernrec.recommender.explain.what_if import Change, advice, difference, what_if
from kernrec.recommender.notes import notes as notes_of
from kernrec.recommender.notes import of_inputs
from kernrec.recommender.request import Request
from kernrec.util.light_dataclass import dataclass


@dataclass(frozen=True)
class Report:
    """Explanation of a config."""

    candidates: CandidateSet
    """All configs of the kernel over a range of power limits."""
    point: int
    """Index of the explained operating point."""
    subject: Explanation
    other: Explanation | None
    changes: tuple[Change, ...]
    notes: tuple[str, ...]
    objective: str

    @property
    def what_to_do(self) -> str:
        """Sentence that advises on the config, even if no change helps."""
        return advice(self.subject, self.changes, self.objective)

    @property
    def difference(self) -> dict[str, float]:
        """Change of each figure from the other config to the subject; empty without another config."""
        return difference(self.other, self.subject) if self.other else {}

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; keys contain the unit."""
        problem = {"problem": self.candidates.problem.key}
        answer = {**problem, **self.subject.as_dict(), "advice": [change.as_dict() for change in self.changes]}
        answer |= {"what_to_do": self.what_to_do, "notes": list(self.notes)}
        if self.other is not None:
            answer |= {"against": self.other.as_dict(), "difference": self.difference}
        return answer


def report(
    request: Request,
    context: Context,
    config: Mapping[str, int],
    against: Mapping[str, int] | None = None,
    top: int = 5,
) -> Report:
    """Explain the best config with these tunables.

    Args:
        request: request whose objective is `latency`, `energy` or `edp`.
        context: databases and models.
        config: values of some tunables.
        against: values of some tunables of the config to compare with; None for no comparison.
        top: maximum number of proposed changes.

    Raises:
        UsageError: a name is unknown, or no config has these tunables.
        KernrecError: nothing can run the problem, or there are no profiles to predict from.
    """
    context = context.for_inputs(request.query.inputs)
    best = recommended(request, context) if request.kernel is None else None
    candidates = explainable(request, context, best)
    config = config or (best.config if best is not None else {})
    objective, point = request.query.objective, point_number(candidates, request.query.power_limit_w)
    position = pick_config(candidates, config, objective, point)
    subject, other = explain(candidates, position, point), None
    changes = what_if(candidates, position, point, objective, top)
    if against is not None:
        other = explain(candidates, pick_config(candidates, against, objective, point), point)
    shown = [subject.recommendation, *([other.recommendation] if other else [])]
    notes = [*context.models.warnings(), *of_inputs(request.query.inputs), *notes_of(candidates, shown)]
    if any(recommendation.measurement for recommendation in shown):
        notes.append("times by resource, traffic and shares of energy are predicted, not measured")
    return Report(candidates, point, subject, other, tuple(changes), tuple(notes), objective)
