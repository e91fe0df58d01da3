"""How soon does a search find the best config? kernrec's search beside Kernel Tuner, on spaces measured completely.

    python tools/compare_kernel_tuner.py [--data ../shared/data] [--repeats 10] [--throughput 100]

Needs `pip install kernel-tuner` for its half; without it kernrec's is printed alone. Kernel Tuner runs in simulation
mode on the recordings, kernrec's search (`kernrec.model.search.expected_improvement`, which `kernrec collect` uses)
on the same, each measurement the median of ten of the recorded run times. A figure is the best of the first k configs
that ran over the optimum, both by their recorded mean, the mean over repeats; configs that failed cost Kernel Tuner
nothing here.

On a machine with an NVIDIA GPU, `--throughput N` measures N configs of one kernel with both and says how many configs a
second each got through (`tools/tuner_throughput.py`). Exits 0 without the recordings.
"""

import argparse
import contextlib
import io
import json
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from recorded_convolution import GPUS, Recorded, load

from kernrec.interop.read_results import read_results
from kernrec.model.search import expected_improvement
from kernrec.training.boosting import TrainingSettings
from kernrec.training.dataset import Dataset, RowGroup
from kernrec.training.train_model import train

Array = np.ndarray
COUNTS = (20, 50, 100, 200)
STRATEGIES = ("random_sample", "genetic_algorithm", "bayes_opt")
_COSTS = ("compile", "verification", "benchmark", "strategy", "framework")
SAMPLES = 10  # run times that a screening takes at least

# What a prototype reached on the convolution (A100, A4000), from its notes: the prior alone, trained on two other GPUs.
PROTOTYPE = {
    "prior": {"a100": "1.46 1.25 1.11 1.00", "a4000": "1.26 1.22 1.13 1.02"},
    "trained": {"a100": "1.34 1.13 1.01 1.00", "a4000": "1.00 1.00 1.00 1.00"},
}


@dataclass(frozen=True)
class Space:
    """One recording: configs that ran, in the order of the file. tunables (C, T), those that vary; samples_s (C, S)."""

    title: str
    names: tuple[str, ...]
    tunables: Array
    samples_s: Array

    @property
    def time_s(self) -> Array:
        """What a config takes."""
        return self.samples_s.mean(axis=1)


