"""`kernrec search` as a library call: the config of least latency, energy or energy-delay product of one problem.

A strategy chooses, round by round, whose latency is measured and whose energy: the guide
(`kernrec.model.search.energy_guide`) or the genetic search (`kernrec.model.search.genetic_search`). The rounds are
measured by a campaign, as `collect` does, so that they are checked, durable at once and in closed blocks; what the
database has of the problem on this device already counts from the start.
"""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from kernrec.errors import KernrecError, UsageError
from kernrec.measure.campaign.campaign import Campaign
from kernrec.measure.campaign.ingest import ingest
from kernrec.measure.campaign.results import MeasuringEffort, check_budget
from kernrec.measure.collect import CollectRequest, Report, Stopping, devices_of, measure_here, open_journal
from kernrec.measure.search_rounds import SearchResult, SearchRounds, Strategy
from kernrec.recommender.request import Objective


def search(
    request: CollectRequest,
    objective: Objective,
    report: Report = lambda progress: None,
    stopping: Stopping = lambda: False,
    strategy: Strategy = Strategy.GUIDE,
) -> SearchResult:
    """Search the space of one problem.

    Args:
        request: names one problem, the device, the budget and the database; its effort does not count.
        objective: what is minimized; `pareto` is the front.
        report: called with each measurement and note.
        stopping: called often; once it returns true, the search ends.
        strategy: how the configs to measure are chosen.

    Raises:
        UsageError: before anything is measured: no such device, several problems, a budget
            shorter than one measurement, or another collector is running.
        KernrecError: before anything is measured.
    """
    if request.gpu == "all":
        raise UsageError("--gpu all: a search uses one GPU; name it")
    request = check_search(request, objective)
    with open_journal(request, report) as (journal, leftover), TemporaryDirectory(prefix="kernrec-") as scratch:
        (work,) = devices_of(request, Path(scratch))
        rounds = SearchRounds(work.problems, objective, strategy, request)

        def begin(campaign: Campaign) -> SearchRounds:
            earlier = work.device.earlier(request.database, rounds.planned.problem)
            rounds.begin(filter(campaign.session.is_present, earlier))
            return rounds

        measured = measure_here([work], request, journal, report, stopping, begin)
        stored = leftover + measured.stored
        with suppress(KernrecError):  # the journal keeps the rows, and they are stored later
            stored += ingest(journal, request.database)
        return rounds.result(stored, measured.error, measured.stopped)


def check_search(request: CollectRequest, objective: Objective) -> CollectRequest:
    """A request whose space is searched as a whole. Raises `UsageError` for a budget shorter than one measurement."""
    check_budget(request.budget, objective is not Objective.LATENCY)
    return replace(request, effort=MeasuringEffort(None, 0))
