"""What recorded rows of a kernel teach about a card that nobody recorded, through the commands that users run.

    python tools/learn_from_recordings.py --sources FOLDER [--set pnpoly] [--without CARD,...] [--data ../shared/data]
                                          [--work FOLDER]

A kernel of `tools/recorded_sets.py` with a part of its space is analyzed for every card it was recorded on. Then each
card is left out in turn: `kernrec db import --kernel --spec` binds the rows of the other cards to the kernel, `kernrec
train --kernel` learns from them, and `kernrec recommend --kernel` is asked about the card left out, before the training
and after. Printed are rank correlation, median error and the efficiency of the first choice, against the card's own
rows, and the same of the ranking that another card's measurements give. Exits 0 without the data or the sources.
"""

import argparse
import contextlib
import csv
import io
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from recorded_sets import SETS, SPECS, RecordedSet, Recording, Rows, load_recorded_kernel, read_rows

from kernrec.cli.app import run
from kernrec.errors import KernrecError, UsageError, unknown
from kernrec.kernel import Kernel, load_kernel
from kernrec.kernel.source_files import read_toml
from kernrec.training import scores

ROOT = Path(__file__).resolve().parents[1]
PARTS: Mapping[str, Mapping[str, Sequence[int]]] = {
    "pnpoly": {
        "block_size_x": (64, 256, 512, 992), "tile_size": (1, 4, 8, 16), "between_method": (0, 2),
        "use_precomputed_slopes": (0,), "use_method": (0, 1),
    },
    "convolution": {
        "block_size_x": (16, 32, 64, 128), "block_size_y": (1, 4, 8), "tile_size_x": (1, 2, 4), "tile_size_y": (1, 2),
        "read_only": (0,), "use_padding": (0,),
    },
}  # fmt: skip
"""The values of each set's tunables that are kept: a few dozen configs, so that analyzing takes minutes."""


def main() -> int:
    """Print a line for each card left out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--sources", type=Path, help="folder with the repositories of recorded kernels")
    parser.add_argument("--set", default="pnpoly", help=f"one of {', '.join(PARTS)}")
    parser.add_argument("--work", type=Path, help="keep databases here, so that a second run analyzes nothing")
    parser.add_argument("--without", default="", help="cards to leave out altogether, separated by commas")
    arguments = parser.parse_args()
    if arguments.set not in PARTS:
        print(f"learn_from_recordings.py: {unknown('set', arguments.set, PARTS)}", file=sys.stderr)
        return 2
    recorded = next(each for each in SETS if each.name == arguments.set)
    with tempfile.TemporaryDirectory() as temporary:
        work = arguments.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        try:
            if arguments.sources is None:
                raise UsageError("the kernels are public; --sources names a folder with them")
            kernel = reduced_kernel(recorded, arguments.sources, work)
            recordings = [r for r in one_per_card(recorded) if r.card not in arguments.without.split(",")]
            rows = {r.card: read_rows(r, kernel, arguments.data / "spaces") for r in recordings}
        except UsageError as error:
            print(f"nothing learned: {error}")
            return 0
        evaluate(kernel, {card: part_of(recording, kernel) for card, recording in rows.items()}, work)
    return 0


def one_per_card(recorded: RecordedSet) -> list[Recording]:
    """The recordings at the cards' own clocks, one of each card."""
    by_card: dict[str, Recording] = {}
    for recording in recorded.recordings:
        if recording.clock_hz is None:
            by_card.setdefault(recording.card, recording)
    return list(by_card.values())


def reduced_kernel(recorded: RecordedSet, sources: Path, work: Path) -> Kernel:
    """The kernel with the part of its space that is analyzed; its source and spec are written into `work`."""
    whole = load_recorded_kernel(recorded, sources)
    text = (SPECS / f"{recorded.name}.toml").read_text()
    for name, values in PARTS[recorded.name].items():
        given = read_toml(SPECS / f"{recorded.name}.toml", recorded.name)["tunables"][name]["values"]
        text = text.replace(f"{name} = {{ values = {given}", f"{name} = {{ values = {list(values)}")
    (work / whole.source_name).write_text(whole.source)
    (work / "kernel.toml").write_text(text)
    return load_kernel(work / "kernel.toml")


