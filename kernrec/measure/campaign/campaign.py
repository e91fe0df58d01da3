"""Run a campaign: measure one problem after another on one device, and write every measurement to the journal.

    for each problem:  screen configs  ->  coarse energy near the Pareto front  ->  final measurements on the front

Screening measures only latency. The reference kernels run between blocks of measurements. If the GPU drifted during a
block, the campaign repeats the block's measurements.
"""

import math
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from kernrec.kernel import config_text
from kernrec.measure.campaign.compile_queue import CompiledVariant, CompileQueue, launchable_code
from kernrec.measure.campaign.device_session import BlockControl, DeviceSession
from kernrec.measure.campaign.journal import Records
from kernrec.measure.campaign.plan import PlannedProblem
from kernrec.measure.campaign.results import CampaignSettings, ProblemHistory, ProblemResult, Progress
from kernrec.measure.campaign.schedule import Schedule, ScheduledMeasurement
from kernrec.measure.device.interface import MeasurementFailure
from kernrec.measure.worker.worker_client import Stopped, WorkerClient
from kernrec.store.measurement import CodeInfo, Measurement, Outcome, ProblemRecord, Tier

_SCREEN_END, _COARSE_END = 0.6, 0.85  # fractions of the time limit for a problem
_LOOKAHEAD = 128
"""Maximum number of waiting measurements to check for compiled code."""


@dataclass
class _ProblemRun:
    """State of the problem that is being measured."""

    planned: PlannedProblem
    configs: int
    """Maximum number of configs to screen."""
    schedule: Schedule
    history: ProblemHistory
    result: ProblemResult


