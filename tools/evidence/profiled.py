"""Recorded configs profiled as `kernrec analyze` profiles them, and what the prior says of them.

Profiles are kept in kernrec's cache, by source and by version of the emulator: after a change of the model alone a
second run takes seconds, and one that was interrupted goes on.
"""

import hashlib
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from front import ROOT

from kernrec import paths
from kernrec.errors import KernrecError
from kernrec.gpu import GPU, find_gpu
from kernrec.kernel import Config, Kernel, config_text
from kernrec.model.prior.spread import regime
from kernrec.op import Problem
from kernrec.profile.emulation_cache import emulator_hash
from kernrec.recommender import Objective, Query
from kernrec.recommender.analyze.kernel import analyze
from kernrec.recommender.analyze.profile_configs import ProfilingOptions
from kernrec.recommender.context import Context
from kernrec.recommender.estimate.model_inputs import inputs_of
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT, OperatingPoint
from kernrec.recommender.estimate.static_table import StaticTable
from kernrec.recommender.rank import candidate_set
from kernrec.store import Evidence, ProfileTable
from kernrec.util.file_lock import try_lock

from .recorded_sets import RecordedSet, Recording, Rows, read_rows

TEXTBOOK = ROOT / "datasets" / "kernels" / "textbook"
ZERO_BY_ZERO = {"alu": 8, "setp": 2, "fcmp": 2, "mufu": 1, "move": 5, "branch": 6}
"""Instructions of the assembler's function for operands that are not normal, with its call, for 0/0 (ptxas 13)."""


