"""The predicted best of kernrec's kernels beside the best that others measured on the same card.

    f32 conv2d  RTX 3090, 8 shapes: the best latency that an auto-scheduler found
    f16 matmul  RTX 3090, 21 shapes: the faster of cuBLAS and 122 Triton tilings
    attention   A100, RTX 5090 and H100: published throughput of FlashAttention-2, on the H100 of FlashAttention-3 and
                cuDNN; beside it, without an aim, that of attention_triton where its profiles ship

These are other kernels on the same GPU, so the ratios need not be 1, but they should be close to it on average. Exits 1
when an aim is missed.
"""

import numpy as np
from front import DATA, Data, Table

from evidence.recordings.files import present
from kernrec.errors import KernrecError
from kernrec.recommender import Objective, Query, Recommender, Request
from kernrec.util.normal import DEVIATIONS

from .library_shapes import ANCHORS, PUBLISHED, Anchor, Published, Shape
from .scores import geometric_mean

TOLERANCE = 0.1
"""How far beyond the published range a prediction of another kernel may be."""


def run(data: Data = DATA) -> int:
    """Print a line for each shape and the geometric mean of each anchor."""
    present(data / "anchors")
    recommender = Recommender([])
    met = [_check(recommender, anchor, list(anchor.shapes(data))) for anchor in ANCHORS]
    return int(not all([*met, _check_attention(recommender)]))


def _check(recommender: Recommender, anchor: Anchor, shapes: list[Shape]) -> bool:
    table, ratios, outside = Table(f"\n{anchor.op} {anchor.dtype}, {anchor.file}"), [], []
    for shape in shapes:
        query = Query(Objective.LATENCY, top=1)
        best = recommender.recommend(anchor.op, "rtx3090", dict(shape.dims), anchor.dtype, query=query).best
        ratios.append(best.latency_s.value / shape.measured_s)
        dims, config = (" ".join(f"{k}={v}" for k, v in each.items()) for each in (shape.dims, best.config))
        if not anchor.each[0] <= ratios[-1] <= anchor.each[1]:
            outside.append(dims)
        times = {"measured us": f"{shape.measured_s * 1e6:.1f}", "predicted us": f"{best.latency_s.value * 1e6:.1f}"}
        table.row({"shape": dims, **times, "ratio": ratios[-1], "bottleneck, config": f"{best.bottleneck}, {config}"})
    mean, spread = geometric_mean(np.array(ratios)), np.exp(DEVIATIONS * np.std(np.log(ratios), ddof=1))
    aim = f"aim {anchor.mean[0]} to {anchor.mean[1]}"
    print(f"geometric mean {mean:.3f} over {len(ratios)} shapes ({aim}), 90 % spread x{spread:.2f}")
    print(f"outside {anchor.each[0]:.2g} to {anchor.each[1]:.2g}: {'; '.join(outside) or 'none'}")
    return anchor.mean[0] <= mean <= anchor.mean[1] and not outside


def _check_attention(recommender: Recommender) -> bool:
    met = True
    table = Table(f"\nattention, TFLOP/s (passes up to {TOLERANCE:.0%} beyond the published range)")
    for entry in PUBLISHED:
        query = Query(Objective.LATENCY, power_limit_w=entry.power_limit_w, top=1)
        best = recommender.recommend("attention", entry.gpu, dict(entry.dims), entry.dtype, query=query).best
        predicted, (low, high) = entry.flops / best.latency_s.value / 1e12, entry.tflops
        met &= low * (1 - TOLERANCE) <= predicted <= high * (1 + TOLERANCE)
        own_s = _in_triton(recommender, entry, query)
        in_triton = f"{entry.flops / own_s / 1e12:.0f}, {own_s / best.latency_s.value:.2f} of the time" if own_s else ""
        shape = " ".join(f"{name}={value}" for name, value in entry.dims.items())
        cells = {"predicted": f"{predicted:.0f}", "published": f"{low:g} to {high:g}", "in Triton": in_triton}
        table.row({"shape": f"{entry.gpu} {shape}", **cells, "source": entry.source})
    return met


def _in_triton(recommender: Recommender, entry: Published, query: Query) -> float | None:
    """Predicted seconds of the library's attention in Triton; None where it has no profiles."""
    request = Request(entry.gpu, None, "attention_triton", dict(entry.dims), entry.dtype, None, query)
    try:
        return recommender.answer(request).best.latency_s.value
    except KernrecError:
        return None
