"""The prior on kernels that nobody fitted it to: predicted against measured times, nothing trained.

    python tools/evaluate_prior.py [--data ../shared/data] [--sources FOLDER] [--sets textbook,gemm,...]
                                   [--configs 300] [--leave-out] [--json FILE]

    convolution, pnpoly, gemm,      recorded spaces of public kernels, a sample of each (tools/recorded_sets.py);
    dedispersion, hotspot, expdist  they need --sources, the folder with the kernels' repositories
    textbook                        datasets/kernels/textbook on two cards, and their sweeps over block sizes
    library                         the best kernel of the library against cuBLAS, tuners and FlashAttention

Predictions are made as `kernrec analyze` makes them. What is compiled and emulated is kept in kernrec's cache, by
source and by version of the emulator, so after a change of the model alone a second run takes seconds, cards of other
architectures need their assembler only, and a run that was interrupted goes on. What is not there is skipped with a
message. `--leave-out` fits the prior's constants again without a kernel, and without a card (`tools/leave_out.py`), and
prints what is left out then. Exits 0.
"""

import argparse
import csv
import hashlib
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from compare_counters import ZERO_BY_ZERO
from leave_out import left_out
from library_shapes import shape_sets
from prior_scores import SweepScore, agreement, score_by_residents, score_shapes, score_space
from prior_tables import Results, print_tables
from recorded_sets import SETS, Recording, Rows, load_recorded_kernel, read_rows

from kernrec import paths
from kernrec.errors import KernrecError, UsageError, unknown
from kernrec.gpu import GPU, find_gpu
from kernrec.kernel import Config, Kernel, config_text, load_kernel
from kernrec.op import Problem
from kernrec.profile.emulation_cache import emulator_hash
from kernrec.recommender import Objective, Query
from kernrec.recommender.analyze_kernel import ProfilingOptions, analyze
from kernrec.recommender.candidate_set import CandidateSet, candidate_set
from kernrec.recommender.context import Context
from kernrec.recommender.estimate.operating_point import OperatingPoint
from kernrec.recommender.estimate.static_table import StaticTable
from kernrec.store import Evidence, ProfileTable
from kernrec.util.file_lock import try_lock

ROOT = Path(__file__).resolve().parents[1]
TEXTBOOK = ROOT / "datasets" / "kernels" / "textbook"
TEXTBOOK_TIMES = "textbook_rtx3060_rtx3070ti.csv"
BEST = 15
NAMES = (*(recorded.name for recorded in SETS), "textbook", "library")


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

    def predictions(self) -> "Predictions":
        """What the prior says of them now; `KernrecError` where none can run."""
        problem = self.kernel.definition.problem()
        table = StaticTable.of(self.kernel, problem, self.gpu, self.profiles)
        return Predictions.of(table, problem, self.point, self.configs)

    def times(self) -> tuple[np.ndarray, np.ndarray]:
        """Measured and predicted times of those that can run."""
        predictions = self.predictions()
        runs = predictions.position >= 0
        return self.latency_s[runs], predictions.latency_s[predictions.position[runs]]


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--sources", type=Path, help="folder with the repositories of recorded kernels")
    parser.add_argument("--sets", default=",".join(NAMES), help=f"of {', '.join(NAMES)}")
    parser.add_argument("--configs", type=int, default=300, help="configs of each space to predict")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--leave-out", action="store_true", help="also without a kernel, and without a card")
    parser.add_argument("--json", type=Path, help="also write the figures to this file, after each set")
    arguments = parser.parse_args()
    results, start = Results(), time.perf_counter()
    for name in arguments.sets.split(","):
        if name not in NAMES:
            print(f"evaluate_prior.py: {unknown('set', name, NAMES)}", file=sys.stderr)
            return 2
    wanted = set(arguments.sets.split(","))
    evaluator = Evaluator(arguments.configs, arguments.processes, results)
    for recorded in SETS:
        if recorded.name in wanted:
            try:
                if arguments.sources is None:
                    raise UsageError("its kernel is public; --sources names a folder with it")
                kernel = load_recorded_kernel(recorded, arguments.sources)
                for recording in recorded.recordings:
                    evaluator.space(recorded.name, recorded.most, recording, kernel, arguments.data / "spaces")
            except UsageError as error:
                evaluator.skip(recorded.name, error)
            results.write(arguments.json)
    if "textbook" in wanted:
        evaluator.textbook(arguments.data / "anchors" / TEXTBOOK_TIMES)
    if "library" in wanted:
        for shapes in shape_sets(arguments.data, evaluator.skip):
            results.shapes.append(score_shapes(*shapes))
    print_tables(results)
    if arguments.leave_out:
        print("\n".join(left_out(evaluator.samples)))
    print(f"\n{time.perf_counter() - start:.0f} s, {time.process_time():.0f} s of processor time without compilation")
    results.write(arguments.json)
    return 0


