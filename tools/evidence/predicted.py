"""Read recorded search spaces, and predict the times of their configs with the analytical model.

`recordings/spaces.toml` lists recordings of public kernels. `--sources` names copies of the repositories
(AutoTuningAssociation/benchmark_hub and fjwillemsen/kernel_tuner_paper, both MIT). The specs in `recordings/kernels`
were written for kernrec. Configs are profiled as by `kernrec analyze`. kernrec's cache keeps the profiles, so an
interrupted run continues, and a second run takes seconds.
"""

import gzip
import json
import os
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from front import ROOT

from evidence.cases import Cases, ordered
from evidence.recordings.files import AbsentError, parquet_columns, present
from kernrec import paths
from kernrec.errors import KernrecError
from kernrec.gpu import GPU, find_gpu
from kernrec.interop.read_results import read_results
from kernrec.kernel import Config, Kernel, config_text
from kernrec.kernel.source_files import read_text, read_toml
from kernrec.kernel.spec_reader import kernel_from
from kernrec.model.analytical.launch_costs import NominalCosts
from kernrec.op import Problem
from kernrec.profile.emulation_cache import emulator_hash
from kernrec.recommender import Objective, Query
from kernrec.recommender.analyze.kernel import analyze
from kernrec.recommender.analyze.profile_configs import ProfilingOptions
from kernrec.recommender.context import Context
from kernrec.recommender.estimate.correction import inputs_of
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT, OperatingPoint
from kernrec.recommender.estimate.space import costs_of_rows
from kernrec.recommender.estimate.static_table import StaticTable
from kernrec.store import ProfileTable
from kernrec.util.files import try_lock

FILE = "convolution-a100.t4.json.gz"

BUSY_S = 0.09
"""Seconds of launches after which the clock rises: 100 ms in the recording, minus some work that was not recorded."""
HOLD_S = 2.0
"""Maximum time in seconds for which an idle GPU keeps a raised clock."""
STEP = 1.1
"""Maximum ratio between times of a config's first and last launches at an unchanged clock."""


def raised_configs(path: Path) -> set[frozenset[tuple[str, int]]]:
    """Return the keys (`config_key`) of configs of the recorded A100 convolution that may have run at a raised clock.

    The clock rose from 765 to 1,410 MHz after launches had kept the GPU busy for 100 ms, and fell if the next config
    took more than two seconds to compile. No model of kernels can predict such times. The times in the T4 file are in
    milliseconds, and the measurements are in the order of measuring."""
    with gzip.open(present(path)) as file:
        valid = [row for row in json.load(file)["results"] if row["invalidity"] == "correct"]
    launches_s = np.array([row["times"]["runtimes"] for row in valid]) / 1e3
    busy_s = launches_s.sum(axis=1)
    # Skip the first launch, which also warms up the GPU.
    step = np.median(launches_s[:, 1:4], axis=1) / np.median(launches_s[:, -3:], axis=1)
    stepped = np.maximum(step, 1.0 / step) > STEP
    raised, until = set(), -np.inf
    for row, seconds, is_marked in zip(valid, busy_s.tolist(), stepped.tolist(), strict=True):
        end_s = datetime.fromisoformat(row["timestamp"]).timestamp()
        if is_marked or end_s - seconds < until:
            raised.add(config_key(row["configuration"]))
        if seconds > BUSY_S:
            until = end_s + HOLD_S
    return raised


def config_key(config: Mapping[str, Any]) -> frozenset[tuple[str, int]]:
    """Return a hashable key of a config, as used by `raised_configs`."""
    return frozenset((name.lower(), int(value)) for name, value in config.items())


Array = np.ndarray
RECORDINGS = Path(__file__).resolve().parent / "recordings"
_MEASURED = frozenset({
    "outcome", "latency_s", "latency_low_s", "latency_high_s", "runs", "nvml_energy", "core_freq", "mem_freq",
    "temperature", "num_regs", "duration_us",
})  # fmt: skip
"""Names of columns that are not tunables."""


@dataclass(frozen=True)
class Space:
    """Configs of a kernel that ran successfully on a GPU. Arrays have one element per config, (C,)."""

    title: str
    tunables: Mapping[str, Array]
    """Values of each tunable, keyed by lower-case name, (C,). Tunables that do not vary are included."""
    measured: Mapping[str, Array]
    """Measured columns: `latency_s` and other columns of the file, (C,) each."""

    def __len__(self) -> int:
        return len(self.measured["latency_s"])

    @cached_property
    def matrix(self) -> Array:
        """Values of the tunables that vary, (C, T). Texts are replaced by numbers."""
        varied = [values for values in self.tunables.values() if len(np.unique(values)) > 1]
        codes = [np.unique(v, return_inverse=True)[1] if v.dtype.kind in "OU" else v for v in varied]
        return np.column_stack(codes).astype(float)

    def take(self, rows: Array) -> "Space":
        """Return a space with only the configs at the indices `rows`."""
        tables = ({name: values[rows] for name, values in each.items()} for each in (self.tunables, self.measured))
        return Space(self.title, *tables)

    def distinct(self) -> "Space":
        """Return a space in which no two configs have equal tunables. The first config is kept."""
        return self.take(np.sort(np.unique(self.matrix, axis=0, return_index=True)[1]))


