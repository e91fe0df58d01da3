"""Launches profiled from a sample of blocks (`kernrec.profile.sample_profile`), as a static table uses them.

What a spec would declare is taken from the sample: how often a block waits for memory, and how the tiles of neighboring
blocks overlap. A user's kernel may also rely on L1 for reuse, where kernels of the library use shared memory: sectors
that a block requests again hit in L1 as far as the footprints of the blocks on its SM fit there.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from kernrec.gpu import GPU, occupancy
from kernrec.kernel import ProblemSpace
from kernrec.model.prior.dram_traffic import Footprint
from kernrec.model.prior.microarchitecture import microarchitecture
from kernrec.store import ProfileTable
from kernrec.util.light_dataclass import dataclass

Array = np.ndarray

_SECTOR_BYTES = 32.0
_L1_BEYOND_SHARED_BYTES = 28 << 10
"""L1 and shared memory together have this much more than the largest shared memory (CUDA C++ Programming Guide,
"Technical Specifications per Compute Capability": 128 KB of which 100 on 8.6, 192 and 164 on 8.0)."""

_L1_SHARE_OF_LATENCY = 0.07
"""Load to use from L1 over that from DRAM: some 35 of 540 clocks (arXiv 2402.13499, tables of memory latency)."""


@dataclass(frozen=True)
class SampledLaunch:
    """One launch of all sampled configs."""

    requested: ProfileTable
    """The profiles, with all sectors that the blocks request."""
    table: ProfileTable
    """The same without the sectors that L1 answers."""
    rounds: Array
    """How often a block waits for memory, in latencies of DRAM; a hit in a cache counts by its share. By row."""

    def footprints(
        self, variants: Array, tensor_bytes: Mapping[str, Array | float], scratch: frozenset[str]
    ) -> list[Footprint]:
        """What the blocks of these variants touch of each tensor."""
        footprints = []
        for written, what in ((False, "read"), (True, "write")):
            for name, size in tensor_bytes.items():
                metric = f"touch.{name}.{what}"
                if metric in self.table.metrics:
                    x, y, z = (_column(self.table, f"{metric}.{axis}").take(variants) for axis in "xyz")
                    sectors = _column(self.table, metric).take(variants)
                    footprints.append(Footprint(sectors * _SECTOR_BYTES, (x, y, z), size, written, name in scratch))
        return footprints


def read_sample(index: int, table: ProfileTable, variants: Array, on_problem: ProblemSpace, gpu: GPU) -> SampledLaunch:
    """The sample of launch number `index`.

    Args:
        index: number of the launch.
        table: its profiles.
        variants: row of the space -> row of `table`, -1 where there is none.
        on_problem: the space on the problem that was sampled.
        gpu: the GPU.
    """
    launch = on_problem.launch(index)
    rows = np.flatnonzero(variants >= 0)

    def by_variant(column: Array | int) -> Array:
        """A column of the space as one of the table."""
        spread = np.broadcast_to(np.asarray(column), len(variants))
        values = np.zeros(len(table.variant_keys), dtype=np.int64)
        values[variants[rows]] = spread[rows]
        return values

    shared = by_variant(launch.shared_bytes) + table.static_smem_bytes
    resident = occupancy(gpu.limits, by_variant(launch.threads), table.registers, shared).blocks
    cache = gpu.limits.smem_per_sm + _L1_BEYOND_SHARED_BYTES - resident * shared
    reads = [m.removeprefix("touch.").removesuffix(".read") for m in table.metrics if m.endswith(".read")]
    footprint = sum((_column(table, f"touch.{name}.read") for name in reads), np.zeros(len(table.variant_keys)))
    miss = np.clip(1.0 - cache / np.maximum(footprint * _SECTOR_BYTES * resident, 1.0), 0.0, 1.0)
    counts = table.counts.copy()
    requested, through, distinct = (np.zeros(len(counts)) for _ in range(3))
    grid = [by_variant(extent) for extent in launch.grid]
    for name in reads:
        metric = f"global.{name}.read_sectors"
        if metric in table.metrics:
            place = table.metrics.index(metric)
            once = _column(table, f"touch.{name}.read")
            requested += counts[:, place, 0]
            counts[:, place, 0] = once + np.maximum(counts[:, place, 0] - once, 0.0) * miss
            through += counts[:, place, 0]
            fresh = [_column(table, f"touch.{name}.read.{axis}") for axis in "xyz"]
            distinct += once * np.prod([1.0 + f * (n - 1.0) for f, n in zip(fresh, grid, strict=True)], axis=0)
    # Sectors that the blocks request but that are not new to the whole grid hit in L2, at its latency.
    figures = microarchitecture(gpu)
    past_l1 = through / np.maximum(requested, 1.0)
    past_l2 = np.minimum(distinct / np.maximum(through * np.prod(grid, axis=0), 1.0), 1.0)
    far = past_l2 + (1.0 - past_l2) * (figures.l2_latency_clk / figures.dram_latency_clk)
    waits = _column(table, "rounds") * (past_l1 * far + (1.0 - past_l1) * _L1_SHARE_OF_LATENCY)
    return SampledLaunch(table, replace(table, counts=counts), waits)


def _column(table: ProfileTable, metric: str) -> Array:
    """Events per block of each variant; a metric that no block had is zero."""
    if metric not in table.metrics:
        return np.zeros(len(table.variant_keys))
    return table.counts[:, table.metrics.index(metric), 0]
