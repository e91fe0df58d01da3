"""The scheduler: whatever cards do and whenever they die, every config is measured, and by one card at a time."""

import math
from collections import Counter

import hypothesis.strategies as st
from hypothesis import given, settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from kernrec.cluster.scheduler import JobPlan, Phase, Scheduler

KIND = "rtx3090"


def scheduler(*sizes: int, cards: int = 0) -> Scheduler:
    made = Scheduler()
    for i, size in enumerate(sizes):
        made.add_job(JobPlan(f"job-{i}", KIND, size, size))
    for i in range(cards):
        made.join(f"card-{i}", KIND)
    return made


def screened_by(made: Scheduler, card: str, count: int) -> list[int]:
    """What a card is granted and measures of a proposal of all configs."""
    granted = made.grant(card, range(1000), count)
    for config in granted:
        made.measured(card, config, 1e-3)
    return granted


def test_cards_begin_different_jobs_and_help_only_when_none_is_new() -> None:
    made = scheduler(100, 100, cards=3)
    jobs = [made.next(f"card-{i}") for i in range(3)]
    assert [job.job for job in jobs if job] == ["job-0", "job-1", "job-0"]
    assert all(job.phase is Phase.SCREEN for job in jobs if job)


def test_a_small_rest_is_not_worth_another_cards_inputs() -> None:
    made = scheduler(12, cards=2)
    assert made.next("card-0") is not None
    assert made.next("card-1") is None
    assert not made.finished()


def test_cards_on_one_job_measure_different_configs_and_the_first_one_finishes_it() -> None:
    made = scheduler(40, cards=2)
    made.next("card-0")
    made.next("card-1")
    first, second = screened_by(made, "card-0", 20), screened_by(made, "card-1", 20)
    assert not set(first) & set(second)
    while more := [screened_by(made, card, 20) for card in ("card-0", "card-1")]:
        if not any(more):
            break
    for card in ("card-0", "card-1"):
        made.close(card, drifted=False)
        made.leave_job(card, done=False)
    assert made.next("card-1") is None or made.job_of("card-1") is not None
    made = scheduler(5, cards=1)
    made.next("card-0")
    screened_by(made, "card-0", 5)
    made.close("card-0", drifted=False)
    made.leave_job("card-0", done=False)
    assert (last := made.next("card-0")) is not None
    assert last.phase is Phase.FINISH
    made.leave_job("card-0", done=True)
    assert made.finished()


def test_a_lost_card_loses_its_open_block_and_no_more() -> None:
    made = scheduler(30, cards=1)
    made.next("card-0")
    closed = screened_by(made, "card-0", 10)
    made.close("card-0", drifted=False)
    still_open = screened_by(made, "card-0", 10)
    made.leave("card-0")
    made.join("card-1", KIND)
    assert made.next("card-1") is not None
    assert made.lost("card-1") == still_open
    again = made.grant("card-1", range(30), 30)
    assert made.lost("card-1") == []
    assert not set(again) & set(closed)
    assert set(still_open) <= set(again)
    assert made.progress("job-0") == (10, 30)


def test_what_a_card_learned_reaches_the_others_once() -> None:
    made = scheduler(100, cards=2)
    made.next("card-0")
    made.next("card-1")
    granted = screened_by(made, "card-0", 3)
    assert [config for config, _ in made.news("card-1")] == granted == sorted(made.taken("card-1"))
    assert made.news("card-1") == []


def test_what_the_database_has_is_not_measured_again_and_is_told_to_the_first_card() -> None:
    made = Scheduler()
    made.add_job(JobPlan("job", KIND, 10, 10), {0: 1e-3, 4: math.nan})
    made.join("card", KIND)
    made.next("card")
    assert [config for config, _ in made.news("card")] == [0, 4]
    assert set(made.grant("card", range(10), 10)) == set(range(10)) - {0, 4}


def test_a_card_of_another_kind_gets_no_job() -> None:
    made = scheduler(10)
    made.join("other", "h100-sxm")
    assert made.next("other") is None


class Campaigns(RuleBasedStateMachine):
    """Cards that come, work, drift and die at any time."""

    cards = Bundle("cards")

    def __init__(self) -> None:
        super().__init__()
        self.made = scheduler(17, 30)
        self.number = 0
        self.holds: dict[str, set[int]] = {}
        self.phase: dict[str, Phase | None] = {}
        self.settled: Counter[str] = Counter()

    @rule(target=cards)
    def join(self) -> str:
        self.number += 1
        card = f"card-{self.number}"
        self.made.join(card, KIND)
        self.holds[card], self.phase[card] = set(), None
        return card

    @rule(card=consumes(cards))
    def die(self, card: str) -> None:
        self.made.leave(card)
        del self.holds[card], self.phase[card]

    @rule(card=cards, count=st.integers(1, 9), drifted=st.booleans())
    def work(self, card: str, count: int, drifted: bool) -> None:
        if self.phase[card] is None:
            assignment = self.made.next(card)
            self.phase[card] = assignment.phase if assignment else None
            return
        job = self.made.job_of(card)
        assert job is not None
        if self.phase[card] is Phase.FINISH:
            self.made.leave_job(card, done=True)
            self.phase[card] = None
            return
        granted = set(self.made.grant(card, range(30), count))
        others = [held for other, held in self.holds.items() if other != card and self.made.job_of(other) == job]
        assert not any(granted & held for held in others)
        if not granted:
            self.made.close(card, drifted=False)
            self.made.leave_job(card, done=False)
            self.holds[card], self.phase[card] = set(), None
            return
        self.holds[card] |= granted
        for config in granted:
            self.made.measured(card, config, 1e-3)
        self.made.close(card, drifted)

    @invariant()
    def nothing_that_is_settled_is_lost(self) -> None:
        for job in ("job-0", "job-1"):
            settled, most = self.made.progress(job)
            assert self.settled[job] <= settled <= most
            self.settled[job] = settled

    def teardown(self) -> None:
        """One more card, alone, ends it all: nothing was forgotten, and nobody waits for a card that is gone."""
        for card in list(self.holds):
            self.made.leave(card)
        self.made.join("last", KIND)
        for _ in range(200):
            if (assignment := self.made.next("last")) is None:
                break
            if assignment.phase is Phase.SCREEN:
                for config in self.made.grant("last", range(30), 30):
                    self.made.measured("last", config, 1e-3)
                self.made.close("last", drifted=False)
            self.made.leave_job("last", done=assignment.phase is Phase.FINISH)
        assert self.made.finished()
        assert [self.made.progress(job) for job in ("job-0", "job-1")] == [(17, 17), (30, 30)]


TestCampaigns = Campaigns.TestCase
TestCampaigns.settings = settings(max_examples=15, stateful_step_count=25, deadline=None)


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 10))
def test_a_card_gets_the_first_of_its_own_order(proposed: list[int], count: int) -> None:
    made = scheduler(51, cards=1)
    made.next("card-0")
    assert made.grant("card-0", proposed, count) == list(dict.fromkeys(proposed))[:count]
