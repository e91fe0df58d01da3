"""Parse, emulate and analyze PTX without a GPU. The emulator runs on the CPU and counts events exactly."""

from kernrec.ptx.execution.emulator import emulate
from kernrec.ptx.ir.errors import ParseError
from kernrec.ptx.ir.parser import parse
from kernrec.ptx.ir.program import Module
from kernrec.ptx.state.counts import Counts
from kernrec.ptx.state.errors import EmulationError
from kernrec.ptx.state.launch_layout import BufferPlace, KernelLaunch
from kernrec.ptx.state.tensor_maps import TensorMap
from kernrec.ptx.state.textures import Image, Sampler

__all__ = [
    "BufferPlace",
    "Counts",
    "EmulationError",
    "Image",
    "KernelLaunch",
    "Module",
    "ParseError",
    "Sampler",
    "TensorMap",
    "emulate",
    "parse",
]
