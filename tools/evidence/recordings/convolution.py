"""The recorded convolution space as input of kernrec's prior: the demand and work of each config on two GPUs.

`convolution-static-a100-a4000.parquet` (shared data) has measurements of Kernel Tuner's 2D convolution (f32, 15x15
filter, 4096x4096 outputs) on an A100 and an RTX A4000 that others made, and counts of its PTX. This adapter is for
checks and evaluations only; nothing in the package reads such files.

What is derived from the file:
- Its counts are per thread, with guessed trip counts of loops. Filter loops are scaled to the FMAs of the op; the loop
  that stages the input in shared memory is scaled to the requests that its bounds give (`_stage_rows`).
- `mov` and `ld_const` are PTX instructions that the assembler folds into operands.
- The A100 ran at its base clock, which is its clock here (`recorded_clock.py` finds the configs that ran at a higher
  clock).
- In configs without shared memory, L1 serves the loads, with one wavefront per word of a request in the same one of its
  32 banks. The bytes that a block accesses, its tile and a border of 7 on each side, come from L2 once.
- Staged data that neighboring blocks stage too comes from L2, the rest from DRAM.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from evidence.recordings.files import parquet_columns
from kernrec.gpu import GPU, find_gpu, occupancy
from kernrec.model.learn.features import ModelInputs
from kernrec.model.prior.core import BLOCKS, CONCURRENT, DRAM_BYTES, LAUNCH_S
from kernrec.model.prior.demand import Demand, demand
from kernrec.model.prior.launch_costs import LimitedCosts, NominalCosts
from kernrec.model.prior.launch_time import LaunchTime, LaunchWork, launch_time
from kernrec.model.prior.microarchitecture import microarchitecture
from kernrec.model.prior.power import PowerModel

Array = np.ndarray
FILE = "convolution-static-a100-a4000.parquet"
GPUS = {"a100": "a100-pcie-40gb", "a4000": "rtx-a4000"}
"""Column prefix of the file -> catalog name."""
TUNABLES = (
    "block_size_x", "block_size_y", "tile_size_x", "tile_size_y", "read_only", "use_padding", "use_shmem",
)  # fmt: skip
_OUTPUT, _FILTER = 4096, 15
_BORDER = _FILTER - 1
_STAGED_LOADS = 28.0  # loads of the staging loop in the file's counts
_ROW = 2.0  # other arithmetic of a warp per row, in units of the arithmetic of a load; from the SASS of some configs
_UNROLL = 4  # loads of the staging loop in flight at the same time: how often NVCC unrolls loops of unknown bounds


@dataclass(frozen=True)
class Recorded:
    """One GPU's part of the file: the C valid configs."""

    gpu: GPU
    columns: Mapping[str, Array]
    """Columns of the file, (C,) each."""
    time_s: Array
    """Measured time, (C,)."""

    def __len__(self) -> int:
        return len(self.time_s)

    @cached_property
    def limited(self) -> LimitedCosts:
        """The prior's costs of each config."""
        power = PowerModel.for_gpu(self.gpu)
        t, dram_j = self.times, self.work.rows[DRAM_BYTES] * power.event_j("dram.bytes")
        return power.apply_power_limit(NominalCosts(t.core_s, t.dram_s, LAUNCH_S, t.core_j, dram_j))

    @cached_property
    def inputs(self) -> ModelInputs:
        """The facts that features are computed from."""
        c, t, work = self.columns, self.times, self.work
        return ModelInputs(
            gpu=self.gpu,
            flops=2.0 * _OUTPUT**2 * _FILTER**2,
            bytes=4.0 * ((_OUTPUT + _BORDER) ** 2 + _OUTPUT**2 + _FILTER**2),
            tunables={name: c[name] for name in TUNABLES},
            latency_s=self.limited.latency_s,
            power_w=self.limited.power_w,
            threads=c["threads_per_block"],
            blocks=work.rows[BLOCKS],
            resident=work.rows[CONCURRENT],
            registers=c["registers"],
            shared_bytes=c["shared_bytes"],
            pipe_s=t.pipe_clk * (t.busy_s / np.maximum(t.pipe_clk.max(axis=0), 1e-30)),
            busy_s=t.busy_s,
            wait_s=t.latency_s,
            l2_s=t.l2_s,
            dram_s=t.dram_s,
            core_s=t.core_s,
            fixed_s=np.full(len(self), LAUNCH_S),
        )

    @cached_property
    def times(self) -> LaunchTime:
        """The prior's time of each config."""
        return launch_time(self.gpu, self.demand, self.work)

    @cached_property
    def demand(self) -> Demand:
        """The demand of each config."""
        names, counts = self.counts
        return demand(self.gpu, PowerModel.for_gpu(self.gpu), names, ("block", "waits"), counts)

    @cached_property
    def counts(self) -> tuple[tuple[str, ...], Array]:
        """(names of metrics, warp-level counts of each config by term (C, metrics, terms)), as in a static profile.

        All counts are per block; the loop term only stands for waits for memory.
        """
        c = self.columns
        shared = c["use_shmem"] == 1
        # The file has wrong trip counts for loops over the filter that were not unrolled.
        outputs = c["tile_size_x"] * c["tile_size_y"]
        scale = _FILTER**2 * outputs / c["per_thread_fma"]
        counts: dict[str, Array] = {}

        def put(metric: str, per_thread: Array, staged: Array | None = None) -> None:
            per_block = per_thread * self.warps
            # In a config with staging, everything but the filter's arithmetic belongs to the staging loop.
            if staged is not None:
                per_block = np.where(shared, per_thread * staged / _STAGED_LOADS, per_block * scale)
            counts[metric] = per_block

        rows, beside = self._stage_rows
        memory = rows * (c["tile_size_x"] * beside + 1.0)  # requests: columns and a border
        arithmetic = memory + _ROW * rows * beside

        put("issue.fma32", _FILTER**2 * outputs)
        put("issue.ld_shared", c["per_thread_ld_shared"])
        put("issue.st_shared", c["per_thread_st_shared"], memory)
        put("issue.ld_global", c["per_thread_ld_global"] + c["per_thread_ld_global_nc"], memory)
        put("issue.st_global", c["per_thread_st_global"])
        put("issue.alu", c["per_thread_int"], arithmetic)
        put("issue.imad", c["per_thread_imad"], arithmetic)
        put("issue.wide64", c["per_thread_cvt"], arithmetic)
        put("issue.setp", c["per_thread_setp"], arithmetic)
        put("issue.branch", c["per_thread_bra"], arithmetic)
        put("issue.ld_local", c["spill_load_bytes"] / 4 + c["spill_store_bytes"] / 4)
        counts["issue"] = np.sum(list(counts.values()), axis=0)
        counts["barriers"] = c["per_thread_bar"]
        counts["shared.load_wavefronts"] = counts["issue.ld_shared"] * c["shared_bank_conflict_degree"]
        counts["shared.store_wavefronts"] = counts["issue.st_shared"]
        counts["l1.wavefronts"] = counts["issue.ld_global"] * self.wavefronts
        counts["global.input.read_sectors"] = _border(c) / 8
        counts["global.output.write_sectors"] = counts["issue.st_global"] * 4.0
        counts["local.read_sectors"] = counts["issue.ld_local"] * 4
        per_block = np.stack(list(counts.values()), axis=1)
        return tuple(counts), np.stack([per_block, np.zeros_like(per_block)], axis=-1)

    @property
    def warps(self) -> Array:
        """Warps per block, (C,)."""
        return np.ceil(self.columns["threads_per_block"] / 32)

    @cached_property
    def _stage_rows(self) -> tuple[Array, Array]:
        """(rows in which a block stages its input, two per warp where they are short; warps beside each other)."""
        c = self.columns
        together = np.where((c["block_size_x"] == 16) & (c["block_size_y"] > 1), 2.0, 1.0)
        rows = np.ceil((c["block_size_y"] * c["tile_size_y"] + _BORDER) / together)
        return rows, np.maximum(c["block_size_x"] / 32, 1.0)

    @cached_property
    def wavefronts(self) -> Array:
        """Clocks that L1 takes for a request, the mean over a block's warps: the most words in one bank.

        L1 and shared memory are one array of 32 banks, and four tags are compared per clock, so words in two lines take
        no longer (G. Smith of NVIDIA, forums.developer.nvidia.com, topic 49571). In this recording, loads of one row
        take as little as 1.12 clocks on the A100, whatever their alignment; loads of two rows (blocks of width 16)
        take 2.06.
        """
        c = self.columns
        shapes = np.stack([c["block_size_x"], c["block_size_y"]], axis=1).astype(np.int64)
        distinct, which = np.unique(shapes, axis=0, return_inverse=True)
        return np.array([_conflicts(*shape) for shape in distinct.tolist()])[which.ravel()]

    @cached_property
    def stage_waits(self) -> Array:
        """How often a block waits for staged loads, in latencies of DRAM; data of neighboring blocks is in L2."""
        c, figures = self.columns, microarchitecture(self.gpu)
        down = np.ceil((c["block_size_y"] * c["tile_size_y"] + _BORDER) / c["block_size_y"])
        across = np.ceil((c["block_size_x"] * c["tile_size_x"] + _BORDER) / c["block_size_x"])
        new = c["block_size_x"] * c["tile_size_x"] * c["block_size_y"] * c["tile_size_y"] / _border(c)
        latency = new + (1.0 - new) * (figures.l2_latency_clk / figures.dram_latency_clk)
        return np.where(c["use_shmem"] == 1, down * np.ceil(across / _UNROLL) * latency, 0.0)

    @cached_property
    def work(self) -> LaunchWork:
        """The work of each config's launch."""
        c = self.columns
        held = occupancy(
            self.gpu.limits,
            c["threads_per_block"].astype(np.int64),
            c["registers"].astype(np.int64),
            c["shared_bytes"].astype(np.int64),
        )
        blocks = c["grid_x"] * c["grid_y"]
        moved = 4.0 * ((_OUTPUT + _BORDER) ** 2 + _OUTPUT**2)
        # Spilled registers stay in L2 as far as the stacks of all resident threads fit there.
        stacks = c["stack_bytes"] * c["threads_per_block"] * held.blocks * self.gpu.sms
        missed = np.maximum(1.0 - self.gpu.l2_bytes / np.maximum(stacks, 1.0), 0.0)
        spilled = (c["spill_load_bytes"] + c["spill_store_bytes"]) * c["threads_per_block"] * blocks
        return LaunchWork.of(
            variants=np.arange(len(self)),
            terms=(blocks, blocks * self.stage_waits),
            depth=(self.stage_waits,),
            # The recorded kernels were compiled by another compiler: where ours needs more registers than fit, one
            # block per SM is assumed.
            concurrent=np.maximum(held.blocks.astype(np.float64), 1.0),
            warps=self.warps,
            prefetch=np.zeros(len(self)),
            dram_bytes=moved + spilled * missed,
            dram_slowdown=np.ones(len(self)),
            serial_clk=np.zeros(len(self)),
            rounds=self.stage_waits,
            overlapped=np.nan,
        )


def _border(c: Mapping[str, Array]) -> Array:
    """Words of the input that a block accesses: its outputs and the filter's border."""
    wide = c["block_size_x"] * c["tile_size_x"] + _BORDER
    return np.asarray(wide * (c["block_size_y"] * c["tile_size_y"] + _BORDER))


def _conflicts(width: int, height: int) -> float:
    """The most words of a warp's request in one bank, the mean over the warps of a block; the lanes' rows are one input
    row apart."""
    lanes = np.arange(width * height)
    words = lanes // width * (_OUTPUT + _BORDER) + lanes % width
    return float(np.mean([np.bincount(words[i : i + 32] % 32).max() for i in range(0, len(words), 32)]))


def load(folder: Path) -> dict[str, Recorded]:
    """The recordings of both GPUs, by the column prefix of the file; configs that did not run are left out.

    Args:
        folder: `spaces` of the shared data.
    """
    raw = parquet_columns(folder / FILE)
    recordings = {}
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
        recordings[prefix] = Recorded(gpu, columns, raw[f"{prefix}_time_s"][ran].astype(np.float64))
    return recordings
