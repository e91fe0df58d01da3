"""What an op does to its results beyond what its kernels' profiles hold: a bias, an activation.

Profiles are of the plain op. What follows it is a number of instructions for each result, the same whatever the config,
which no other work of its block hides; so it is added to every candidate's time and energy, and ranks none.
"""

from dataclasses import dataclass

import numpy as np

from kernrec.gpu import GPU
from kernrec.model.prior.demand import CORE_J, PIPES, SECTORS, demand
from kernrec.model.prior.microarchitecture import microarchitecture
from kernrec.model.prior.power import PowerModel
from kernrec.op import Problem

_LANES = 32


@dataclass(frozen=True)
class Epilogue:
    """Seconds of the core domain at the boost clock, joules of it at nominal voltage, and bytes past L2."""

    core_s: float
    core_j: float
    dram_bytes: float


def epilogue(gpu: GPU, power: PowerModel, problem: Problem) -> Epilogue | None:
    """What finishing a problem's results takes on a GPU; None where there is nothing to do."""
    work = problem.definition.finishing(problem.sizes)
    if not work:
        return None
    tensors = problem.tensors
    warps = sum(tensors[name].elements for name in problem.definition.outputs) / _LANES
    issued = {name: count for name, count in work.items() if name.startswith("issue.")}
    counts = work | {"issue": sum(issued.values())}
    coefficients = np.array([[[count] for count in counts.values()]])
    rates = demand(gpu, power, tuple(counts), ("block",), coefficients).rates[0][:, 0]
    busiest_clk = float(rates[: len(PIPES)].max())
    l2_clk = float(rates[SECTORS]) * 32.0 / microarchitecture(gpu).l2_bytes_per_clk_sm
    return Epilogue(
        core_s=warps * max(busiest_clk, l2_clk) / (gpu.sms * gpu.boost_clock_hz),
        core_j=warps * float(rates[CORE_J]),
        dram_bytes=float(sum(tensors[name].bytes for name in tensors if f"global.{name}.read_sectors" in work)),
    )
