"""Define the input, the result, the errors and the cache of compilations."""

import hashlib
import importlib.util
import json
import os
import re
import shutil
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, field
from functools import cache as once
from hashlib import sha256
from pathlib import Path
from typing import Literal

from kernrec import paths
from kernrec.compile.machine_code import MachineCode, read_machine_code
from kernrec.errors import KernrecError
from kernrec.util.files import write_whole
from kernrec.util.light_dataclass import dataclass

Reason = Literal["compile", "timeout", "crash"]
COUNTS = "KERNREC_COUNTS"
"""Environment variable that makes kernrec estimate instructions from PTX if its value is `ptx`."""


def reads_machine_code() -> bool:
    return os.environ.get(COUNTS) != "ptx"


@dataclass(frozen=True)
class Resources:
    """Registers and memory of a kernel. Static shared memory is per block, and everything else is per thread."""

    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int
    static_smem_bytes: int


@dataclass(frozen=True)
class Compiled:
    """Translation unit compiled for one architecture."""

    ptx: str
    cubin: bytes
    """Machine code. Empty without an assembler, and for configs that were compiled together."""
    resources: dict[str, Resources]
    """Resources of each `__global__` function, keyed by its PTX name."""
    compiler: str
    """Name and version of the compiler, such as `nvrtc 13.5`."""
    log: str
    code: Mapping[str, MachineCode] | None = None
    """Machine instructions of each function, or None to read them from `cubin`."""

    def machine_code(self, sm: int) -> Mapping[str, MachineCode]:
        """Return the machine instructions of each function by PTX name. `KERNREC_COUNTS=ptx` makes the result empty."""
        if not reads_machine_code():
            return {}
        return read_machine_code(self.cubin, sm) if self.code is None else self.code

    @property
    def ptx_hash(self) -> str:
        """Return a hash (16 hex digits) of the PTX without its header, which states the target."""
        return hashlib.sha256(self.ptx.partition(".address_size")[2].encode()).hexdigest()[:16]


@dataclass(frozen=True)
class TritonTarget:
    """Triton function to compile."""

    function: str
    signature: Mapping[str, str]
    """Triton's type of each argument, such as `*fp16`, or `i32:16` for a multiple of 16.

    Other parameters are constants. `CompileJob.defines` has their values as Python literals.
    """
    key: str = ""
    """Triton's cache key of the function and its callees. If empty, the whole source is the key."""
    folder: Path | None = None
    """Folder from which the source imports files, or None."""
    module: str = ""
    """Installed module to import, or an empty string to execute the source."""


@dataclass(frozen=True, eq=False)
class CompileJob:
    """Input of one compilation. Jobs compare by identity."""

    source: str
    """CUDA C++, PTX, or Python with a Triton function."""
    sm: int
    """Compute capability, such as 89."""
    defines: Mapping[str, str | int] = field(default_factory=dict)
    """Values of macros."""
    name: str = "kernel.cu"
    """File name in the compiler's messages."""
    options: tuple[str, ...] = ()
    """Further NVRTC options, such as `--use_fast_math`."""
    triton: TritonTarget | None = None
    """Function to compile in a Triton source, or None for other sources."""
    host_code: bool = False
    """Whether the source needs nvcc, because it has host code."""
    machine_code: bool = True
    """Whether `Compiled.cubin` is needed. Otherwise, configs of one source may be compiled together."""

    @property
    def macros(self) -> list[str]:
        return [f"-D{key}={value}" for key, value in sorted(self.defines.items())]

    @property
    def language(self) -> list[str]:
        """Return the option for C++17, or an empty result if `options` select another standard."""
        return [] if any("-std=" in option for option in self.options) else ["-std=c++17"]


def wheel_folders(*names: str) -> list[Path]:
    """Return the paths at which NVIDIA's wheels install folders such as `cu13/bin`."""
    # `find_spec` imports nothing, because `nvidia` is a namespace package.
    package = importlib.util.find_spec("nvidia")
    places = (package.submodule_search_locations or []) if package else []
    return [Path(place, name) for place in places for name in names]


@once
def toolkit_program(name: str) -> str | None:
    """Return the path of a CUDA program, or None. NVIDIA's wheels come before CUDA_PATH, CUDA_HOME and PATH."""
    folders = wheel_folders("cu13/bin", "cuda_nvcc/bin")
    folders += [Path(os.environ[home], "bin") for home in ("CUDA_PATH", "CUDA_HOME") if os.environ.get(home)]
    path = next((str(folder / name) for folder in folders if (folder / name).is_file()), None)
    return path or shutil.which(name)


def assembler() -> str | None:
    """Return the path of `ptxas`, or None if it is not installed."""
    return toolkit_program("ptxas")


class NoCompilerError(KernrecError):
    """Error for a compiler that is not installed."""


class CompileError(KernrecError):
    """Error in a source. The message is the compiler's first error, with file and line."""

    def __init__(self, message: str, log: str = "", reason: Reason = "compile") -> None:
        super().__init__(message)
        self.log = log
        self.reason: Reason = reason

    @property
    def lasting(self) -> bool:
        """Return whether compiling again would fail, too. A crash or a missing header may be temporary."""
        return self.reason == "compile" and "cannot open source file" not in self.log


class FileRefusedError(CompileError):
    """Error for an include that is not a CUDA header. It is not cached, because the file may appear later."""

    lasting = False


Result = Compiled | CompileError

_ONE_ARCHITECTURE = re.compile(r"\b(?:wgmma|tcgen05|setmaxnreg)\.")


