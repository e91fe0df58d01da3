"""What goes into a compilation and what comes out: `CompileJob`, `Compiled`, `Resources`, `CompileError`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from kernrec.errors import KernrecError

Reason = Literal["compile", "timeout", "crash"]


@dataclass(frozen=True)
class Resources:
    """What the assembler gives one kernel entry; registers and bytes of stack are per thread."""

    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int
    static_smem_bytes: int


@dataclass(frozen=True)
class Compiled:
    """One translation unit compiled for one architecture.

    `resources` has an item for each `__global__` entry by its name in the PTX; `compiler` is like
    `nvrtc 13.5`; `log` is everything the compiler and the assembler said.
    """

    ptx: str
    cubin: bytes
    resources: dict[str, Resources]
    compiler: str
    log: str


@dataclass(frozen=True, eq=False)
class CompileJob:
    """One compilation to do: `source` for `sm` (89 for sm_89) with each of `defines` as `-Dname=value`.

    `name` is what the compiler's messages call the source. Jobs compare by identity, so a job that comes
    back from `compile_many` is the key of whatever its caller keeps beside it.
    """

    source: str
    sm: int
    defines: Mapping[str, str | int] = field(default_factory=dict)
    name: str = "kernel.cu"

    @property
    def macros(self) -> list[str]:
        """The defines as compiler options, in an order that does not depend on the mapping's."""
        return [f"-D{key}={value}" for key, value in sorted(self.defines.items())]


class CompileError(KernrecError):
    """A source that did not compile. The message is the compiler's first, with file and line.

    `reason` tells a wrong source (`compile`) from one that took too long (`timeout`) or took the
    compiler process down with it (`crash`); `log` holds all the compiler said.
    """

    def __init__(self, message: str, log: str = "", reason: Reason = "compile") -> None:
        super().__init__(message)
        self.log = log
        self.reason: Reason = reason

    @property
    def lasting(self) -> bool:
        """Whether the same source will be refused again: no accident, and no header that may be there next time."""
        return self.reason == "compile" and "cannot open source file" not in self.log


Result = Compiled | CompileError


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
    found: dict[str, Resources] = {}
    entry, function = "", ""
    stack, spill_stores, spill_loads = 0, 0, 0
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            entry, function = match[1], ""
            stack, spill_stores, spill_loads = 0, 0, 0
        elif match := _PROPERTIES.search(line):
            function = match[1]
        elif (match := _STACK.search(line)) and function == entry:
            stack, spill_stores, spill_loads = (int(group) for group in match.groups())
        elif entry and (match := _USED.search(line)):
            smem = _SMEM.search(line)
            static = int(smem[1]) + int(smem[2] or 0) if smem else 0
            found[entry] = Resources(int(match[1]), spill_stores, spill_loads, stack, static)
    return found


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
    said = next((line.strip() for line in log.splitlines() if line.strip()), "the compiler failed and said nothing")
    return f"{name}: {said}"
