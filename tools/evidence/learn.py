"""How well recorded rows of a kernel teach about a card that nobody recorded, through the commands that users run.

A recorded kernel with a part of its space is analyzed for every card it was recorded on. Then each card is left out in
turn: `kernrec db import --kernel --spec` binds the rows of the other cards to the kernel, `kernrec train --kernel`
learns from them, and `kernrec recommend --kernel` is asked about the card left out, before the training and after.
Printed are rank correlation, median error and the efficiency of the first choice, against the card's own rows, and the
same of the ranking that another card's measurements give. `--work` keeps the databases, so that a second run analyzes
nothing; `--without` are cards to leave out altogether.
"""

import contextlib
import csv
import io
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from front import DATA, Data, Sources, Table

from kernrec.cli.app import run as run_command
from kernrec.errors import KernrecError
from kernrec.kernel import Kernel, load_kernel
from kernrec.kernel.source_files import read_toml
from kernrec.training import scores

from .recorded_sets import SETS, SPECS, RecordedSet, Recording, Rows, read_rows

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
"""The values of each set's tunables that remain: a few dozen configs, so that analyzing takes minutes."""


def run(
    data: Data = DATA, sources: Sources = None, set: Literal["pnpoly", "convolution"] = "pnpoly",
    without: str = "", work: Path | None = None,
) -> None:  # fmt: skip
    """Print a line for each card left out."""
    recorded = SETS[set]
    with tempfile.TemporaryDirectory() as temporary:
        folder = work or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        kernel = reduced_kernel(recorded, sources, folder)
        recordings = [r for r in one_per_card(recorded) if r.card not in without.split(",")]
        rows = {r.card: part_of(read_rows(r, kernel, data / "spaces"), kernel) for r in recordings}
        evaluate(kernel, rows, folder)


def one_per_card(recorded: RecordedSet) -> list[Recording]:
    """The recordings at the cards' own clocks, one of each card."""
    by_card: dict[str, Recording] = {}
    for recording in recorded.recordings:
        if recording.clock_hz is None:
            by_card.setdefault(recording.card, recording)
    return list(by_card.values())


def reduced_kernel(recorded: RecordedSet, sources: Path | None, work: Path) -> Kernel:
    """The kernel with the part of its space that is analyzed; its source and spec are written into `work`."""
    whole = recorded.kernel(sources)
    text = (SPECS / f"{recorded.name}.toml").read_text()
    for name, values in PARTS[recorded.name].items():
        complete = read_toml(SPECS / f"{recorded.name}.toml", recorded.name)["tunables"][name]["values"]
        text = text.replace(f"{name} = {{ values = {complete}", f"{name} = {{ values = {list(values)}")
    (work / whole.source_name).write_text(whole.source)
    (work / "kernel.toml").write_text(text)
    return load_kernel(work / "kernel.toml")


def part_of(rows: Rows, kernel: Kernel) -> Rows:
    """The rows of configs that the reduced space has."""
    allowed = {tunable.name: set(tunable.values) for tunable in kernel.tunables}
    inside = [i for i, c in enumerate(rows.configs) if all(c[name] in values for name, values in allowed.items())]
    return Rows([rows.configs[i] for i in inside], rows.latency_s[inside], rows.energy_j[inside])


def evaluate(kernel: Kernel, rows: Mapping[str, Rows], work: Path) -> None:
    """Leave each card out in turn."""
    source, spec, base = work / kernel.source_name, work / "kernel.toml", work / "analyzed.duckdb"
    for card in rows:
        kernrec("analyze", source, "--spec", spec, "--gpu", card, "--db", base)
    cards = " / ".join(f"{card}, {len(recording.configs)} configs" for card, recording in rows.items())
    table = Table(f"{kernel.name}: {cards}")
    for card, own in rows.items():
        folder = work / f"without-{card}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        database = folder / "kernrec.duckdb"
        shutil.copyfile(base, database)
        _row(table, card, "prior", own, recommended(kernel, card, database))
        for other, theirs in rows.items():
            if other != card:
                file = write_csv(folder / f"{other}.csv", theirs)
                kernrec("db", "import", file, "--kernel", source, "--spec", spec, "--gpu", other, "--db", database)
                _row(table, card, f"ranking of {other}", own, by_config(theirs), absolute=False)
        kernrec("train", "--kernel", kernel.name, "--db", database)
        _row(table, card, "trained on the others", own, recommended(kernel, card, database))


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


def _row(
    table: Table, card: str, way: str, own: Rows, predicted: Mapping[tuple[int, ...], float], absolute: bool = True
) -> None:
    """Add the scores of predictions against a card's own rows."""
    measured = by_config(own)
    both = [key for key in measured if key in predicted]
    a, b = np.array([measured[key] for key in both]), np.array([predicted[key] for key in both])
    first, error = scores.efficiency_at(a, scores.order_of(b), 1), scores.median_error(a, b)
    figures = {
        "configs": len(both),
        "rank": scores.rank_correlation(a, b),
        "error": f"{error:.1%}" if absolute else "-",
    }
    table.row({"": way, "card left out": card, **figures, "first": f"{first:.3f}"})


def kernrec(*words: object) -> str:
    """Run a command; its standard output. Its notes are not shown unless it fails."""
    shown, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(errors):
        status = run_command([str(word) for word in words])
    if status:
        raise KernrecError(f"kernrec {words[0]}: {errors.getvalue().strip().splitlines()[-1]}")
    return shown.getvalue()
