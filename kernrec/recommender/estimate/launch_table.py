"""Tables of a kernel's launches: profiles, resource demand and geometry for every config."""

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from kernrec.kernel import Expression, Kernel, ProblemSpace
from kernrec.model.analytical.demand import Demand
from kernrec.model.analytical.dram_traffic import TensorAccess, sampled_dram_bytes
from kernrec.model.analytical.microarchitecture import (
    BLOCKS,
    CONCURRENT,
    DRAM_BYTES,
    DRAM_SLOWDOWN,
    LAUNCH_S,
    LONE_WAITS,
    LOOPS,
    OVERLAPPED,
    PREFETCH,
    SERIAL_CLK,
    WAIT_ROUNDS,
)
from kernrec.op.dtype import ELEMENT_BYTES
from kernrec.recommender.estimate.operating_point import WARM
from kernrec.store import ProfileTable
from kernrec.util.engine import query
from kernrec.util.light_dataclass import dataclass

if TYPE_CHECKING:
    from kernrec.recommender.estimate.sampled_launch import SampledLaunch

Array = np.ndarray


@dataclass(frozen=True)
class LaunchTable:
    """Profiles and resource demand of one launch, for every config of the kernel."""

    demand: Demand
    variant: Array
    """Row of `profiles` for each config, or -1 if the config has no profile, (configs,)."""
    profiles: ProfileTable
    """Profile of each compiled variant. A profile from emulated blocks counts only memory sectors that miss L1."""
    sample: "SampledLaunch | None"
    """Additional results of emulated blocks, or None if no blocks were emulated."""
    access: TensorAccess
    incomplete: bool

    @cached_property
    def loops(self) -> tuple[str, ...]:
        """Names of the loops whose iterations the profiles count, in order."""
        return self.profiles.terms[1:]


@dataclass(frozen=True)
class LaunchGeometry:
    """Geometry of one launch for every config. Arrays have shape (configs,) unless stated otherwise."""

    performed: Array
    warps: Array
    prefetch: Array
    """Number of loop iterations whose loads a block issues in advance."""
    resident: Array
    """Resident blocks per SM, or 0 if a block does not fit into an SM.

    The number is 1 if a block of a user's kernel needs slightly too many registers (see `StaticTable.geometry`).
    """
    fits: Array
    """Whether a block of the profiled code fits into an SM."""
    occupancy: Array
    """Resident warps as a fraction of an SM's maximum, or 0 if a block does not fit into an SM."""
    quick: Array
    """Inputs for a quick estimate of costs, as an array of shape (1 + loops, 3, configs).

    The first axis contains the inputs per block, then per iteration of each loop. The three inputs are clock cycles of
    the busiest pipe, clock cycles of a block that is alone on its SM, and core energy in joules.
    """

    @cached_property
    def columns(self) -> Array:
        """`resident`, `warps` and `prefetch` as one array, (3, configs)."""
        return np.stack([self.resident, self.warps, self.prefetch])


def prefetched(launch: LaunchTable, declared: Array) -> Array:
    """Return the number of loop iterations that each config prefetches, (configs,).

    The kernel's spec states the number (`declared`). Emulated code without asynchronous copies prefetches nothing.
    """
    if launch.sample is None or not declared.any():
        return declared
    return np.where(launch.sample.table.column("issue.cp_async").take(launch.variant) > 0.0, declared, 0.0)


_SECOND_PASS_CLK = 2500.0
"""Clock cycles that the quick estimate adds to each launch after the first, for its start, first load and store."""


def kernel_plan(table: Any, on_problem: ProblemSpace) -> Any:
    """Convert a kernel's `StaticTable` to the C++ engine's `Kernel`, for all problems with the same launch geometry.

    If the profiles come from emulated blocks, the result is valid only for the problem of `on_problem`.
    """
    geometries, first, launch = table.geometries(on_problem), table.kernel.launches[0], table.launches[0]
    launches = [_launch(table, on_problem, index, geometry) for index, geometry in enumerate(geometries)]
    shapes = np.empty((4, len(table)))
    shapes[0] = on_problem.column(first.threads)
    shapes[1] = geometries[0].resident
    shapes[2] = launch.profiles.registers.take(launch.variant)
    shapes[3] = launch.profiles.static_smem_bytes.take(launch.variant) + on_problem.column(first.shared)
    slower = table.calibration.core_time if table.calibration else 1.0
    clk_j = slower * table.power.static_w / table.gpu.boost_clock_hz
    able, occupancy = table.able_configs(on_problem), geometries[0].occupancy
    of_configs = able, occupancy, shapes, table.machine_code(on_problem)
    return query.Kernel(table.space.in_engine, launches, *of_configs, table.is_call, clk_j, table.dram_byte_j)


