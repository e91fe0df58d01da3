"""One launch of every config of a space: its profiles with their demand of the GPU, and its geometry."""

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
    """One launch of every config of a space: its profiles, and their demand of the GPU."""

    demand: Demand
    """By row of the profile table."""
    variant: Array
    """Row of the space -> row of the profile table, -1 where the launch is not profiled; (rows,)."""
    profiles: ProfileTable
    """Of a kernel profiled by a sample of blocks: without the sectors that L1 answers."""
    sample: SampledLaunch | None
    """Only of a kernel profiled by a sample of blocks."""
    access: TensorAccess
    incomplete: bool
    """Whether some variant of the space has no profile of this launch."""

    @cached_property
    def loops(self) -> tuple[str, ...]:
        """The loops whose trips the profiles count, in order."""
        return self.profiles.terms[1:]


@dataclass(frozen=True)
class LaunchGeometry:
    """One launch of every row of a space; arrays (rows,)."""

    performed: Array
    """Whether the config performs the launch."""
    warps: Array
    """Warps of a block."""
    prefetch: Array
    """Trips whose loads are in flight ahead."""
    resident: Array
    """Blocks that an SM holds; 0 where the launch does not fit. Of a user's kernel one block where it needs more
    registers than there are by less than a granule: such a config is estimated only where another compiler ran it."""
    fits: Array
    """Whether the launch fits as it was compiled."""
    occupancy: Array
    """Resident warps over the most an SM holds; 0 where the launch does not fit."""
    quick: Array
    """Clocks of the busiest pipe and of a block alone, and joules of the core, by term of a demand (terms, 3, rows)."""

    @cached_property
    def columns(self) -> Array:
        """`resident`, `warps` and `prefetch` as rows, (3, rows)."""
        return np.stack([self.resident, self.warps, self.prefetch])

    @cached_property
    def _everywhere(self) -> bool:
        return bool(self.performed.all())

    def performing(self, rows: Array) -> Array:
        """The positions in `rows` that perform the launch, ascending."""
        return np.arange(len(rows)) if self._everywhere else self.performed.take(rows).nonzero()[0]

    @cached_property
    def occupancy_score(self) -> Array:
        """Return the order of the occupancy heuristic, that of `cudaOccupancyMaxPotentialBlockSize`, (rows,).

        The most resident warps come first, then the largest block, then the first config in canonical order.
        """
        return np.asarray(self.occupancy * 4096.0 + self.warps)


def prefetched(launch: LaunchTable, declared: Array) -> Array:
    """Trips whose loads are in flight ahead; of sampled code that copies nothing asynchronously none are."""
    if launch.sample is None or not declared.any():
        return declared
    table = launch.sample.table
    if "issue.cp_async" not in table.metrics:
        return np.zeros_like(declared)
    copies = table.counts[:, table.metrics.index("issue.cp_async"), 0]
    return np.where(copies.take(launch.variant) > 0.0, declared, 0.0)
