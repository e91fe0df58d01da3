"""Compile CUDA C++ without a GPU: NVRTC returns PTX, machine code and the assembler's resource usage.

    compiled = compile_source(source, sm=89, defines={"BLOCK_M": 128})
    for job, result in compile_many(jobs): ...

The package needs CuPy and the NVRTC wheel (extras `cuda13` and `cuda12`), but no driver.
"""

from kernrec.compile.compiled import CompileCache, Compiled, CompileError, CompileJob, NoCompilerError, Resources
from kernrec.compile.nvrtc import compile_source
from kernrec.compile.pool import compile_many

__all__ = [
    "CompileCache",
    "CompileError",
    "CompileJob",
    "Compiled",
    "NoCompilerError",
    "Resources",
    "compile_many",
    "compile_source",
]
