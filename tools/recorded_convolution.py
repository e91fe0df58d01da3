"""The recorded convolution space as kernrec's prior sees a kernel: a demand, a walk, a time on two GPUs.

`convolution-static-a100-a4000.parquet` (shared data) holds what others measured of Kernel Tuner's 2D convolution (f32,
15x15 filter, 4096x4096 outputs) on an A100 and an RTX A4000, beside counts of its PTX. This adapter is for checks and
evaluations alone; nothing in the package reads such files.

What the file says and what is derived here:
- Counts are per thread, loops weighted by a guess. Filter loops are corrected to the FMAs that the op has; the loop
  that stages the input in shared memory to the trips that its bounds give (`_stage_trips`).
- `mov` and `ld_const` are PTX that the assembler folds into operands.
- The A100 stood at its base clock, which is its clock here (`tools/recorded_clock.py` shows it and names the configs
  that caught it higher).
- L1 serves the loads of configs without shared memory: lines per request pass through it, and what a block touches at
  all, its tile and a border of 7 on each side, comes from L2 once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import duckdb
import numpy as np

from kernrec.gpu import GPU, find_gpu, occupancy
from kernrec.model.demand import Demand, demand
from kernrec.model.features import Facts
from kernrec.model.power import PowerModel, Settled
from kernrec.model.prior import LAUNCH_S, LaunchTime, Walk, launch_time

Array = np.ndarray
FILE = "convolution-static-a100-a4000.parquet"
GPUS = {"a100": "a100-pcie-40gb", "a4000": "rtx-a4000"}
"""Column prefix of the file -> catalog name."""
TUNABLES = (
    "block_size_x", "block_size_y", "tile_size_x", "tile_size_y", "read_only", "use_padding", "use_shmem",
)  # fmt: skip
_OUTPUT, _FILTER = 4096, 15
_BORDER = _FILTER - 1
_STAGED_LOADS = 28.0  # trips of the staging loop in the file's counts
_UNROLL = 4  # loads of the staging loop that are in flight together, as NVCC unrolls loops of unknown bounds


@dataclass(frozen=True)
class Recorded:
    """One GPU's half of the file: valid configs alone, arrays (C,)."""

    gpu: GPU
    columns: Mapping[str, Array]
    time_s: Array

    def __len__(self) -> int:
        return len(self.time_s)

    @cached_property
    def settled(self) -> Settled:
        """The prior's estimate of each config."""
        power = PowerModel.for_gpu(self.gpu)
        t, dram_j = self.times, self.walk.dram_bytes * power.event_j("dram.bytes")
        return power.settle(t.core_s, t.dram_s, LAUNCH_S, t.core_j, dram_j)

    @cached_property
    def facts(self) -> Facts:
        """What the learner's features are made of."""
        c, t, walk = self.columns, self.times, self.walk
        return Facts(
            gpu=self.gpu,
            flops=2.0 * _OUTPUT**2 * _FILTER**2,
            bytes=4.0 * ((_OUTPUT + _BORDER) ** 2 + _OUTPUT**2 + _FILTER**2),
            tunables={name: c[name] for name in TUNABLES},
            latency_s=self.settled.latency_s,
            power_w=self.settled.power_w,
            threads=c["threads_per_block"],
            blocks=walk.terms[0],
            resident=walk.concurrent,
            registers=c["registers"],
            shared_bytes=c["shared_bytes"],
            pipe_s=t.pipe_s(np.arange(len(self))),
            busy_s=t.busy_s,
            wait_s=t.latency_s,
            l2_s=t.l2_s,
            dram_s=t.dram_s,
            core_s=t.core_s,
            fixed_s=np.full(len(self), LAUNCH_S),
        )

    @cached_property
    def times(self) -> LaunchTime:
        return launch_time(self.gpu, self.demand, self.walk)

    @cached_property
    def demand(self) -> Demand:
        names, counts = self.counts
        return demand(self.gpu, PowerModel.for_gpu(self.gpu), names, ("block", "stage"), counts)

    @cached_property
    def counts(self) -> tuple[tuple[str, ...], Array]:
        """(metrics, (C, metrics, terms)): warp-level counts of each config by term, as a static profile has them."""
        c = self.columns
        shared = c["use_shmem"] == 1
        # Counts of loops over the filter, as far as they were not unrolled, are weighted wrongly in the file.
        outputs = c["tile_size_x"] * c["tile_size_y"]
        scale = _FILTER**2 * outputs / c["per_thread_fma"]
        stage = self._stage_trips * (_UNROLL / _STAGED_LOADS) / np.maximum(self.stage_rounds, 1.0)
        border = _border(c)
        block: dict[str, Array] = {}
        staging: dict[str, Array] = {}

        def put(metric: str, per_thread: Array, staged: bool) -> None:
            per_block = per_thread * self.warps
            if staged:
                # What of a staging config is not the filter's arithmetic belongs to its loop.
                block[metric] = np.where(shared, 0.0, per_block * scale)
                staging[metric] = np.where(shared, per_thread * stage, 0.0)
            else:
                block[metric], staging[metric] = per_block, 0.0 * per_block

        loads = c["per_thread_ld_global"] + c["per_thread_ld_global_nc"]
        put("issue.fma32", _FILTER**2 * outputs, False)
        put("issue.ld_shared", c["per_thread_ld_shared"], False)
        put("issue.st_shared", c["per_thread_st_shared"], True)
        put("issue.ld_global", loads, True)
        put("issue.st_global", c["per_thread_st_global"], False)
        put("issue.alu", c["per_thread_int"], True)
        put("issue.imad", c["per_thread_imad"], True)
        put("issue.wide64", c["per_thread_cvt"], True)
        put("issue.setp", c["per_thread_setp"], True)
        put("issue.branch", c["per_thread_bra"], True)
        put("barriers", c["per_thread_bar"] / self.warps, False)
        spills = c["spill_load_bytes"] / 4 + c["spill_store_bytes"] / 4
        put("issue.ld_local", spills, False)
        for part in (block, staging):
            part["issue"] = np.sum([value for name, value in part.items() if name.startswith("issue.")], axis=0)
        block["shared.load_wavefronts"] = block["issue.ld_shared"] * c["shared_bank_conflict_degree"]
        staging["shared.load_wavefronts"] = 0.0 * border
        staging["shared.store_wavefronts"] = staging["issue.st_shared"]
        block["shared.store_wavefronts"] = 0.0 * border
        block["l1.wavefronts"] = np.where(shared, 0.0, block["issue.ld_global"] * c["lines128_per_global_request"])
        staging["l1.wavefronts"] = staging["issue.ld_global"] * c["lines128_per_global_request"]
        block["global.input.read_sectors"] = np.where(shared, 0.0, border / 8)
        staging["global.input.read_sectors"] = np.where(shared, border / 8 / np.maximum(self.stage_rounds, 1.0), 0.0)
        block["global.output.write_sectors"] = block["issue.st_global"] * 4.0
        staging["global.output.write_sectors"] = 0.0 * border
        block["local.read_sectors"], staging["local.read_sectors"] = block["issue.ld_local"] * 4, 0.0 * border
        names = tuple(sorted(block))
        return names, np.stack([np.stack([block[n], staging[n]], axis=-1) for n in names], axis=1)

    @property
    def warps(self) -> Array:
        return np.ceil(self.columns["threads_per_block"] / 32)

    @cached_property
    def _stage_trips(self) -> Array:
        """Requests with which a block stages its input: rows, two to a warp where they are short, by columns and
        border."""
        c = self.columns
        width = c["block_size_x"]
        rows = c["block_size_y"] * c["tile_size_y"] + _BORDER
        together = np.where((width == 16) & (c["block_size_y"] > 1), 2.0, 1.0)
        return np.ceil(rows / together) * (c["tile_size_x"] * np.maximum(width / 32, 1.0) + 1.0)

    @cached_property
    def stage_rounds(self) -> Array:
        """How often a block waits for staged loads."""
        c = self.columns
        down = np.ceil((c["block_size_y"] * c["tile_size_y"] + _BORDER) / c["block_size_y"])
        across = np.ceil((c["block_size_x"] * c["tile_size_x"] + _BORDER) / c["block_size_x"])
        return np.where(c["use_shmem"] == 1, down * np.ceil(across / _UNROLL), 0.0)

    @cached_property
    def walk(self) -> Walk:
        c = self.columns
        held = occupancy(
            self.gpu.limits,
            c["threads_per_block"].astype(np.int64),
            c["registers"].astype(np.int64),
            c["shared_bytes"].astype(np.int64),
        )
        blocks = c["grid_x"] * c["grid_y"]
        moved = 4.0 * ((_OUTPUT + _BORDER) ** 2 + _OUTPUT**2)
        # Spilled registers stay in the caches as far as the stacks of all resident threads fit there.
        stacks = c["stack_bytes"] * c["threads_per_block"] * held.blocks * self.gpu.sms
        missed = np.maximum(1.0 - self.gpu.l2_bytes / np.maximum(stacks, 1.0), 0.0)
        spilled = (c["spill_load_bytes"] + c["spill_store_bytes"]) * c["threads_per_block"] * blocks
        return Walk(
            codes=np.arange(len(self)),
            terms=(blocks, blocks * self.stage_rounds),
            depth=(self.stage_rounds,),
            # The recordings were compiled by another compiler: where ours takes registers that do not fit, one block
            # did.
            concurrent=np.maximum(held.blocks.astype(np.float64), 1.0),
            warps=self.warps,
            prefetch=np.zeros(len(self)),
            dram_bytes=moved + spilled * missed,
        )