class Evaluator:
    """Predicts sets and collects their scores."""

    def __init__(self, configs: int, processes: int, results: Results) -> None:
        self._configs, self._processes, self._results = configs, processes, results
        self._recorded: list[tuple[str, int, str, dict[str, float]]] = []  # set, architecture, label, times by config
        self.samples: list[Sample] = []
        """The samples of recorded spaces, without the best configs."""

    def skip(self, name: str, why: object) -> None:
        """Say that a set is left out."""
        self._results.skipped.append(f"{name}: {why}")
        print(f"skipped {name}: {why}", file=sys.stderr)

    def space(self, name: str, most: int, recording: Recording, kernel: Kernel, folder: Path) -> None:
        """Score a sample of one recorded space."""
        label = f"{recording.card} {recording.label}".rstrip()
        try:
            if recording.unfit:
                raise UsageError(recording.unfit)
            gpu, rows = find_gpu(recording.card), read_rows(recording, kernel, folder)
            self._compare(name, label, gpu, rows)
            chosen = sample(rows, min(self._configs, most), BEST)
            problem = kernel.definition.problem()
            configs = [rows.configs[i] for i in chosen]
            self.profile(kernel, problem, gpu, configs, f"{name} {label}")
            profiles = Context([profiles_file(kernel, gpu)]).find_profiles(kernel, problem, gpu)
            if recording.divides_zeros:
                profiles = {index: dividing_zeros(table) for index, table in profiles.items()}
            point = OperatingPoint(None, recording.clock_hz)
            of_sample = Sample(name, label, gpu, kernel, point, profiles, configs, rows.latency_s[chosen])
            predictions = of_sample.predictions()
        except KernrecError as error:
            self.skip(f"{name} on {label}", error)
            return
        best = np.argsort(rows.latency_s, kind="stable")[:BEST]
        runs = dict(zip(chosen, predictions.position.tolist(), strict=True))
        random_part = [i for i in chosen[: -len(best)] if runs[i] >= 0]
        if len(random_part) < 5:
            self.skip(f"{name} on {label}", f"only {len(random_part)} configs of the sample can be predicted")
            return
        count = len(chosen) - len(best)
        self.samples.append(replace(of_sample, configs=configs[:count], latency_s=of_sample.latency_s[:count]))
        places = np.array([runs[i] for i in random_part])
        self._results.spaces.append(
            score_space(
                (name, label),
                len(rows.configs),
                rows.latency_s[random_part],
                predictions.latency_s[places],
                (predictions.occupancy[places], predictions.threads[places]),
                (sum(runs[int(i)] < 0 for i in best), len(best)),
            )
        )
        self._results.by_residents.append(
            score_by_residents(
                (name, label), rows.latency_s[random_part], predictions.latency_s[places], predictions.resident[places]
            )
        )

    def _compare(self, name: str, label: str, gpu: GPU, rows: Rows) -> None:
        """Hold a recording against those of the same kernel and architecture before it."""
        times = {config_text(config): float(t) for config, t in zip(rows.configs, rows.latency_s, strict=True)}
        for other, sm, other_label, other_times in self._recorded:
            if (other, sm) == (name, gpu.sm) and (score := agreement((name, other_label, label), other_times, times)):
                self._results.agreements.append(score)
        self._recorded.append((name, gpu.sm, label, times))

    def textbook(self, path: Path) -> None:
        """Score the textbook kernels, and the block sizes that are chosen for them."""
        if not path.is_file():
            self.skip("textbook", f"no {path}")
            return
        with path.open() as file:
            lines = list(csv.DictReader(file))
        points: dict[str, tuple[list[float], list[float]]] = {}
        for kernel_name, card, size in dict.fromkeys((row["kernel"], row["gpu"], row["size"]) for row in lines):
            times = {
                int(row["block"]): float(row["batch_s"])
                for row in lines
                if (row["kernel"], row["gpu"], row["size"]) == (kernel_name, card, size)
            }
            try:
                kernel, gpu = load_kernel(TEXTBOOK / f"{kernel_name}.toml"), find_gpu(card)
                problem = kernel.definition.problem(size=int(size))
                configs: list[Config] = [{"block": block} for block in times]
                self.profile(kernel, problem, gpu, configs, f"{kernel_name} {size}")
                table = Context([profiles_file(kernel, gpu)]).kernel_table(kernel, problem, gpu)
                predictions = Predictions.of(table, problem, OperatingPoint(), configs)
            except KernrecError as error:
                self.skip(f"textbook {kernel_name} {size} on {card}", error)
                continue
            kept = np.flatnonzero(predictions.position >= 0)
            measured, predicted = points.setdefault(card, ([], []))
            seconds = np.array(list(times.values()))[kept]
            places = predictions.position[kept]
            measured += seconds.tolist()
            predicted += predictions.latency_s[places].tolist()
            if len(times) > 2:
                self._results.sweeps.append(_sweep(f"{kernel_name} {size}", card, seconds, predictions, places))
        for card, (measured, predicted) in points.items():
            self._results.shapes.append(score_shapes("textbook kernels", card, measured, predicted))

    def profile(self, kernel: Kernel, problem: Problem, gpu: GPU, configs: Sequence[Config], label: str) -> None:
        """Profile the configs into the cache, as `kernrec analyze` does; one process at a time does that."""
        path = profiles_file(kernel, gpu)
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT)
        try:
            while not try_lock(lock):
                time.sleep(0.5)
            options = ProfilingOptions(
                TEXTBOOK, self._processes, only=configs, progress=lambda done, of: _progress(label, done, of)
            )
            analyzed = analyze(kernel, problem, gpu, path, Query(Objective.LATENCY, top=1), options)
        finally:
            os.close(lock)
        reasons = Counter(failure.message.split(": ", 1)[-1][:100] for failure in analyzed.failures)
        for reason, count in reasons.most_common(2):
            print(f"{label}: {count} configs failed: {reason}", file=sys.stderr)


