"""Profiles made from a sample of blocks (`kernrec.profile.sample_profile`), as the candidates of a kernel use them.

What a spec would declare is read off the sample: how often a block waits for memory, and how the tiles of neighbouring
blocks overlap. A user's kernel may also lean on L1 for reuse, which kernels of the library do by shared memory: sectors
that a block asks for again are found in L1 as far as what its SM's blocks touch fits there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from kernrec.gpu import GPU, occupancy
from kernrec.kernel import Kernel, SpaceAt
from kernrec.model.prior.dram_traffic import Footprint
from kernrec.model.prior.microarchitecture import microarchitecture
from kernrec.store import ProfileTable

Array = np.ndarray

_SECTOR_BYTES = 32.0
_L1_BEYOND_SHARED_BYTES = 28 << 10
"""L1 and shared memory together have this much more than the largest shared memory (CUDA C++ Programming Guide,
"Technical Specifications per Compute Capability": 128 KB of which 100 on 8.6, 192 and 164 on 8.0)."""

_L1_SHARE_OF_LATENCY = 0.07
"""Load to use from L1 over that from DRAM: some 35 of 540 clocks (arXiv 2402.13499, tables of memory latency)."""


@dataclass(frozen=True)
class SampledLaunch:
    """One launch of all sampled configs. asked: its profiles; table: the same without reads that L1 answers.

    rounds: how often a block waits for memory, (rows,), in latencies of DRAM: what a cache answers counts by its share.
    """

    asked: ProfileTable
    table: ProfileTable
    rounds: Array

    def footprints(
        self, codes: Array, tensor_bytes: Mapping[str, Array | float], scratch: frozenset[str]
    ) -> list[Footprint]:
        """What these codes touch of each tensor."""
        found = []
        for written, what in ((False, "read"), (True, "write")):
            for name, size in tensor_bytes.items():
                own = f"touch.{name}.{what}"
                if own in self.table.metrics:
                    x, y, z = (_column(self.table, f"{own}.{axis}").take(codes) for axis in "xyz")
                    sectors = _column(self.table, own).take(codes)
                    found.append(Footprint(sectors * _SECTOR_BYTES, (x, y, z), size, written, name in scratch))
        return found


def read_sample(kernel: Kernel, index: int, table: ProfileTable, found: Array, at: SpaceAt, gpu: GPU) -> SampledLaunch:
    """One launch of a kernel; `found`: row of the space -> row of `table`, -1 where there is none."""
    launch = at.launch(index)
    rows = np.flatnonzero(found >= 0)

    def by_code(column: Array | int) -> Array:
        """A column of the space as one of the table."""
        spread = np.broadcast_to(np.asarray(column), len(found))
        values = np.zeros(len(table.variant_keys), dtype=np.int64)
        values[found[rows]] = spread[rows]
        return values

    shared = by_code(launch.shared_bytes) + table.static_smem_bytes
    resident = occupancy(gpu.limits, by_code(launch.threads), table.registers, shared).blocks
    cache = gpu.limits.smem_per_sm + _L1_BEYOND_SHARED_BYTES - resident * shared
    reads = [m.removeprefix("touch.").removesuffix(".read") for m in table.metrics if m.endswith(".read")]
    kept = sum((_column(table, f"touch.{name}.read") for name in reads), np.zeros(len(table.variant_keys)))
    miss = np.clip(1.0 - cache / np.maximum(kept * _SECTOR_BYTES * resident, 1.0), 0.0, 1.0)
    counts = table.counts.copy()
    asked, through, distinct = (np.zeros(len(counts)) for _ in range(3))
    grid = [by_code(extent) for extent in launch.grid]
    for name in reads:
        metric = f"global.{name}.read_sectors"
        if metric in table.metrics:
            place = table.metrics.index(metric)
            once = _column(table, f"touch.{name}.read")
            asked += counts[:, place, 0]
            counts[:, place, 0] = once + np.maximum(counts[:, place, 0] - once, 0.0) * miss
            through += counts[:, place, 0]
            fresh = [_column(table, f"touch.{name}.read.{axis}") for axis in "xyz"]
            distinct += once * np.prod([1.0 + f * (n - 1.0) for f, n in zip(fresh, grid, strict=True)], axis=0)
    # What the blocks ask of memory together but is not new to the whole grid is found in L2, at its latency.
    figures = microarchitecture(gpu)
    past_l1 = through / np.maximum(asked, 1.0)
    past_l2 = np.minimum(distinct / np.maximum(through * np.prod(grid, axis=0), 1.0), 1.0)
    far = past_l2 + (1.0 - past_l2) * (figures.l2_latency_clk / figures.dram_latency_clk)
    waits = _column(table, "rounds") * (past_l1 * far + (1.0 - past_l1) * _L1_SHARE_OF_LATENCY)
    return SampledLaunch(table, replace(table, counts=counts), waits)


def _column(table: ProfileTable, metric: str) -> Array:
    """Events per block of each code; a metric that no block had is zero."""
    if metric not in table.metrics:
        return np.zeros(len(table.variant_keys))
    return table.counts[:, table.metrics.index(metric), 0]
