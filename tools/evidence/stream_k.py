"""How often an even share of the last tiles (Stream-K) is the predicted best matrix product, and by how much.

On a seeded sample of the shapes of a recorded library on an H200 (layout nt) that took it longer than `--least`
seconds: how often `matmul_wgmma` with `stream` is the first choice, and the predicted latency and energy of these over
those of the fastest of all configs without it, by how many waves of 128 x 256 tiles a shape has. All figures are the
model's: no GPU ran this kernel.
"""

from itertools import pairwise
from typing import Literal

import numpy as np
from front import DATA, Data, Table

from kernrec.gpu import GPU, find_gpu
from kernrec.op import Problem, find_op
from kernrec.recommender import Recommender
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT
from kernrec.recommender.rank import candidate_set
from kernrec.store import Evidence

from .products import FILES, recorded

WAVES = (0.0, 1.0, 2.0, 4.0, np.inf)


def run(
    data: Data = DATA, gpu: str = "h200-sxm", dtype: Literal["f16", "bf16", "f8e4m3"] = "bf16", shapes: int = 300,
    least: float = 20e-6,
) -> None:  # fmt: skip
    """Print the figures for a GPU of Hopper."""
    m, n, k, _ = recorded(data / "library" / f"{FILES['h200-sxm']}.parquet", least, shapes, "stream ")
    card, recommender, product = find_gpu(gpu), Recommender([]), find_op("matmul")
    problems = [product.problem(dtype, "nt", **dict(zip("mnk", map(int, d), strict=True))) for d in zip(m, n, k)]  # noqa: B905
    chosen = np.array([compared(recommender, problem, card) for problem in problems])
    waves = -(-m // 128) * -(-n // 256) / card.sms
    table = Table(f"{card.name}, {dtype}, nt: share of shapes with Stream-K first; of these, over the best without")
    groups = {"all": np.full(len(m), True)}
    for low, high in pairwise(WAVES):
        groups[f"{low:g} to {high:g}" if np.isfinite(high) else f"beyond {low:g}"] = (waves > low) & (waves <= high)
    for name, members in groups.items():
        if members.any():
            shared = chosen[members & (chosen[:, 0] > 0)]
            cells: dict[str, object] = {"waves": name, "shapes": members.sum()}
            cells["share"] = f"{len(shared) / members.sum():.0%}"
            if len(shared):
                latency, energy = np.exp(np.log(shared[:, 1:]).mean(axis=0))
                least_latency = shared[:, 1].min()
                cells |= {"latency": f"{latency:.3f}", "least": f"{least_latency:.3f}", "energy": f"{energy:.3f}"}
            table.row(cells)


def compared(recommender: Recommender, problem: Problem, gpu: GPU) -> tuple[bool, float, float]:
    """Whether the fastest config shares the last tiles; its latency and energy over those of the fastest without."""
    tables = recommender.context.tables(problem, gpu)
    every = candidate_set(tables, problem, [DEFAULT_POINT], Evidence(), recommender.context.models, whole_space=True)
    shares = np.zeros(every.latency_s.shape[1], np.bool_)
    for start, kernel in zip(every.starts, every.kernels, strict=False):
        if kernel.table.kernel.name == "matmul_wgmma":
            shares[start : start + len(kernel.rows)] = kernel.table.space.columns["stream"][kernel.rows] > 0
    best = every.fastest
    without = int(np.where(shares, np.inf, every.latency_s[0]).argmin())
    latency, energy = (float(costs[0, best] / costs[0, without]) for costs in (every.latency_s, every.energy_j))
    return bool(shares[best]), latency, energy
