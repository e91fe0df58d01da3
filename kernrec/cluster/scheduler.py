"""Which card of a cluster measures what next: a pure, deterministic state machine, without processes, clocks or files.

A job is one problem on one kind of GPU. Its configs are screened first, by one card or by several; then one card makes
what compares configs with each other (coarse energy, finals), because two cards of a kind differ by more than good
configs do. A card that has nothing of its own to begin helps where most is left.

    join, leave              cards come and go at any time; what a lost card had in an open block is free again
    next                     the job that a card works on from now on
    grant                    of the configs that a card proposes, those that no other card measures
    measured, close, leave_job    what became of them

A config is *granted* to one card at a time, and *settled* once a measurement of it belongs to a closed block.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

_WORTH_HELPING = 10
"""Configs left for each card, with the helper, from which on a job is worth making its inputs on one card more."""


class Phase(StrEnum):
    """What a card does for a job."""

    SCREEN = "screen"
    """Measures latencies of the configs that it is granted."""
    FINISH = "finish"
    """Measures coarse energy and the finals, alone."""


@dataclass(frozen=True)
class JobPlan:
    """One problem on one kind of GPU."""

    key: str
    """Names the job."""
    kind: str
    """The cards that can do it."""
    configs: int
    """Of the plan; they are numbered from 0."""
    most: int
    """Configs to screen."""
    finish: bool = True
    """Whether anything is measured once they are screened."""


@dataclass(frozen=True)
class Assignment:
    """What a card works on from now on."""

    job: str
    phase: Phase
    share: float
    """Of the time that is left, what it may take."""


@dataclass
class _Job:
    plan: JobPlan
    home: str | None = None
    """The card that began it, which also finishes it if it can."""
    settled: set[int] = field(default_factory=set)
    granted: dict[int, str] = field(default_factory=dict)
    log: list[tuple[int, float]] = field(default_factory=list)
    """(config, latency in s or NaN) in the order in which they arrived."""
    lost: set[int] = field(default_factory=set)
    """Configs whose only measurements were in the open block of a lost card, until they are granted again."""
    cards: set[str] = field(default_factory=set)
    finishing: bool = False
    done: bool = False
    """Whether a card has finished it."""

    @property
    def finished(self) -> bool:
        """Whether nothing is left to measure."""
        return self.done or (self.screened and not self.plan.finish)

    @property
    def left(self) -> int:
        """Configs that nobody measures yet."""
        return max(0, self.plan.most - len(self.settled) - len(self.granted))

    @property
    def screened(self) -> bool:
        """Whether nothing is left to screen, or being screened."""
        return not self.left and not self.granted and not self.cards

    def free(self, config: int) -> None:
        """A config that was granted is anybody's again."""
        self.granted.pop(config, None)


@dataclass
class _Card:
    kind: str
    job: str | None = None
    open: set[int] = field(default_factory=set)
    """Configs measured in its open block."""
    read: int = 0
    """Entries of the job's log that it knows."""


