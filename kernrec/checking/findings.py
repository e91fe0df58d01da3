"""Describe the errors that `kernrec check` finds in kernels: message, source line and usual fix."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from kernrec.kernel.cuda_signature import source_name
from kernrec.kernel.expression import as_in_source
from kernrec.ptx.execution.engine import RawFinding
from kernrec.ptx.ir.operand import Address
from kernrec.ptx.ir.program import Function, Place, SourceLines
from kernrec.ptx.state.launch_layout import BUFFER_SHIFT
from kernrec.ptx.state.results import OUTSIDE
from kernrec.util.light_dataclass import dataclass

FIXES = {
    "race-shared": "put __syncthreads() between the two accesses",
    "race-warp": "put __syncwarp() between the two accesses: lanes of a warp run independently",
    "race-global": "blocks run in any order: use atomics, another output buffer, or two kernels",
    "race-block": "put __syncthreads() between the two accesses, or use atomics",
    "race-atomic": "put a barrier between the write and the atomics; if their blocks differ, write before the launch",
    "async-copy": "wait for the copy before the read: __pipeline_wait_prior(), then __syncthreads()",
    "mbarrier": "initialize each mbarrier once, in one thread, and put a barrier before its first use",
    "division-by-zero": "check the divisor: CUDA leaves the result of an integer division by zero undefined",
    "uninitialized-shared": "write every element before it is read (shared memory is not zero at the start)",
    "uninitialized-global": "fill the buffer before the launch, for example with cudaMemset",
    "uninitialized-local": "write every element before it is read (local arrays are not zero at the start)",
    "uninitialized-register": "assign the variable on every path that leads to its first use",
    "shuffle": "let every lane whose value is read execute the shuffle, or reduce the distance to stay within the mask",
    "outside-array": "check the index against the array's size",
    "out-of-bounds": "guard the access with the bounds of the buffer, as in `if (i < n)`",
    "misaligned": "a vector access needs an address that is a multiple of its size: align the offset, or load elements",
    "null-pointer": "check that the buffer is allocated, and that the pointer is one of the device",
    "read-only": "remove the write: constant memory and parameters cannot be written by a kernel",
    "divergent-barrier": "move __syncthreads() out of the branch, so that every thread of the block reaches it",
    "mask": "name the lanes that run the instruction, as __ballot_sync before the branch returns them",
    "deadlock": "the threads that could end the wait may never run: end the kernel instead, or launch cooperatively",
    "endless-loop": "check the loop's condition and step",
    "trap": "the kernel stopped itself, by assert() or __trap()",
    "launch": "a GPU refuses this launch",
}
"""Usual fix for each kind of error."""

_PLACE = re.compile(r"^(.*?), PTX line (\d+), `(.*?)`: (.*)$", re.DOTALL)
_COORDINATES = re.compile(r"block (\([\d, ]+\)) thread (\([\d, ]+\)) ?")
_BUFFER_RANGE = 1 << BUFFER_SHIFT
_BEFORE = re.compile(r"accesses \d+ bytes, (\d+) bytes before `(.+)`")
_KINDS = (
    (OUTSIDE, "out-of-bounds"),
    (_BEFORE, "out-of-bounds"),
    (re.compile(r"which is not a multiple of"), "misaligned"),
    (re.compile(r"which is in no buffer"), "null-pointer"),
    (re.compile(r"which is read-only"), "read-only"),
    (re.compile(r"deadlock: .*wait at barrier"), "divergent-barrier"),
    (re.compile(r"deadlock: .*that the mask names"), "mask"),
    (re.compile(r"deadlock"), "deadlock"),
    (re.compile(r"endless loop"), "endless-loop"),
    (re.compile(r"uses the barrier at byte"), "mbarrier"),
    (re.compile(r"trapped"), "trap"),
    (re.compile(r"race: "), "race-shared"),
)
"""Pairs (regular expression, kind of error). The expression matches the message of an error that ends a launch."""


@dataclass(frozen=True)
class Finding:
    """Error in a kernel, with its location."""

    kind: str
    """Kind of the error, a key of `FIXES`."""
    kernel: str
    message: str
    """Description of the error without its location."""
    file: str = ""
    line: int = 0
    """Number of the source line, or 0 if unknown."""
    block: str = ""
    thread: str = ""
    memory: str = ""
    """Name of the accessed buffer or array."""
    byte: int | None = None
    """Byte offset of the access in the buffer or array."""
    is_update: bool = False
    """Whether a race is between the load and the store of one statement, such as `count[i] += 1`."""

    @property
    def fix(self) -> str:
        """Return the usual fix."""
        return "use an atomic operation, such as atomicAdd()" if self.is_update else FIXES[self.kind]

    @property
    def text(self) -> str:
        """Return the error in one line, in the format that compilers use."""
        place = f"{self.file}:{self.line}: " if self.line else f"{self.file}: " if self.file else ""
        return f"{place}error: {self.message}; {self.fix} [{self.kind}, kernel {self.kernel}]"

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as plain values for JSON."""
        return {**{name: value for name, value in vars(self).items() if name != "is_update"}, "fix": self.fix}