class Campaign:
    """Campaign on one device. Call `run` at most once."""

    def __init__(
        self,
        client: WorkerClient,
        journal: Records,
        settings: CampaignSettings,
        report: Callable[[Progress], None] = lambda progress: None,
        compile_queue: CompileQueue | None = None,
    ) -> None:
        """Create a campaign.

        Args:
            report: Function to call with each note, and with each measurement once it is in the journal.
            compile_queue: Queue that compiles the configs, or None for a replay, which runs no code.
        """
        self._journal = journal
        self._settings = settings
        self._show = report
        self._compile_queue = compile_queue
        self.session = DeviceSession(client)
        self._blocks = BlockControl(self.session, journal, settings.session, self._note)
        self._run: _ProblemRun | None = None
        self._screened = 0
        self._end_s = math.inf
        self._began = datetime.now(UTC).replace(tzinfo=None), time.monotonic()
        self._results: dict[tuple[str, str], ProblemResult] = {}
        """Results so far, keyed by the problem's name and key."""

    def run(self, problems: Iterable[PlannedProblem]) -> None:
        """Measure problems until all are done or the budget is used up.

        Raises:
            Stopped: The caller stopped the campaign.
            JournalError: The journal cannot be written.
            KernrecError: The device is no longer usable.
        """
        try:
            self.begin()
            for planned in problems:
                if self.spent:
                    break
                self.measure(planned)
        finally:
            self.end()

    @property
    def results(self) -> list[ProblemResult]:
        return list(self._results.values())

    @property
    def spent(self) -> bool:
        """Whether the time limit or the maximum number of configs has been reached."""
        return self.session.clock() >= self._end_s or self._configs_left() == 0

    def end(self) -> None:
        self.session.client.stop()
        if self._compile_queue is not None:
            self._compile_queue.stop()

    def begin(self) -> None:
        notes = self.session.open()
        if self._settings.budget.seconds is not None:
            self._end_s = self.session.clock() + self._settings.budget.seconds
        for note in notes:
            self._note(note)
        self._blocks.begin(0, with_energy=False)

    def measure(self, planned: PlannedProblem) -> None:
        session, blocks, settings = self.session, self._blocks, self._settings
        run = self._run = self._start_problem(planned)
        session.begin_problem(planned)
        if planned.baseline is not None:
            self._note(
                "the spec has no reference: results are compared with the output of " + config_text(planned.baseline)
            )
        configs_left, start_s = self._configs_left(), session.clock()
        share_s = planned.share * (self._end_s - start_s)
        with_energy, finals = session.probe.measures_energy, settings.finals if planned.finals else 0
        try:
            most = None if configs_left is None else math.ceil(configs_left * planned.configs_share)
            again = self._screen(start_s + _SCREEN_END * share_s, most)
            if with_energy:
                again += self._coarse(start_s + _COARSE_END * share_s)
            if finals:
                again += self._work(run.schedule.finals(finals, with_energy), start_s + share_s)
            again += blocks.close()
            if again:
                self._work(again, self._end_s)
                blocks.close()
        # The inputs or the reference could not be created. No config is at fault, so store no failure.
        except MeasurementFailure as failure:
            self._note(f"{planned.problem.key} is skipped: {failure}")
            self._run = None
            session.begin_problem(None)
            blocks.close()  # Without the problem's inputs, no measurement can be repeated.

    def _start_problem(self, planned: PlannedProblem) -> _ProblemRun:
        key = planned.problem.key
        configs = len(planned.tasks) if planned.most is None else min(planned.most, len(planned.tasks))
        visited = (planned.name, key) in self._results
        result = self._results.setdefault((planned.name, key), ProblemResult(planned.name, key))
        result.configs += configs
        history = ProblemHistory()
        for measurement in planned.earlier:
            if self.session.has_limits_of(measurement):
                history.add(measurement)
                if not visited:
                    result.add_earlier(measurement)
        # Seed with the problem's key, so that a resumed campaign makes the same random choices.
        draw = np.random.default_rng([self._settings.seed, zlib.crc32(key.encode())])
        return _ProblemRun(planned, configs, Schedule(planned, history, draw), history, result)

    def _screen(self, until_s: float, most: int | None) -> list[ScheduledMeasurement]:
        """Screen up to `most` configs before the time `until_s`. Return the measurements to repeat because of drift."""
        run = self._present_run
        again = list[ScheduledMeasurement]()
        done, total = 0, run.configs - run.schedule.screened
        total = total if most is None else min(total, most)
        while done < total and self.session.clock() < min(until_s, self._end_s):
            items, step = run.schedule.screen()
            if not (step := min(step, total - done)):
                break
            again += self._work(items[: step + _LOOKAHEAD], until_s, done, total, step)
            done += step
        return again

    def _coarse(self, until_s: float) -> list[ScheduledMeasurement]:
        again, done = list[ScheduledMeasurement](), 0
        while self.session.clock() < min(until_s, self._end_s) and (items := self._present_run.schedule.coarse()):
            again += self._work(items, until_s, done, done + len(items))
            done += len(items)
        return again

    def _work(
        self,
        items: Iterable[ScheduledMeasurement],
        until_s: float,
        done: int = 0,
        total: int | None = None,
        count: int | None = None,
    ) -> list[ScheduledMeasurement]:
        """Make scheduled measurements, and return the measurements to repeat because of drift.

        Args:
            items: Measurements in order. The next measurement is the first whose code is compiled.
            until_s: Time at which to stop, on the campaign's clock.
            done, total: Numbers of finished and planned measurements in the tier, for reports.
            count: Maximum number of measurements to make, or None for all.
        """
        waiting = deque(items)
        if self._compile_queue is not None:
            self._compile_queue.want([*(item.task for item in waiting), *self._present_run.planned.upcoming])
        left_over = 0 if count is None else max(0, len(waiting) - count)
        total = len(waiting) if total is None else total
        again: list[ScheduledMeasurement] = []
        while len(waiting) > left_over and self.session.clock() < min(until_s, self._end_s):
            if self.session.client.stopping():
                raise Stopped
            if (ready := self._next_ready(waiting)) is None:
                continue
            item, variant = ready
            self.session.ensure_prepared()
            if self._blocks.is_due:
                again += self._blocks.close()
            measurement = self._measure(item, variant)
            done += 1
            left_s = None if math.isinf(self._end_s) else max(0.0, self._end_s - self.session.clock())
            self._report(Progress("", "", item.tier, done, total, left_s, measurement))
        return again

    def _next_ready(
        self, waiting: "deque[ScheduledMeasurement]"
    ) -> tuple[ScheduledMeasurement, CompiledVariant | None] | None:
        """Remove the first waiting measurement whose code is compiled. Return (measurement, compiled variant).

        Wait at most 0.2 seconds and return None if no code is compiled yet. The variant is None in a replay.
        """
        if self._compile_queue is None:
            return waiting.popleft(), None
        for i in range(min(len(waiting), _LOOKAHEAD)):
            if (variant := self._compile_queue.ready(waiting[i].task)) is not None:
                item = waiting[i]
                del waiting[i]
                return item, variant
        self._compile_queue.wait(0.2)
        return None

    def _measure(self, item: ScheduledMeasurement, variant: CompiledVariant | None) -> Measurement:
        run, task = self._present_run, item.task
        if item.tier == Tier.SCREEN and not item.again:
            self._screened += 1
        block, drift, settings = self._blocks.present, self._blocks.drift, self._settings
        before: dict[str, Any] = {
            "block": block.number,
            "position": len(block.items),
            "reference_age_s": max(0.0, self.session.clock() - block.since_s),
            "reference_latency": drift.latency,
            "reference_energy": drift.energy,
        }
        device = self.session.opened_info.measured_device(self.session.idle_w)
        code = CodeInfo() if variant is None else variant.code
        best_s = None if run.result.best is None else run.result.best.latency_s
        try:
            if variant is not None:
                code = launchable_code(task, variant, self.session.opened_info.sm)
            report = self.session.measure(task, item.tier, best_s)
            outcome, error = Outcome.OK, None
        except MeasurementFailure as failure:
            report, outcome, error = failure.report, failure.outcome, str(failure)
        measurement = Measurement(
            gpu=self.session.opened_info.gpu,
            kernel=task.kernel_name,
            kernel_hash=task.kernel_hash,
            config=task.config,
            problem=ProblemRecord.of(task.problem),
            outcome=outcome,
            error=error,
            protocol_version=settings.protocol_version,
            tier=item.tier,
            selection_probability=item.probability,
            session=settings.session,
            measured_at=self._now(),
            measured_by=settings.measured_by,
            replayed=settings.replayed or None,
            **before,
            **vars(code),
            **vars(settings.inputs),
            **vars(device),
            **vars(report),
        )
        self._journal.append({"row": measurement.as_json()})
        self._blocks.present.items.append(item)
        run.history.add(measurement)
        run.result.add_new(measurement)
        return measurement

    def _now(self) -> datetime:
        # Use the monotonic clock, because the user may change the computer's time during the campaign.
        began, began_s = self._began
        return began + timedelta(seconds=time.monotonic() - began_s)

    @property
    def _present_run(self) -> _ProblemRun:
        assert self._run is not None
        return self._run

    def _configs_left(self) -> int | None:
        most = self._settings.budget.configs
        return None if most is None else max(0, most - self._screened)

    def _note(self, text: str) -> None:
        self._report(Progress("", "", "", 0, 0, note=text))

    def _report(self, progress: Progress) -> None:
        device = self.session.info.name if self.session.info else ""
        target = self._run.planned.name if self._run else ""
        self._show(replace(progress, device=device, target=target))
