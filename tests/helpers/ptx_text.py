"""Builds small PTX kernels from their bodies, and compiles CUDA with NVRTC if it is installed."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from kernrec import paths
from kernrec.compile import CompileCache, Compiled, NoCompilerError
from kernrec.compile.nvrtc import compiler, header_folders
from kernrec.ptx import Counts, KernelLaunch, Module, emulate, parse
from tests.helpers.paths import beside

REGISTERS = """
    .reg .pred %p<20>; .reg .b16 %rs<20>; .reg .b32 %r<60>; .reg .f32 %f<40>; .reg .b64 %rd<40>; .reg .f64 %fd<20>;
"""

LANE_POINTERS = """
  mov.u32 %r50, %tid.x; mul.wide.u32 %rd3, %r50, 4; ld.param.u64 %rd0, [x]; ld.param.u64 %rd1, [o];
  add.u64 %rd0, %rd0, %rd3; add.u64 %rd1, %rd1, %rd3;
"""
"""PTX that points `%rd0` and `%rd1` to each thread's 32-bit word in the buffers x and o."""


def module(
    body: str, parameters: str = "", globals_: str = "", target: str = "sm_86", *, verified: bool = True
) -> Module:
    """Return a module with one kernel `k`. `parameters` has a form like `u64 a, u32 n`."""
    return parse(ptx(body, parameters, globals_, target), verified=verified)


def ptx(body: str, parameters: str = "", globals_: str = "", target: str = "sm_86") -> str:
    """Return the PTX text of a module with one kernel `k`."""
    listed = ",\n".join(f".param .{p.split()[0]} {p.split()[1]}" for p in parameters.split(",") if p.strip())
    return (
        f".version 8.0\n.target {target}\n.address_size 64\n{globals_}\n.visible .entry k(\n{listed}\n)\n"
        f"{{\n{REGISTERS}\n{body}\nret;\n}}\n"
    )


def run(
    body: str,
    parameters: str = "",
    arguments: Sequence[Any] = (),
    buffers: Mapping[str, np.ndarray] | None = None,
    *,
    grid: Sequence[int] = (1,),
    block: Sequence[int] = (32,),
    globals_: str = "",
    shared_bytes: int = 0,
    **options: Any,
) -> Counts:
    """Emulate a kernel body. See `module` and `kernrec.ptx.emulate`."""
    launch = KernelLaunch("k", grid, block, arguments, buffers or {}, shared_bytes)
    return emulate(module(body, parameters, globals_), launch, **options)


@functools.lru_cache(None)
def _program(instruction: str, kinds: tuple[str, ...], result: str) -> Module:
    """Return a module that runs `instruction` on each row of inputs, with one lane per row, and stores the results."""
    size = [int(k[1:]) // 8 for k in (*kinds, result)]
    register = {1: "%rs", 2: "%rs", 4: "%r", 8: "%rd"}
    lines = ["mov.u32 %r50, %ctaid.x; mov.u32 %r51, %ntid.x; mov.u32 %r52, %tid.x; mad.lo.s32 %r50, %r50, %r51, %r52;"]
    names = {}
    for i, kind in enumerate(kinds):
        lines.append(f"ld.param.u64 %rd30, [in{i}]; mad.wide.u32 %rd30, %r50, {size[i]}, %rd30;")
        names[f"a{i}"] = f"{register[size[i]]}{i + 1}"
        lines.append(f"ld.global.{'b' if kind[0] == 'f' else kind[0]}{8 * size[i]} {names[f'a{i}']}, [%rd30];")
    names["d"] = f"{register[size[-1]]}10"
    lines.append(instruction.format(**names) + ";")
    lines.append(f"ld.param.u64 %rd31, [out]; mad.wide.u32 %rd31, %r50, {size[-1]}, %rd31;")
    lines.append(f"st.global.b{8 * size[-1]} [%rd31], {names['d']};")
    return module("\n".join(lines), ", ".join([*(f"u64 in{i}" for i in range(len(kinds))), "u64 out"]))


def apply(instruction: str, inputs: Sequence[np.ndarray], kinds: Sequence[str], result: str) -> np.ndarray:
    """Run an instruction such as `add.s32 {d}, {a0}, {a1}` on each row of inputs. The rows must fill whole warps."""
    code = {"b": "u", "u": "u", "s": "i", "f": "f"}[result[0]] + str(int(result[1:]) // 8)
    out = np.zeros(len(inputs[0]), code)
    buffers = {f"in{i}": np.ascontiguousarray(a) for i, a in enumerate(inputs)} | {"out": out}
    blocks = len(out) // 32
    emulate(_program(instruction, tuple(kinds), result), KernelLaunch("k", (blocks,), (32,), list(buffers), buffers))
    return out


def elementwise(entry: str, operation: str) -> str:
    """Return a program whose `operation` computes each `y[i]` in %f2 from `x[i]` in %f1, for `n` elements."""
    return beside(__file__, "elementwise.ptx").replace("ENTRY", entry).replace("OPERATION", operation)


def cuda(source: str, arch: str = "sm_86", defines: Mapping[str, str | int] | None = None) -> Module:
    """Compile CUDA C++ to PTX with NVRTC, and parse it. Skip the test if CuPy or NVRTC is missing."""
    return parsed(cuda_to_ptx(source, arch, defines))


def cuda_to_ptx(source: str, arch: str = "sm_86", defines: Mapping[str, str | int] | None = None) -> str:
    """Compile CUDA C++ to PTX with NVRTC, without the assembler. Skip the test if CuPy or NVRTC is missing."""
    macros = tuple(f"-D{name}={value}" for name, value in (defines or {}).items())
    return _compiled(source, arch.replace("sm_", "compute_"), macros)


@functools.lru_cache(64)
def parsed(ptx: str) -> Module:
    return parse(ptx)


@functools.lru_cache(None)
def _compiled(source: str, arch: str, macros: tuple[str, ...]) -> str:
    try:
        key = CompileCache.key(compiler(), arch, *macros, source)
    except NoCompilerError as error:
        pytest.skip(str(error))
    cache = CompileCache(paths.cache() / "ptx-of-tests")  # shared between test processes and runs
    if isinstance(cached := cache.get(key), Compiled):
        return cached.ptx
    nvrtc = pytest.importorskip("cupy.cuda").nvrtc
    program = nvrtc.createProgram(source, "k.cu", [], [])
    options = [f"--gpu-architecture={arch}", "--std=c++17", *macros]
    options += [f"--include-path={folder}" for folder in header_folders()]
    try:
        nvrtc.compileProgram(program, options)
    except nvrtc.NVRTCError:
        pytest.fail(nvrtc.getProgramLog(program))
    raw = nvrtc.getPTX(program)
    text = (raw if isinstance(raw, str) else raw.decode()).replace("\0", "")
    cache.put(key, Compiled(text, b"", {}, compiler(), ""))
    return text