def distinct(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Keep one finding per kind, source line and memory, because a line may compile to several instructions."""
    by_place: dict[tuple[str, str, int, str], Finding] = {}
    for each in findings:
        by_place.setdefault((each.kind, each.file, each.line, each.memory), each)
    return tuple(by_place.values())


class Describer:
    """Converter of the emulator's reports to findings that name source lines."""

    def __init__(
        self, kernel: str, function: Function, lines: SourceLines, origins: Sequence[tuple[str, int]], file: str
    ) -> None:
        """Prepare the mapping from PTX to source lines.

        Args:
            function: The kernel that ran, with its calls inlined.
            lines: Source lines of the kernel's PTX.
            origins: Original file and line of each line of the compiled source. Empty if the original file is compiled.
            file: Name of the source file, for kernels without line information.
        """
        self.kernel, self._function, self._file, self._origins = kernel, function, file, origins
        self._lines = lines

    def place(self, ptx_line: int) -> Place:
        """Return the source file and line of a line of PTX. The line is 0 if unknown."""
        place = self._lines.of(ptx_line)
        if place is None:
            return Place(self._file, ptx_line if self._file.endswith(".ptx") else 0)
        if self._origins and place.file.endswith(self._file) and place.line <= len(self._origins):
            return Place(*self._origins[place.line - 1])
        return Place(self._file if place.file.endswith(self._file) else place.file, place.line)

    def of(self, raw: RawFinding) -> Finding:
        """Return the finding for a report of the emulator."""
        if raw.kind == "race-atomic":  # Describe the non-atomic write, which is usually an initialization.
            raw = raw._replace(source=raw.other, other=raw.source)
        if raw.kind == "barrier":  # Describe the access that comes first in the source code.
            raw = raw._replace(source=min(raw.source, raw.other), other=max(raw.source, raw.other))
        ins = self._function.instructions[raw.source]
        place = self.place(ins.line)
        other = f" at line {self.place(self._function.instructions[raw.other].line).line}" if raw.other >= 0 else ""
        who = f"thread {raw.thread} of block {raw.block}"
        writes = "writes" if ins.opcode in ("st", "cp", "stmatrix") else "reads"
        did = "wrote" if writes == "reads" else "also touched"
        memory = as_in_source(_plain_name(raw.memory))
        match raw.kind:
            case "race-shared" | "race-warp" | "race-block":
                group = {"race-warp": " of its own warp", "race-block": " of the same block"}.get(raw.kind, "")
                whose = f"thread {raw.other_thread}" if raw.other_thread else "other threads"
                text = (
                    f"data race: {who} {writes} byte {raw.offset} of {memory}, which {whose}{group}"
                    f" {did}{other} with no {'__syncwarp()' if raw.kind == 'race-warp' else 'barrier'} between"
                )
            case "race-global":
                whose = f"block {raw.other_block}" if raw.other_block else "several other blocks"
                text = f"data race: {who} {writes} byte {raw.offset} of {memory}, which {whose} {did}{other}"
            case "race-atomic":
                whose = f"thread {raw.other_thread}" if raw.other_thread else "another block"
                text = f"data race: {whose} writes byte {raw.offset} of {memory}, which {who} updates{other}"
            case "async-copy":
                text = f"{who} reads byte {raw.offset} of {memory} before the asynchronous copy{other} has ended"
            case "division-by-zero":
                text = f"{who} divides an integer by zero"
            case "uninitialized-shared" | "uninitialized-global":
                text = f"{who} reads byte {raw.offset} of {memory}, which nothing wrote before"
            case "uninitialized-register":
                text = f"{who} uses a variable that no statement has assigned before"
            case "uninitialized-local":
                text = f"{who} reads an element of a local array that nothing wrote before, and uses it{other}"
            case "shuffle":
                text = f"{who} shuffles a value from a lane that does not run the shuffle, and uses it{other}"
            case "outside-array":
                text = f"{who} accesses {raw.bytes} bytes at byte {raw.offset} of {memory}, past its end"
            case "mask":
                text = f"{who} runs a warp operation whose mask {raw.offset:#010x} does not name its own lane"
            case _:
                text = f"threads of a warp of block {raw.block} wait here, and others of the warp{other}"
        kind = "divergent-barrier" if raw.kind == "barrier" else raw.kind
        byte = raw.offset if raw.bytes else None
        is_update = kind in ("race-shared", "race-warp", "race-block", "race-global") and self._is_update(raw)
        return Finding(kind, self.kernel, text, *place, raw.block, raw.thread, memory, byte, is_update)

    def _is_update(self, raw: RawFinding) -> bool:
        if raw.other < 0:
            return False
        pair = [self._function.instructions[each] for each in (raw.source, raw.other)]
        places = {self.place(ins.line) for ins in pair}
        addresses = {operand for ins in pair for operand in ins.operands if isinstance(operand, Address)}
        return {ins.opcode for ins in pair} == {"ld", "st"} and len(places) == len(addresses) == 1

    def of_error(self, error: str, buffers: Sequence[str] = ()) -> Finding | None:
        """Return the finding for an error that ended the launch, or None if the kernel did not cause it.

        Args:
            error: Message of the emulator.
            buffers: Names of the launch's buffers, in the order of their addresses.
        """
        match = _PLACE.match(error)
        text = _before_buffer(match[4] if match else error.partition(": ")[2] or error, buffers)
        kind = next((kind for pattern, kind in _KINDS if pattern.search(text)), None)
        if kind is None:
            return None
        near = re.search(r"near PTX line (\d+)", error)
        line = int(match[2]) if match else int(near[1]) if near else 0
        place = self.place(line) if line else Place(self._file, 0)
        coordinates = _COORDINATES.search(text)
        block, thread = coordinates.groups() if coordinates else ("", "")
        text = readable(text)
        text = re.sub(r" near PTX line \d+| \(address 0x[0-9a-f]+\)", "", text)
        outside = OUTSIDE.search(text)
        memory, byte = (as_in_source(outside[3]), int(outside[2])) if outside else ("", None)
        before = _BEFORE.search(text)
        if before:
            memory, byte = before[2], -int(before[1])
        text = as_in_source(text)
        return Finding(kind, self.kernel, text, *place, block, thread, memory, byte)


def readable(text: str) -> str:
    """Return a message of the emulator with the source names of kernels, and with a thread before its block."""
    text = re.sub(r"\b_Z\w+", lambda symbol: source_name(symbol[0]), text)
    return _COORDINATES.sub(lambda pair: f"thread {pair[2]} of block {pair[1]} ", text)


def _before_buffer(text: str, buffers: Sequence[str]) -> str:
    """Correct the buffer's name in the emulator's message about an access just before the start of a buffer.

    The emulator names the previous buffer in memory. `buffers` contains all names in the order of the addresses.
    """
    address = re.search(r"accesses (\d+) bytes at .*address (0x[0-9a-f]+)", text)
    number, rest = divmod(int(address[2], 16), _BUFFER_RANGE) if address else (0, 0)
    if address is None or rest < _BUFFER_RANGE // 2 or number >= len(buffers):
        return text
    name, distance = as_in_source(buffers[number]), _BUFFER_RANGE - rest
    return f"{text[: address.start()]}accesses {address[1]} bytes, {distance} bytes before `{name}`"


def _plain_name(name: str) -> str:
    local = re.fullmatch(r"_ZZ.*E(\d+)(\w+?)(?:_\d+)?", name)
    return local[2][: int(local[1])] if local else name


def junit(file: str, kernels: Mapping[str, Sequence[Finding]], errors: Mapping[str, str]) -> str:
    """Return a JUnit report in XML: the findings of each kernel, or why it could not be checked."""
    failed = sum(bool(findings) for findings in kernels.values())
    sizes = {"tests": len(kernels) + len(errors), "failures": failed, "skipped": len(errors)}
    suite = ElementTree.Element("testsuite", {"name": f"kernrec check {file}", **{k: str(v) for k, v in sizes.items()}})
    for kernel, findings in kernels.items():
        case = ElementTree.SubElement(suite, "testcase", {"name": kernel, "classname": file})
        for finding in findings:
            ElementTree.SubElement(case, "failure", {"type": finding.kind, "message": finding.text})
    for kernel, error in errors.items():
        case = ElementTree.SubElement(suite, "testcase", {"name": kernel, "classname": file})
        ElementTree.SubElement(case, "skipped", {"message": error})
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode") + "\n"