def _launch(table: Any, on_problem: ProblemSpace, index: int, geometry: LaunchGeometry) -> Any:
    spec, launch, access = table.kernel.launches[index], table.launches[index], table.launches[index].access
    figures: list[Expression | None] = [None] * (3 + 2 * len(launch.loops) + access.steps)
    if launch.sample is None:
        figures = [spec.blocks, None if spec.visits is spec.blocks else spec.visits, spec.waits]
        for loop in launch.loops:
            figures += [spec.trips[loop], spec.depth[loop]]
        figures += [extent for _, extent in spec.order] or [None]
    own = {workspace.name: workspace for workspace in table.kernel.workspaces}
    tensors = [
        (name, own[name].elements, float(ELEMENT_BYTES[own[name].dtype])) if name in own else (name, None, 0.0)
        for name in access.tensors
    ]
    start_clk = LAUNCH_S * table.gpu.boost_clock_hz + _SECOND_PASS_CLK * (index > 0)
    return query.Launch(
        table.space.in_engine,
        access.in_engine,
        launch.demand.by_variant,
        table.device,
        len(launch.loops),
        figures,
        tensors,
        launch.demand.first_alike.take(launch.variant, mode="clip"),
        geometry.performed,
        geometry.columns,
        geometry.quick.reshape(-1, len(table)),
        start_clk,
        spec.entry == table.kernel.launches[0].entry,
        None if launch.sample is None else _sampled_work(table, on_problem, index, geometry),
    )


def tensors_in_l2(kernel: Kernel, l2: str, tensors: Iterable[str]) -> frozenset[str]:
    """Return the names of the tensors that are at least partly in L2 when a launch starts."""
    workspaces = {workspace.name for workspace in kernel.workspaces}
    return frozenset(tensors if l2 == WARM else workspaces.intersection(tensors))


def _sampled_work(table: Any, on_problem: ProblemSpace, index: int, geometry: LaunchGeometry) -> Array:
    """Return the cost model's inputs for a launch with emulated blocks, as an array of shape (inputs, configs)."""
    from kernrec.recommender.estimate.sampled_launch import busy_grid, footprints

    spec, launch = table.kernel.launches[index], table.launches[index]
    sample, variants, rows = launch.sample, launch.variant, np.arange(len(table))
    assert sample is not None
    work = np.zeros((LOOPS + 2 * len(launch.loops), len(table)))
    work[CONCURRENT : PREFETCH + 1] = geometry.columns
    blocks = work[BLOCKS] = table.blocks(on_problem, index, rows)
    for number, loop in enumerate(launch.loops):
        work[LOOPS + 2 * number : LOOPS + 2 * number + 2] = table.trips(on_problem, index, loop, rows, blocks)
    work[LONE_WAITS] = on_problem.column(spec.waits)
    extents = [np.zeros(len(table)) + on_problem.column(extent) for extent in spec.grid]
    x, y, z = busy_grid(extents, sample.busy.take(variants))
    sizes: dict[str, Array | float] = {**on_problem.problem.tensor_bytes}
    for workspace in table.kernel.workspaces:
        if workspace.name in launch.access.tensors:
            sizes[workspace.name] = np.zeros(len(table)) + np.multiply(
                on_problem.column(workspace.elements), float(ELEMENT_BYTES[workspace.dtype])
            )
    concurrent, l2_bytes = geometry.resident * float(table.gpu.sms), float(table.gpu.l2_bytes)
    with np.errstate(all="ignore"):  # Configs that cannot run have NaN values.
        in_order = dict.fromkeys(launch.access.tensors, 0.0) | sizes
        in_l2 = tensors_in_l2(table.kernel, table.conditions.l2, in_order)
        touched = footprints(sample.table, variants, in_order, in_l2)
        rereads = sample.rereads(variants)
        work[DRAM_BYTES] = sampled_dram_bytes((x, y, z), touched, concurrent, l2_bytes, rereads)
        work[DRAM_BYTES] += blocks * sample.local_dram_bytes(variants, concurrent, l2_bytes)
        work[DRAM_SLOWDOWN] = sample.dram_slowdown(variants, (x, y, z), concurrent, l2_bytes)
        work[SERIAL_CLK] = sample.serial_clk(variants, blocks)
    work[WAIT_ROUNDS] = sample.every_round.take(variants)
    work[OVERLAPPED] = sample.overlapped.take(variants)
    return work
