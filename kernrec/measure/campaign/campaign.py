"""A campaign: problems measured one after the other on one device, and everything that happens on the way written down.

    for each problem:  screen everybody  ->  coarse energy for the fastest and some others  ->  finals near the front

Between two looks at the reference kernels lies a block; a block in which the card drifted is measured again. A config
that takes the measuring process down costs itself and a restart. What was measured is in the journal before anybody is
told of it.
"""

import math
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from kernrec.errors import KernrecError, UsageError
from kernrec.kernel import bind_launches, config_text
from kernrec.measure.campaign.compile_queue import VARIANTS_AHEAD, CompiledVariant, CompileQueue
from kernrec.measure.campaign.journal import Journal
from kernrec.measure.campaign.plan import PlannedProblem, Task
from kernrec.measure.campaign.results import (
    EFFORTS,
    CampaignBudget,
    MeasuringEffort,
    ProblemHistory,
    ProblemResult,
    Progress,
)
from kernrec.measure.campaign.schedule import Schedule, ScheduledMeasurement
from kernrec.measure.device.interface import CardSettings, DeviceInfo, MeasurementFailure
from kernrec.measure.protocol import measure_config
from kernrec.measure.protocol.drift import DriftMonitor, changes
from kernrec.measure.protocol.measure_config import SensorTraits
from kernrec.measure.protocol.probe import Probe
from kernrec.measure.protocol.probe_cache import load_probe, save_probe
from kernrec.measure.worker.worker_client import Stopped, WorkerClient
from kernrec.op import Problem

REFERENCE_S = 60.0
IDLE_EVERY_S = 600.0
LEAST_LIMIT_S = 5.0
LIMIT_BESTS = 20.0
PREPARE_LIMIT_S = 900.0
"""For inputs and the float64 reference, which is computed on the CPU."""
_CONTROL_LIMIT_S = 60.0
_RESTARTS = 3
"""Tries that a request which must succeed has before the device is given up."""
_SCREEN_SHARE, _COARSE_SHARE = 0.6, 0.85
"""Of a problem's time, when screening and coarse energy end at the latest."""
_LOOKAHEAD = 128

Row = Mapping[str, Any]


@dataclass
class _Block:
    """The measurements since the last look at the reference kernels, which was at `since` of the campaign's clock."""

    number: int
    since: float
    items: list[ScheduledMeasurement] = field(default_factory=list)


