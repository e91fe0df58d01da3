"""How soon a search that begins with the prior finds the best config, on recorded spaces whose kernels are public.

A profile takes a second or so, so `--configs` of a space are profiled, drawn at random (fewer where the set says that
they take minutes), and the prior predicts these. No model that is shipped knows these kernels. Two parts follow:

    whole       the search may measure every config. `prior` has predictions of all: those that were not profiled get
                theirs from those that were (`completed_predictions`), as in `kernrec collect` and
                `search`; `prior, not completed` has none for them
    profiled    the space is the configs that were profiled; an optimum among them is found sooner than that of the
                whole space, so beside it is what a cold search and random order find of it

A figure is the best of the first k configs over the optimum of the same space, the mean over repeats; in brackets how
many of the repeats were within 2 %.
"""

import time
from pathlib import Path

import numpy as np
from front import DATA, Data, Sources, Table

from evidence.recordings.files import present
from kernrec.errors import KernrecError, UsageError
from kernrec.model.search.search_space import completed_predictions

from .kernel_tuner import COUNTS, best_after, heading, search
from .profiled import profiled_sample
from .recorded_sets import SETS, RecordedSet, Recording
from .recorded_spaces import Space, read_space

Array = np.ndarray
_CLOSE = 1.02


def run(
    data: Data = DATA, sources: Sources = None, configs: int = 300, repeats: int = 20, sets: str = "", spaces: str = ""
) -> None:
    """Print a table for each space; `sets` are names, `spaces` parts of names of files, with commas."""
    present(data / "spaces")
    for recorded in SETS.values():
        for recording in recorded.recordings:
            chosen = not sets or recorded.name in sets.split(",")
            fits = not recording.unfit and not recording.file.startswith("..")
            if chosen and fits and any(part in recording.file for part in spaces.split(",")):
                try:
                    space, predicted_s = _predicted(recorded, recording, configs, (sources, data))
                    _compare(space, predicted_s, repeats)
                except KernrecError as error:
                    print(f"skipped {recording.file}: {error}")


def _predicted(
    recorded: RecordedSet, recording: Recording, count: int, folders: tuple[Path | None, Path]
) -> tuple[Space, Array]:
    """The space of a recording, and the prior's times, (C,), NaN for a config that was not profiled."""
    sample, rows, _ = profiled_sample(recorded, recording, folders, count)
    predictions = sample.predictions()
    by_config = {
        tuple(config.values()): float(predictions.latency_s[position])
        for config, position in zip(sample.configs, predictions.position.tolist(), strict=True)
        if position >= 0
    }
    space = read_space(folders[1] / "spaces" / recording.file).distinct()
    for name, value in recording.columns.items():
        if name in space.names:  # no longer varies
            column = space.names.index(name)
            space = space.take(np.flatnonzero(space.tunables[:, column] == value))
            names = tuple(other for other in space.names if other != name)
            space = Space(space.title, names, np.delete(space.tunables, column, axis=1), space.measured)
    columns = {name.lower(): space.tunables[:, i] for i, name in enumerate(space.names)}
    if unknown := set(columns) - {tunable.name for tunable in sample.kernel.tunables}:
        raise UsageError(f"{space.title} varies {', '.join(sorted(unknown))}, which its kernel does not have")
    values = [
        columns.get(name, np.full(len(space.tunables), value)).astype(int).tolist()
        for name, value in rows.configs[0].items()
    ]
    return space, np.array([by_config.get(key, np.nan) for key in zip(*values, strict=True)])


def _compare(space: Space, predicted_s: Array, repeats: int) -> None:
    profiled = np.flatnonzero(np.isfinite(predicted_s))
    few, few_s = space.take(profiled), predicted_s[profiled]
    begin_s = time.process_time()
    completed = completed_predictions(space.tunables, predicted_s)
    table, seconds = heading(space), time.process_time() - begin_s
    error = np.expm1(np.std(np.log(few_s / few.measured["latency_s"])))
    seeds = range(repeats)
    searches = {
        "whole, prior": (space, completed), "whole, prior, not completed": (space, predicted_s),
        "whole, cold": (space, None), "profiled, prior": (few, few_s), "profiled, cold": (few, None),
    }  # fmt: skip
    for label, (of_space, begin_with_s) in searches.items():
        _row(table, label, of_space, [search(of_space, begin_with_s, seed) for seed in seeds])
    drawn = [np.random.default_rng(seed).permutation(len(profiled)).tolist() for seed in seeds]
    _row(table, "profiled, random", few, drawn)
    print(f"{len(profiled)} profiled, completed in {seconds:.2f} s; error of the prediction, level aside: {error:.1%}")


def _row(table: Table, label: str, space: Space, runs: list[list[int]]) -> None:
    best = best_after(space, runs).T
    cells = {str(k): f"{b.mean():.3f} ({(b <= _CLOSE).sum()})" for k, b in zip(COUNTS, best, strict=True)}
    table.row({"": label, **cells})
