"""Look up GPUs in the catalog, and compute occupancy."""

from kernrec.gpu.entry import GPU, LIMITERS, Occupancy, SmLimits, code_sm, l1_bytes, occupancy
from kernrec.gpu.find import UnknownGPU, all_gpus, find_gpu, find_gpus, limits

__all__ = [
    "GPU",
    "LIMITERS",
    "Occupancy",
    "SmLimits",
    "UnknownGPU",
    "all_gpus",
    "code_sm",
    "find_gpu",
    "find_gpus",
    "l1_bytes",
    "limits",
    "occupancy",
]
