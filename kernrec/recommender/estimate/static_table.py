"""Static table: the configs of one kernel on one GPU, with all results that do not depend on the problem."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Any

import numpy as np

from kernrec.errors import KernrecError
from kernrec.gpu import GPU, Occupancy, occupancy
from kernrec.kernel import Expression, Kernel, ProblemSpace, Space
from kernrec.model.analytical.calibration import Calibration
from kernrec.model.analytical.demand import CORE_J, PORT, demand
from kernrec.model.analytical.dram_traffic import TensorAccess
from kernrec.model.analytical.launch_time import alone_clk, device
from kernrec.model.analytical.microarchitecture import microarchitecture
from kernrec.model.analytical.power import DRAM, PowerModel
from kernrec.op import Problem
from kernrec.recommender.estimate.launch_table import (
    LaunchGeometry,
    LaunchTable,
    kernel_plan,
    prefetched,
    tensors_in_l2,
)
from kernrec.recommender.estimate.operating_point import MEASURED_CONDITIONS, WARM, Conditions
from kernrec.store import ProfileTable
from kernrec.util.light_dataclass import dataclass

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class StaticTable:
    """Configs and profiles of a kernel for one GPU, data type and layout. Each row is a config of `space`."""

    kernel: Kernel
    gpu: GPU
    space: Space
    conditions: Conditions
    """Input data and state of L2 that the table assumes."""
    power: PowerModel
    calibration: Calibration | None
    """Fitted coefficients of the analytical model. None means that the model uses the GPU's data sheet."""
    launches: tuple[LaunchTable, ...]
    usable: Array
    """Whether each config may be used, bool (rows,)."""
    unprofiled: int
    """Number of compiled variants without a profile."""
    spilling: int
    """Number of compiled variants that spill registers."""
    _geometries: dict[int, LaunchGeometry] = field(default_factory=dict, repr=False)
    plans: list[Any] = field(default_factory=list, repr=False)
    """Result of `plan`, if it is the same for all problems."""
    models: list[Any] = field(default_factory=list, repr=False)
    """Trained models in the engine's form, cached by `correction.applied`."""

    @classmethod
    def of(
        cls,
        kernel: Kernel,
        problem: Problem,
        gpu: GPU,
        profiles: Mapping[int, ProfileTable],
        calibration: Calibration | None = None,
        conditions: Conditions = MEASURED_CONDITIONS,
    ) -> "StaticTable":
        """Prepare the estimates of a kernel's configs for all problems with the data type and layout of `problem`.

        Args:
            problem: any of these problems. If the profiles come from sampled blocks, the problem that was emulated.
            profiles: static profiles, keyed by the index of the launch.
            calibration: fitted coefficients of the analytical model, or None to use the GPU's data sheet.
            conditions: input data of the kernel, and the state of L2 when a launch starts.

        Raises:
            KernrecError: a launch has no profiles for the GPU's architecture.
        """
        power = PowerModel.for_gpu(gpu, conditions.inputs)
        power = calibration.apply_to_power(power) if calibration else power
        space = Space.of(kernel, problem, gpu)
        variants = space.configs_on(problem) if kernel.sampled else space.variants
        spills, unprofiled = np.zeros(len(variants.keys), dtype=bool), np.ones(len(variants.keys), dtype=bool)
        launches: list[LaunchTable] = []
        warm = conditions.l2 == WARM
        lanes = gpu.fma_per_clk_sm
        bf16 = lanes.get("bf16", lanes["f16"]) < lanes["f16"] and problem.dtype != "f16"
        # A user's kernel may compute in bf16 although the data type of its problem differs.
        bf16 &= problem.dtype == "bf16" or "bf16" in kernel.source or "bfloat16" in kernel.source
        for index, spec in enumerate(kernel.launches):
            if (table := profiles.get(index)) is None:
                raise KernrecError(
                    f"no database holds profiles of {kernel.name} {kernel.hash} for {gpu.arch}"
                    " (tools/build_database.py makes them)"
                )
            place = {key: row for row, key in enumerate(table.variant_keys)}
            rows = np.array([place.get(key, -1) for key in variants.keys], dtype=np.int64)
            unprofiled &= rows < 0  # A variant with one profiled launch counts as profiled.
            spills |= (rows >= 0) & (table.spill_bytes[rows] > 0)
            sample = None
            if kernel.sampled:
                from kernrec.recommender.estimate.sampled_launch import read_sample, uneven

                sample = read_sample(index, table, rows, space.at(problem), gpu, warm)
                table = sample.table
            needs = demand(gpu, power, table.metrics, table.counts, bf16)
            in_l2 = tensors_in_l2(kernel, conditions.l2, (*spec.reads, *spec.writes))
            launches.append(
                LaunchTable(
                    demand=needs if sample is None else uneven(needs, sample),
                    variant=rows[variants.index],
                    profiles=table,
                    sample=sample,
                    access=TensorAccess([axis for axis, _ in spec.order], spec.reads, spec.writes, in_l2),
                    incomplete=bool((rows < 0).any()),
                )
            )
        return cls(
            kernel=kernel,
            gpu=gpu,
            space=space,
            conditions=conditions,
            power=power,
            calibration=calibration,
            launches=tuple(launches),
            # Exclude code that spills, because only `sampled_launch` estimates the cost of spills.
            usable=(~spills | kernel.sampled)[variants.index],
            unprofiled=int(unprofiled.sum()),
            spilling=int(spills.sum()),
        )

    def __len__(self) -> int:
        return len(self.space)

    @cached_property
    def device(self) -> Any:
        """GPU in the engine's form."""
        fitted = self.calibration
        return device(self.gpu, *((fitted.core_time, fitted.dram_time) if fitted else ()))

    @cached_property
    def dram_byte_j(self) -> float:
        """Energy in joules to move one byte between L2 and DRAM."""
        return self.power.event_j(DRAM)

    def config(self, row: int) -> dict[str, int]:
        return self.space.config(row)

    @property
    def is_call(self) -> bool:
        """Whether the kernel is a captured Triton launch. Its configs differ only in their code and grid."""
        return self.kernel.triton is not None and self.kernel.sampled

    def machine_code(self, on_problem: ProblemSpace) -> Array:
        """Return numbers that are equal for configs with the same machine code and block size.

        Returns:
            Warps per block of the first launch, then a number for the code of each launch, (rows, 1 + launches).
        """
        codes = [launch.variant for launch in self.launches]
        if self.is_call:
            (launch,), (spec,) = self.launches, self.kernel.launches
            profiles = launch.profiles
            grid = [np.broadcast_to(np.asarray(on_problem.column(extent)), len(self)) for extent in spec.grid]
            numbers: dict[tuple[Any, ...], int] = {}
            codes = [np.zeros(len(self), dtype=np.int64)]
            for row, variant in enumerate(launch.variant.tolist()):
                resources = int(profiles.registers[variant]), int(profiles.static_smem_bytes[variant])
                key = (profiles.counts[variant].tobytes(), *resources, *(int(extent[row]) for extent in grid))
                codes[0][row] = numbers.setdefault(key, len(numbers))
        return np.stack([self.geometry(on_problem, 0).warps.astype(np.int64), *codes], axis=1)

    @cached_property
    def bandwidth(self) -> float:
        """Achievable DRAM bandwidth in bytes per second."""
        calibrated = self.calibration.dram_time if self.calibration else 1.0
        return self.gpu.memory_bandwidth * microarchitecture(self.gpu).dram_efficiency / calibrated

    def of_any_problem(self, problem: Problem) -> bool:
        """Return whether this table serves all problems of the same op, data type and layout."""
        return not self.kernel.sampled and len(self.geometries(self.space.at(problem))) == len(self._geometries)

    def runnable(self, on_problem: ProblemSpace, measured: Array | None = None) -> Array:
        """Return the indices of the configs that can run a problem, ascending.

        Rows in `measured` are included even if their code spills registers.
        """
        rows: Array = on_problem.valid_among(self.able_configs(on_problem, measured)).nonzero()[0]
        return rows

    def able_configs(self, on_problem: ProblemSpace, measured: Array | None = None) -> Array:
        """Return a mask of the configs that can run, (rows,). The kernel's constraints are not checked."""
        geometries = self.geometries(on_problem)
        if measured is None or not len(measured):
            return self._profiled(geometries, self.usable & geometries[0].fits)
        usable = self.usable.copy()
        usable[measured] = True
        return self._profiled(geometries, usable & (geometries[0].resident > 0))

    def profiled(self, on_problem: ProblemSpace) -> Array:
        """Return whether each config has a profile of every launch that it performs, bool (rows,)."""
        return self._profiled(self.geometries(on_problem), np.ones(len(self.space), dtype=bool))

    def _profiled(self, geometries: Sequence[LaunchGeometry], can: Array) -> Array:
        """Return the mask `can`, (rows,), without the configs that lack a profile."""
        for launch, geometry in zip(self.launches, geometries, strict=True):
            if launch.incomplete:
                can = can & ((launch.variant >= 0) | ~geometry.performed)
        return can

    def blocks(self, on_problem: ProblemSpace, index: int, rows: Array) -> Array:
        """Return the number of blocks with work in a launch, for the configs in `rows`."""
        launch = self.launches[index]
        blocks: Array = on_problem.column(self.kernel.launches[index].blocks, rows) + np.zeros(len(rows))
        return blocks if launch.sample is None else blocks * launch.sample.busy.take(launch.variant.take(rows))

    def trips(self, on_problem: ProblemSpace, index: int, loop: str, rows: Array, blocks: Array) -> tuple[Array, Array]:
        """Return the iterations of a loop in all blocks together, and in the longest block, for each config."""
        spec, launch = self.kernel.launches[index], self.launches[index]
        if launch.sample is not None:
            variants = launch.variant.take(rows)
            rounds = launch.sample.rounds.take(variants)
            return rounds * blocks, rounds * launch.sample.longest.take(variants)
        return on_problem.column(spec.trips[loop], rows), on_problem.column(spec.depth[loop], rows)

    def performed(self, on_problem: ProblemSpace, row: int) -> list[int]:
        """Return the indices of the launches that the config in a row performs."""
        return [index for index in range(len(self.launches)) if self.geometry(on_problem, index).performed[row]]

    def counts(self, on_problem: ProblemSpace, index: int, row: int, requested: bool = False) -> dict[str, float]:
        """Return the number of events in one launch of a config, keyed by profile metric.

        Profiles of sampled blocks exclude memory sectors that hit in L1, unless `requested` is true.
        """
        launch, rows = self.launches[index], np.array([row])
        table = launch.sample.requested if requested and launch.sample is not None else launch.profiles
        blocks = self.blocks(on_problem, index, rows)
        totals = [
            blocks,
            *(self.trips(on_problem, index, loop, rows, blocks)[0] + np.zeros(1) for loop in launch.loops),
        ]
        values = table.counts[launch.variant[row]] @ np.array([float(total[0]) for total in totals])
        return dict(zip(table.metrics, values.tolist(), strict=True))

    def resources(self, on_problem: ProblemSpace, index: int, row: int) -> tuple[int, int, Occupancy[int, float]]:
        """Return registers per thread, bytes of shared memory per block, and occupancy of one launch of a config."""
        launch, rows = self.launches[index], np.array([row])
        spec = self.kernel.launches[index]
        threads, dynamic = (
            int((on_problem.column(e, rows) + np.zeros(1, np.int64))[0]) for e in (spec.threads, spec.shared)
        )
        registers = int(launch.profiles.registers[launch.variant[row]])
        shared = int(launch.profiles.static_smem_bytes[launch.variant[row]]) + dynamic
        return registers, shared, occupancy(self.gpu.limits, threads, registers, shared)

    def unfit(self, on_problem: ProblemSpace) -> Array:
        """Return the indices of configs that cannot run only because a block does not fit into an SM, ascending."""
        geometries = self.geometries(on_problem)
        rows: Array = on_problem.valid_among(self._profiled(geometries, ~geometries[0].fits)).nonzero()[0]
        return rows

    def too_large(self, on_problem: ProblemSpace, row: int) -> str | None:
        """Return the reason why a block of a config does not fit into an SM, or None if the block fits."""
        for index in self.performed(on_problem, row):
            registers, shared, held = self.resources(on_problem, index, row)
            if not held.blocks:
                threads = int(self.geometry(on_problem, index).warps[row]) * 32
                reason = f"a block of {threads} threads with {registers} registers each and {shared} B of shared memory"
                reason += " does not fit into an SM"
                fewer = occupancy(self.gpu.limits, threads, 32, shared).blocks > 0
                return f"{reason}; limit the registers with __launch_bounds__({threads})" if fewer else reason
        return None

    def geometries(self, on_problem: ProblemSpace) -> list[LaunchGeometry]:
        return [self.geometry(on_problem, index) for index in range(len(self.launches))]

    def plan(self, problem: Problem) -> Any:
        """Return the kernel in the engine's form (`kernel_plan`)."""
        if self.plans:
            return self.plans[0]
        plan = kernel_plan(self, self.space.at(problem))
        if len(self._geometries) == len(self.launches):
            self.plans.append(plan)
        return plan

    def geometry(self, on_problem: ProblemSpace, index: int) -> LaunchGeometry:
        """Return the geometry of a launch, from a cache if it does not depend on the problem."""
        if cached := self._geometries.get(index):
            return cached
        spec, launch = self.kernel.launches[index], self.launches[index]
        profiles = launch.profiles
        when = [] if spec.when is None else [spec.when]

        def column(expression: Expression) -> Array:
            return np.broadcast_to(np.asarray(on_problem.column(expression), dtype=np.float64), (len(self.space),))

        warps = np.ceil(column(spec.threads) / 32.0)
        limits, threads = self.gpu.limits, column(spec.threads).astype(np.int64)
        registers = profiles.registers[launch.variant]
        shared = profiles.static_smem_bytes[launch.variant] + column(spec.shared).astype(np.int64)
        held = occupancy(limits, threads, registers, shared)
        resident = held.blocks.astype(np.float64)
        if self.kernel.sampled and (resident == 0).any():
            # The code exceeds the register limit by less than one allocation unit, so code of another compiler may fit.
            fewer = np.maximum(registers - limits.register_allocation_unit // 32, 1)
            near = (resident == 0) & (occupancy(limits, threads, fewer, shared).blocks > 0)
            resident[near] = 1.0
            held.fraction[near] = warps[near] / limits.max_warps_per_sm
        geometry = LaunchGeometry(
            performed=np.ones(len(self.space), dtype=bool) if spec.when is None else column(spec.when) != 0,
            warps=warps,
            prefetch=prefetched(launch, column(spec.prefetch)),
            resident=resident,
            fits=held.blocks > 0,
            occupancy=held.fraction,
            quick=np.stack(
                [
                    [
                        rates[: PORT + 1].max(axis=0).take(launch.variant),
                        alone_clk(rates, warps, launch.variant),
                        rates[CORE_J].take(launch.variant),
                    ]
                    for rates in launch.demand.rates
                ]
            ),
        )
        # Sampled profiles are valid for one problem, so even geometry that depends on the problem can be cached.
        if self.kernel.sampled or all(self.space.fixed(e) for e in (spec.threads, spec.shared, spec.prefetch, *when)):
            self._geometries[index] = geometry
        return geometry
