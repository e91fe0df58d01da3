"""The prior on kernels that nobody fitted it to: predicted against measured times, nothing trained.

    tools/evidence prior [--sources FOLDER] [--sets textbook,gemm,...] [--configs 30] [--best 0] [--leave-out]
                         [--json FILE]

    convolution, pnpoly, gemm,      recorded spaces of public kernels, a sample of each; they need --sources, the folder
    dedispersion, hotspot, expdist  with the kernels' repositories
    textbook                        datasets/kernels/textbook on two cards, and their sweeps over block sizes
    triton                          Triton's matrix product in three kinds of arithmetic, an A100 and an H100; of each a
                                    sample of problems with the configs of TorchInductor's template
    library                         the best kernel of the library against cuBLAS, tuners and FlashAttention

A choice is scored by its efficiency: the best measured time over that of the choice, 1 is perfect. A sample depends on
the configs alone, so cards of one architecture share its profiles. `refused` are those of the `--best` configs of a
whole recording, other ones on each card, that kernrec does not recommend at all; nothing else needs them. `occupancy`
and `256` are who takes the most resident warps, or the block nearest to 256 threads. `--leave-out` fits the prior's
constants again without a kernel, and without a card, and prints what is left out then.
"""

import json
import os
import sys
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
from front import DATA, Data, Sources, Table

from evidence.recordings.files import csv_dicts
from kernrec.errors import KernrecError, UsageError, unknown
from kernrec.gpu import find_gpu
from kernrec.kernel import Config, config_text, load_kernel
from kernrec.model.prior.spread import REGIMES
from kernrec.recommender.context import Context
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT
from kernrec.training import scores

from .leave_out import left_out
from .library_shapes import shape_sets
from .profiled import TEXTBOOK, Predictions, Sample, dividing_zeros, predicted, profile, profiled_sample, profiles_file
from .recorded_sets import SETS, RecordedSet, Recording
from .scores import (
    agreement,
    agreement_of_recordings,
    block_order,
    by_residents,
    expected,
    geometric_mean,
    occupancy_order,
    within,
)
from .triton_recordings import FILES, sampled_problems

NAMES = (*SETS, "textbook", "triton", "library")
KINDS = {"f16": "16 bits", "bf16": "16 bits", "tf32": "tf32", "f32": "f32"}
"""Kinds of arithmetic that make Triton's product another kernel: another pipe computes."""
TITLES = {
    "spaces": "recorded spaces; efficiency is the best measured time over that of the choice, 1 is perfect",
    "by_residents": "predicted over measured by the blocks that an SM holds; medians of configs within 6 x the fastest",
    "agreements": "recordings of one architecture against each other: no prediction of one code can beat this on both",
    "shapes": "shapes, one measured time each; ratio is predicted over measured, low and high its 10 and 90 %",
    "sweeps": "sweeps over block sizes; efficiency of the block that is chosen",
}


def run(
    data: Data = DATA, sources: Sources = None, sets: str = ",".join(NAMES), configs: int = 30, best: int = 0,
    processes: int = os.cpu_count() or 1, leave_out: bool = False, json: Path | None = None,
) -> int:  # fmt: skip
    """Print the tables; `json` also gets the figures, after each set."""
    if strange := [name for name in sets.split(",") if name not in NAMES]:
        raise unknown("set", strange[0], NAMES)
    evaluation, begin_s = _Evaluation(data, sources, (configs, best), processes), time.perf_counter()
    for name in NAMES:
        if name in sets.split(","):
            if name == "library":
                evaluation.library()
            elif name == "textbook":
                evaluation.textbook()
            elif name == "triton":
                evaluation.triton()
            else:
                evaluation.recorded(SETS[name])
            if json is not None:
                evaluation.write(json)
    evaluation.show()
    if leave_out:
        left_out(evaluation.samples)
    print(f"\n{time.perf_counter() - begin_s:.0f} s, {time.process_time():.0f} s of processor time without compilation")
    return 0


