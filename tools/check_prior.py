"""Holds the prior's latency against what real cards did: the best latency an auto-scheduler found for f32 conv2d.

    python tools/check_prior.py [--data ../shared/data]

For each shape of `anchors/conv2d_f32_ansor.csv`: our predicted best over the measured best. They are other kernels on
the same card, so a ratio of 1 is not the aim; the level is. Exits 1 when an aim is missed, 2 without the data.
"""

import argparse
import csv
import math
import sys
from pathlib import Path

import kernrec

GEOMEAN = (0.8, 1.5)
EACH = (0.5, 2.5)


def main() -> int:
    """Prints a line per shape and the geometric mean."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    anchor = parser.parse_args().data / "anchors" / "conv2d_f32_ansor.csv"
    if not anchor.is_file():
        print(f"no {anchor}: give the folder of recorded data with --data", file=sys.stderr)
        return 2
    ratios, missed = [], []
    print(f"{'shape':44} {'measured us':>11} {'predicted us':>12} {'ratio':>6}  limit, config")
    with anchor.open() as file:
        for row in csv.DictReader(file):
            dims = {name: int(row[name]) for name in ("n", "c", "h", "w", "k", "r", "s", "stride", "padding")}
            best = kernrec.recommend("conv2d", row["gpu"], objective="latency", top=1, **dims).best  # type: ignore[arg-type]
            measured = float(row["best_latency_s"])
            ratio = best.latency_s.value / measured
            ratios.append(ratio)
            shape = " ".join(f"{name}={value}" for name, value in dims.items() if name != "n")
            if not EACH[0] <= ratio <= EACH[1]:
                missed.append(shape)
            config = " ".join(f"{name}={value}" for name, value in best.config.items())
            times = f"{measured * 1e6:11.1f} {best.latency_s.value * 1e6:12.1f} {ratio:6.2f}"
            print(f"{shape:44} {times}  {best.limit}, {config}")
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    spread = math.exp(1.645 * math.sqrt(sum((math.log(r) - math.log(mean)) ** 2 for r in ratios) / (len(ratios) - 1)))
    aim = f"aim {GEOMEAN[0]} to {GEOMEAN[1]}"
    print(f"geometric mean {mean:.3f} over {len(ratios)} shapes ({aim}), 90 % spread x{spread:.2f}")
    print(f"outside {EACH[0]} to {EACH[1]}: {', '.join(missed) or 'none'}")
    return 0 if GEOMEAN[0] <= mean <= GEOMEAN[1] and not missed else 1


if __name__ == "__main__":
    sys.exit(main())
