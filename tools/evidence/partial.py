"""How few configs of a large space `kernrec analyze` may profile: its search, and its claim, on recorded spaces.

`kernrec.model.search.partial_space` searches each recorded space of real GPUs as if a recorded time (and energy, where
there is one) were what a profile predicts, knowing only the tunables. A search is wrong where a config that it left out
is better than its best by more than the margin. For each kernel the table shows the searches with the bound that the
other kernels choose: the least, of those tried, with which at most one in a hundred of their searches was wrong. The
configs at `within` were enough to come within the margin of the best of the space. Real times vary more from config to
config than predicted ones do. Exits 1 where the data choose a larger bound than the package has.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from front import DATA, Data, Table

from evidence.recordings.files import AbsentError
from kernrec.model.search.partial_space import MARGIN, SPREADS, PartialSearch, criteria

from .recorded_spaces import Space, read_space

CONFIDENCE = 0.99
FILES = (
    "convolution-a100-free-clock.parquet", "convolution-a4000.t4.json.gz",
    "convolution-rtx2070super-free-clock.parquet", "convolution-rtx2080ti.parquet", "convolution-rtx3090.parquet",
    "dedispersion-a100.parquet", "expdist-a4000-energy.parquet", "gemm-a100-free-clock.parquet",
    "gemm-rtx2070super-free-clock.parquet", "gemm-rtx2080ti.parquet", "gemm-rtx3090.kernel_tuner.json.gz",
    "hotspot-a4000-energy.parquet", "pnpoly-rtx2070super-free-clock.parquet", "pnpoly-rtx3090.parquet",
)  # fmt: skip
"""Without pnpoly on the A100 and the 2080 Ti, whose times are those of PCIe."""


@dataclass(frozen=True)
class Search:
    """The result of one search."""

    kernel: str
    configs: int
    tried: int
    within: int
    """Configs tried when the best was within the margin of that of the space; all of them where it never was."""
    wrong: bool


Searches = dict[float, list[Search]]


def run(data: Data = DATA, searches: int = 5, spreads: str = "1.6,2,3,4") -> int:
    """Print a line for each kernel; `searches` of each recording for each of `spreads`, the bounds to try."""
    present = [data / "spaces" / name for name in FILES if (data / "spaces" / name).is_file()]
    if not present:
        raise AbsentError(f"no recorded spaces in {data / 'spaces'}")
    done: Searches = {bound: [] for bound in sorted({float(text) for text in spreads.split(",")})}
    for path in present:
        space = read_space(path, failed=True)
        for bound, of_bound in done.items():
            of_bound += [searched(space, seed, bound) for seed in range(searches)]
        print(f"read {path.name}: {len(space.tunables)} configs, {time.process_time():.0f} s", file=sys.stderr)
    kernels = sorted({search.kernel for search in next(iter(done.values()))})
    table, wrong = Table(), 0
    for kernel in kernels:
        bound = choice(done, [other for other in kernels if other != kernel])
        own = [search for search in done[bound] if search.kernel == kernel]
        failed = sum(search.wrong for search in own)
        wrong += failed
        means = {name: round(np.mean([getattr(s, field) for s in own])) for name, field in _COLUMNS.items()}
        table.row({"kernel": kernel, "without it": f"{bound:g}", "searches": len(own), "wrong": failed, **means})
    print(f"{wrong} wrong in all")
    for bound, some in done.items():
        failed, mean = sum(search.wrong for search in some), np.mean([search.tried for search in some])
        print(f"bound at {bound:g}: {failed} of {len(some)} wrong, {mean:.0f} configs tried on average")
    chosen = choice(done, kernels)
    print(f"all kernels choose {chosen:g}, the package has {SPREADS:g}; {time.process_time():.0f} s of CPU")
    return int(chosen > SPREADS)


_COLUMNS = {"tried": "tried", "of": "configs", "within": "within"}


def searched(space: Space, seed: int, spreads: float) -> Search:
    """One search of a space."""
    names = ("reported_s",) if "reported_s" in space.measured else ("latency_s", "nvml_energy")
    costs = np.column_stack([space.measured[name] for name in names if name in space.measured])
    search, rows = PartialSearch(space.tunables, seed, spreads), np.zeros(0, np.int64)
    measured = criteria(np.log(costs))
    best = np.nanmin(measured, axis=0)
    within = None
    while len(more := search.propose(rows, costs[rows]).rows):
        rows = np.concatenate((rows, more))
        if within is None and (np.nanmin(measured[rows], axis=0) <= best - np.log(1.0 - MARGIN)).all():
            within = len(rows)
    kernel, count = space.title.split("-")[0], len(space.tunables)
    return Search(kernel, count, len(rows), within or count, within is None)


def choice(searches: Searches, kernels: Sequence[str]) -> float:
    """The least bound with which the searches of some kernels are wrong as rarely as claimed; the largest otherwise."""
    for bound, some in searches.items():
        own = [search for search in some if search.kernel in kernels]
        if sum(search.wrong for search in own) <= (1.0 - CONFIDENCE) * len(own) + 1e-9:
            return bound
    return max(searches)
