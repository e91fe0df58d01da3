"""Input and output of a compilation: `CompileJob`, `Compiled`, `Resources`, `CompileError`; and its target's name."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Literal

from kernrec.errors import KernrecError
from kernrec.util.light_dataclass import dataclass

Reason = Literal["compile", "timeout", "crash"]


@dataclass(frozen=True)
class Resources:
    """The resources that the assembler allocates for one kernel."""

    registers: int
    """Per thread."""
    spill_store_bytes: int
    """Bytes of spill stores in the code, per thread."""
    spill_load_bytes: int
    """Bytes of spill loads in the code, per thread."""
    stack_bytes: int
    """Stack frame, per thread."""
    static_smem_bytes: int
    """Static shared memory, per block."""


@dataclass(frozen=True)
class Compiled:
    """One translation unit compiled for one architecture."""

    ptx: str
    cubin: bytes
    """The machine code; empty where only the PTX is known."""
    resources: dict[str, Resources]
    """By name in the PTX: what each `__global__` function uses."""
    compiler: str
    """The compiler, such as `nvrtc 13.5`."""
    log: str
    """All output of compiler and assembler."""

    @property
    def ptx_hash(self) -> str:
        """16 hex digits that identify the PTX without its header (compiler, target), which differs between
        architectures whose code is the same."""
        return hashlib.sha256(self.ptx.partition(".address_size")[2].encode()).hexdigest()[:16]


@dataclass(frozen=True)
class TritonTarget:
    """The function of a Triton source that is compiled, and for which arguments."""

    function: str
    signature: Mapping[str, str]
    """By parameter: the type of its argument, `*fp16` or `i32`, with `:16` where it is a multiple of 16. The other
    parameters are constants, which the job's defines give as Python literals."""
    key: str = ""
    """Triton's key of the function's code and of all that it calls; empty: the source stands for it."""
    folder: Path | None = None
    """Where the source imports other files from."""
    module: str = ""
    """The name by which the source is imported where it is installed; empty: the file is executed."""


@dataclass(frozen=True, eq=False)
class CompileJob:
    """One compilation to do.

    Jobs compare by identity, so a job that comes back from `compile_many` can be the key of a dictionary.
    """

    source: str
    """CUDA C++, PTX, or Python with a Triton function."""
    sm: int
    """Compute capability to compile for: 89 for sm_89."""
    defines: Mapping[str, str | int] = field(default_factory=dict)
    """Macros with their values, passed as `-Dname=value`."""
    name: str = "kernel.cu"
    """The source's name in the compiler's messages."""
    options: tuple[str, ...] = ()
    """Further options of NVRTC, such as `--use_fast_math`."""
    triton: TritonTarget | None = None
    """The function of a Triton source that is compiled."""
    host_code: bool = False
    """Whether the source is a whole program, which nvcc compiles."""
    machine_code: bool = True
    """Whether the machine code is wanted; without it, configs of one source may be compiled together."""

    @property
    def macros(self) -> list[str]:
        """The defines as compiler options, in an order that does not depend on the mapping's."""
        return [f"-D{key}={value}" for key, value in sorted(self.defines.items())]

    @property
    def language(self) -> list[str]:
        """C++17 as a compiler option, unless the options state another standard."""
        return [] if any("-std=" in option for option in self.options) else ["-std=c++17"]


class NoCompilerError(KernrecError):
    """The compiler that a source needs is not installed, so nothing can be compiled here."""


class CompileError(KernrecError):
    """A source that did not compile. The message is the compiler's first, with file and line."""

    def __init__(self, message: str, log: str = "", reason: Reason = "compile") -> None:
        """`message`: one line; `log`: all output; `reason`: `crash` where the source ended the compiler's process."""
        super().__init__(message)
        self.log = log
        self.reason: Reason = reason

    @property
    def lasting(self) -> bool:
        """Whether the same source will fail again: neither an accident nor a missing header, which may be installed."""
        return self.reason == "compile" and "cannot open source file" not in self.log


class FileRefusedError(CompileError):
    """A source names a file that is no installed header of CUDA. No cache keeps it: the header may be installed."""

    lasting = False


Result = Compiled | CompileError

_ONE_ARCHITECTURE = re.compile(r"\b(?:wgmma|tcgen05|setmaxnreg)\.")


def target_name(source: str, sm: int) -> str:
    """The target of a CUDA source: `sm_89`, or `sm_90a` where it has instructions of one architecture alone."""
    return f"sm_{sm}a" if _ONE_ARCHITECTURE.search(source) else f"sm_{sm}"


_ENTRY = re.compile(r"Compiling entry function '(\S+)' for")
_PROPERTIES = re.compile(r"Function properties for (\S+)")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SMEM = re.compile(r"(\d+)(?:\+(\d+))? bytes smem")


def parse_resources(log: str) -> dict[str, Resources]:
    """The resources of each entry from what `ptxas -v` prints.

    The assembler reports an entry, its stack frame, its registers, and then the stack frames of the
    functions it calls; only the frame under the entry's own name is the entry's.
    """
    resources: dict[str, Resources] = {}
    entry, function, stack, spill_stores, spill_loads = "", "", 0, 0, 0
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            entry, function, stack, spill_stores, spill_loads = match[1], "", 0, 0, 0
        elif match := _PROPERTIES.search(line):
            function = match[1]
        elif (match := _STACK.search(line)) and function == entry:
            stack, spill_stores, spill_loads = (int(group) for group in match.groups())
        elif entry and (match := _USED.search(line)):
            smem = _SMEM.search(line)
            static = int(smem[1]) + int(smem[2] or 0) if smem else 0
            resources[entry] = Resources(int(match[1]), spill_stores, spill_loads, stack, static)
    return resources


_MESSAGE = re.compile(
    r"^(?P<where>[^\s(][^(\n]*)\((?P<line>\d+)\): (?:catastrophic |internal )?error\b[^:]*: (?P<what>.+)$"
)
_ASSEMBLER = re.compile(r"^\s*(?:ptxas|nvrtc)(?:\s+(?:error|fatal))?\s*: (?:error:? )?(?P<what>.+)$")


def first_error(log: str, name: str) -> str:
    """The compiler's first error as one line: `kernel.cu:12: identifier "x" is undefined`."""
    for line in log.splitlines():
        if match := _MESSAGE.match(line):
            return f"{match['where']}:{match['line']}: {match['what']}"
    for line in log.splitlines():
        if ("error" in line or "fatal" in line) and (match := _ASSEMBLER.match(line)):
            return f"{name}: {match['what']}"
    first = next((line.strip() for line in log.splitlines() if line.strip()), "the compiler failed without a message")
    return f"{name}: {first}"