def target_name(source: str, sm: int) -> str:
    """Return a CUDA source's target, such as `sm_90`. It is `sm_90a` if the code cannot run on later architectures."""
    return f"sm_{sm}a" if _ONE_ARCHITECTURE.search(source) else f"sm_{sm}"


_ENTRY = re.compile(r"Compiling entry function '(\S+)' for")
_PROPERTIES = re.compile(r"Function properties for (\S+)")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SMEM = re.compile(r"(\d+)(?:\+(\d+))? bytes smem")


def parse_resources(log: str) -> dict[str, Resources]:
    """Return the resources of each kernel in the output of `ptxas -v`."""
    resources: dict[str, Resources] = {}
    entry, function, stack, spill_stores, spill_loads = "", "", 0, 0, 0
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            entry, function, stack, spill_stores, spill_loads = match[1], "", 0, 0, 0
        elif match := _PROPERTIES.search(line):
            function = match[1]
        elif (match := _STACK.search(line)) and function == entry:  # The log also lists the frames of callees.
            stack, spill_stores, spill_loads = (int(group) for group in match.groups())
        elif entry and (match := _USED.search(line)):
            smem = _SMEM.search(line)
            static = int(smem[1]) + int(smem[2] or 0) if smem else 0
            resources[entry] = Resources(int(match[1]), spill_stores, spill_loads, stack, static)
    return resources


_MESSAGE = re.compile(
    r"^(?P<where>[^\s(][^(\n]*)\((?P<line>\d+)\): (?:catastrophic |internal )?error\b[^:]*: (?P<what>.+)$"
)
DEVICE_LAUNCH = re.compile(r"error\b.*: (?:device-side kernel launch|kernel launch from __device__)")
"""Matches a compiler's error for a kernel that launches kernels. The option `RELOCATABLE` avoids the error."""
RELOCATABLE = "-rdc=true"
_ASSEMBLER = re.compile(r"^\s*(?:ptxas|nvrtc)(?:\s+(?:error|fatal))?\s*: (?:error:? )?(?P<what>.+)$")


def first_error(log: str, name: str) -> str:
    """Return the first error in a compiler log, such as `kernel.cu:12: identifier "x" is undefined`."""
    for line in log.splitlines():
        if match := _MESSAGE.match(line):
            return f"{match['where']}:{match['line']}: {match['what']}"
    for line in log.splitlines():
        if ("error" in line or "fatal" in line) and (match := _ASSEMBLER.match(line)):
            return f"{name}: {match['what']}"
    first = next((line.strip() for line in log.splitlines() if line.strip()), "the compiler failed without a message")
    return f"{name}: {first}"


_FORMAT = "kernrec compile cache 3"


class CompileCache:
    """Cache of compilation results in a folder. Without a folder, nothing is cached."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    @classmethod
    def default(cls) -> "CompileCache":
        return cls(paths.cache() / "compile")

    @staticmethod
    def key(*parts: str) -> str:
        """Return a hash of several texts. (`ab`, `c`) and (`a`, `bc`) have different hashes."""
        text = "".join(f"{len(part)}:{part}" for part in (_FORMAT, *parts))
        return sha256(text.encode()).hexdigest()

    def get(self, key: str) -> Result | None:
        if self.folder is None:
            return None
        try:
            return _decode(self._path(self.folder, key).read_bytes())
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, zlib.error):
            return None

    def put(self, key: str, result: Result) -> None:
        """Cache a result. Do nothing if the folder is not writable."""
        if self.folder is None:
            return
        path = self._path(self.folder, key)
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, _encode(result))

    @staticmethod
    def _path(folder: Path, key: str) -> Path:
        return folder / key[:2] / f"{key}.z"


def _encode(result: Result) -> bytes:
    if isinstance(result, CompileError):
        return zlib.compress(json.dumps({"refused": str(result), "log": result.log}).encode(), level=3)
    codes = result.code or {}
    header = {
        "resources": {entry: asdict(resources) for entry, resources in result.resources.items()},
        "compiler": result.compiler,
        "log": result.log,
        "ptx": result.ptx,
        "code": {
            name: (len(code.content), len(code.lines), code.labels, code.slow_paths, code.sm)
            for name, code in codes.items()
        },
    }
    parts = (part for code in codes.values() for part in (code.content, code.lines))
    # zlib adds a checksum, so decompressing a damaged file fails.
    return zlib.compress(b"".join((json.dumps(header).encode(), b"\n", *parts, result.cubin)), level=3)


def _decode(data: bytes) -> Result:
    header, _, binary = zlib.decompress(data).partition(b"\n")
    fields = json.loads(header)
    if "refused" in fields:
        return CompileError(fields["refused"], fields["log"])
    resources = {entry: Resources(**values) for entry, values in fields["resources"].items()}
    code, place = {}, 0
    for name, (size, of_lines, labels, slow_paths, sm) in fields["code"].items():
        content, lines = binary[place : place + size], binary[place + size : place + size + of_lines]
        # Instructions of 16 bytes are decoded later, and each has a line of 4 bytes.
        numbers = (*labels, *slow_paths, sm)
        if not (len(content) == size == 4 * len(lines) and size % 16 == 0 and all(type(n) is int for n in numbers)):
            raise ValueError(f"damaged machine code of {name}")
        code[name] = MachineCode(content, lines, tuple(labels), tuple(slow_paths), sm)
        place += size + of_lines
    return Compiled(fields["ptx"], binary[place:], resources, fields["compiler"], fields["log"], code or None)
