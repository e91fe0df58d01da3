"""The prior on kernels that nobody fitted it to: predicted against measured times, nothing trained.

    python tools/evaluate_prior.py [--data ../shared/data] [--sources FOLDER] [--sets textbook,gemm,...]
                                   [--configs 300] [--json FILE]

    convolution, pnpoly, gemm,      recorded spaces of public kernels, a sample of each (tools/recorded_sets.py);
    dedispersion, hotspot, expdist  they need --sources, the folder with the kernels' repositories
    textbook                        datasets/kernels/textbook on two cards, and their sweeps over block sizes
    library                         the best kernel of the library against cuBLAS, tuners and FlashAttention

Predictions are made as `kernrec analyze` makes them. What is compiled and emulated is kept in kernrec's cache, by
source and by version of the emulator, so after a change of the model alone a second run takes seconds. What is not
there is skipped with a message. Exits 0.
"""

import argparse
import csv
import hashlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from library_shapes import shape_sets
from prior_scores import ShapeScore, SpaceScore, SweepScore, score_shapes, score_space, within
from recorded_sets import SETS, Recording, Rows, load_recorded_kernel, read_rows

from kernrec import paths
from kernrec.errors import KernrecError, UsageError, unknown
from kernrec.gpu import GPU, find_gpu
from kernrec.kernel import Config, Kernel, config_text, load_kernel
from kernrec.op import Problem
from kernrec.profile.failure_cache import emulator_hash
from kernrec.recommender import Objective, Query
from kernrec.recommender.analyze_kernel import ProfilingOptions, analyze
from kernrec.recommender.candidate_set import CandidateSet, candidate_set
from kernrec.recommender.context import Context
from kernrec.recommender.estimate.operating_point import OperatingPoint
from kernrec.store import Evidence
from kernrec.util.file_lock import try_lock

ROOT = Path(__file__).resolve().parents[1]
TEXTBOOK = ROOT / "datasets" / "kernels" / "textbook"
TEXTBOOK_TIMES = "textbook_rtx3060_rtx3070ti.csv"
BEST = 15
NAMES = (*(recorded.name for recorded in SETS), "textbook", "library")


@dataclass
class Results:
    """Everything that was found, in the order of the tables."""

    spaces: list[SpaceScore] = field(default_factory=list)
    shapes: list[ShapeScore] = field(default_factory=list)
    sweeps: list[SweepScore] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--sources", type=Path, help="folder with the repositories of recorded kernels")
    parser.add_argument("--sets", default=",".join(NAMES), help=f"of {', '.join(NAMES)}")
    parser.add_argument("--configs", type=int, default=300, help="configs of each space to predict")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
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
    if "textbook" in wanted:
        evaluator.textbook(arguments.data / "anchors" / TEXTBOOK_TIMES)
    if "library" in wanted:
        for shapes in shape_sets(arguments.data, evaluator.skip):
            results.shapes.append(score_shapes(*shapes))
    print_tables(results)
    print(f"\n{time.perf_counter() - start:.0f} s, {time.process_time():.0f} s of processor time without compilation")
    if arguments.json:
        arguments.json.write_text(json.dumps(asdict(results), indent=1))
    return 0


class Evaluator:
    """Predicts sets and collects their scores."""

    def __init__(self, configs: int, processes: int, results: Results) -> None:
        self._configs, self._processes, self._results = configs, processes, results

    def skip(self, name: str, why: object) -> None:
        """Say that a set is left out."""
        self._results.skipped.append(f"{name}: {why}")
        print(f"skipped {name}: {why}", file=sys.stderr)

    def space(self, name: str, most: int, recording: Recording, kernel: Kernel, folder: Path) -> None:
        """Score a sample of one recorded space."""
        label = f"{recording.card} {recording.label}".rstrip()
        try:
            gpu, rows = find_gpu(recording.card), read_rows(recording, kernel, folder)
            chosen = sample(rows, min(self._configs, most), BEST)
            problem = kernel.definition.problem()
            configs = [rows.configs[i] for i in chosen]
            self.profile(kernel, problem, gpu, configs, f"{name} {label}")
            point = OperatingPoint(None, recording.clock_hz)
            predictions = Predictions.of(kernel, problem, gpu, point, configs)
        except KernrecError as error:
            self.skip(f"{name} on {label}", error)
            return
        best = np.argsort(rows.latency_s, kind="stable")[:BEST]
        runs = dict(zip(chosen, predictions.position.tolist(), strict=True))
        random_part = [i for i in chosen[: -len(best)] if runs[i] >= 0]
        if len(random_part) < 5:
            self.skip(f"{name} on {label}", f"only {len(random_part)} configs of the sample can be predicted")
            return
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
                found = Predictions.of(kernel, problem, gpu, OperatingPoint(), configs)
            except KernrecError as error:
                self.skip(f"textbook {kernel_name} {size} on {card}", error)
                continue
            kept = np.flatnonzero(found.position >= 0)
            measured, predicted = points.setdefault(card, ([], []))
            seconds = np.array(list(times.values()))[kept]
            places = found.position[kept]
            measured += seconds.tolist()
            predicted += found.latency_s[places].tolist()
            if len(times) > 2:
                self._results.sweeps.append(_sweep(f"{kernel_name} {size}", card, seconds, found, places))
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
            found = analyze(kernel, problem, gpu, path, Query(Objective.LATENCY, top=1), options)
        finally:
            os.close(lock)
        reasons = Counter(failure.message.split(": ", 1)[-1][:100] for failure in found.failures)
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

    @classmethod
    def of(
        cls, kernel: Kernel, problem: Problem, gpu: GPU, point: OperatingPoint, configs: Sequence[Config]
    ) -> "Predictions":
        """The predictions of configs that were profiled; `KernrecError` where none can run."""
        table = Context([profiles_file(kernel, gpu)]).kernel_table(kernel, problem, gpu)
        candidates: CandidateSet = candidate_set([table], problem, [point], Evidence(), whole_space=True)
        if not candidates.kernels:
            raise KernrecError("every config of the sample is refused")
        of_kernel = candidates.kernels[0]
        rows = table.space.find(list(configs))
        place = np.full(len(table.space), -1)
        place[of_kernel.rows] = np.arange(len(of_kernel.rows))
        on_problem = of_kernel.runnable.on_problem
        threads = on_problem.column(kernel.launches[0].threads, of_kernel.rows) + np.zeros(len(of_kernel.rows))
        occupancy = table.geometry(on_problem, 0).occupancy.take(of_kernel.rows)
        return cls(np.where(rows < 0, -1, place[rows]), candidates.latency_s[0], occupancy, threads)


