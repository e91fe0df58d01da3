"""Modules: machine code is known by its hash, and what the emulator executes is the PTX beside it."""

from types import SimpleNamespace

import numpy as np

from kernrec.ptx import parse

PTX: dict[bytes, str] = {}
"""By the bytes that stand for the machine code."""


CONSTANTS: dict[int, np.ndarray] = {}
"""The bytes of `__constant__` symbols by their address."""


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
