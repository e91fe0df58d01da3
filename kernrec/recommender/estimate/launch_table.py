"""Profiles, resource demand and geometry of one launch, for every config of a space."""

from functools import cached_property

import numpy as np

from kernrec.model.prior.demand import Demand
from kernrec.model.prior.dram_traffic import TensorAccess
from kernrec.recommender.estimate.sampled_launch import SampledLaunch
from kernrec.store import ProfileTable
from kernrec.util.light_dataclass import dataclass

Array = np.ndarray


@dataclass(frozen=True)
class LaunchTable:
    """Profiles and resource demand of one launch, for every config of a space."""

    demand: Demand
    """Resource demand, by row of the profile table."""
    variant: Array
    """Row of the profile table for each row of the space, -1 without a profile; (rows,)."""
    profiles: ProfileTable
    """Profiles; for a kernel profiled from a sample of blocks, without the sectors that hit in L1."""
    sample: SampledLaunch | None
    """Sample of a kernel profiled from a sample of blocks; else None."""
    access: TensorAccess
    incomplete: bool
    """Whether any variant of the space lacks a profile of this launch."""

    @cached_property
    def loops(self) -> tuple[str, ...]:
        """Loops whose trips the profiles count, in order."""
        return self.profiles.terms[1:]


@dataclass(frozen=True)
class LaunchGeometry:
    """Geometry of one launch for every row of a space; arrays (rows,)."""

    performed: Array
    """Whether the config performs the launch."""
    warps: Array
    """Warps per block."""
    prefetch: Array
    """Number of trips whose loads are prefetched."""
    resident: Array
    """Resident blocks per SM; 0 if the launch does not fit. It is 1 for a user's kernel that exceeds the registers by
    less than the allocation granularity. Such a config is estimated only if it ran with another compiler."""
    fits: Array
    """Whether the launch fits as compiled."""
    occupancy: Array
    """Resident warps as a fraction of an SM's maximum; 0 if the launch does not fit."""
    quick: Array
    """Clocks of the busiest pipe, clocks of a lone block, joules of the core, by term of a demand; (terms, 3, rows)."""

    @cached_property
    def columns(self) -> Array:
        """`resident`, `warps` and `prefetch` as rows, (3, rows)."""
        return np.stack([self.resident, self.warps, self.prefetch])

    @cached_property
    def _everywhere(self) -> bool:
        return bool(self.performed.all())

    def performing(self, rows: Array) -> Array:
        """Return the positions in `rows` that perform the launch, ascending."""
        return np.arange(len(rows)) if self._everywhere else self.performed.take(rows).nonzero()[0]

    @cached_property
    def occupancy_score(self) -> Array:
        """Score of the occupancy heuristic, in the order of `cudaOccupancyMaxPotentialBlockSize`, (rows,).

        Most resident warps come first, then the largest block, then the first config in canonical order.
        """
        return np.asarray(self.occupancy * 4096.0 + self.warps)


def prefetched(launch: LaunchTable, declared: Array) -> Array:
    """Return the number of prefetched trips; 0 for sampled code without asynchronous copies."""
    if launch.sample is None or not declared.any():
        return declared
    table = launch.sample.table
    if "issue.cp_async" not in table.metrics:
        return np.zeros_like(declared)
    copies = table.counts[:, table.metrics.index("issue.cp_async"), 0]
    return np.where(copies.take(launch.variant) > 0.0, declared, 0.0)
