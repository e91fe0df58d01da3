"""How soon a search that begins with the prior finds the best config, on recorded spaces whose kernels are public.

    python tools/compare_warm_search.py --sources FOLDER [--data ../shared/data] [--configs 300] [--repeats 20]
                                        [--sets convolution,gemm] [--spaces gemm-rtx3090]

The kernels are bound to the recorded spaces as in `tools/evaluate_prior.py`, which says what `--sources` is, and whose
cache keeps the profiles. A profile takes a second or so, so `--configs` of a space are profiled, drawn at random (fewer
where the set says that they take minutes), and the prior predicts these. No model that is shipped knows these kernels.
Two tables follow:

    whole space      the search may measure every config. `prior` has predictions of all: those that were not profiled
                     get theirs from those that were (`completed_predictions`), as in `kernrec
                     collect` and `search`; `prior, not completed` has none for them
    profiled alone   the space is the configs that were profiled; an optimum among them is found sooner than that of the
                     whole space, so beside it is what a cold search and random order find of it

A figure is the best of the first k configs over the optimum of the same space, as in `tools/compare_kernel_tuner.py`,
the mean over repeats; in brackets how many of the repeats were within 2 %. Exits 0 without the recordings.
"""

import argparse
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from compare_kernel_tuner import COUNTS, Space, read, search
from evaluate_prior import Evaluator, Sample, profiles_file, sample
from prior_tables import Results
from recorded_sets import SETS, RecordedSet, Recording, load_recorded_kernel, read_rows

from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import find_gpu
from kernrec.kernel import Config, Kernel
from kernrec.model.search.search_space import completed_predictions
from kernrec.recommender.context import Context
from kernrec.recommender.estimate.operating_point import OperatingPoint

Array = np.ndarray
_CLOSE = 1.02


@dataclass(frozen=True)
class Warm:
    """A recorded space and what the prior says of some of its configs."""

    space: Space
    predicted_s: Array
    """(C,), NaN for a config that was not profiled."""

    @property
    def profiled(self) -> "Warm":
        """The configs alone that were profiled."""
        known = np.isfinite(self.predicted_s)
        space = self.space
        part = replace(space, tunables=space.tunables[known], time_s=space.time_s[known], noise=space.noise[known])
        return Warm(part, self.predicted_s[known])


