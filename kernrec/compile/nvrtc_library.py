"""Call NVRTC in the wheel's library directly, or through CuPy, which finds other installations.

Direct calls avoid importing CuPy, which is slow, in each compiling process. Functions have the names, arguments and
results of `cupy.cuda.nvrtc`.
"""

import ctypes
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

_WHEELS = ("cu13", "cuda_nvrtc")
"""Folders of the package `nvidia` that contain NVRTC of CUDA 13 and of CUDA 12."""


class NVRTCError(RuntimeError):
    """A function of NVRTC failed; `status` is its `nvrtcResult`."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{message} ({status})")
        self.status = status


class Library:
    """NVRTC, loaded from a shared library."""

    NVRTCError = NVRTCError

    def __init__(self, file: Path) -> None:
        """Load the library. Raises `OSError` if that fails."""
        self._library = ctypes.CDLL(str(file))
        # Load the builtins now: at the first compilation, NVRTC's thread may no longer be able to open libraries.
        self._builtins = [ctypes.CDLL(str(each)) for each in file.parent.glob("libnvrtc-builtins.so*")]
        self.folder = file.parent
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p

    def getVersion(self) -> tuple[int, int]:  # noqa: N802 - CuPy's names
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        return major.value, minor.value

    def getSupportedArchs(self) -> list[int]:  # noqa: N802
        """Return the compute capabilities that NVRTC can compile for."""
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
    """Return NVRTC. Raises `ImportError` if neither a wheel of it nor CuPy is installed."""
    files = _libraries() if sys.platform == "linux" else []
    if len(files) == 1:  # if there are several, CuPy selects the version that it was built for
        try:
            return Library(files[0])
        except OSError:
            pass
    module: ModuleType = importlib.import_module("cupy.cuda").nvrtc
    return module


def _libraries() -> list[Path]:
    package = importlib.util.find_spec("nvidia")  # a namespace package: found without importing anything
    places = (package.submodule_search_locations or []) if package else []
    files = (file for place in places for wheel in _WHEELS for file in Path(place, wheel, "lib").glob("libnvrtc.so.*"))
    return [file for file in files if file.suffix[1:].isdigit()]
