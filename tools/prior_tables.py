"""What `tools/evaluate_prior.py` prints: the scores of all sets, as tables and as JSON."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from prior_scores import Agreement, ResidencyScore, ShapeScore, SpaceScore, SweepScore, residency_titles, within


@dataclass
class Results:
    """Everything that was measured, in the order of the tables."""

    spaces: list[SpaceScore] = field(default_factory=list)
    by_residents: list[ResidencyScore] = field(default_factory=list)
    agreements: list[Agreement] = field(default_factory=list)
    shapes: list[ShapeScore] = field(default_factory=list)
    sweeps: list[SweepScore] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def write(self, path: Path | None) -> None:
        """Everything as JSON, where a file is named."""
        if path is not None:
            path.write_text(json.dumps(asdict(self), indent=1))


def print_tables(results: Results) -> None:
    """The tables, at most 120 columns wide."""
    if results.spaces:
        print("recorded spaces; efficiency is the best measured time over that of the choice, 1 is perfect")
        print(
            f"{'set':13} {'card':24} {'configs':>7} {'rank':>5} {'error':>6} {'ratio':>6} {'first':>6} {'of 5':>5}"
            f" {'of 1 %':>6} {'refused':>8}   {'occup.':>6} {'256':>5} {'random':>6}"
        )
    for s in results.spaces:
        print(
            f"{s.set:13} {s.card:24} {s.sampled:7} {s.rank:5.2f} {s.error:6.1%} {s.ratio:6.2f} {s.first:6.3f}"
            f" {s.best_of_5:5.3f} {s.best_of_1_percent:6.3f} {s.refused:3} of {s.of_best:2}   {s.occupancy:6.3f}"
            f" {s.threads_256:5.3f} {s.random:6.3f}"
        )
    if results.by_residents:
        print("\npredicted over measured by the blocks that an SM holds; medians of configs within 6 times the fastest")
        print(f"{'set':13} {'card':24} " + " ".join(f"{title:>11}" for title in residency_titles()))
    for r in results.by_residents:
        cells = [f"{ratio:.2f} ({count})" if count else "-" for ratio, count in r.medians]
        print(f"{r.set:13} {r.card:24} " + " ".join(f"{cell:>11}" for cell in cells))
    if results.agreements:
        print("\nrecordings of one architecture against each other, which no prediction of one code can beat on both")
        print(f"{'set':13} {'recording':24} {'another':24} {'configs':>7} {'rank':>5} {'error':>6}")
    for a in results.agreements:
        print(f"{a.set:13} {a.first:24} {a.second:24} {a.configs:7} {a.rank:5.2f} {a.error:6.1%}")
    if results.shapes:
        print("\nshapes, one measured time each; ratio is predicted over measured, low and high its 10 and 90 %")
        print(f"{'set':34} {'card':18} {'shapes':>6} {'rank':>5} {'error':>6} {'ratio':>6} {'low':>5} {'high':>5}")
    for shape in results.shapes:
        print(
            f"{shape.set:34} {shape.card:18} {shape.shapes:6} {shape.rank:5.2f} {shape.error:6.1%} {shape.ratio:6.2f}"
            f" {shape.low:5.2f} {shape.high:5.2f}"
        )
    if results.sweeps:
        print("\nsweeps over block sizes; efficiency of the block that is chosen")
        print(f"{'kernel':30} {'card':12} {'sizes':>5} {'kernrec':>8} {'occupancy':>10} {'always 256':>11}")
    for sweep in results.sweeps:
        print(
            f"{sweep.kernel:30} {sweep.card:12} {sweep.sizes:5} {sweep.chosen:8.3f} {sweep.occupancy:10.3f}"
            f" {sweep.threads_256:11.3f}"
        )
    if results.sweeps:
        counts = [within([getattr(s, n) for s in results.sweeps]) for n in ("chosen", "occupancy", "threads_256")]
        print(
            f"{'within 5 % of the best':30} {'':12} {len(results.sweeps):5} {counts[0]:8} {counts[1]:10} {counts[2]:11}"
        )