class Campaign:
    """One device's campaign: `run` it once. `results` hold what is known so far, also when it was cut short.

    columns: of every row. known: the rows of earlier campaigns on a problem, which are not measured again. stopping:
    asked often; once true the campaign ends at once. report: told of each row after it is in the journal. finished:
    called after each problem, when every row is of a closed block. ahead: where code is compiled; None for recorded
    kernels.
    """

    def __init__(
        self,
        child: WorkerClient,
        targets: Iterable[PlannedProblem],
        journal: Journal,
        *,
        session: str,
        effort: MeasuringEffort = EFFORTS["normal"],
        budget: CampaignBudget | None = None,
        columns: Row | None = None,
        known: Callable[[Problem], Iterable[Row]] = lambda problem: (),
        ahead: CompileQueue | None = None,
        stopping: Callable[[], bool] = lambda: False,
        report: Callable[[Progress], None] = lambda progress: None,
        finished: Callable[[], None] = lambda: None,
        seed: int = 0,
    ) -> None:
        self._child = child
        self._targets = list(targets)
        self._journal = journal
        self._session = session
        self._effort = effort
        self._budget = budget or CampaignBudget()
        self._columns = dict(columns or {})
        self._known = known
        self._ahead = ahead
        self._stopping = stopping
        self._report = report
        self._finished = finished
        self._seed = seed
        self._drift = DriftMonitor()
        self._probed = SensorTraits()
        self._idle_w: float | None = None
        self._idle_at = -math.inf
        self._block = _Block(0, 0.0)
        self._energy_at = 0.0  # when the reference kernels' energy was last looked at, which takes seconds
        self._energy_unwatched = False
        self._screened = 0
        self._history = ProblemHistory()
        self._target: PlannedProblem | None = None
        self._prepared = False
        self._upcoming: list[Task] = []  # of the next problem, whose code is compiled when there is nothing else to do
        self._end = math.inf
        self.results: list[ProblemResult] = []
        self.facts: DeviceInfo | None = None
        self.probe: Probe | None = None
        self.started_s = time.monotonic()

    def run(self) -> None:
        """Measure everything, or until the budget is spent. Raises `Stopped` when told to stop.

        Raises `KernrecError` when the device cannot be used any more, `JournalError` when nothing can be written.
        """
        try:
            self._begin()
            for i, target in enumerate(self._targets):
                self._upcoming = [
                    task for following in self._targets[i + 1 : i + 2] for task in following.tasks[:VARIANTS_AHEAD]
                ]
                if self._clock() >= self._end or self._configs_left() == 0:
                    break
                self._measure_target(target, len(self._targets) - i)
                self._finished()
        finally:
            self._child.stop()
            if self._ahead is not None:
                self._ahead.stop()

    # What every problem needs: a device that is known and watched.

    def _begin(self) -> None:
        self._child.start()
        self.facts = DeviceInfo.from_dict(self._child.facts)
        if self._budget.seconds is not None:
            self._end = self._clock() + self._budget.seconds
        if self.facts.energy is None:
            self.probe = load_probe(self.facts)
            if self.probe is None:
                self.probe = Probe(**self._ask(_CONTROL_LIMIT_S, "probe"))
                save_probe(self.facts, self.probe)
            self._probed = self.probe.probed
            self._child.remember(probed=vars(self._probed))  # for the processes that come after this one
            self._ask(_CONTROL_LIMIT_S, "sensors", probed=vars(self._probed))
        if reason := self.facts.energy or (self.probe and self.probe.why_no_energy()):
            self._note(f"energy is not measured: {reason}")
        if self.facts.other_processes:
            self._note(f"{self.facts.other_processes} other processes use this card: expect noise")
        self._look(0, with_energy=False)

    def _clock(self) -> float:
        """Seconds since the campaign began, of the device's own clock where it has one."""
        virtual = self.facts is not None and self.facts.virtual
        return self._child.device_s if virtual else time.monotonic() - self.started_s

    def _ask(self, limit_s: float, do: str, **items: Any) -> Any:
        """A request that has to succeed: it is made anew in a new process when the old one is lost."""
        error: KernrecError | None = None
        for _ in range(_RESTARTS):
            try:
                if not self._child.alive:
                    self._prepared = False
                    self._child.start()
                if self._target is not None and not self._prepared and do != "prepare":
                    self._child.ask(PREPARE_LIMIT_S, "prepare", **self._target.preparation)
                    self._prepared = True
                return self._child.ask(limit_s, do, **items)
            except MeasurementFailure as failure:
                if self._child.alive:
                    raise
                error = failure
            except KernrecError as failure:
                error = failure
        raise KernrecError(f"the device was given up after {_RESTARTS} tries: {error}")

    def _look(self, number: int, with_energy: bool) -> str | None:
        """Look at the reference kernels and settings and begin block `number`; what is not as it was, if anything."""
        assert self.facts is not None
        answer = self._ask(_CONTROL_LIMIT_S, "references", energy=with_energy)
        if self._drift.drifted(answer["references"]):  # or was it the moment after a heavy load? A second look decides
            answer = self._ask(_CONTROL_LIMIT_S, "references", energy=with_energy)
        error = self._drift.take(answer["references"])
        if with_energy:
            self._energy_at, self._energy_unwatched = self._clock(), False
        settings = CardSettings(**answer["settings"])
        if settings != self.facts.settings:
            error = f"somebody changed the card: {changes(self.facts.settings, settings)}"
            self.facts = replace(self.facts, settings=settings)
            self._drift.rebase(answer["references"])
        if self._probed.energy and self._clock() - self._idle_at >= IDLE_EVERY_S:
            self._idle_w = self._ask(_CONTROL_LIMIT_S, "idle")
            self._idle_at = self._clock()
        self._block = _Block(number, self._clock())
        return error

    def _close_block(self) -> list[ScheduledMeasurement]:
        """End the block and begin another; what has to be measured again."""
        block = self._block
        if not block.items:
            return []
        self._energy_unwatched |= any(item.tier != "screen" for item in block.items)
        with_energy = self._energy_unwatched and self._clock() - self._energy_at >= REFERENCE_S
        error = self._look(block.number + 1, with_energy)
        if error is None:
            self._journal.append({"closed": block.number, "session": self._session})
            return []
        self._journal.append({"drifted": block.number, "session": self._session, "error": error})
        again = [replace(item, again=True) for item in block.items if not item.again]
        self._note(f"{error}; {len(again)} measurements are made again")
        return again

    # One problem: everybody, then the fastest and a sample of the others, then the front.

    def _measure_target(self, target: PlannedProblem, targets_left: int) -> None:
        self._target, self._prepared = target, False
        planned = len(target.tasks) if target.most is None else min(target.most, len(target.tasks))
        self.results.append(result := ProblemResult(target.name, target.problem.key, planned))
        self._history = ProblemHistory()
        for row in self._known(target.problem):
            if not self._as_now(row):
                continue
            self._history.add((row["kernel"], row["kernel_hash"], row["tunables"]), row)
            result.remember(row)
        if target.baseline is not None:
            self._note(
                "nothing says what is right: results are held against the output of " + config_text(target.baseline)
            )
        # Drawn anew for each problem, so that a campaign that goes on chooses as the one did that was cut short.
        todo = Schedule(
            target, self._history, np.random.default_rng([self._seed, zlib.crc32(target.problem.key.encode())])
        )
        left = self._configs_left()
        start = self._clock()
        share = (self._end - start) / targets_left
        try:
            most = None if left is None else math.ceil(left / targets_left)
            again = self._screen(todo, start + _SCREEN_SHARE * share, most)
            if self._probed.energy:
                again += self._work(todo.coarse(), start + _COARSE_SHARE * share)
            if self._effort.finals:
                again += self._work(todo.finals(self._effort.finals, self._probed.energy), start + share)
            again += self._close_block()
            if again:
                self._work(again, self._end)
                self._close_block()
        except MeasurementFailure as failure:  # of its inputs and its reference, not of a config
            self._note(f"{target.problem.key} is left out: {failure}")
            self._target = None  # the reference kernels need no inputs, and what drifted is not made again
            self._close_block()

    def _screen(self, todo: Schedule, until: float, most: int | None) -> list[ScheduledMeasurement]:
        """Measure what the plan asks for next, and ask it again, until it has had all or `most` are done."""
        again: list[ScheduledMeasurement] = []
        done, total = 0, self.results[-1].configs - todo.screened
        total = total if most is None else min(total, most)
        while done < total and self._clock() < min(until, self._end):
            items, step = todo.screen()
            if not (step := min(step, total - done)):
                break
            again += self._work(items[: step + _LOOKAHEAD], until, step, done, total)
            done += step
        return again

    def _as_now(self, row: Row) -> bool:
        """Whether a row was made at the card's limits and clocks of today; another would answer for something else."""
        assert self.facts is not None
        now = self.facts.columns()
        same = all(row[name] == now[name] for name in ("power_limit_w", "locked_sm_clock_hz", "locked_memory_clock_hz"))
        return same and bool(row["mig"]) == bool(now["mig"])

    def _work(
        self,
        items: Iterable[ScheduledMeasurement],
        until: float,
        count: int | None = None,
        before: int = 0,
        total: int | None = None,
    ) -> list[ScheduledMeasurement]:
        """Measure items, or `count` of them, until a moment; gives those of blocks that drifted, to be made again.

        before, total: of the tier's measurements, those made and all, where these are a part of them.
        """
        queue = deque(items)
        if self._ahead is not None:
            self._ahead.want([item.task for item in queue] + self._upcoming)
        left_over = 0 if count is None else max(0, len(queue) - count)
        total, done = len(queue) if total is None else total, before
        again: list[ScheduledMeasurement] = []
        while len(queue) > left_over and self._clock() < min(until, self._end):
            if self._stopping():
                raise Stopped
            if (found := self._next(queue)) is None:
                continue
            item, code = found
            if not self._prepared:
                assert self._target is not None
                self._ask(PREPARE_LIMIT_S, "prepare", **self._target.preparation)
                self._prepared = True
            if not self._child.alive or self._clock() - self._block.since >= REFERENCE_S:
                again += self._close_block()
            row = self._measure(item, code)
            done += 1
            left = None if math.isinf(self._end) else max(0.0, self._end - self._clock())
            self._tell(Progress("", "", item.tier, done, total, left, row))
        return again

    def _next(self, queue: "deque[ScheduledMeasurement]") -> tuple[ScheduledMeasurement, CompiledVariant | None] | None:
        """The first item whose code is ready, taken from the queue; None, after a short wait, when there is none."""
        if self._ahead is None:
            return queue.popleft(), None
        for i in range(min(len(queue), _LOOKAHEAD)):
            if (code := self._ahead.ready(queue[i].task)) is not None:
                item = queue[i]
                del queue[i]
                return item, code
        self._ahead.wait(0.2)
        return None

    # One measurement: a row, whatever happens.

    def _measure(self, item: ScheduledMeasurement, code: CompiledVariant | None) -> Row:
        task = item.task
        row = self._columns_of(item, code)
        if item.tier == "screen" and not item.again:
            self._screened += 1
        try:
            if code is not None:
                row |= self._code_columns(task, code)
            row |= self._child.ask(
                self._limit_s(item.tier), "measure", kernel=task.kernel_name, config=task.config,
                problem=task.problem.key, tier=item.tier, best_s=self._best_s(),
            )  # fmt: skip
            row |= {"outcome": "ok"}
        except MeasurementFailure as failure:
            row |= failure.columns | {"outcome": failure.outcome, "error": str(failure)}
        row |= {"measured_at": datetime.now(UTC).replace(tzinfo=None).isoformat()}
        self._journal.append({"row": row})
        self._block.items.append(item)
        self._history.add(task.key, row)
        self.results[-1].take(row)
        return row

    def _columns_of(self, item: ScheduledMeasurement, code: CompiledVariant | None) -> dict[str, Any]:
        """The columns that are known before a config is measured."""
        assert self.facts is not None
        task = item.task
        row = {
            "kernel": task.kernel_name,
            "kernel_hash": task.kernel_hash,
            "config": task.config,
            "problem": task.problem.as_dict(),
            **self.facts.columns(),
            "protocol_version": measure_config.VERSION,
            "tier": item.tier,
            "selection_probability": item.probability,
            "idle_w": self._idle_w,
            "session": self._session,
            "block": self._block.number,
            "position": len(self._block.items),
            "reference_age_s": max(0.0, self._clock() - self._block.since),
            "reference_latency": self._drift.latency,
            "reference_energy": self._drift.energy,
        }
        return row | self._columns

    def _code_columns(self, task: Task, code: CompiledVariant) -> dict[str, Any]:
        """The columns of a task's code. Raises `MeasurementFailure` if it did not compile or cannot be launched."""
        assert self.facts is not None
        if code.error is not None:
            raise MeasurementFailure("compile", code.error, columns=code.columns)
        if task.kernel is None:
            return code.columns
        try:
            launches = bind_launches(task.kernel, task.config, task.problem, self.facts.sm)
        except UsageError as error:
            raise MeasurementFailure("constraint", str(error), columns=code.columns) from None
        dynamic = max((launch.shared_bytes for launch in launches), default=0)
        return code.columns | {"smem_bytes": code.smem_bytes + dynamic}

    def _limit_s(self, tier: str) -> float:
        """How long a config may take before its process is killed (section 8), its windows for energy on top."""
        limit = max(LEAST_LIMIT_S, LIMIT_BESTS * (self._best_s() or 0.0))
        if tier == "screen" or not self._probed.energy:
            return limit
        assert self.facts is not None
        window = measure_config.SETTLE_S + measure_config.window_s(self.facts.generation, tier, self._probed)
        return limit + (1 + measure_config.REPEATS) * (window + measure_config.LATENCY_CAP_S)

    def _best_s(self) -> float | None:
        best = self.results[-1].best
        return None if best is None else float(best["latency_s"])

    def _configs_left(self) -> int | None:
        return None if self._budget.configs is None else max(0, self._budget.configs - self._screened)

    def _note(self, text: str) -> None:
        self._tell(Progress("", "", "", 0, 0, note=text))

    def _tell(self, progress: Progress) -> None:
        device = self.facts.name if self.facts else ""
        self._report(replace(progress, device=device, target=self._target.name if self._target else ""))