def main() -> int:
    """Prints a table for each space."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    parser.add_argument("--repeats", type=int, default=10, help="searches to average over")
    parser.add_argument("--throughput", type=int, default=0, metavar="N", help="measure N configs with both on a GPU")
    arguments = parser.parse_args()
    if arguments.throughput:
        from tuner_throughput import compare

        return compare(arguments.throughput)
    folder = arguments.data / "spaces"
    if not folder.is_dir():
        print(f"no {folder}: nothing compared (--data names the folder of recorded data)")
        return 0
    recorded = load(folder)
    spaces = {name: read(folder / f"convolution-{name}.t4.json.gz", recorded[name].gpu.title) for name in GPUS}
    for name, space in spaces.items():
        header(space)
        theirs(space, arguments.repeats)
        prior, trained = predictions(space, recorded, name)
        line("kernrec, nothing predicted", *searched(space, None, arguments.repeats))
        line("kernrec, prior alone", *searched(space, prior, arguments.repeats), PROTOTYPE["prior"][name])
        line(
            "kernrec, trained on the other GPU",
            *searched(space, trained, arguments.repeats),
            PROTOTYPE["trained"][name],
        )
        line("  of these offspring alone", *searched(space, trained, arguments.repeats, bred=True))
    gemm = read(folder / "gemm-rtx3090.kernel_tuner.json.gz", "matmul, RTX 3090")
    header(gemm)
    theirs(gemm, arguments.repeats)
    line("kernrec, nothing predicted", *searched(gemm, None, arguments.repeats))
    return 0


def read(path: Path, title: str) -> Space:
    """The configs of a file that ran."""
    ran = [result for result in read_results(path).results if result.samples_s]
    names = [name for name in ran[0].config if len({result.config[name] for result in ran}) > 1]
    return Space(
        title,
        tuple(names),
        np.array([[float(result.config[name]) for name in names] for result in ran]),
        np.array([result.samples_s for result in ran]),
    )


def predictions(space: Space, recorded: dict[str, Recorded], name: str) -> tuple[Array, Array]:
    """(the prior's times, those of a model trained on the other GPU's space), NaN for configs without either."""
    here, (other,) = recorded[name], [recorded[key] for key in recorded if key != name]
    unknown = np.full(len(other), np.nan)
    group = RowGroup("other", "recorded", "convolution", "kernel_tuner", "", other.inputs, other.time_s, unknown)
    model = train(Dataset((group,)), TrainingSettings(threads=1))
    prior = here.limited.latency_s
    trained = prior * np.exp(model.log_ratio(model.rows(here.inputs))[0]["latency"])
    rows = zip(*(here.inputs.tunables[key].tolist() for key in space.names), strict=True)
    place = {row: i for i, row in enumerate(rows)}
    at = np.array([place.get(tuple(row), -1) for row in space.tunables.tolist()])
    return tuple(np.where(at < 0, np.nan, values[at]) for values in (prior, trained))  # type: ignore[return-value]


def searched(space: Space, predicted_s: Array | None, repeats: int, bred: bool = False) -> tuple[Array, float]:
    """(best over optimum after each of `COUNTS`, CPU seconds per search) of kernrec's search.

    bred: it scores offspring of measured configs only, as in a space too large to score whole.
    """
    before, start = expected_improvement.SCORED, time.process_time()
    expected_improvement.SCORED = 0 if bred else before
    try:
        found = [_curve(space, search(space, predicted_s, seed)) for seed in range(repeats)]
    finally:
        expected_improvement.SCORED = before
    return np.mean(found, axis=0), (time.process_time() - start) / repeats


def search(space: Space, predicted_s: Array | None, seed: int) -> list[int]:
    """The configs that one search measures, in order."""
    draw = np.random.default_rng(seed)
    next_configs = expected_improvement.ExpectedImprovement(space.tunables, predicted_s, seed)
    seen: list[int] = []
    said: list[float] = []
    while len(seen) < max(COUNTS):
        order = next_configs.order(np.array(seen, dtype=np.int64), np.array(said))
        for i in order[: next_configs.batch(len(seen))].tolist():
            seen.append(i)
            said.append(float(np.median(draw.choice(space.samples_s[i], SAMPLES))))
    return seen


def theirs(space: Space, repeats: int) -> None:
    """A line for each of Kernel Tuner's strategies."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import kernel_tuner
    except ImportError:
        print("  Kernel Tuner is not installed (pip install kernel-tuner): its half is left out")
        return
    values = [sorted(set(column)) for column in space.tunables.astype(np.int64).T.tolist()]
    place = {",".join(str(int(v)) for v in row): i for i, row in enumerate(space.tunables)}
    milliseconds = (space.time_s * 1e3).tolist()
    cache: dict[str, Any] = {
        "device_name": "recorded", "kernel_name": "recorded", "problem_size": [1, 1],
        "tune_params_keys": list(space.names), "tune_params": dict(zip(space.names, values, strict=True)),
        "objective": "time",
        "cache": {
            key: dict(zip(space.names, map(int, key.split(",")), strict=True))
            | {"time": milliseconds[i], "times": [milliseconds[i]], "timestamp": "2023-01-01 00:00:00"}
            | dict.fromkeys((f"{what}_time" for what in _COSTS), 0)
            for key, i in place.items()
        },
    }  # fmt: skip

    def recorded(*row: object, **named: object) -> bool:  # it asks in both ways
        return ",".join(str(value) for value in (row or named.values())) in place

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cache.json"
        file.write_text(json.dumps(cache))
        for strategy in STRATEGIES:
            found, start = [], time.process_time()
            for seed in range(repeats):
                with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    results, _ = kernel_tuner.tune_kernel(
                        "recorded", "__global__ void recorded() {}", (1, 1), [], cache["tune_params"],
                        restrictions=[recorded], strategy=strategy, strategy_options={"max_fevals": max(COUNTS)},
                        simulation_mode=True, cache=str(file), quiet=True, lang="CUDA", seed=seed,
                    )  # fmt: skip
                asked = [place[",".join(str(result[name]) for name in space.names)] for result in results]
                found.append(_curve(space, list(dict.fromkeys(asked))))
            line(f"Kernel Tuner, {strategy}", np.mean(found, axis=0), (time.process_time() - start) / repeats)


def _curve(space: Space, seen: list[int]) -> list[float]:
    """The best of the first k over the optimum; a search that ends early keeps what it has."""
    best = np.minimum.accumulate(space.time_s[seen]) / space.time_s.min()
    return [float(best[min(count, len(best)) - 1]) for count in COUNTS]


def header(space: Space) -> None:
    """The head of a table."""
    print(f"\n{space.title}: {len(space.tunables)} configs; best / optimum after", *COUNTS, "measured")


def line(label: str, found: Array, seconds: float, prototype: str | None = None) -> None:
    """One line of a table."""
    theirs = f" [prototype {prototype}]" if prototype else ""
    print(f"  {label:36}{'  '.join(f'{value:.2f}' for value in found)}   {seconds:6.2f} s of CPU{theirs}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