def _border(c: Mapping[str, Array]) -> Array:
    """Words of the input that a block touches: its outputs and the filter's border."""
    wide = c["block_size_x"] * c["tile_size_x"] + _BORDER
    return wide * (c["block_size_y"] * c["tile_size_y"] + _BORDER)


def load(folder: Path) -> dict[str, Recorded]:
    """Both GPUs' recordings from `folder` (shared data, `spaces`), by the file's prefix; what did not run is left
    out."""
    with duckdb.connect() as connection:
        table = connection.execute("FROM read_parquet(?)", [str(folder / FILE)]).fetchnumpy()
    raw = {name: np.ma.filled(values, np.nan) if values.dtype.kind == "f" else values for name, values in table.items()}
    found = {}
    for prefix, name in GPUS.items():
        gpu = find_gpu(name)
        if prefix == "a100":
            gpu = replace(gpu, boost_clock_hz=gpu.base_clock_hz)
        ran = np.flatnonzero(raw[f"{prefix}_outcome"] == "correct")
        columns = {
            key.removeprefix(f"sm{gpu.sm}_"): values[ran].astype(np.float64)
            for key, values in raw.items()
            if not key.startswith(("a100", "a4000")) and (not key.startswith("sm8") or key.startswith(f"sm{gpu.sm}_"))
        }
        found[prefix] = Recorded(gpu, columns, raw[f"{prefix}_time_s"][ran].astype(np.float64))
    return found