def main() -> int:
    """Print two tables for each space."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    parser.add_argument("--sources", type=Path, help="folder with the repositories of recorded kernels")
    parser.add_argument("--configs", type=int, default=300, help="configs of each space to profile")
    parser.add_argument("--repeats", type=int, default=20, help="searches to average over")
    parser.add_argument("--sets", default="", help="names of sets, with commas; without it all")
    parser.add_argument("--spaces", default="", help="parts of names of files, with commas; without it all")
    arguments = parser.parse_args()
    folder = arguments.data / "spaces"
    if not folder.is_dir() or arguments.sources is None:
        missing = f"no {folder}" if arguments.sources else "the kernels are public; --sources names a folder with them"
        print(f"{missing}: nothing compared")
        return 0
    for recorded in SETS:
        if arguments.sets and recorded.name not in arguments.sets.split(","):
            continue
        for recording in recorded.recordings:
            if recording.unfit or not (folder / recording.file).is_file() or recording.file.startswith(".."):
                continue
            if any(part in recording.file for part in arguments.spaces.split(",")):
                try:
                    warm = predicted(recorded, recording, arguments.configs, (arguments.sources, folder))
                except KernrecError as error:
                    print(f"\nskipped {recording.file}: {error}")
                    continue
                compare(warm, arguments.repeats)
    return 0


def predicted(recorded: RecordedSet, recording: Recording, count: int, folders: tuple[Path, Path]) -> Warm:
    """The space of a recording, `count` configs of which are profiled; folders: of the sources, and of the rows."""
    sources, data = folders
    kernel, gpu = load_recorded_kernel(recorded, sources), find_gpu(recording.card)
    rows, problem = read_rows(recording, kernel, data), kernel.definition.problem()
    chosen = sample(rows, min(count, recorded.most), 0)
    configs = [rows.configs[i] for i in chosen]
    Evaluator(count, 1, Results()).profile(kernel, problem, gpu, configs, recording.file)
    profiles = Context([profiles_file(kernel, gpu)]).find_profiles(kernel, problem, gpu)
    point = OperatingPoint(None, recording.clock_hz)
    times = Sample(
        recorded.name, recording.file, gpu, kernel, point, profiles, configs, rows.latency_s[chosen]
    ).predictions()
    by_config = {
        tuple(config.values()): float(times.latency_s[position])
        for config, position in zip(configs, times.position.tolist(), strict=True)
        if position >= 0
    }
    space = read(data / recording.file)
    for name, value in recording.where.items():
        if name in space.names:
            space = _where(space, name, value)
    return Warm(space, np.array([by_config.get(key, np.nan) for key in _keys(space, kernel, rows.configs[0])]))


def _where(space: Space, name: str, value: int) -> Space:
    """The configs of a space whose tunable has a value; it no longer varies."""
    column = space.names.index(name)
    kept = space.tunables[:, column] == value
    names = tuple(other for other in space.names if other != name)
    tunables = np.delete(space.tunables[kept], column, axis=1)
    return Space(space.title, names, tunables, space.time_s[kept], space.noise[kept])


def _keys(space: Space, kernel: Kernel, any_config: Config) -> list[tuple[int, ...]]:
    """The configs of a space by the tunables of the kernel, in its order; those that do not vary have one value."""
    columns = {name.lower(): space.tunables[:, i] for i, name in enumerate(space.names)}
    if unknown := set(columns) - {tunable.name for tunable in kernel.tunables}:
        raise UsageError(f"{space.title} varies {', '.join(sorted(unknown))}, which its kernel does not have")
    values = [
        columns.get(name, np.full(len(space.tunables), value)).astype(int).tolist()
        for name, value in any_config.items()
    ]
    return list(zip(*values, strict=True))


def compare(warm: Warm, repeats: int) -> None:
    """Print the two tables of a space."""
    few = warm.profiled
    count = f"{few.space.title}: {len(warm.space.tunables)} configs, {len(few.space.tunables)} profiled"
    begin_s = time.process_time()
    completed = completed_predictions(warm.space.tunables, warm.predicted_s)
    print(f"\n{count}; completed in {time.process_time() - begin_s:.2f} s; best / optimum after", *COUNTS, "measured")
    print(f"  error of the prediction: {_error(few.predicted_s, few.space):.1%} (typical factor, level left out)")
    whole = {"prior": completed, "prior, not completed": warm.predicted_s, "cold": None}
    for label, predicted_s in whole.items():
        _line(f"whole, {label}", warm.space, [search(warm.space, predicted_s, seed) for seed in range(repeats)])
    _line("profiled, prior", few.space, [search(few.space, few.predicted_s, seed) for seed in range(repeats)])
    _line("profiled, cold", few.space, [search(few.space, None, seed) for seed in range(repeats)])
    drawn = [np.random.default_rng(seed).permutation(len(few.space.tunables)).tolist() for seed in range(repeats)]
    _line("profiled, random", few.space, drawn)


def _error(predicted_s: Array, space: Space) -> float:
    """Standard deviation of the logarithm of predicted over measured times."""
    return float(np.expm1(np.std(np.log(predicted_s / space.time_s))))


def _line(label: str, space: Space, runs: list[list[int]]) -> None:
    best = np.stack([np.minimum.accumulate(space.time_s[run]) for run in runs]) / space.time_s.min()
    cells = [f"{column.mean():.3f} ({int((column <= _CLOSE).sum()):2})" for column in _after(best).T]
    print(f"  {label:28}" + "  ".join(cells), flush=True)


def _after(best: Array) -> Array:
    """The columns of `COUNTS`; an early end keeps the last."""
    return np.stack([best[:, min(count, best.shape[1]) - 1] for count in COUNTS], axis=1)


if __name__ == "__main__":
    sys.exit(main())