def part_of(rows: Rows, kernel: Kernel) -> Rows:
    """The rows of configs that the reduced space has."""
    allowed = {tunable.name: set(tunable.values) for tunable in kernel.tunables}
    kept = [i for i, c in enumerate(rows.configs) if all(c[name] in values for name, values in allowed.items())]
    return Rows([rows.configs[i] for i in kept], rows.latency_s[kept])


def evaluate(kernel: Kernel, rows: Mapping[str, Rows], work: Path) -> None:
    """Leave each card out in turn."""
    source, spec, base = work / kernel.source_name, work / "kernel.toml", work / "analyzed.duckdb"
    for card in rows:
        kernrec("analyze", source, "--spec", spec, "--gpu", card, "--db", base)
    print(
        f"{kernel.name}: {' / '.join(f'{card}, {len(recording.configs)} configs' for card, recording in rows.items())}"
    )
    print(f"{'card left out':18} {'':24} {'configs':>7} {'rank':>5} {'error':>6} {'first':>6}")
    for card, own in rows.items():
        folder = work / f"without-{card}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        database = folder / "kernrec.duckdb"
        shutil.copyfile(base, database)
        line(card, "prior", own, recommended(kernel, card, database))
        for other, theirs in rows.items():
            if other != card:
                file = write_csv(folder / f"{other}.csv", theirs)
                kernrec("db", "import", file, "--kernel", source, "--spec", spec, "--gpu", other, "--db", database)
                line(card, f"ranking of {other}", own, by_config(theirs), absolute=False)
        kernrec("train", "--kernel", kernel.name, "--db", database)
        line(card, "trained on the others", own, recommended(kernel, card, database))


def write_csv(path: Path, rows: Rows) -> Path:
    """Rows as another tool would hand them over."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(name.upper() for name in rows.configs[0]), "time_ms"])
        for config, seconds in zip(rows.configs, rows.latency_s.tolist(), strict=True):
            writer.writerow([*config.values(), seconds * 1e3])
    return path


def recommended(kernel: Kernel, card: str, database: Path) -> dict[tuple[int, ...], float]:
    """Predicted latency of every config that `kernrec recommend --kernel` gives."""
    text = kernrec(
        "recommend", "--kernel", kernel.name, "--gpu", card, "--db", database, "--objective", "latency",
        "--top", 9999, "--json",
    )  # fmt: skip
    return {tuple(choice["config"].values()): choice["latency_s"] for choice in json.loads(text)["choices"]}


def by_config(rows: Rows) -> dict[tuple[int, ...], float]:
    """Measured latency by config."""
    return {tuple(config.values()): s for config, s in zip(rows.configs, rows.latency_s.tolist(), strict=True)}


def line(card: str, what: str, own: Rows, predicted: Mapping[tuple[int, ...], float], absolute: bool = True) -> None:
    """Print the scores of predictions against a card's own rows."""
    measured = by_config(own)
    both = [key for key in measured if key in predicted]
    a, b = np.array([measured[key] for key in both]), np.array([predicted[key] for key in both])
    first = scores.efficiency_at(a, scores.order_of(b), 1)
    error = f"{scores.median_error(a, b):6.1%}" if absolute else f"{'':6}"
    rank = scores.rank_correlation(a, b)
    print(f"{card:18} {what:24} {len(both):7} {rank:5.2f} {error} {first:6.3f}", flush=True)


def kernrec(*words: object) -> str:
    """Run a command; its standard output. Its notes are kept back unless it fails."""
    shown, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(errors):
        status = run([str(word) for word in words])
    if status:
        raise KernrecError(f"kernrec {words[0]}: {errors.getvalue().strip().splitlines()[-1]}")
    return shown.getvalue()


if __name__ == "__main__":
    sys.exit(main())
