"""Run one measuring campaign: choose configs, measure, store, and learn from the results."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from kernrec.errors import KernrecError, UsageError
from kernrec.measure.campaign.campaign import Campaign
from kernrec.measure.campaign.compile_queue import VARIANTS_AHEAD
from kernrec.measure.campaign.ingest import check_takes_rows, ingest
from kernrec.measure.campaign.journal import Journal
from kernrec.measure.campaign.plan import Chooser, PlannedProblem
from kernrec.measure.campaign.results import CampaignBudget, Progress
from kernrec.measure.gpu_plan import USUAL_BUDGET_S, GpuPlan
from kernrec.measure.measuring_device import device_of
from kernrec.measure.refine_planner import RefinePlanner
from kernrec.measure.request import CollectRequest, CollectResult, Report, Stopping, Strategy
from kernrec.measure.request_on_gpu import RequestOnGpu
from kernrec.measure.search_rounds import SearchRounds
from kernrec.measure.worker.worker_client import Stopped, WorkerClient
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT, OperatingPoint


def collect(
    request: CollectRequest,
    report: Report = lambda progress: None,
    stopping: Stopping = lambda: False,
) -> CollectResult:
    """Run a measuring campaign on this machine.

    Args:
        report: Function to call with each measurement and each note.
        stopping: Function that the campaign calls often. If it returns True, the campaign ends.

    Returns:
        Result of the campaign, including any error after the beginning of the campaign.

    Raises:
        UsageError: The device does not exist, no config can run a problem, or the budget is impossible.
        KernrecError: There is no driver.
    """
    if request.strategy is Strategy.PLAN and request.budget == CampaignBudget():
        request = replace(request, budget=CampaignBudget(USUAL_BUDGET_S))
    request.check()
    with (
        open_journal(request.database, report) as (journal, leftover),
        TemporaryDirectory(prefix="kernrec-") as folder,
    ):
        device, stored = device_of(request, Path(folder)), 0
        chooser = chooser_of(RequestOnGpu(request, device.gpu))

        def take(progress: Progress) -> None:
            report(progress)
            if progress.measurement is not None:
                chooser.learn(progress.measurement)

        def visits() -> Iterator[PlannedProblem]:
            nonlocal stored
            session = campaign.session
            if chooser.needs_energy and not session.probe.measures_energy:
                raise KernrecError("energy is not measured on this device; --objective latency needs none")
            for problem in chooser.recalled:
                chooser.begin(filter(session.has_limits_of, device.earlier(journal.database, problem)))
            while (visit := chooser.next()) is not None:
                begun_s = session.clock()
                yield replace(visit, earlier=tuple(device.earlier(journal.database, visit.problem)))
                chooser.done(visit, session.clock() - begun_s)
                # If another process uses the database, the rows stay in the journal and are stored later.
                with suppress(UsageError):
                    stored += ingest(journal)

        client = WorkerClient(device.opening, stopping)
        campaign = Campaign(client, journal, device.settings(request), take, device.compile_queue())
        error, stopped = None, False
        try:
            campaign.run(visits())
        except Stopped:
            stopped = True
        except KernrecError as failure:
            error = str(failure)
        outcome = chooser.outcome()
        outcomes = () if outcome is None else ((device.gpu, outcome),)
        result = CollectResult(tuple(campaign.results), stored, leftover, stopped, error, outcomes)
        return concluded(result, journal)


class _InTurn(Chooser):
    """Chooser that measures planned problems in turn, each with an equal share of the remaining budget."""

    def __init__(self, on_gpu: RequestOnGpu) -> None:
        self._left = on_gpu.planned()

    def next(self, gpu: str = "", gpus: Collection[str] = ("",)) -> PlannedProblem | None:
        if not self._left:
            return None
        share = 1.0 / len(self._left)
        planned = self._left.pop(0)
        upcoming = self._left[0].tasks[:VARIANTS_AHEAD] if self._left else ()
        return replace(planned, share=share, configs_share=share, upcoming=upcoming)


_CHOOSERS: Mapping[Strategy, Callable[[RequestOnGpu], Chooser]] = {
    Strategy.ALL: _InTurn,
    Strategy.PLAN: GpuPlan,
    Strategy.REFINE: RefinePlanner,
    Strategy.GUIDE: SearchRounds,
    Strategy.GENETIC: SearchRounds,
}


def chooser_of(on_gpu: RequestOnGpu) -> Chooser:
    """Return the chooser for the strategy in `on_gpu.request`. Raise `UsageError` if no config can run a problem."""
    return _CHOOSERS[on_gpu.request.strategy](on_gpu)


def collect_at(
    points: Sequence[OperatingPoint],
    request: CollectRequest,
    report: Report = lambda progress: None,
    stopping: Stopping = lambda: False,
) -> list[tuple[OperatingPoint, CollectResult]]:
    """Run a campaign at each operating point of a GPU. Skip the remaining points if a campaign fails or is stopped.

    Args:
        points: Power limits and clocks, checked before the first campaign. The GPU's settings are restored at the end.
        request, report, stopping: As for `collect`. The request must be for one GPU of this machine.
    """
    if tuple(points) == (DEFAULT_POINT,):
        return [(DEFAULT_POINT, collect(request, report, stopping))]
    from kernrec.measure.device.gpu_limits import check_limits, limits_set
    from kernrec.measure.device.nvml import choose_gpu

    request.check()
    present = choose_gpu(request.gpu)
    check_limits(present, points)
    results: list[tuple[OperatingPoint, CollectResult]] = []
    for point in points:
        with limits_set(present, point):
            results.append((point, collect(replace(request, gpu=present.uuid, point=point), report, stopping)))
        if results[-1][1].error is not None or results[-1][1].stopped:
            break
    return results


def operating_points(limits_w: Sequence[float], clocks_hz: Sequence[float]) -> tuple[OperatingPoint, ...]:
    """Return every combination of a power limit (W) and a clock (Hz). An empty list leaves the setting unchanged."""
    return tuple(OperatingPoint(*pair) for pair in product(limits_w or (None,), clocks_hz or (None,)))


@contextmanager
def open_journal(database: Path, report: Report) -> Iterator[tuple[Journal, int]]:
    """Open a database's journal, and move rows of interrupted runs to the database. Yield (journal, number of moved
    rows)."""

    def note(text: str) -> None:
        report(Progress("", "", "", 0, 0, note=text))

    with Journal(database) as journal:
        check_takes_rows(database)
        if (old := database.with_name(f"{database.name}.journal")).exists():
            note(f"{old} was written by kernrec 0.1: only `kernrec collect` of that version adds its rows")
        yield journal, ingest(journal, note)


def concluded(result: CollectResult, journal: Journal) -> CollectResult:
    """Move the journal's last rows to the database. Return the result with the number of moved rows and any error."""
    error, stored = result.error, result.stored
    try:
        stored += ingest(journal)
    except KernrecError as failure:
        error = error or f"{failure}; the measurements are safe in {journal.path}: the next `kernrec collect` adds them"
    tried = any(problem.measured for problem in result.results)
    if error is None and not result.stopped and tried and not any(problem.best for problem in result.results):
        error = "no config could be measured; the reasons are above"
    return replace(result, stored=stored, error=error)
