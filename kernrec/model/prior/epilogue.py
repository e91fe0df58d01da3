"""Add the cost of an op's epilogue, such as a bias or an activation, which kernels' profiles exclude.

Profiles describe the op without epilogue. An epilogue takes a number of instructions per result, equal for each
config, and no other work hides it. It is added to the time and energy of every candidate, so it changes no ranking.
"""

import numpy as np

from kernrec.gpu import GPU
from kernrec.model.prior.demand import CORE_J, PIPES, SECTORS, demand
from kernrec.model.prior.microarchitecture import l2_bytes_per_clk
from kernrec.model.prior.power import PowerModel
from kernrec.op import Problem

_LANES = 32


def epilogue(gpu: GPU, power: PowerModel, problem: Problem) -> tuple[float, float, float] | None:
    """Return the cost of a problem's epilogue on a GPU; None if the problem has none.

    Returns:
        Seconds of the core clock domain at the boost clock, joules of the core at nominal voltage, and DRAM bytes.
    """
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
    l2_clk = float(rates[SECTORS]) * 32.0 * gpu.sms / l2_bytes_per_clk(gpu)
    core_s = warps * max(busiest_clk, l2_clk) / (gpu.sms * gpu.boost_clock_hz)
    dram_bytes = float(sum(tensors[name].bytes for name in tensors if f"global.{name}.read_sectors" in work))
    return core_s, warps * float(rates[CORE_J]), dram_bytes
