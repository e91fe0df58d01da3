"""Holds the prior's latency against what real cards did, on shapes that others measured.

    python tools/check_prior.py [--data ../shared/data]

    f32 conv2d  RTX 3090, 8 shapes: the best latency an auto-scheduler found (anchors/conv2d_f32_ansor.csv)
    f16 matmul  RTX 3090, 21 shapes: the best of 122 Triton tilings (anchors/matmul_f16_rtx3090.csv)
    attention   A100, H100 and RTX 5090: what is published of FlashAttention-2

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

from kernrec.op import find_op
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


@dataclass(frozen=True)
class Published:
    """Operations per second that FlashAttention-2 is said to reach, in TFLOP/s, and who says so; `aimed`: whether it
    is an aim."""

    gpu: str
    dtype: str
    dims: Mapping[str, int]
    tflops: tuple[float, float]
    source: str
    aimed: bool = True


_LONG = {"heads": 32, "kv_heads": 8, "queries": 4096, "head_dim": 128}
PUBLISHED = (
    Published("a100-sxm4-80gb", "f16", _LONG, (180, 230), "arXiv 2307.08691: up to 73 % of 312 TFLOP/s"),
    Published("a100-sxm4-80gb", "f16", _LONG | {"causal": 1}, (180, 230), "the same"),
    Published(
        "rtx5090", "bf16", {"heads": 8, "queries": 4096, "keys": 8192, "head_dim": 128}, (180, 200),
        "gau-nernst, Flash Attention for 5090: 187 and 191, own kernels up to 198",
    ),
    Published(
        "h100-sxm", "f16", {"batch": 4, "heads": 16, "queries": 4096, "head_dim": 128}, (330, 380),
        "arXiv 2407.08608: 35 % of 989 TFLOP/s", aimed=False,
    ),
)  # fmt: skip


def main() -> int:
    """Prints a line per shape and the geometric mean of each anchor."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    folder = parser.parse_args().data / "anchors"
    if not folder.is_dir():
        print(f"no {folder}: give the folder of recorded data with --data", file=sys.stderr)
        return 2
    recommender = Recommender([])
    return max(*[check(recommender, anchor, folder) for anchor in ANCHORS], check_attention(recommender))


def check_attention(recommender: Recommender) -> int:
    """Prints what is predicted of attention beside what is published; 1 when an aim is missed."""
    missed = 0
    print("attention, TFLOP/s")
    for one in PUBLISHED:
        best = recommender.recommend(
            "attention", one.gpu, dict(one.dims), one.dtype, query=Query("latency", top=1)
        ).best
        reached = find_op("attention").problem(one.dtype, None, **one.dims).flops / best.latency_s.value / 1e12
        low, high = one.tflops
        missed |= one.aimed and not low <= reached <= high
        shape = " ".join(f"{name}={value}" for name, value in one.dims.items())
        aim = "aim" if one.aimed else "published"
        print(f"  {one.gpu:15} {shape:55} predicted {reached:4.0f}, {aim} {low:g} to {high:g}  ({one.source})")
    return int(missed)


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
            print(f"  {shape:44} {times}  {best.bottleneck}, {config}")
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    spread = math.exp(1.645 * math.sqrt(sum((math.log(r) - math.log(mean)) ** 2 for r in ratios) / (len(ratios) - 1)))
    aim = f"aim {anchor.mean[0]} to {anchor.mean[1]}"
    print(f"  geometric mean {mean:.3f} over {len(ratios)} shapes ({aim}), 90 % spread x{spread:.2f}")
    print(f"  outside {anchor.each[0]:.2g} to {anchor.each[1]:.2g}: {'; '.join(outside) or 'none'}")
    return 0 if anchor.mean[0] <= mean <= anchor.mean[1] and not outside else 1


if __name__ == "__main__":
    sys.exit(main())