class Scheduler:
    """The jobs and cards of one campaign."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Job] = {}
        self._cards: dict[str, _Card] = {}

    def add_job(self, plan: JobPlan, settled: Mapping[int, float] | None = None) -> None:
        """Add a job; settled: configs measured by earlier campaigns, with their latency in s or NaN."""
        job = self._jobs[plan.key] = _Job(plan)
        for config, latency_s in (settled or {}).items():
            job.settled.add(config)
            job.log.append((config, latency_s))

    def join(self, card: str, kind: str) -> None:
        """A card that was not there before."""
        self._cards[card] = _Card(kind)

    def leave(self, card: str) -> None:
        """A card is lost: its job goes elsewhere, and what its open block held is measured again."""
        if (member := self._cards.pop(card, None)) is None or member.job is None:
            return
        job = self._jobs[member.job]
        job.cards.discard(card)
        for config in [config for config, holder in job.granted.items() if holder == card]:
            job.free(config)
        job.lost |= member.open
        if job.home == card:
            job.home = None
        if job.finishing:
            job.finishing = False

    def next(self, card: str) -> Assignment | None:
        """What a card works on now; None: nothing at present, and nothing ever if `finished`."""
        member = self._cards[card]
        jobs = [job for job in self._jobs.values() if job.plan.kind == member.kind and not job.finished]
        for job, phase in self._choices(card, jobs):
            member.job, member.read = job.plan.key, 0
            if phase is Phase.FINISH:
                job.finishing = True
            job.home = job.home or card
            job.cards.add(card)
            workers = sum(other.kind == member.kind for other in self._cards.values())
            return Assignment(job.plan.key, phase, min(1.0, workers / len(jobs)))
        return None

    def _choices(self, card: str, jobs: Sequence[_Job]) -> Iterable[tuple[_Job, Phase]]:
        """What a card could do, the best first: its own, then new jobs, then the others'."""
        ready = [job for job in jobs if job.screened and not job.finishing]
        yield from ((job, Phase.FINISH) for job in ready if job.home == card)
        yield from ((job, Phase.SCREEN) for job in jobs if job.home == card and job.left)
        yield from ((job, Phase.FINISH) for job in ready if job.home not in self._cards)
        yield from ((job, Phase.SCREEN) for job in jobs if job.home is None and job.left)
        shared = [
            job for job in jobs if job.left and (not job.cards or job.left >= _WORTH_HELPING * (len(job.cards) + 1))
        ]
        if shared:
            yield max(shared, key=lambda job: job.left / (len(job.cards) + 1)), Phase.SCREEN
        yield from ((job, Phase.FINISH) for job in ready)

    def grant(self, card: str, proposed: Iterable[int], count: int) -> list[int]:
        """Of the configs that a card would measure next, in its order, those that are its own from now on.

        Args:
            card: works on a job.
            proposed: configs.
            count: how many it asks for; where several cards work on the job, it gets at most its part of what is left.
        """
        job = self._job_of(card)
        most = min(count, math.ceil(job.left / max(1, len(job.cards))))
        granted: list[int] = []
        for config in proposed:
            if len(granted) == most:
                break
            if config not in job.settled and config not in job.granted:
                job.granted[config] = card
                job.lost.discard(config)
                granted.append(config)
        return granted

    def news(self, card: str) -> list[tuple[int, float]]:
        """(config, latency) that arrived since a card last asked about its job."""
        member, job = self._cards[card], self._job_of(card)
        fresh, member.read = job.log[member.read :], len(job.log)
        return fresh

    def taken(self, card: str) -> list[int]:
        """Configs of a card's job that others measure now."""
        return [config for config, holder in self._job_of(card).granted.items() if holder != card]

    def lost(self, card: str) -> list[int]:
        """Configs of a card's job that are known and have to be measured again all the same."""
        return sorted(self._job_of(card).lost)

    def measured(self, card: str, config: int, latency_s: float) -> None:
        """A measurement of a card's open block arrived; latency_s: NaN for one that failed, which no drift explains."""
        job = self._job_of(card)
        job.log.append((config, latency_s))
        if math.isnan(latency_s):
            self._settle(job, [config])
        elif config not in job.settled:
            job.granted.setdefault(config, card)
            self._cards[card].open.add(config)

    def settle(self, key: str, config: int, latency_s: float) -> None:
        """A measurement of an earlier campaign, in a closed block, that turned up after the job was added."""
        job = self._jobs[key]
        if config not in job.settled:
            job.log.append((config, latency_s))
            self._settle(job, [config])

    def close(self, card: str, drifted: bool) -> None:
        """A card's block ended; of one in which it drifted, the card measures the configs again."""
        member = self._cards[card]
        if not drifted and member.job is not None:
            self._settle(self._jobs[member.job], member.open)
        member.open.clear()

    def leave_job(self, card: str, done: bool) -> None:
        """A card has ended its part of a job; done: it has finished the job, if it was to finish it."""
        member, job = self._cards[card], self._job_of(card)
        arrived = {config for config, _ in job.log}
        mine = {config for config, holder in job.granted.items() if holder == card}
        self._settle(job, mine & arrived)  # what drifted twice is not measured a third time
        for config in mine - arrived:
            job.free(config)
        job.cards.discard(card)
        member.job = None
        member.open.clear()
        job.done = job.done or done

    def end_screening(self, job: str) -> None:
        """No more configs of a job are granted: the space or the budget is used up."""
        it = self._jobs[job]
        it.plan = replace(it.plan, most=len(it.settled) + len(it.granted))

    def left(self, card: str) -> int:
        """Configs of a card's job that nobody measures yet."""
        return self._job_of(card).left

    def job_of(self, card: str) -> str | None:
        """The job that a card works on."""
        return self._cards[card].job

    def progress(self, job: str) -> tuple[int, int]:
        """(configs settled, configs to screen) of a job."""
        it = self._jobs[job]
        return len(it.settled), it.plan.most

    def is_settled(self, job: str, config: int) -> bool:
        """Whether a measurement of a job's config is in a closed block."""
        return config in self._jobs[job].settled

    def is_finished(self, job: str) -> bool:
        """Whether nothing of a job is left to measure."""
        return self._jobs[job].finished

    def finished(self, kind: str | None = None) -> bool:
        """Whether all jobs, or those of a kind, are finished."""
        return all(job.finished for job in self._jobs.values() if kind in (None, job.plan.kind))

    def _settle(self, job: _Job, configs: Iterable[int]) -> None:
        for config in configs:
            job.settled.add(config)
            job.granted.pop(config, None)

    def _job_of(self, card: str) -> _Job:
        key = self._cards[card].job
        assert key is not None
        return self._jobs[key]
