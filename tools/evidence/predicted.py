"""Profile recorded configs like `kernrec analyze`, and predict their times with the analytical model. kernrec's cache
keeps the profiles, so an interrupted run continues, and a second run takes seconds."""

import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from front import ROOT

from evidence.cases import Cases, ordered
from evidence.recordings.spaces import RecordedSet, Recording, read_rows
from kernrec import paths
from kernrec.errors import KernrecError
from kernrec.gpu import GPU, find_gpu
from kernrec.kernel import Config, Kernel, config_text
from kernrec.model.analytical.launch_costs import NominalCosts
from kernrec.op import Problem
from kernrec.profile.emulation_cache import emulator_hash
from kernrec.recommender import Objective, Query
from kernrec.recommender.analyze.kernel import analyze
from kernrec.recommender.analyze.profile_configs import ProfilingOptions
from kernrec.recommender.context import Context
from kernrec.recommender.estimate.correction import inputs_of
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT, OperatingPoint
from kernrec.recommender.estimate.prediction import costs_of_rows
from kernrec.recommender.estimate.static_table import StaticTable
from kernrec.store import ProfileTable
from kernrec.util.files import try_lock

TEXTBOOK = ROOT / "datasets" / "kernels" / "textbook"
ZERO_BY_ZERO = {"alu": 8, "setp": 2, "fcmp": 2, "mufu": 1, "move": 5, "branch": 6}
"""Instructions that ptxas 13's function for special operands executes for the division 0/0, including the call."""


@dataclass(frozen=True)
class Sample:
    """Configs of a kernel with recorded times and energies, for one problem on one GPU."""

    title: str
    """Name of the GPU and label of the recording."""
    table: StaticTable
    problem: Problem
    configs: Sequence[Config]
    recorded_s: np.ndarray
    point: OperatingPoint = DEFAULT_POINT
    recorded_j: np.ndarray | None = None

    def cases(self, kernel: str = "") -> Cases:
        """Return the predictions for the configs that can run.

        The cases have these further columns: `free_s` and `free_j` are the predicted time and energy at the default
        clock. `predicted_j` is the predicted energy at the recorded clock. `energy at predicted` and `energy at free`
        are logarithms of a ratio: the model's energy for the recorded time over the predicted energy. `recorded_j` is
        the recorded energy, or NaN if there is none.
        """
        table, point, space = self.table, self.point, self.table.space.at(self.problem)
        place = table.space.find(list(self.configs))
        order = np.argsort(place)  # The engine needs ascending rows.
        usable = order[np.isin(place[order], table.runnable(space))]
        if not len(usable):
            raise KernrecError("every config of the sample is refused")
        costs = costs_of_rows(table, space, place[usable])
        nominal, recorded_s = NominalCosts(*costs.nominal), self.recorded_s[usable]
        limited = table.power.apply_power_limit(nominal, point.power_limit_w, point.clock_hz)
        free, clock_hz = table.power.apply_power_limit(nominal), point.clock_hz or table.power.running_hz
        standing_w = table.power.power_at(limited.clock_hz, {})
        at_recorded_j = limited.energy_j + standing_w * (recorded_s - limited.latency_s)
        at_recorded_j = np.minimum(at_recorded_j, point.limit_w(table.gpu) * recorded_s)
        inputs = inputs_of(table, place[usable], limited, costs, np.arange(len(usable)))
        geometry = table.geometry(space, 0)
        more = {
            "occupancy": geometry.occupancy.take(place[usable]),
            "threads": inputs.threads,
            "resident": inputs.resident,
            # Average power: the predicted energy divided by the recorded time.
            "power_w": table.power.power_at(clock_hz, {})
            + (nominal.core_j * table.power.voltage(clock_hz) ** 2 + nominal.dram_j) / recorded_s,
            "free_s": free.latency_s, "free_j": free.energy_j, "predicted_j": limited.energy_j,
            "energy at predicted": np.log(at_recorded_j / limited.energy_j),
            "energy at free": np.log(at_recorded_j / free.energy_j),
            "recorded_j": np.nan if self.recorded_j is None else self.recorded_j[usable],
            "index": usable,
        }  # fmt: skip
        names = {"kernel": kernel or table.kernel.name, "gpu": self.title, "problem": self.problem.key}
        return Cases.of(**names, recorded=recorded_s, predicted=limited.latency_s, **more)

    def predicted_s(self) -> np.ndarray:
        """Return the predicted time of each config in seconds, (N,). It is NaN for configs that cannot run."""
        cases, seconds = self.cases(), np.full(len(self.configs), np.nan)
        seconds[cases["index"]] = cases["predicted"]
        return seconds