@dataclass(frozen=True)
class Predictions:
    """What is predicted of configs of a kernel on a problem and card; columns are those of its K candidates."""

    position: np.ndarray
    """Of each config among the candidates; -1 where it is refused."""
    latency_s: np.ndarray
    """(K,)."""
    occupancy: np.ndarray
    """(K,)."""
    threads: np.ndarray
    """Threads of a block, (K,)."""
    resident: np.ndarray
    """Blocks that an SM holds, (K,)."""

    @classmethod
    def of(
        cls, table: StaticTable, problem: Problem, point: OperatingPoint, configs: Sequence[Config]
    ) -> "Predictions":
        """The predictions of configs that were profiled; `KernrecError` where none can run."""
        candidates: CandidateSet = candidate_set([table], problem, [point], Evidence(), whole_space=True)
        if not candidates.kernels:
            raise KernrecError("every config of the sample is refused")
        of_kernel = candidates.kernels[0]
        rows = table.space.find(list(configs))
        place = np.full(len(table.space), -1)
        place[of_kernel.rows] = np.arange(len(of_kernel.rows))
        on_problem = of_kernel.runnable.on_problem
        threads = on_problem.column(table.kernel.launches[0].threads, of_kernel.rows) + np.zeros(len(of_kernel.rows))
        geometry = table.geometry(on_problem, 0)
        occupancy, resident = geometry.occupancy.take(of_kernel.rows), geometry.columns[0].take(of_kernel.rows)
        return cls(np.where(rows < 0, -1, place[rows]), candidates.latency_s[0], occupancy, threads, resident)


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


def profiles_file(kernel: Kernel, gpu: GPU) -> Path:
    """The database that keeps the profiles of a kernel: another one for every version of the emulator."""
    return paths.cache() / "evaluate_prior" / emulator_hash()[:16] / f"{kernel.name}-sm{gpu.sm}.duckdb"


def sample(rows: Rows, count: int, best: int) -> list[int]:
    """`count` rows in an order that depends on the configs alone, so that cards share their profiles, then the best."""
    order = sorted(
        range(len(rows.configs)), key=lambda i: hashlib.sha256(config_text(rows.configs[i]).encode()).digest()
    )
    return order[:count] + np.argsort(rows.latency_s, kind="stable")[:best].tolist()


def _sweep(name: str, card: str, measured: np.ndarray, predictions: Predictions, places: np.ndarray) -> SweepScore:
    def efficiency(badness: np.ndarray) -> float:
        return float(measured.min() / measured[int(badness.argmin())])

    threads = predictions.threads[places]
    return SweepScore(
        name,
        card,
        len(measured),
        efficiency(predictions.latency_s[places]),
        efficiency(-(predictions.occupancy[places] * 4096.0 + threads)),
        efficiency(np.abs(np.log(threads / 256))),
    )


_said = 0.0


def _progress(label: str, done: int, of: int) -> None:
    global _said
    if time.monotonic() - _said > 20 or done == of:
        _said = time.monotonic()
        print(f"{label}: {done} of {of} configs", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