class _Evaluation:
    """Predicts sets and collects the rows of the tables."""

    def __init__(self, data: Path, sources: Path | None, configs: tuple[int, int], processes: int) -> None:
        """`configs`: how many of a sample, and how many of the best recorded ones beside it."""
        self._data, self._sources, (self._configs, self._best), self._processes = data, sources, configs, processes
        self._rows: dict[str, list[dict[str, object]]] = {name: [] for name in TITLES}
        self._skipped: list[str] = []
        self._errors: list[dict[str, object]] = []
        self.samples: list[Sample] = []
        """The samples of recorded spaces, without the best configs."""

    def write(self, path: Path) -> None:
        """All rows so far as JSON."""
        path.write_text(json.dumps({**self._rows, "skipped": self._skipped, "errors": self._errors}, indent=1))

    def _add_errors(
        self,
        subject: tuple[str, str, str],
        measured: np.ndarray,
        predictions: Predictions,
        places: np.ndarray,
        free: Predictions | None = None,
        joules: np.ndarray | None = None,
    ) -> None:
        """Note the errors of candidates, of a (kernel, card, problem); `tools/evidence intervals` reads them.

        free: the predictions where nothing tells the clock that the card held, as of a query without one.
        joules: recorded energies, NaN where there are none.
        """
        names = dict(zip(("kernel", "card", "problem"), subject, strict=True))
        figures: dict[str, np.ndarray] = {"regime": np.array(REGIMES, dtype=object)[predictions.regime[places]]}
        for name, each in (("error", predictions), ("free", free or predictions)):
            predicted_j = each.energy_j[places]
            figures[name] = np.log(measured / each.latency_s[places]).round(4)
            figures[f"energy by {name}"] = np.log(predictions.energy_at(measured, places) / predicted_j).round(4)
            if joules is not None:
                figures[f"joules, {name}"] = np.log(joules / predicted_j).round(4)
        figures |= {"predicted_s": predictions.latency_s[places], "shares": predictions.shares[places].round(4)}
        rows = zip(*(column.tolist() for column in figures.values()), strict=True)
        self._errors += [names | dict(zip(figures, row, strict=True)) for row in rows]

    def show(self) -> None:
        """Print the tables."""
        for name, rows in self._rows.items():
            table = Table(f"\n{TITLES[name]}")
            for row in rows:
                table.row(row)
        if sweeps := self._rows["sweeps"]:
            counts = [within([float(str(s[way])) for s in sweeps]) for way in ("kernrec", "occupancy", "always 256")]
            print(f"within 5 % of the best: {counts[0]}, {counts[1]} and {counts[2]} of {len(sweeps)}")

    def _skip(self, name: str, why: object) -> None:
        self._skipped.append(f"{name}: {why}")
        print(f"skipped {name}: {why}", file=sys.stderr)

    def recorded(self, recorded: RecordedSet) -> None:
        """Score a sample of each recording of a set."""
        times: dict[int, list[tuple[str, dict[str, float]]]] = defaultdict(list)  # by architecture
        for recording in recorded.recordings:
            label = f"{recorded.name} on {recording.card} {recording.label}".rstrip()
            try:
                if recording.unfit:
                    raise UsageError(recording.unfit)
                self._space(recorded, recording, times)
            except KernrecError as error:
                self._skip(label, error)

    def _space(
        self, recorded: RecordedSet, recording: Recording, others: dict[int, list[tuple[str, dict[str, float]]]]
    ) -> None:
        folders, counts = (self._sources, self._data), (self._configs, self._best)
        sampled, rows, chosen = profiled_sample(recorded, recording, folders, *counts, self._processes)
        if recording.divides_zeros:
            sampled = replace(sampled, profiles={launch: dividing_zeros(t) for launch, t in sampled.profiles.items()})
        names: dict[str, object] = {"set": sampled.set, "card": sampled.card}
        times = {config_text(config): float(t) for config, t in zip(rows.configs, rows.latency_s, strict=True)}
        for other, other_times in others[sampled.gpu.sm]:
            if cells := agreement_of_recordings(other_times, times):
                self._rows["agreements"].append(
                    {"set": sampled.set, "recording": other, "another": sampled.card, **cells}
                )
        others[sampled.gpu.sm].append((sampled.card, times))
        predictions = sampled.predictions()
        free = replace(sampled, point=DEFAULT_POINT).predictions()
        position = dict(zip(chosen, predictions.position.tolist(), strict=True))
        count = len(chosen) - self._best
        random_part = [i for i in chosen[:count] if position[i] >= 0]
        if len(random_part) < 5:
            raise KernrecError(f"only {len(random_part)} configs of the sample can be predicted")
        self.samples.append(replace(sampled, configs=sampled.configs[:count], latency_s=sampled.latency_s[:count]))
        places = np.array([position[i] for i in random_part])
        measured, latency_s = rows.latency_s[random_part], predictions.latency_s[places]
        joules = rows.energy_j[random_part] if np.isfinite(rows.energy_j).all() else None
        self._add_errors((sampled.set, sampled.gpu.name, sampled.card), measured, predictions, places, free, joules)
        order, threads = scores.order_of(latency_s), predictions.threads[places]
        efficiency = {
            "first": scores.efficiency_at(measured, order, 1),
            "of 5": scores.efficiency_at(measured, order, 5),
            "of 1 %": scores.efficiency_at(measured, order, round(len(order) / 100)),
            "occupancy": expected(measured, occupancy_order(predictions.occupancy[places], threads)),
            "256": expected(measured, block_order(threads)),
            "random": scores.expected_random(measured, 1)[0],
        }
        cells = {"configs": len(measured), **agreement(measured, latency_s)}
        if self._best:
            cells["refused"] = f"{sum(position[i] < 0 for i in chosen[count:])} of {self._best}"
        self._rows["spaces"].append(names | cells | {way: f"{value:.3f}" for way, value in efficiency.items()})
        self._rows["by_residents"].append(names | by_residents(measured, latency_s, predictions.resident[places]))

    def textbook(self) -> None:
        """Score the textbook kernels, and the block sizes that are chosen for them."""
        try:
            lines = csv_dicts(self._data / "anchors" / "textbook_rtx3060_rtx3070ti.csv")
        except KernrecError as error:
            self._skip("textbook", error)
            return
        cases: dict[tuple[str, str, str], dict[int, float]] = defaultdict(dict)
        for line in lines:
            cases[line["kernel"], line["gpu"], line["size"]][int(line["block"])] = float(line["batch_s"])
        points: dict[str, tuple[list[float], list[float]]] = {}
        for (name, card, size), times in cases.items():
            try:
                kernel, gpu = load_kernel(TEXTBOOK / f"{name}.toml"), find_gpu(card)
                problem = kernel.definition.problem(size=int(size))
                configs: list[Config] = [{"block": block} for block in times]
                profile(kernel, problem, gpu, configs, f"{name} {size}", self._processes)
                table = Context([profiles_file(kernel, gpu)]).kernel_table(kernel, problem, gpu)
                predictions = predicted(table, problem, configs)
            except KernrecError as error:
                self._skip(f"textbook {name} {size} on {card}", error)
                continue
            can_run = predictions.position >= 0
            seconds, places = np.array(list(times.values()))[can_run], predictions.position[can_run]
            self._add_errors((name, gpu.name, size), seconds, predictions, places)
            of_card = points.setdefault(card, ([], []))
            of_card[0].extend(seconds.tolist())
            of_card[1].extend(predictions.latency_s[places].tolist())
            if len(times) > 2:
                threads, occupancy = predictions.threads[places], predictions.occupancy[places]
                ways = {
                    "kernrec": predictions.latency_s[places],
                    "occupancy": -(occupancy * 4096.0 + threads),
                    "always 256": np.abs(np.log(threads / 256)),
                }
                chosen = {way: f"{seconds.min() / seconds[int(badness.argmin())]:.3f}" for way, badness in ways.items()}
                self._rows["sweeps"].append({"kernel": f"{name} {size}", "card": card, "sizes": len(seconds)} | chosen)
        for card, (measured, latencies) in points.items():
            self._shapes("textbook kernels", card, measured, latencies)

    def triton(self) -> None:
        """Note the errors of Triton's product; `tools/evidence triton` scores its choices."""
        for card in FILES:
            try:
                sampled = list(sampled_problems(self._data, card, self._configs))
            except KernrecError as error:
                self._skip(f"triton on {card}", error)
                continue
            for problem, table, configs, seconds in sampled:
                predictions = predicted(table, problem, configs)
                runs = predictions.position >= 0
                subject = f"Triton's product, {KINDS[problem.dtype]}", card, problem.key
                self._add_errors(subject, seconds[runs], predictions, predictions.position[runs])

    def library(self) -> None:
        """Score the library's kernels on shapes that others measured."""
        for shapes in shape_sets(self._data, self._skip):
            self._shapes(*shapes)

    def _shapes(
        self, name: str, card: str, measured: list[float], latencies: list[float], alone: list[float] | None = None
    ) -> None:
        a, b = np.array(measured), np.array(latencies)
        low, high = (float(np.quantile(b / a, q)) for q in (0.1, 0.9))
        cells = {"shapes": len(a), **agreement(a, b), "low": low, "high": high}
        cells["prior alone"] = geometric_mean(np.array(alone or latencies) / a)
        self._rows["shapes"].append({"set": name, "card": card, **cells})