@dataclass(frozen=True)
class Predictions:
    """The predictions for configs of a kernel on a problem and card; columns are those of its K candidates."""

    position: np.ndarray
    """Of each config among the candidates; -1 where it is refused."""
    latency_s: np.ndarray
    """(K,)."""
    energy_j: np.ndarray
    """(K,)."""
    occupancy: np.ndarray
    """(K,)."""
    threads: np.ndarray
    """Threads of a block, (K,)."""
    resident: np.ndarray
    """Blocks that an SM holds, (K,)."""
    nominal_j: tuple[np.ndarray, np.ndarray]
    """Of the core at its nominal voltage and of DRAM, (K,) each."""
    standing_w: np.ndarray
    """Power that is drawn at the clock of each whatever runs: board, leakage, clock tree; (K,)."""
    limit_w: float
    regime: np.ndarray
    """Position in `spread.REGIMES` of what bounds it, (K,)."""
    shares: np.ndarray
    """The prior's terms over its time, and how full the card is: the features of `tools/evidence leave-out`, (K, F)."""

    def energy_at(self, seconds: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Predicted joules of some candidates, did they take this time for the same events: what stands is drawn for
        longer or shorter, and no more than the power limit."""
        joules = self.energy_j[places] + self.standing_w[places] * (seconds - self.latency_s[places])
        return np.asarray(np.minimum(joules, self.limit_w * seconds))


def predicted(
    table: StaticTable, problem: Problem, configs: Sequence[Config], point: OperatingPoint = DEFAULT_POINT
) -> Predictions:
    """The predictions of configs that were profiled; `KernrecError` where none can run."""
    candidates = candidate_set([table], problem, [point], Evidence(), whole_space=True)
    if not candidates.kernels:
        raise KernrecError("every config of the sample is refused")
    of_kernel = candidates.kernels[0]
    count, rows = len(of_kernel.rows), table.space.find(list(configs))
    place = np.full(len(table.space), -1)
    place[of_kernel.rows] = np.arange(count)
    on_problem, geometry = of_kernel.runnable.on_problem, table.geometry(of_kernel.runnable.on_problem, 0)
    threads = on_problem.column(table.kernel.launches[0].threads, of_kernel.rows) + np.zeros(count)
    occupancy, resident = geometry.occupancy.take(of_kernel.rows), geometry.columns[0].take(of_kernel.rows)
    nominal = of_kernel.prediction.nominal
    nominal_j = np.broadcast_to(nominal.core_j, count), np.broadcast_to(nominal.dram_j, count)
    position = np.where(rows < 0, -1, place[rows])
    costs = candidates.latency_s[0], candidates.energy_j[0]
    power, at_clock = table.power, np.broadcast_to(of_kernel.limited.clock_hz[0], count)
    standing_w = power.power_at(at_clock, {})
    bound = regime(nominal, of_kernel.limited.capped[0])
    inputs = inputs_of(of_kernel.prediction, of_kernel.limited.at(0), np.arange(count))
    terms = inputs.core_s, inputs.dram_s, inputs.fixed_s, inputs.busy_s, inputs.wait_s, inputs.l2_s
    assert inputs.pipe_s is not None
    times = np.stack([*(np.zeros(count) + np.asarray(term) for term in terms), *inputs.pipe_s]) / inputs.latency_s
    waves = np.asarray(inputs.blocks) / (table.gpu.sms * np.maximum(resident, 1.0))
    full = np.stack(
        [occupancy, np.log2(resident), np.log2(threads), np.log2(waves), np.asarray(inputs.registers) / 255.0]
    )
    shares, limited = np.concatenate([times, full]).T, np.broadcast_to(bound, count)
    limit_w = point.limit_w(table.gpu)
    return Predictions(position, *costs, occupancy, threads, resident, nominal_j, standing_w, limit_w, limited, shares)


@dataclass(frozen=True)
class Sample:
    """Configs of one recorded space that were profiled, and how long they took."""

    set: str
    card: str
    """With the label of the recording."""
    gpu: GPU
    kernel: Kernel
    point: OperatingPoint
    profiles: Mapping[int, ProfileTable]
    """By launch."""
    configs: Sequence[Config]
    latency_s: np.ndarray
    """Measured, in the order of the configs."""

    @property
    def table(self) -> StaticTable:
        """The kernel on its own problem."""
        return StaticTable.of(self.kernel, self.kernel.definition.problem(), self.gpu, self.profiles)

    def predictions(self) -> Predictions:
        """The prior's predictions; `KernrecError` where none can run."""
        return predicted(self.table, self.kernel.definition.problem(), self.configs, self.point)

    def times(self) -> tuple[np.ndarray, np.ndarray]:
        """Measured and predicted times of those that can run."""
        predictions = self.predictions()
        runs = predictions.position >= 0
        return self.latency_s[runs], predictions.latency_s[predictions.position[runs]]


def profiled_sample(
    recorded: RecordedSet,
    recording: Recording,
    folders: tuple[Path | None, Path],
    count: int,
    best: int = 0,
    processes: int = 1,
) -> tuple[Sample, Rows, list[int]]:
    """A sample of a recorded space, all its rows, and the sample's numbers among them.

    Args:
        recorded: the kernel.
        recording: of one card.
        folders: of the kernels' sources, and of recordings.
        count: configs to profile; fewer where the set says so.
        best: how many of the best recorded configs come at the end.
        processes: that profile.
    """
    kernel, gpu = recorded.kernel(folders[0]), find_gpu(recording.card)
    rows = read_rows(recording, kernel, folders[1] / "spaces")
    chosen = sample(rows, min(count, recorded.most), best)
    configs, problem = [rows.configs[i] for i in chosen], kernel.definition.problem()
    label = f"{recording.card} {recording.label}".rstrip()
    profile(kernel, problem, gpu, configs, f"{recorded.name} {label}", processes)
    profiles = Context([profiles_file(kernel, gpu)]).find_profiles(kernel, problem, gpu)
    point = OperatingPoint(None, recording.clock_hz)
    return Sample(recorded.name, label, gpu, kernel, point, profiles, configs, rows.latency_s[chosen]), rows, chosen


def sample(rows: Rows, count: int, best: int) -> list[int]:
    """`count` rows in an order that depends on the configs alone, so that cards share their profiles, then the best."""
    digests = [hashlib.sha256(config_text(config).encode()).digest() for config in rows.configs]
    order = sorted(range(len(digests)), key=digests.__getitem__)
    return [*order[:count], *np.argsort(rows.latency_s, kind="stable")[:best].tolist()]


def profiles_file(kernel: Kernel, gpu: GPU) -> Path:
    """The database that keeps the profiles of a kernel: another one for every version of the emulator."""
    return paths.cache() / "evaluate_prior" / emulator_hash()[:16] / f"{kernel.name}-sm{gpu.sm}.duckdb"


def profile(kernel: Kernel, problem: Problem, gpu: GPU, configs: Sequence[Config], label: str, processes: int) -> None:
    """Profile the configs into the cache; one process at a time does that."""
    path = profiles_file(kernel, gpu)
    path.parent.mkdir(parents=True, exist_ok=True)
    lock, told_s = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT), time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal told_s
        if time.monotonic() - told_s > 20:
            told_s = time.monotonic()
            print(f"{label}: {done} of {total} configs", file=sys.stderr, flush=True)

    try:
        while not try_lock(lock):
            time.sleep(0.5)
        options = ProfilingOptions(TEXTBOOK, processes, only=configs, progress=progress)
        analyzed = analyze(kernel, problem, gpu, path, Query(Objective.LATENCY, top=1), options)
    finally:
        os.close(lock)
    reasons = Counter(failure.message.split(": ", 1)[-1][:100] for failure in analyzed.failures)
    for reason, count in reasons.most_common(2):
        print(f"{label}: {count} configs failed: {reason}", file=sys.stderr)


def dividing_zeros(table: ProfileTable) -> ProfileTable:
    """Profiles of a kernel all whose special functions are IEEE divisions, of zero by zero.

    An IEEE division takes two (MUFU.RCP, FCHK), and calls the assembler's function for operands that are not normal.
    """
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
