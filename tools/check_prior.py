"""Compare the prior's latency with published measurements of real GPUs.

    python tools/check_prior.py [--data ../shared/data]

    f32 conv2d  RTX 3090, 8 shapes: the best latency an auto-scheduler found (anchors/conv2d_f32_ansor.csv)
    f16 matmul  RTX 3090, 21 shapes: the faster of cuBLAS and 122 Triton tilings (anchors/matmul_f16_rtx3090.csv)
    attention   A100, RTX 5090 and H100: published throughput of FlashAttention-2, on the H100 of FlashAttention-3 and
                cuDNN; beside it, without an aim, that of attention_triton where its profiles ship

For each shape it prints the best predicted latency over the best measured one. These are other kernels on the same GPU,
so the ratios need not be 1, but they should be close to it on average. Exits 1 when an aim is missed, 2 without the
data.
"""

import argparse
import csv
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kernrec.errors import KernrecError
from kernrec.op import find_op
from kernrec.recommender import Objective, Query, Recommender, Request


@dataclass(frozen=True)
class Anchor:
    """A file of measured latencies."""

    file: str
    """Its name."""
    op: str
    """The op that was measured."""
    dtype: str
    """Its data type."""
    dims: tuple[str, ...]
    """Columns that hold the dimensions."""
    gpu: Callable[[Mapping[str, str]], str]
    """The GPU of a row."""
    latency_columns: tuple[str, ...]
    """The columns that hold latencies; the fastest counts."""
    mean: tuple[float, float]
    """Aim for the geometric mean of predicted over measured latency."""
    each: tuple[float, float]
    """Aim for each shape's predicted over measured latency."""

    def measured_s(self, row: Mapping[str, str]) -> float:
        """The fastest recorded latency of a row."""
        return min(float(row[column]) for column in self.latency_columns)


ANCHORS = (
    Anchor(
        "conv2d_f32_ansor.csv",
        "conv2d",
        "f32",
        ("n", "c", "h", "w", "k", "r", "s", "stride", "padding"),
        lambda row: row["gpu"],
        ("best_latency_s",),
        (0.8, 1.5),
        (0.5, 2.5),
    ),
    Anchor(
        "matmul_f16_rtx3090.csv",
        "matmul",
        "f16",
        ("m", "n", "k"),
        lambda row: "rtx3090",
        ("best_triton_latency_s", "cublas_latency_s"),
        (0.8, 1.4),
        (1 / 2.5, 2.5),
    ),
)


@dataclass(frozen=True)
class Published:
    """Published throughput of an attention kernel."""

    gpu: str
    """The GPU."""
    dtype: str
    """Data type."""
    dims: Mapping[str, int]
    """Dimensions."""
    tflops: tuple[float, float]
    """Range of the throughput, in TFLOP/s."""
    source: str
    """Where it was published."""
    power_limit_w: float | None = None
    """The power limit that it was measured at, where it was not the default one."""


RTX_5090_W = 400.0
"""The power limit that gau-nernst's measurements on an RTX 5090 were made at: of attention, and of products."""
TOLERANCE = 0.1
"""How far beyond the published range a prediction of another kernel may be."""
_LONG = {"heads": 32, "kv_heads": 8, "queries": 4096, "head_dim": 128}
PUBLISHED = (
    Published("a100-sxm4-80gb", "f16", _LONG, (180, 230), "arXiv 2307.08691: up to 73 % of 312 TFLOP/s"),
    Published("a100-sxm4-80gb", "f16", _LONG | {"causal": 1}, (180, 230), "the same"),
    Published(
        "rtx5090", "bf16", {"heads": 8, "queries": 4096, "keys": 8192, "head_dim": 128}, (187, 204),
        "gau-nernst, Flash Attention for 5090, at 400 W: 187 and 191, cuDNN 204", RTX_5090_W,
    ),
    Published(
        "h100-sxm", "f16", {"batch": 4, "heads": 16, "queries": 4096, "head_dim": 128}, (609, 638),
        "arXiv 2407.08608, figure 5: cuDNN 609, FlashAttention-3 638",
    ),
)  # fmt: skip


def main() -> int:
    """Print a line per shape and the geometric mean of each anchor."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    folder = parser.parse_args().data / "anchors"
    if not folder.is_dir():
        print(f"no {folder}: give the folder of recorded data with --data", file=sys.stderr)
        return 2
    recommender = Recommender([])
    return max(*[check(recommender, anchor, folder) for anchor in ANCHORS], check_attention(recommender))


def check_attention(recommender: Recommender) -> int:
    """Print predicted and published throughput of attention; returns 1 when an aim is missed."""
    missed = 0
    print(f"attention, TFLOP/s (a prediction passes up to {TOLERANCE:.0%} beyond the published range)")
    for entry in PUBLISHED:
        query = Query(Objective.LATENCY, power_limit_w=entry.power_limit_w, top=1)
        best = recommender.recommend("attention", entry.gpu, dict(entry.dims), entry.dtype, query=query).best
        flops = find_op("attention").problem(entry.dtype, None, **entry.dims).flops
        predicted = flops / best.latency_s.value / 1e12
        low, high = entry.tflops
        missed |= not low * (1 - TOLERANCE) <= predicted <= high * (1 + TOLERANCE)
        shape = " ".join(f"{name}={value}" for name, value in entry.dims.items())
        print(
            f"  {entry.gpu:15} {shape:55} predicted {predicted:4.0f}, published {low:g} to {high:g}  ({entry.source})"
        )
        if (own := in_triton(recommender, entry, query)) is not None:
            ratio = own / best.latency_s.value
            print(f"  {'':71} in Triton {flops / own / 1e12:4.0f}, {ratio:.2f} of the time")
    return int(missed)


def in_triton(recommender: Recommender, entry: Published, query: Query) -> float | None:
    """Predicted seconds of the library's attention in Triton; None where it has no profiles."""
    request = Request(entry.gpu, None, "attention_triton", dict(entry.dims), entry.dtype, None, query)
    try:
        return recommender.answer(request).best.latency_s.value
    except KernrecError:
        return None


def check(recommender: Recommender, anchor: Anchor, folder: Path) -> int:
    """Print one anchor; returns 1 when its aim is missed."""
    ratios, outside = [], []
    print(f"{anchor.op} {anchor.dtype}, {anchor.file}")
    print(f"  {'shape':44} {'measured us':>11} {'predicted us':>12} {'ratio':>6}  bottleneck, config")
    with (folder / anchor.file).open() as file:
        for row in csv.DictReader(file):
            dims = {name: int(row[name]) for name in anchor.dims}
            query = Query(Objective.LATENCY, top=1)
            best = recommender.recommend(anchor.op, anchor.gpu(row), dims, anchor.dtype, query=query).best
            measured = anchor.measured_s(row)
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
