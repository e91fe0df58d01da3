"""Compile CUDA C++ with NVRTC, which needs no driver.

NVRTC's wheel is loaded directly, because importing CuPy in each process is slow. CuPy locates other installations.
"""

import ctypes
import importlib
import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache as once
from pathlib import Path
from types import ModuleType
from typing import Any

from kernrec.compile.compiled import (
    DEVICE_LAUNCH,
    RELOCATABLE,
    CompileCache,
    Compiled,
    CompileError,
    CompileJob,
    FileRefusedError,
    NoCompilerError,
    Reason,
    Result,
    first_error,
    parse_resources,
    target_name,
    wheel_folders,
)
from kernrec.compile.machine_code import LINE_INFORMATION
from kernrec.compile.nvcc import check_includes, compile_program, nvcc_version, quoted_names
from kernrec.errors import UsageError
from kernrec.util.files import files_hash
from kernrec.util.process import run_confined


class NVRTCError(RuntimeError):
    """Error of an NVRTC function. `status` is its `nvrtcResult`."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{message} ({status})")
        self.status = status


class Library:
    """Functions of NVRTC's shared library."""

    NVRTCError = NVRTCError

    def __init__(self, file: Path) -> None:
        self._library = ctypes.CDLL(str(file))
        # Load NVRTC's builtins now, because the process may lose access to libraries before it compiles.
        self._builtins = [ctypes.CDLL(str(each)) for each in file.parent.glob("libnvrtc-builtins.so*")]
        self.folder = file.parent
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p

    def getVersion(self) -> tuple[int, int]:  # noqa: N802 - CuPy's names
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        return major.value, minor.value

    def getSupportedArchs(self) -> list[int]:  # noqa: N802
        count = ctypes.c_int()
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        archs = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", archs)
        return list(archs)

    def createProgram(  # noqa: N802
        self, source: str, name: str, headers: list[str], include_names: list[str]
    ) -> ctypes.c_void_p:
        program = ctypes.c_void_p()
        texts, names = _strings(headers), _strings(include_names)
        arguments = source.encode(), name.encode(), len(headers), texts, names
        self._call("nvrtcCreateProgram", ctypes.byref(program), *arguments)
        return program

    def destroyProgram(self, program: ctypes.c_void_p) -> None:  # noqa: N802
        self._call("nvrtcDestroyProgram", ctypes.byref(program))

    def compileProgram(self, program: ctypes.c_void_p, options: list[str]) -> None:  # noqa: N802
        self._call("nvrtcCompileProgram", program, len(options), _strings(options))

    def getProgramLog(self, program: ctypes.c_void_p) -> bytes:  # noqa: N802
        return self._bytes("ProgramLog", program)

    def getPTX(self, program: ctypes.c_void_p) -> bytes:  # noqa: N802
        return self._bytes("PTX", program)

    def getCUBIN(self, program: ctypes.c_void_p) -> bytes:  # noqa: N802
        return self._bytes("CUBIN", program)

    def _bytes(self, what: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{what}", program, buffer)
        return buffer.raw

    def _call(self, function: str, *arguments: Any) -> None:
        status = int(getattr(self._library, function)(*arguments))
        if status:
            raise NVRTCError(status, self._library.nvrtcGetErrorString(status).decode())


def _strings(texts: list[str]) -> "ctypes.Array[ctypes.c_char_p]":
    return (ctypes.c_char_p * len(texts))(*(text.encode() for text in texts))


def nvrtc_library() -> Library | ModuleType:
    """Return NVRTC. Raise `ImportError` if neither its wheel nor CuPy is installed."""
    folders = wheel_folders("cu13/lib", "cuda_nvrtc/lib") if sys.platform == "linux" else []
    files = [file for folder in folders for file in folder.glob("libnvrtc.so.*") if file.suffix[1:].isdigit()]
    if len(files) == 1:  # If there are several versions, let CuPy choose.
        try:
            return Library(files[0])
        except OSError:
            pass
    module: ModuleType = importlib.import_module("cupy.cuda").nvrtc
    return module


# State C++17, because NVRTC's default may change. -v reports registers and spills. The last option also compiles
# functions without `__device__`, such as `constexpr` functions.
OPTIONS = (
    "--std=c++17", "--ptxas-options=-v", f"--ptxas-options={LINE_INFORMATION}", "--device-as-default-execution-space"
)  # fmt: skip
_REFUSED = 6  # NVRTC_ERROR_COMPILATION (nvrtc.h): the source has an error. Other codes have other causes.
_MINIMAL = "--minimal"
"""Option that omits declarations of textures and of the CUDA runtime, to compile faster."""
_NOT_MINIMAL = re.compile(r"#\s*include|\?\?=|%:|cuda|CUDA|tex|surf|<<<|NVRTC|CU_")
"""Matches code that may need the declarations that `_MINIMAL` omits."""


@once
def _library() -> tuple[Library | ModuleType, tuple[int, int]]:
    if sys.platform == "darwin":
        raise NoCompilerError("NVIDIA has no CUDA compiler for macOS: compile on Linux or Windows, or analyze PTX here")
    extra = "install it with `pip install '.[cuda13]'` (or `'.[cuda12]'`, by what your driver supports)"
    try:
        nvrtc = nvrtc_library()
    except ImportError:
        raise NoCompilerError(f"compiling CUDA needs CuPy and NVRTC; {extra}") from None
    try:
        major, minor = nvrtc.getVersion()
    # Catch any exception: CuPy loads the library only here, and its loader raises its own errors.
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise NoCompilerError(f"CuPy finds no NVRTC library ({reason}); {extra}") from None
    return nvrtc, (major, minor)


def compiler() -> str:
    """Return the compiler's name and version, such as `nvrtc 13.5`. Raise `NoCompilerError` if NVRTC is missing."""
    major, minor = _library()[1]
    return f"nvrtc {major}.{minor}"


def supported_sms() -> tuple[int, ...]:
    """Return the compute capabilities that NVRTC supports, ascending."""
    return tuple(sorted(int(sm) for sm in _library()[0].getSupportedArchs()))


@once
def header_folders() -> tuple[Path, ...]:
    """Return the folders of CUDA's headers: first the one with `cuda_fp16.h`, then the CUDA C++ core libraries."""
    major = _library()[1][0]
    candidates = wheel_folders(f"cu{major}/include", "cuda_runtime/include")
    candidates += [Path(os.environ[name], "include") for name in ("CUDA_PATH", "CUDA_HOME") if os.environ.get(name)]
    toolkit = [folder for folder in candidates if (folder / "cuda_fp16.h").is_file()][:1]
    return (*toolkit, *(folder / "cccl" for folder in toolkit if (folder / "cccl").is_dir()))


def compile_source(
    source: str,
    sm: int,
    defines: Mapping[str, str | int] | None = None,
    name: str = "kernel.cu",
    cache: CompileCache | None = None,
) -> Compiled:
    """Compile CUDA C++, or assemble PTX if `name` ends with `.ptx`.

    Args:
        source, sm, defines, name: as in `CompileJob`.

    Raises:
        CompileError: the compiler refuses the source.
        NoCompilerError: CuPy or NVRTC is missing.
    """
    return compile_job(CompileJob(source, sm, defines or {}, name), cache or CompileCache.default())


def compile_job(job: CompileJob, cache: CompileCache) -> Compiled:
    """Return the result of a job, from `cache` if possible. Raise the same errors as `compile_source`."""
    result = cached_result(job, cache)
    if result is None:
        try:
            result = compile_alone(job)
        except CompileError as error:
            result = error
        if isinstance(result, Compiled) or result.lasting:
            cache.put(cache_key(job), result)
    if isinstance(result, CompileError):
        raise result
    return result


def cached_result(job: CompileJob, cache: CompileCache) -> Result | None:
    """Return the cached result of a job, or None. The cubin may be missing if the job does not need it."""
    result = cache.get(cache_key(job))
    return cache.get(_key_without_code(job)) if result is None and not job.machine_code else result


def put_without_code(job: CompileJob, compiled: Compiled, cache: CompileCache) -> None:
    """Cache a result without a cubin."""
    cache.put(_key_without_code(job), compiled)


def _key_without_code(job: CompileJob) -> str:
    return CompileCache.key("without machine code", decoder_hash(), cache_key(job))


@once
def decoder_hash() -> str:
    """Return a hash of the source that reads cubins, because cached results contain their code and line tables."""
    folder = Path(__file__).parent
    return files_hash(folder, [folder / "machine_code.py"])


def cache_key(job: CompileJob) -> str:
    if (target := job.triton) is not None:
        from kernrec.compile.triton_version import fp_fusion, triton_compiler

        types = (f"{name}={kind}" for name, kind in target.signature.items())
        code = (target.function, *types, *job.macros, target.key or job.source, *(() if fp_fusion() else ("unfused",)))
        # "named" excludes the cached code of kernrec 0.1.0, whose functions have wrong names.
        return CompileCache.key("named", triton_compiler(), f"sm_{job.sm}", *code)
    by = nvcc_version() if job.host_code else compiler()
    return CompileCache.key(by, f"sm_{job.sm}", *OPTIONS, *job.options, *job.macros, job.name, job.source)


def compile_alone(job: CompileJob) -> Compiled:
    """Compile a job without a cache. Raise the same errors as `compile_source`."""
    if job.name.endswith(".ptx"):
        from kernrec.compile.assemble import assemble  # Import late, because the module imports NumPy.

        return assemble(job.source, job.sm, job.name)
    if job.triton is not None:
        from kernrec.compile.triton_compile import compile_triton  # Import late, because the module imports Triton.

        return compile_triton(job)
    if job.host_code:
        return compile_program(job)
    return _compile(job)


def _compile(job: CompileJob) -> Compiled:
    if job.sm not in supported_sms():
        supported = ", ".join(f"sm_{sm}" for sm in supported_sms())
        older = "; install the extra cuda12, or analyze PTX: nvcc 12 -ptx -arch=sm_70" if job.sm < 75 else ""
        raise CompileError(f"{compiler()} cannot compile for sm_{job.sm}; it supports {supported}{older}")
    defaults = OPTIONS if job.language else OPTIONS[1:]
    options = [f"--gpu-architecture={target_name(job.source, job.sm)}", *defaults, *job.options, *job.macros]
    options += [f"--include-path={folder}" for folder in header_folders()]
    if _NOT_MINIMAL.search(job.source) is None:
        # An older NVRTC rejects `_MINIMAL`. After any error, compile again without `_MINIMAL`.
        with suppress(CompileError):
            return _compiled(job, [*options, _MINIMAL])
    return _compiled(job, options)


def check_files(source: str, name: str) -> None:
    quoted = quoted_names(source)
    headers = {each for each in quoted if any((folder / each).is_file() for folder in header_folders())}
    check_includes(source, name, frozenset(headers))


def _readable() -> tuple[Path, ...]:
    """Return the only folders that NVRTC may read."""
    library = _library()[0]
    if isinstance(library, Library):
        return (*header_folders(), library.folder)
    system = ("/usr/lib", "/usr/lib64", "/usr/local", "/lib", "/lib64", "/etc/ld.so.cache")
    return (*header_folders(), Path(sys.prefix), *map(Path, system))


def _compiled(job: CompileJob, options: list[str]) -> Compiled:
    try:
        check_files(job.source, job.name)
    except UsageError as error:
        raise FileRefusedError(str(error)) from None
    return run_confined(lambda: _compiled_here(job, options), _readable())


def _compiled_here(job: CompileJob, options: list[str]) -> Compiled:
    nvrtc, _ = _library()
    program = nvrtc.createProgram(job.source, job.name, [], [])
    try:
        try:
            nvrtc.compileProgram(program, options)
        except nvrtc.NVRTCError as error:
            log = _text(nvrtc.getProgramLog(program))
            if DEVICE_LAUNCH.search(log) and RELOCATABLE not in options:
                return _compiled_here(job, [*options, RELOCATABLE])
            reason: Reason = "compile" if error.status == _REFUSED else "crash"
            raise CompileError(first_error(log or str(error), job.name), log, reason) from None
        log = _text(nvrtc.getProgramLog(program))
        ptx, cubin = _text(nvrtc.getPTX(program)), nvrtc.getCUBIN(program)
    finally:
        nvrtc.destroyProgram(program)
    return Compiled(ptx, cubin, parse_resources(log), compiler(), log)


def _text(raw: str | bytes) -> str:
    """Decode a C string. A log may have terminators in the middle, too."""
    text = raw.decode() if isinstance(raw, bytes) else raw
    return text.replace("\0", "")
