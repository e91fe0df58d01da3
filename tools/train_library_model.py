"""Train the shipped models of the latency and power of backends.

To calibrate the intervals, the tool holds out problems, sizes and GPUs of the recordings
(`tools/evidence/recordings/calls.py`) in turn. It writes a card and trees for each op
(`kernrec.model.baselines.model_file`). With `--folds 1`, it holds out only one fifth of the problems. `--jobs` sets are
trained at once.
"""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from evidence.recordings.calls import OPS, recordings
from front import DATA, ROOT, Data, script
from library_training.table import FOLDS
from library_training.train import train_set

from kernrec.model.baselines import model_file
from kernrec.model.baselines.compact_trees import Trees
from kernrec.util.optional import import_optional
from kernrec.version import __version__


def run(
    data: Data = DATA, out: Path = ROOT / "db" / "prebuilt" / "models" / "vendor",
    op: Annotated[list[str] | None, typer.Option()] = None,
    folds: Annotated[int, typer.Option(min=1, max=FOLDS)] = FOLDS, jobs: int = 1,
) -> None:  # fmt: skip
    """Train and write the models of some ops, or of all."""
    versions = {"kernrec": __version__, "xgboost": import_optional("xgboost", "training a model", "train").__version__}
    for name in op or OPS:
        entries: list[dict[str, Any]] = []
        trees: dict[str, Trees] = {}
        with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
            for entry, own in pool.map(partial(train_set, folds=folds), recordings(data, name)):
                print(f"{name}, {entry['name']}: {entry['problems']} problems", flush=True)
                entries.append(entry)
                trees |= own
        path = model_file.save({"op": name, "sets": entries, "versions": versions}, trees, out)
        print(f"{path}: {path.with_suffix('.trees').stat().st_size / 1e6:.2f} MB of trees", flush=True)


if __name__ == "__main__":
    script(run)
