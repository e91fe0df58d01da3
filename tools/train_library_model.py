"""Train the shipped models of the latency and power of backends.

    python tools/train_library_model.py [--data ../shared/data] [--out db/prebuilt/models/vendor] [--op matmul]

To calibrate the intervals, the tool holds out problems, sizes and GPUs of the recordings
(`tools/evidence/recordings/vendor.py`) in turn. It writes a card and trees for each op
(`kernrec.model.baselines.model_file`). With `--folds 1`, it holds out only one fifth of the problems. The exit status
is 2 if the data is missing.
"""

import argparse
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from evidence.recordings.vendor import OPS, recordings
from front import DATA, ROOT
from library_training.table import FOLDS, Recording
from library_training.train import train_set

from kernrec.errors import KernrecError
from kernrec.model.baselines import model_file
from kernrec.util.optional import import_optional
from kernrec.version import __version__

PARTS = ("latency", "power", "latency.any", "power.any")


def _sample(recording: Recording, most: int | None) -> Recording:
    if most is None:
        return recording
    order = np.random.default_rng(0).permutation(len(recording))
    own = [order[recording.gpu[order] == gpu][:most] for gpu in sorted(set(recording.gpu.tolist()))]
    return recording.take(np.sort(np.concatenate(own)))


def _before(recording: Recording, entries: dict[str, Any], trees: dict[str, Any]) -> tuple[Any, Any] | None:
    name = recording.recorded.name
    if name not in entries:
        return None
    return entries[name], {tree: forest for tree, forest in trees.items() if tree.split(".")[0] == name}


def main() -> int:
    """Train and write the models."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--out", type=Path, default=ROOT / "db" / "prebuilt" / "models" / "vendor")
    parser.add_argument("--op", choices=OPS, action="append", help="only this op")
    parser.add_argument("--set", action="append", help="only this set; the others stay as they are in --out")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this part of each set", default=[])
    parser.add_argument("--folds", type=int, choices=range(1, FOLDS + 1), default=FOLDS)
    parser.add_argument("--rows", type=int, help="a sample of at most so many rows of each GPU, to try something out")
    parser.add_argument("--jobs", type=int, default=1, help="sets that are trained at once")
    arguments = parser.parse_args()
    versions = {"kernrec": __version__, "xgboost": import_optional("xgboost", "training a model", "train").__version__}
    for op in arguments.op or OPS:
        try:
            recorded = [_sample(recording, arguments.rows) for recording in recordings(arguments.data, op)]
        except KernrecError as error:
            print(error, file=sys.stderr)
            return 2
        order = [recording.recorded.name for recording in recorded]
        path = arguments.out / f"{op}.json"
        entries: dict[str, Any] = {}
        trees: dict[str, Any] = {}
        if arguments.set or arguments.part:
            recorded = [r for r in recorded if not arguments.set or r.recorded.name in arguments.set]
            if path.exists():
                before, trees = model_file.stored(path)
                entries = {entry["name"]: entry for entry in before["sets"]}
        with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn")) as pool:
            trained = [
                pool.submit(train_set, recording, arguments.folds, arguments.part, before)
                for recording in recorded
                for before in [_before(recording, entries, trees) if arguments.part else None]
            ]
            for future in trained:
                entry, own = future.result()
                print(f"{op}, {entry['name']}: {entry['problems']} problems", flush=True)
                entries[entry["name"]] = entry
                trees = {name: forest for name, forest in trees.items() if name.split(".")[0] != entry["name"]} | own
        named = [entries[name] for name in order if name in entries]
        card = {"op": op, "sets": named, "versions": versions}
        model_file.save(card, trees, arguments.out)
        print(f"{path}: {path.with_suffix('.trees').stat().st_size / 1e6:.2f} MB of trees", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
