"""How few configs of a large space `kernrec analyze` may profile: its search, and its claim, on recorded spaces.

    python tools/evaluate_partial.py [--data ../shared/data] [--searches 5] [--spreads 1.6,2,3,4]

`kernrec.model.search.partial_space` searches each recorded space of real GPUs as if a recorded time (and energy, where
there is one) were what a profile predicts, knowing only the tunables. A search is wrong where a config that it left out
is better than its best by more than the margin. For each kernel the table shows the searches with the bound that the
other kernels choose: the least, of those tried, with which at most one in a hundred of their searches was wrong. The
configs at `within` were enough to come within the margin of the best of the space. Real times vary more from config to
config than predicted ones do. Exits 0 without the data, 1 where the data choose a larger bound than the package has.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kernrec.interop.read_results import read_results
from kernrec.model.search.partial_space import MARGIN, SPREADS, PartialSearch, criteria
from kernrec.store.connection import parquet_rows

Array = np.ndarray
CONFIDENCE = 0.99
FILES = (
    "convolution-a100-free-clock.parquet",
    "convolution-a4000.t4.json.gz",
    "convolution-rtx2070super-free-clock.parquet",
    "convolution-rtx2080ti.parquet",
    "convolution-rtx3090.parquet",
    "dedispersion-a100.parquet",
    "expdist-a4000-energy.parquet",
    "gemm-a100-free-clock.parquet",
    "gemm-rtx2070super-free-clock.parquet",
    "gemm-rtx2080ti.parquet",
    "gemm-rtx3090.kernel_tuner.json.gz",
    "hotspot-a4000-energy.parquet",
    "pnpoly-rtx2070super-free-clock.parquet",
    "pnpoly-rtx3090.parquet",
)
"""Without pnpoly on the A100 and the 2080 Ti, whose times are those of PCIe."""
NOT_TUNED = frozenset({
    "runs", "latency_s", "latency_low_s", "latency_high_s", "outcome", "nvml_energy", "core_freq", "mem_freq",
    "temperature", "num_regs",
})  # fmt: skip


@dataclass(frozen=True)
class Space:
    """One recording of C configs."""

    kernel: str
    tunables: Array
    """(C, T)."""
    costs: Array
    """Time and energy, or time alone, (C, 1 or 2); NaN for a config that did not run."""


@dataclass(frozen=True)
class Search:
    """What became of one search."""

    kernel: str
    configs: int
    tried: int
    within: int
    """Configs tried when the best was within the margin of that of the space; all of them where it never was."""
    wrong: bool


def main() -> int:
    """Print a line for each kernel."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    parser.add_argument("--searches", type=int, default=5, help="of each recording, with other random numbers")
    parser.add_argument("--spreads", default="1.6,2,3,4", help="bounds to try")
    arguments = parser.parse_args()
    present = [arguments.data / "spaces" / name for name in FILES if (arguments.data / "spaces" / name).is_file()]
    if not present:
        print(f"no recorded spaces in {arguments.data / 'spaces'}: nothing evaluated")
        return 0
    start = time.process_time()
    tried = sorted({float(text) for text in arguments.spreads.split(",")})
    searches: dict[float, list[Search]] = {spreads: [] for spreads in tried}
    for path in present:
        space = read(path)
        for spreads in tried:
            searches[spreads] += [searched(space, seed, spreads) for seed in range(arguments.searches)]
        print(f"read {path.name}: {len(space.tunables)} configs, {time.process_time() - start:.0f} s", file=sys.stderr)
    chosen = report(searches)
    print(f"all kernels choose {chosen:g}, the package has {SPREADS:g}; {time.process_time() - start:.0f} s of CPU")
    return int(chosen > SPREADS)


def read(path: Path) -> Space:
    """A recording; columns that are the same in all rows are no tunables of it."""
    if path.suffix == ".parquet":
        with parquet_rows(path) as (connection, source):
            cursor = connection.execute(f"FROM {source}")
            names = [column[0] for column in cursor.description or ()]
            rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        tuned = [name for name in names if name not in NOT_TUNED]
        tunables = np.array([[float(row[name]) for name in tuned] for row in rows])
        ran = [str(row.get("outcome", "ok")).lower() == "ok" and bool(row["latency_s"]) for row in rows]
        measured = ["latency_s", *(["nvml_energy"] if "nvml_energy" in names else [])]
        costs = np.array(
            [[row[name] if ok else np.nan for name in measured] for row, ok in zip(rows, ran, strict=True)]
        )
    else:
        results = read_results(path).results
        tunables = np.array([[float(value) for value in result.config.values()] for result in results])
        costs = np.array([[result.latency_s or np.nan] for result in results])
    return Space(path.name.split("-")[0], tunables, costs.astype(float))


def searched(space: Space, seed: int, spreads: float) -> Search:
    """One search of a space."""
    search, known = PartialSearch(space.tunables, seed, spreads), np.zeros(0, np.int64)
    measured = criteria(np.log(space.costs))
    best = np.nanmin(measured, axis=0)
    within = None
    while len(rows := search.propose(known, space.costs[known]).rows):
        known = np.concatenate((known, rows))
        if within is None and (np.nanmin(measured[known], axis=0) <= best - np.log(1.0 - MARGIN)).all():
            within = len(known)
    return Search(space.kernel, len(space.tunables), len(known), within or len(space.tunables), within is None)


def report(searches: dict[float, list[Search]]) -> float:
    """Print the table; the bound that all kernels together choose."""
    kernels = sorted({search.kernel for search in next(iter(searches.values()))})
    print(f"{'kernel':14}{'without it':>12}{'searches':>10}{'wrong':>7}{'tried':>8}{'of':>8}{'within':>8}")
    total = wrong = 0
    for kernel in kernels:
        spreads = choice(searches, [other for other in kernels if other != kernel])
        own = [search for search in searches[spreads] if search.kernel == kernel]
        figures = [round(float(np.mean([getattr(s, name) for s in own]))) for name in ("tried", "configs", "within")]
        total, wrong = total + len(own), wrong + sum(search.wrong for search in own)
        columns = "".join(f"{figure:>8}" for figure in figures)
        print(f"{kernel:14}{spreads:>12g}{len(own):>10}{sum(search.wrong for search in own):>7}{columns}")
    print(f"{'all':14}{'':12}{total:>10}{wrong:>7}")
    for spreads, some in searches.items():
        wrong, mean = sum(search.wrong for search in some), float(np.mean([search.tried for search in some]))
        print(f"bound at {spreads:g}: {wrong} of {len(some)} wrong, {mean:.0f} configs tried on average")
    return choice(searches, kernels)


def choice(searches: dict[float, list[Search]], kernels: Sequence[str]) -> float:
    """The least bound with which the searches of some kernels are wrong as rarely as claimed; the largest otherwise."""
    for spreads, some in searches.items():
        own = [search for search in some if search.kernel in kernels]
        if sum(search.wrong for search in own) <= (1.0 - CONFIDENCE) * len(own) + 1e-9:
            return spreads
    return max(searches)


if __name__ == "__main__":
    sys.exit(main())