def profiles_file(kernel: Kernel, gpu: GPU) -> Path:
    """The database that keeps the profiles of a kernel: another one for every version of the emulator."""
    return paths.cache() / "evaluate_prior" / emulator_hash()[:16] / f"{kernel.name}-sm{gpu.sm}.duckdb"


def sample(rows: Rows, count: int, best: int) -> list[int]:
    """`count` rows in an order that depends on the configs alone, so that cards share their profiles, then the best."""
    order = sorted(
        range(len(rows.configs)), key=lambda i: hashlib.sha256(config_text(rows.configs[i]).encode()).digest()
    )
    return order[:count] + np.argsort(rows.latency_s, kind="stable")[:best].tolist()


def _sweep(name: str, card: str, measured: np.ndarray, found: Predictions, places: np.ndarray) -> SweepScore:
    def efficiency(badness: np.ndarray) -> float:
        return float(measured.min() / measured[int(badness.argmin())])

    threads = found.threads[places]
    return SweepScore(
        name,
        card,
        len(measured),
        efficiency(found.latency_s[places]),
        efficiency(-(found.occupancy[places] * 4096.0 + threads)),
        efficiency(np.abs(np.log(threads / 256))),
    )


_said = 0.0


def _progress(label: str, done: int, of: int) -> None:
    global _said
    if time.monotonic() - _said > 20 or done == of:
        _said = time.monotonic()
        print(f"{label}: {done} of {of} configs", file=sys.stderr, flush=True)


def print_tables(results: Results) -> None:
    """The tables, at most 120 columns wide."""
    if results.spaces:
        print("recorded spaces; efficiency is the best measured time over that of the choice, 1 is perfect")
        print(
            f"{'set':13} {'card':24} {'configs':>7} {'rank':>5} {'error':>6} {'ratio':>6} {'first':>6} {'of 5':>5}"
            f" {'of 1 %':>6} {'refused':>8}   {'occup.':>6} {'256':>5} {'random':>6}"
        )
    for s in results.spaces:
        print(
            f"{s.set:13} {s.card:24} {s.sampled:7} {s.rank:5.2f} {s.error:6.1%} {s.ratio:6.2f} {s.first:6.3f}"
            f" {s.best_of_5:5.3f} {s.best_of_1_percent:6.3f} {s.refused:3} of {s.of_best:2}   {s.occupancy:6.3f}"
            f" {s.threads_256:5.3f} {s.random:6.3f}"
        )
    if results.shapes:
        print("\nshapes, one measured time each; ratio is predicted over measured, low and high its 10 and 90 %")
        print(f"{'set':34} {'card':18} {'shapes':>6} {'rank':>5} {'error':>6} {'ratio':>6} {'low':>5} {'high':>5}")
    for shape in results.shapes:
        print(
            f"{shape.set:34} {shape.card:18} {shape.shapes:6} {shape.rank:5.2f} {shape.error:6.1%} {shape.ratio:6.2f}"
            f" {shape.low:5.2f} {shape.high:5.2f}"
        )
    if results.sweeps:
        print("\nsweeps over block sizes; efficiency of the block that is chosen")
        print(f"{'kernel':30} {'card':12} {'sizes':>5} {'kernrec':>8} {'occupancy':>10} {'always 256':>11}")
    for sweep in results.sweeps:
        print(
            f"{sweep.kernel:30} {sweep.card:12} {sweep.sizes:5} {sweep.chosen:8.3f} {sweep.occupancy:10.3f}"
            f" {sweep.threads_256:11.3f}"
        )
    if results.sweeps:
        counts = [within([getattr(s, n) for s in results.sweeps]) for n in ("chosen", "occupancy", "threads_256")]
        print(
            f"{'within 5 % of the best':30} {'':12} {len(results.sweeps):5} {counts[0]:8} {counts[1]:10} {counts[2]:11}"
        )


if __name__ == "__main__":
    sys.exit(main())
