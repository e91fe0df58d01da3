"""Train the models of stacks that ship with kernrec: what people run today, and what it takes and draws.

    python tools/train_library_model.py [--data ../shared/data] [--out db/prebuilt/models/vendor] [--op matmul]

Leaves out problems, sizes and cards of the recordings (`tools/evidence/vendor_recordings.py`) in turn to calibrate the
intervals, and writes a card and trees for each op (`kernrec.model.vendor.model_file`). Takes some ten minutes of one
core. Exits with status 2 where there is no data.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from evidence.vendor_recordings import OPS, recordings
from front import DATA, ROOT

from kernrec.errors import KernrecError
from kernrec.model.vendor import model_file
from kernrec.model.vendor.compact_trees import Trees
from kernrec.training.train_vendor_model import train_set
from kernrec.util.optional import import_optional
from kernrec.version import __version__


def main() -> int:
    """Train and write the models."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--out", type=Path, default=ROOT / "db" / "prebuilt" / "models" / "vendor")
    parser.add_argument("--op", choices=OPS, action="append", help="only this op")
    arguments = parser.parse_args()
    versions = {"kernrec": __version__, "xgboost": import_optional("xgboost", "training a model", "train").__version__}
    for op in arguments.op or OPS:
        try:
            recorded = recordings(arguments.data, op)
        except KernrecError as error:
            print(error, file=sys.stderr)
            return 2
        entries: list[dict[str, Any]] = []
        trees: dict[str, Trees] = {}
        for recording in recorded:
            print(f"{op}, {recording.recorded.name}: {len(recording)} rows", flush=True)
            entry, trained = train_set(recording)
            entries.append(entry)
            trees |= trained
        card = {"op": op, "sets": entries, "versions": versions}
        path = model_file.save(card, trees, arguments.out)
        print(f"{path}: {path.with_suffix('.trees').stat().st_size / 1e6:.2f} MB of trees", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
