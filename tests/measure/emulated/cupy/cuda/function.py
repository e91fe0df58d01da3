"""Emulated modules: a hash of the machine code selects the PTX that the emulator executes instead."""

from types import SimpleNamespace

import numpy as np

from kernrec.ptx import parse

PTX: dict[bytes, str] = {}
"""Maps the bytes that represent machine code to the PTX."""


CONSTANTS: dict[int, np.ndarray] = {}
"""Maps the address of each `__constant__` symbol to its bytes."""


class Module:
    def load(self, cubin):
        self.parsed = parse(PTX[cubin]) if cubin in PTX else None
        self.constants = {}

    def get_global_var(self, name):
        content = self.constants[name] = np.zeros(self.parsed.variables[name].size, np.uint8)
        CONSTANTS[content.ctypes.data] = content
        return content.ctypes.data

    def get_function(self, name):
        from cupy import cuda

        cuda.functions.append((self, name))
        return SimpleNamespace(ptr=len(cuda.functions))
