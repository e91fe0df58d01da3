"""PTX without a GPU: a parser, a CPU emulator with exact counters, and profiles made from them."""

from kernrec.ptx.counts import Counts
from kernrec.ptx.emulator import emulate
from kernrec.ptx.parser import ParseError, parse
from kernrec.ptx.program import Module
from kernrec.ptx.state import EmulationError

__all__ = ["Counts", "EmulationError", "Module", "ParseError", "emulate", "parse"]
