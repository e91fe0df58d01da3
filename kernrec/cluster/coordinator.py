"""The driver's side of a campaign on a cluster: takes what cards say, keeps it in the journal, and replies.

It has neither processes nor a network: `Coordinator.take` turns the message of a card into the reply to it. A row is in
the driver's journal before the reply that acknowledges it; the card keeps it in its own journal until then.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernrec.cluster.campaign_plan import CampaignPlan, CampaignVisit
from kernrec.cluster.messages import CardIdentity, Limits, Message, limits_of, none_for_nan, problem_as_data
from kernrec.cluster.scheduler import Assignment, JobPlan, Phase, Scheduler
from kernrec.cluster.shared_search import latency_or_nan
from kernrec.measure.campaign.ingest import known_moments, measurements_of, moment_of, present_measurements
from kernrec.measure.campaign.journal import Journal
from kernrec.measure.campaign.plan import EnergyRule, PlannedProblem
from kernrec.measure.campaign.results import ProblemHistory, ProblemResult, Progress
from kernrec.store import canonical_json
from kernrec.store.measurement import Measurement, Outcome, Tier

_SUMMARY = frozenset({
    "gpu", "kernel", "kernel_hash", "config", "problem", "protocol_version", "tier", "session", "block", "block_open",
    "measured_at", "outcome", "latency_s", "energy_j", "power_limit_w", "locked_sm_clock_hz", "locked_memory_clock_hz",
    "mig",
})  # fmt: skip
"""Columns of a row that the card which finishes a problem needs."""


@dataclass
class _Job:
    planned: PlannedProblem
    visit: str
    """Its key; empty where it is no visit."""
    places: dict[tuple[str, str, str], int]
    result: ProblemResult
    rows: list[dict[str, Any]]
    """Summaries of what is known of it."""
    seconds: float = 0.0
    """That cards took for it."""


class Coordinator:
    """One campaign: its jobs, its cards and its results."""

    def __init__(
        self, plan: CampaignPlan, journal: Journal, sources: str, report: Callable[[Progress], None] = lambda it: None
    ) -> None:
        """Make a coordinator.

        Args:
            plan: what is measured.
            journal: of the database.
            sources: hash of kernrec's sources here.
            report: called with each measurement and note.
        """
        self._plan = plan
        self._journal = journal
        self._sources = sources
        self._report = report
        self._jobs: dict[str, _Job] = {}
        self.cards: dict[str, CardIdentity] = {}
        self.scheduler = Scheduler()
        self._waiting: list[str] = []
        self._expected: set[str] = set()
        self._kinds: dict[str, Limits] = {}  # of GPUs that came, and how their cards are set
        self._at_rest: set[str] = set()  # kinds for which `visits` has no problem, until one is done
        self._recalled: dict[
            str, list[dict[str, Any]]
        ] = {}  # summaries of what is known, by kind and problem of visits
        self._open: dict[str, list[dict[str, Any]]] = {}  # summaries of the rows in each card's open block

    @property
    def results(self) -> tuple[ProblemResult, ...]:
        """What is known of each problem on each kind of GPU."""
        return tuple(job.result for job in self._jobs.values())

    @property
    def finished(self) -> bool:
        """Whether all jobs of the kinds of GPU that came are done."""
        return bool(self._kinds) and all(map(self._kind_finished, self._kinds))

    def needs(self, card: str) -> bool:
        """Whether there is, or may be, something left to do for a card."""
        return card in self.cards and not self._kind_finished(self.cards[card].gpu)

    def _kind_finished(self, gpu: str) -> bool:
        return self.scheduler.finished(gpu) and (self._plan.visits is None or gpu in self._at_rest)

    @property
    def waiting(self) -> tuple[str, ...]:
        """Cards whose reply has to wait until there is something to do: ask `retry` when another message came."""
        return tuple(self._waiting)

    def expect(self, cards: Collection[str]) -> None:
        """Give out no work until these cards have said what an earlier run left in their journals, or are lost."""
        self._expected = set(cards)

    def take(self, card: str, message: Message) -> Message | None:
        """The reply to the message of a card; None: later, from `retry`.

        Raises:
            JournalError: the journal cannot be written.
            KernrecError: a kind of GPU for which nothing can be planned.
        """
        if "hello" in message:
            self._expected.discard(card)
            return self._welcome(card, message["hello"])
        if card not in self.cards:
            return {"stop": True}
        if note := message.get("note"):
            self._note(card, note)
        if records := message.get("records"):
            self._journal.append(*records)
            self._learn(card, records, message.get("step"))
        if (ended := message.get("left_job")) is not None:
            self._leave_job(card, ended)
        if message.get("want") == "job":
            return self._next(card)
        reply: Message = {}
        if message.get("want") == "configs":
            reply["granted"] = self.scheduler.grant(card, message["proposed"], int(message["count"]))
            reply["left"] = self.scheduler.left(card)
        return reply | self._news(card)

    def retry(self, card: str) -> Message | None:
        """The reply that a waiting card gets now; None: still none."""
        self._waiting.remove(card)
        return self._next(card)

    def lose(self, card: str, why: str, node: str = "") -> None:
        """A card is gone.

        Args:
            card: its name.
            why: in one line, empty where nothing is wrong.
            node: of a card that had not said what it is, where that is known.
        """
        if why and card not in self.cards and node:
            self._report(Progress(node, "", "", 0, 0, note=f"a card of {node}: {why}; the campaign goes on without it"))
        elif why:
            self._note(card, f"{why}; the campaign goes on without this card")
        self._expected.discard(card)
        for row in self._open.pop(card, ()):
            row["block_open"] = True
        self.scheduler.leave(card)
        if (identity := self.cards.pop(card, None)) is not None and why:
            self._at_rest.discard(identity.gpu)  # what would have been for this card is now for another
        if card in self._waiting:
            self._waiting.remove(card)

    def _welcome(self, card: str, hello: Mapping[str, Any]) -> Message:
        if (sources := hello.get("sources")) != self._sources:  # the rest of what it says may be of another form
            return self._refuse(
                str(hello.get("node")), f"its kernrec ({sources}) is not the driver's ({self._sources})"
            )
        left = hello.get("left", [])
        identity = CardIdentity.from_dict({name: value for name, value in hello.items() if name != "left"})
        if reason := self._refusal(identity):
            return self._refuse(identity.node, reason)
        fresh = self._keep_left(left)
        others = [other for other in self.cards.values() if other.gpu == identity.gpu]
        self.cards[card] = identity
        if identity.gpu not in self._kinds:
            self._kinds[identity.gpu] = identity.limits
            self._add_jobs(identity.gpu)
        self._count_left(fresh)
        self.scheduler.join(card, identity.gpu)
        drivers = {str(other.driver) for other in others} - {str(identity.driver)}
        if drivers:
            self._note(card, f"driver {identity.driver}, others have {', '.join(sorted(drivers))}: the rows say so")
        return {}

    def _refuse(self, node: str, reason: str) -> Message:
        self._report(Progress(node, "", "", 0, 0, note=f"{node} is left out: {reason}"))
        return {"refused": reason}

    def _refusal(self, card: CardIdentity) -> str | None:
        if self._plan.needs_energy and not card.measures_energy:
            return "it measures no energy"
        if card.limits != (limits := self._kinds.get(card.gpu, card.limits)):
            return f"its power limit and clocks are {_limits_text(card.limits)}, here {_limits_text(limits)}"
        for other in self.cards.values():
            if other.compiler != card.compiler:
                return f"its compiler is {card.compiler}, that of {other.node} is {other.compiler}"
            if other.uuid_hash is not None and other.uuid_hash == card.uuid_hash:
                return "its card is in the campaign already"
        return None

    def _keep_left(self, records: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Keep what an earlier run left in a card's journal, as far as it is not known; returns that."""
        sessions = {str(record["row"]["session"]) for record in records if "row" in record}
        known = known_moments(self._plan.database, sessions)
        fresh = [record for record in records if "row" not in record or moment_of(record["row"]) not in known]
        if fresh:
            self._journal.append(*fresh)
        return fresh

    def _count_left(self, records: Sequence[Mapping[str, Any]]) -> None:
        """What was left of closed blocks is not measured again."""
        for measurement in measurements_of(records):
            identity = measurement.identity
            key = f"{identity.gpu} {identity.problem.key}"
            if measurement.origin.block_open or measurement.outcome == Outcome.QUARANTINED:
                continue
            if limits_of(measurement.device) != self._kinds.get(identity.gpu):
                continue
            if key in self._recalled and self._plan.visits is not None:
                self._recalled[key].append(_summary(measurement.as_json()))
                self._plan.visits.learn(identity.gpu, measurement)
            if key not in self._jobs:
                continue
            job = self._jobs[key]
            job.result.add_earlier(measurement)
            job.rows.append(_summary(measurement.as_json()))
            task = (identity.kernel, identity.kernel_hash, _canonical(identity.config))
            if (place := job.places.get(task)) is not None:
                self.scheduler.settle(key, place, latency_or_nan(measurement.latency_s))

    def _add_jobs(self, gpu: str) -> None:
        problems = self._plan.problems_on(gpu)
        part = None if self._plan.configs is None else math.ceil(self._plan.configs / max(1, len(problems)))
        for planned in problems:
            self._add_job(gpu, planned, self._present(planned, gpu) if self._plan.resume else (), part)

    def _present(self, planned: PlannedProblem, gpu: str) -> list[Measurement]:
        """What the database has of a problem on cards of a kind that were set as they are now."""
        earlier = present_measurements(self._plan.database, planned.problem, gpu)
        return [measurement for measurement in earlier if limits_of(measurement.device) == self._kinds[gpu]]

    def _add_job(
        self,
        gpu: str,
        planned: PlannedProblem,
        earlier: Iterable[Measurement],
        part: int | None = None,
        visit: CampaignVisit | None = None,
    ) -> None:
        """Add a problem on a kind of GPU; earlier: what is known of it; part: configs to screen at most."""
        key = f"{gpu} {planned.problem.key if visit is None else visit.key}"
        most = min(value for value in (planned.most, part, len(planned.tasks)) if value is not None)
        before = self._jobs.get(key)  # measured earlier in this campaign, other configs of it
        result = ProblemResult(planned.name, planned.problem.key, most) if before is None else before.result
        places = {task.key: i for i, task in enumerate(planned.tasks)}
        job = self._jobs[key] = _Job(planned, "" if visit is None else visit.key, places, result, [])
        history, settled = ProblemHistory(), {}
        for measurement in earlier:
            history.add(measurement)
            result.add_earlier(measurement)
            job.rows.append(_summary(measurement.as_json()))
        for task, place in job.places.items():
            if history.count(task):
                settled[place] = latency_or_nan(history.median(task, "latency_s"))
        finish = planned.finals or planned.energy is not EnergyRule.NONE
        self.scheduler.add_job(JobPlan(key, gpu, len(planned.tasks), most, finish), settled)

    def _add_visit(self, card: str, gpu: str) -> bool:
        """Whether there was one more visit for a card."""
        visits = self._plan.visits
        if visits is None or gpu in self._at_rest:
            return False
        cards = {name: identity for name, identity in self.cards.items() if identity.gpu == gpu}
        if (visit := visits.next(gpu, card, cards)) is None:
            self._at_rest.add(gpu)
            return False
        self._add_job(gpu, visit.planned, self._known(visit.planned, gpu) if visits.recalls else (), visit=visit)
        return True

    def _known(self, planned: PlannedProblem, gpu: str) -> list[Measurement]:
        """What is known of the tasks of a visit."""
        key = f"{gpu} {planned.problem.key}"
        if key not in self._recalled:
            self._recalled[key] = [_summary(measurement.as_json()) for measurement in self._present(planned, gpu)]
        tasks = {task.key for task in planned.tasks}
        return [Measurement.from_columns(row) for row in self._recalled[key] if _task_of(row) in tasks]

    def _learn(self, card: str, records: Sequence[Mapping[str, Any]], step: Sequence[int] | None) -> None:
        """Count rows that are in the journal now, and what their blocks came to."""
        for record in records:
            if "row" not in record:
                self._close(card, "drifted" in record)
            elif (key := self.scheduler.job_of(card)) is not None:
                self._count(card, self._jobs[key], key, record["row"], step)

    def _close(self, card: str, drifted: bool) -> None:
        for row in self._open.pop(card, ()):
            if drifted and row["outcome"] == Outcome.OK:
                row["outcome"] = str(Outcome.QUARANTINED)
        self.scheduler.close(card, drifted)

    def _count(self, card: str, job: _Job, key: str, row: dict[str, Any], step: Sequence[int] | None) -> None:
        measurement = Measurement.from_columns(row)
        identity = measurement.identity
        job.result.add_new(measurement)
        job.rows.append(summary := _summary(row))
        if (recalled := self._recalled.get(f"{identity.gpu} {identity.problem.key}")) is not None:
            recalled.append(summary)
        if self._plan.visits is not None:
            self._plan.visits.learn(identity.gpu, measurement)
        self._open.setdefault(card, []).append(summary)
        task = (identity.kernel, identity.kernel_hash, _canonical(identity.config))
        if measurement.protocol.tier is Tier.SCREEN and (place := job.places.get(task)) is not None:
            latency_s = measurement.latency_s if measurement.outcome == Outcome.OK else None
            self.scheduler.measured(card, place, latency_or_nan(latency_s))
            step = self.scheduler.progress(key)
        done, total = step or (0, 0)
        progress = Progress(
            self._title(card), job.planned.name, measurement.protocol.tier, done, total, measurement=measurement
        )
        self._report(progress)

    def _leave_job(self, card: str, ended: Mapping[str, Any]) -> None:
        key = self.scheduler.job_of(card)
        if key is None:
            return
        if ended.get("spent"):
            self.scheduler.end_screening(key)
        self.scheduler.leave_job(card, done=bool(ended.get("done")))
        job, gpu = self._jobs[key], self.cards[card].gpu
        job.seconds += float(ended.get("seconds", 0.0))
        if self.scheduler.is_finished(key):
            job.rows.clear()
            self._at_rest.discard(gpu)
            if self._plan.visits is not None:
                self._plan.visits.done(gpu, job.visit, job.seconds)

    def _next(self, card: str) -> Message | None:
        if self._expected:
            self._waiting.append(card)
            return None
        gpu = self.cards[card].gpu
        assignment = self.scheduler.next(card)
        if assignment is None and self._add_visit(card, gpu):
            assignment = self.scheduler.next(card)
        if assignment is not None:
            return self._assigned(card, assignment)
        if self._kind_finished(gpu):
            return {"done": True}
        self._waiting.append(card)
        return None

    def _assigned(self, card: str, assignment: Assignment) -> Message:
        job = self._jobs[assignment.job]
        reply: Message = {"phase": assignment.phase, "share": assignment.share}
        if assignment.phase is Phase.SCREEN:
            return (
                reply
                | {"problem": problem_as_data(job.planned), "earlier": self._best(assignment.job)}
                | self._news(card)
            )
        measured = {_task_of(row) for row in job.rows}
        places = [place for task, place in job.places.items() if task in measured]
        return reply | {"problem": problem_as_data(job.planned, places), "earlier": job.rows}

    def _best(self, key: str) -> list[dict[str, Any]]:
        """The fastest measurement of a job's problem, which limits how long the others may take.

        None before its block is closed: a card counts what it is given as measured, and this may have to be measured
        again, by whichever card is granted it.
        """
        job = self._jobs[key]
        if (best := job.result.best) is None:
            return []
        row = _summary(best.as_json())
        place = job.places.get(_task_of(row))
        return [row] if place is None or self.scheduler.is_settled(key, place) else []

    def _news(self, card: str) -> Message:
        if self.scheduler.job_of(card) is None:
            return {}
        news = [[config, none_for_nan(latency_s)] for config, latency_s in self.scheduler.news(card)]
        return {"news": news, "taken": self.scheduler.taken(card), "lost": self.scheduler.lost(card)}

    def _note(self, card: str, text: str) -> None:
        title = self._title(card)
        self._report(Progress(title, "", "", 0, 0, note=f"{title}: {text}"))

    def _title(self, card: str) -> str:
        identity = self.cards.get(card)
        return card if identity is None else f"{identity.gpu} on {identity.node}"


def _limits_text(limits: Limits) -> str:
    power_w, core_hz, memory_hz, divided = limits
    power = "not limited" if power_w is None else f"{power_w:g} W"
    clocks = [f"{hz / 1e6:g} MHz" for hz in (core_hz, memory_hz) if hz is not None] or ["not locked"]
    return ", ".join([power, *clocks, *["divided (MIG)"] * divided])


def _summary(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name in _SUMMARY}


def _task_of(row: Mapping[str, Any]) -> tuple[str, str, str]:
    return row["kernel"], row["kernel_hash"], _canonical(row["config"])


def _canonical(config: Mapping[str, int]) -> str:
    return canonical_json(dict(config))
