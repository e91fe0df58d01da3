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

from evidence.recordings.vendor import OPS, recordings
from front import DATA, ROOT
from library_training.table import FOLDS
from library_training.train import train_set

from kernrec.errors import KernrecError
from kernrec.model.baselines import model_file
from kernrec.util.optional import import_optional
from kernrec.version import __version__


def main() -> int:
    """Train and write the models."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--out", type=Path, default=ROOT / "db" / "prebuilt" / "models" / "vendor")
    parser.add_argument("--op", choices=OPS, action="append", help="only this op")
    parser.add_argument("--set", action="append", help="only this set; the others stay as they are in --out")
    parser.add_argument("--folds", type=int, choices=range(1, FOLDS + 1), default=FOLDS)
    parser.add_argument("--jobs", type=int, default=1, help="sets that are trained at once")
    arguments = parser.parse_args()
    versions = {"kernrec": __version__, "xgboost": import_optional("xgboost", "training a model", "train").__version__}
    for op in arguments.op or OPS:
        try:
            recorded = recordings(arguments.data, op)
        except KernrecError as error:
            print(error, file=sys.stderr)
            return 2
        order = [recording.recorded.name for recording in recorded]
        path = arguments.out / f"{op}.json"
        entries: dict[str, Any] = {}
        trees: dict[str, Any] = {}
        if arguments.set:
            recorded = [recording for recording in recorded if recording.recorded.name in arguments.set]
            if path.exists():
                before, trees = model_file.stored(path)
                entries = {entry["name"]: entry for entry in before["sets"]}
        with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn")) as pool:
            trained = [pool.submit(train_set, recording, arguments.folds) for recording in recorded]
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
