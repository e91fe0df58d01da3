"""The GPU catalog, and occupancy.

`find_gpu` gives a `GPU` for any name people type; `occupancy` says how many blocks of a kernel one of its SMs holds.
"""

from kernrec.gpu.entry import GPU, SmLimits
from kernrec.gpu.find import UnknownGPU, all_gpus, find_gpu, limits
from kernrec.gpu.occupancy import LIMITERS, Occupancy, occupancy

__all__ = ["GPU", "LIMITERS", "Occupancy", "SmLimits", "UnknownGPU", "all_gpus", "find_gpu", "limits", "occupancy"]
