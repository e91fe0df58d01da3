"""Holds the prior's latency against what real cards did, on shapes that others measured.

    python tools/check_prior.py [--data ../shared/data]

    f32 conv2d  RTX 3090, 8 shapes: the best latency an auto-scheduler found (anchors/conv2d_f32_ansor.csv)
    f16 matmul  RTX 3090, 21 shapes: the best of 122 Triton tilings (anchors/matmul_f16_rtx3090.csv)

For each shape: our predicted best over the measured best. They are other kernels on the same card, so a ratio of 1 is
not the aim; the level is. Exits 1 when an aim is missed, 2 without the data.
"""

import argparse
import csv
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kernrec.recommender import Query, Recommender


@dataclass(frozen=True)
class Anchor:
    """A file of measured latencies, how its rows are read, and the level that is aimed at."""

    file: str
    op: str
    dtype: str
    dims: tuple[str, ...]
    gpu: Callable[[Mapping[str, str]], str]
    latency_column: str
    mean: tuple[float, float]
    each: tuple[float, float]


ANCHORS = (
    Anchor(
        "conv2d_f32_ansor.csv",
        "conv2d",
        "f32",
        ("n", "c", "h", "w", "k", "r", "s", "stride", "padding"),
        lambda row: row["gpu"],
        "best_latency_s",
        (0.8, 1.5),
        (0.5, 2.5),
    ),
    Anchor(
        "matmul_f16_rtx3090.csv",
        "matmul",
        "f16",
        ("m", "n", "k"),
        lambda row: "rtx3090",
        "best_triton_latency_s",
        (0.8, 1.4),
        (1 / 2.5, 2.5),
    ),
)


def main() -> int:
    """Prints a line per shape and the geometric mean of each anchor."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    folder = parser.parse_args().data / "anchors"
    if not folder.is_dir():
        print(f"no {folder}: give the folder of recorded data with --data", file=sys.stderr)
        return 2
    recommender = Recommender([])
    return max(check(recommender, anchor, folder) for anchor in ANCHORS)


def check(recommender: Recommender, anchor: Anchor, folder: Path) -> int:
    """Prints one anchor; 1 when its aim is missed."""
    ratios, outside = [], []
    print(f"{anchor.op} {anchor.dtype}, {anchor.file}")
    print(f"  {'shape':44} {'measured us':>11} {'predicted us':>12} {'ratio':>6}  limit, config")
    with (folder / anchor.file).open() as file:
        for row in csv.DictReader(file):
            dims = {name: int(row[name]) for name in anchor.dims}
            query = Query("latency", top=1)
            best = recommender.recommend(anchor.op, anchor.gpu(row), dims, anchor.dtype, query=query).best
            measured = float(row[anchor.latency_column])
            ratio = best.latency_s.value / measured
            ratios.append(ratio)
            shape = " ".join(f"{name}={value}" for name, value in dims.items())
            if not anchor.each[0] <= ratio <= anchor.each[1]:
                outside.append(shape)
            config = " ".join(f"{name}={value}" for name, value in best.config.items())
            times = f"{measured * 1e6:11.1f} {best.latency_s.value * 1e6:12.1f} {ratio:6.2f}"
            print(f"  {shape:44} {times}  {best.limit}, {config}")
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    spread = math.exp(1.645 * math.sqrt(sum((math.log(r) - math.log(mean)) ** 2 for r in ratios) / (len(ratios) - 1)))
    aim = f"aim {anchor.mean[0]} to {anchor.mean[1]}"
    print(f"  geometric mean {mean:.3f} over {len(ratios)} shapes ({aim}), 90 % spread x{spread:.2f}")
    print(f"  outside {anchor.each[0]:.2g} to {anchor.each[1]:.2g}: {'; '.join(outside) or 'none'}")
    return 0 if anchor.mean[0] <= mean <= anchor.mean[1] and not outside else 1


if __name__ == "__main__":
    sys.exit(main())
