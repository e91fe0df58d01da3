"""Maintain the posterior of all problems during refinement, from predictions, stored rows and new measurements."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kernrec.gpu import find_gpu
from kernrec.kernel import config_text
from kernrec.measure.refine_subject import RefineSubject
from kernrec.measure.request import CollectRequest
from kernrec.model.search.joint_posterior import JointPosterior, Measured
from kernrec.recommender.contenders import key_of, measured_of, noise_between, side_by_side
from kernrec.recommender.context import evidence_of
from kernrec.recommender.estimate.measured_rows import applies
from kernrec.recommender.request import Objective
from kernrec.store import Evidence, Stack
from kernrec.store.measurement import Measurement, Outcome


@dataclass(frozen=True)
class ChangedAnswer:
    """A problem with a new best config."""

    name: str
    before: str
    after: str
    faster: float
    """Expected reduction of its cost, as a fraction."""


class Knowledge:
    """Joint posterior of a subject's problems, and the names of problems and configs."""

    def __init__(self, subject: RefineSubject, request: CollectRequest) -> None:
        """Create the posterior from predictions and the rows of the database."""
        self.subject = subject
        self._objective = request.objective
        self._point = request.point
        self._gpu = find_gpu(subject.gpu)
        self.posterior = JointPosterior(side_by_side(subject.contenders), request.seed)
        if request.database.exists():
            stack = Stack([request.database])
            for problem in range(len(subject.wanted)):
                self._take_rows(problem, self._evidence(problem, stack))
        self.posterior.rescale()

    def config_text(self, problem: int, contender: int) -> str:
        """Return a contender as readable text."""
        kernel, config = self.subject.contenders[problem].keys[contender]
        return f"{kernel} {config_text(dict(config))}"

    def _take_rows(self, problem: int, evidence: Evidence) -> None:
        contenders = self.subject.contenders[problem]
        rows = [row for row in evidence.measured if applies(row, self._gpu, self._point)]
        for row in measured_of(contenders, rows, self._objective):
            self.posterior.add(problem, row)
        for failed in evidence.failed:
            if (place := contenders.place(key_of(failed.kernel, failed.config))) is not None:
                self.posterior.exclude(problem, place)

    def _evidence(self, problem: int, stack: Stack) -> Evidence:
        wanted, hashes = self.subject.wanted[problem].problem, self.subject.hashes[problem]
        evidence = evidence_of(stack, self._gpu, wanted, list(hashes))
        # Ignore measurements of other versions of a kernel.
        return Evidence(
            tuple(row for row in evidence.measured if row.kernel_hash == hashes.get(row.kernel)),
            tuple(row for row in evidence.failed if row.kernel_hash == hashes.get(row.kernel)),
        )

    def measured(self, problem: int, measurement: Measurement) -> Measured | None:
        """Return the cost in a new measurement; None if it failed or lacks the objective's cost. Exclude failed
        configs."""
        identity = measurement.identity
        place = self.subject.contenders[problem].place(key_of(identity.kernel, identity.config))
        if place is None:
            return None
        if measurement.outcome != Outcome.OK:
            if measurement.outcome != Outcome.QUARANTINED:
                self.posterior.exclude(problem, place)
            return None
        latency_s, energy_j = measurement.latency_s, measurement.energy_j
        report = measurement.report
        if self._objective is Objective.LATENCY:
            if any(row.contender == place for row in self.posterior.measured(problem)):
                return None
            low, high = report.latency.latency_low_s, report.latency.latency_high_s
            cost = latency_s
        else:
            low, high = report.energy.energy_low_j, report.energy.energy_high_j
            cost = energy_j and latency_s and float(self._objective.value_of(latency_s, energy_j))  # type: ignore[arg-type]
        return Measured(place, math.log(cost), noise_between(low, high)) if cost else None

    def changed(self, before: Sequence[int]) -> Iterator[ChangedAnswer]:
        """Yield the problems whose best config has changed.

        Args:
            before: Earlier best config of each problem.
        """
        for problem, old in enumerate(before):
            new = self.posterior.choice(problem)
            if new != old:
                mean, _ = self.posterior.belief(problem)
                better = 1.0 - math.exp(min(0.0, float(mean[new] - mean[old])))
                texts = self.config_text(problem, old), self.config_text(problem, new)
                yield ChangedAnswer(self.subject.wanted[problem].name, *texts, better)
