"""Modules: machine code is known by its hash, and what the emulator executes is the PTX beside it."""

from types import SimpleNamespace

from kernrec.ptx import parse

PTX: dict[bytes, str] = {}
"""By the bytes that stand for the machine code."""


class Module:
    def load(self, cubin):
        self.parsed = parse(PTX[cubin]) if cubin in PTX else None

    def get_function(self, name):
        from cupy import cuda

        cuda.functions.append((self, name))
        return SimpleNamespace(ptr=len(cuda.functions))