def read_space(path: Path, times: str = "latency_s") -> Space:
    """Read the configs that ran successfully from a Parquet file, or from a T4 or cache file of Kernel Tuner. For
    Kernel Tuner, `log_deviation` is the standard deviation of the logarithm of the time of a launch."""
    if path.suffix == ".parquet":
        table = parquet_columns(path)
        outcome = table.get("outcome", np.full(len(table[times]), "ok"))
        ran = np.array([str(each).lower() == "ok" for each in outcome]) & (table[times] > 0)
        table = {name: column[ran] for name, column in table.items()}
        measured = {name: column for name, column in table.items() if name in _MEASURED} | {"latency_s": table[times]}
        columns = {name.lower(): column for name, column in table.items() if name not in _MEASURED}
        if times != "latency_s":  # Drop counters, which follow the column `outcome`.
            columns = {name: columns[name] for name in list(columns)[: list(table).index("outcome")]}
        return Space(path.name.split(".")[0], columns, measured)
    results = [result for result in read_results(present(path)).results if result.latency_s is not None]
    if path.name == FILE:
        raised = raised_configs(path)
        results = [result for result in results if config_key(result.config) not in raised]
    columns = {name.lower(): np.array([float(r.config[name]) for r in results]) for name in results[0].config}
    samples = [result.samples_s or (float(result.latency_s or np.nan),) for result in results]
    measured = {
        "latency_s": np.array([result.latency_s for result in results], dtype=float),
        "mean_s": np.array([np.mean(each) for each in samples]),
        "log_deviation": np.array([np.std(np.log(each)) for each in samples]),
    }
    return Space(path.name.split(".")[0], columns, measured)


@dataclass(frozen=True)
class Recording:
    """Recording of a public kernel on one GPU."""

    gpu: str
    """Name in the GPU catalog."""
    file: str
    """Path of the file in the folder `spaces` of the recordings."""
    clock_hz: float | None = None
    """Core clock in hertz, or None if it is the GPU's boost clock."""
    columns: Mapping[str, int] = field(default_factory=dict)
    """Values that rows must have in columns that are not tunables of the spec. Other rows are ignored."""
    unit_s: float = 1.0
    """Unit of the times in the file, in seconds."""
    label: str = ""
    """Text that is printed after the name of the GPU."""
    times: str = "latency_s"
    """Name of the column with the times."""
    divides_zeros: bool = False
    """Whether the recorder left the kernel's constants at zero, so that every IEEE division computes 0/0."""
    unfit: str = ""
    """Reason why the recorded times include more than the kernel. It is printed instead of the results."""

    @property
    def title(self) -> str:
        return f"{self.gpu} {self.label}".rstrip()


@dataclass(frozen=True)
class RecordedSet:
    """Public kernel with its recordings."""

    name: str
    """Name of the spec in the folder `kernels`."""
    source: Sequence[str]
    """Ends of the paths of the source files. The files are concatenated in this order."""
    recordings: Sequence[Recording]
    most: int = 10_000
    """Maximum number of configs to profile, because the emulator takes minutes per config of some kernels."""
    replace: Sequence[tuple[str, str]] = ()
    """(Text in the source, replacement) pairs, applied before compilation."""

    def kernel(self, sources: Path | None) -> Kernel:
        """Create the kernel from source files in the folder `sources`. Raises `AbsentError` if a file is missing."""
        if sources is None:
            raise AbsentError(f"{self.name} is public; --sources names a folder with it")
        parts = []
        for end in self.source:
            paths = [path for path in sorted(sources.rglob(Path(end).name)) if str(path).endswith(f"/{end}")]
            if not paths:
                raise AbsentError(f"no {end} below {sources}")
            parts.append(read_text(paths[0], end))
        text = "\n".join(parts)
        for old, new in self.replace:
            text = text.replace(old, new)
        spec = RECORDINGS / "kernels" / f"{self.name}.toml"
        return kernel_from(read_toml(spec, spec.name), spec.name, text)


_TABLES = tomllib.loads((RECORDINGS / "spaces.toml").read_text(encoding="utf-8"))
SETS = {
    name: RecordedSet(name, **table | {"recordings": [Recording(**each) for each in table["recordings"]]})
    for name, table in _TABLES.items()
}


class Rows(NamedTuple):
    """Measured times and energies of N configs of a public kernel on one GPU."""

    configs: list[Config]
    latency_s: Array
    energy_j: Array
    """Energy of a launch in joules, (N,), or NaN if it was not recorded."""


def read_rows(recording: Recording, kernel: Kernel, folder: Path) -> Rows:
    """Read a recording without failed runs. Tunables that the file lacks have the spec's first value."""
    space = read_space(folder / recording.file, recording.times)
    for name, value in recording.columns.items():
        space = space.take(np.flatnonzero(space.tunables[name] == value))
    count, names = len(space), [tunable.name for tunable in kernel.tunables]
    columns = [space.tunables.get(t.name, np.full(count, t.values[0])).astype(int).tolist() for t in kernel.tunables]
    configs: list[Config] = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
    energy = space.measured.get("nvml_energy", np.full(count, np.nan))
    return Rows(configs, space.measured["latency_s"] * recording.unit_s, np.where(energy > 0, energy, np.nan))


TEXTBOOK = ROOT / "datasets" / "kernels" / "textbook"
ZERO_BY_ZERO = {"alu": 8, "setp": 2, "fcmp": 2, "mufu": 1, "move": 5, "branch": 6}
"""Instructions that a division 0/0 executes, by class. The code of ptxas 13 calls a function for such operands."""


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
        are log(e / predicted_j) and log(e / free_j), where e is the power model's energy for the recorded time.
        `recorded_j` is the recorded energy, or NaN if there is none.
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
    """Profile at most `count` configs of a recorded search space. GPUs of an architecture have the same sample
    and profiles. `folders` are the kernels' sources and the recordings."""
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
    lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT)

    def progress(done: int, total: int) -> None:
        if done % 25 == 0:
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
    """Add the instructions of `ZERO_BY_ZERO` for each IEEE division to profiles. All special functions (`issue.mufu`)
    of the kernel must come from divisions: a division executes MUFU.RCP and FCHK."""
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