def sampled_space(
    recorded: RecordedSet, recording: Recording, folders: tuple[Path | None, Path], count: int, processes: int = 1
) -> Sample:
    """Profile at most `count` configs of a recorded search space; GPUs of an architecture share the sample and its
    profiles. `folders` are the kernels' sources and the recordings."""
    if recording.unfit:
        raise KernrecError(recording.unfit)
    kernel, gpu = recorded.kernel(folders[0]), find_gpu(recording.gpu)
    rows = read_rows(recording, kernel, folders[1] / "spaces")
    chosen = ordered([config_text(config) for config in rows.configs])[: min(count, recorded.most)]
    configs, problem = [rows.configs[i] for i in chosen], kernel.definition.problem()
    database = profile(kernel, problem, gpu, configs, f"{recorded.name} {recording.title}", processes)
    context = Context([database]).on(gpu)
    table = context.kernel_table(kernel, problem)
    if recording.divides_zeros:
        profiles = context.find_profiles(kernel, problem)
        divided = {launch: dividing_zeros(each) for launch, each in profiles.items()}
        table = StaticTable.of(kernel, problem, gpu, divided)
    point = OperatingPoint(None, recording.clock_hz)
    return Sample(recording.title, table, problem, configs, rows.latency_s[chosen], point, rows.energy_j[chosen])


def profile(kernel: Kernel, problem: Problem, gpu: GPU, configs: Sequence[Config], label: str, processes: int) -> Path:
    """Profile configs into a database in kernrec's cache, and return its path. A lock keeps other runs waiting."""
    path = paths.cache() / "evidence" / emulator_hash()[:16] / f"{kernel.name}-sm{gpu.sm}.duckdb"
    path.parent.mkdir(parents=True, exist_ok=True)
    lock, shown_s = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT), time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal shown_s
        if time.monotonic() - shown_s > 20:
            shown_s = time.monotonic()
            print(f"{label}: {done} of {total} configs", file=sys.stderr, flush=True)

    try:
        while not try_lock(lock):
            time.sleep(0.5)
        options = ProfilingOptions(TEXTBOOK, processes, only=configs, progress=progress)
        analyzed = analyze(kernel, problem, gpu, path, Query(Objective.LATENCY, top=1), options)
    finally:
        os.close(lock)
    reasons = Counter(failure.message.split(": ", 1)[-1][:100] for failure in analyzed.failed)
    for reason, count in reasons.most_common(2):
        print(f"{label}: {count} configs failed: {reason}", file=sys.stderr)
    return path


def dividing_zeros(table: ProfileTable) -> ProfileTable:
    """Add the instructions of IEEE divisions 0/0 to profiles whose special functions all belong to IEEE divisions: each
    executes two (MUFU.RCP and FCHK), and calls the assembler's function for special operands."""
    if "issue.mufu" not in table.metrics:
        return table
    divisions = table.counts[:, table.metrics.index("issue.mufu")] / 2.0
    added = {f"issue.{name}": count for name, count in ZERO_BY_ZERO.items()}
    added["issue"] = sum(ZERO_BY_ZERO.values())
    metrics = (*table.metrics, *(metric for metric in added if metric not in table.metrics))
    counts = np.zeros((len(table.counts), len(metrics), table.counts.shape[2]))
    counts[:, : len(table.metrics)] = table.counts
    for metric, count in added.items():
        counts[:, metrics.index(metric)] += count * divisions
    return replace(table, metrics=metrics, counts=counts)
