"""Parse, emulate and analyze PTX without a GPU."""

from kernrec.ptx.execution.emulator import emulate
from kernrec.ptx.ir.parser import parse
from kernrec.ptx.ir.program import Module, ParseError
from kernrec.ptx.state.descriptors import Image, Sampler, TensorMap
from kernrec.ptx.state.launch_layout import BufferPlace, KernelLaunch, Structure
from kernrec.ptx.state.results import Counts, EmulationError

__all__ = [
    "BufferPlace",
    "Counts",
    "EmulationError",
    "Image",
    "KernelLaunch",
    "Module",
    "ParseError",
    "Sampler",
    "Structure",
    "TensorMap",
    "emulate",
    "parse",
]
