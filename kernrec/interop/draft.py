"""A kernel.toml in the making: its text, and what it still needs, as one command line."""

import re
import shlex
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from kernrec.errors import UsageError
from kernrec.interop.host_launches import HostLaunch
from kernrec.interop.spec_text import MARK, quoted
from kernrec.kernel import Kernel
from kernrec.kernel.spec_reader import load_kernel

_EXAMPLES = (
    (re.compile(r".*such as (--.+)"), r"\1"),
    (re.compile(r"--block, .*"), "--block 256"),
    (re.compile(r"--shared BYTES"), "--shared 16384"),
    (re.compile(r"--tune (\w+)=VALUES"), r"--tune \1=16,32"),
    (re.compile(r"(\w+)=NUMBER"), r"\1=4096"),
    (re.compile(r"(\w+)=TYPE\[ELEMENTS\]"), r"'\1=f32[4096]'"),
    (re.compile(r"(\w+)=(\w+)\[ELEMENTS\]"), r"'\1=\2[4096]'"),
    (re.compile(r"(\w+)=struct\(.*"), r"'\1=struct(f32:1,i32:1)'"),
    (re.compile(r"a --spec .*"), "--init"),
)
"""Words of a command for each kind of what is missing, with values to be replaced."""


@dataclass
class DraftTunable:
    """A tunable of the spec: an axis of the block, or a macro of the source."""

    values: list[int] | None
    """None: to be filled in."""
    meaning: str = ""
    launch: bool = False
    define: str | None = None

    def line(self, name: str) -> str:
        listed = MARK if self.values is None else f"[{', '.join(map(str, self.values))}]"
        parts = [f"values = {listed}"]
        if self.define is not None and self.define != name.upper():
            parts.append(f"define = {quoted(self.define)}")
        parts += ["launch = true"] if self.launch else []
        parts += [f"meaning = {quoted(self.meaning)}"] if self.meaning else []
        return f"{name} = {{ {', '.join(parts)} }}"


@dataclass
class DraftLaunch:
    """Grid, block and shared memory as expressions of the spec."""

    grid: list[str]
    block: list[str]
    shared: str
    constraints: dict[str, str] = field(default_factory=dict)
    """With the reason."""


@dataclass(frozen=True)
class Draft:
    """The text of a kernel.toml, and what it stands on."""

    source: Path
    entry: str
    """The kernel, or the instance of a template."""
    text: str
    missing: tuple[str, ...]
    """Places that are to be filled in, as arguments of `kernrec analyze`."""
    assumed: tuple[str, ...]
    """Values that nobody stated."""
    launch: HostLaunch | None = None
    """The launch in the host code."""
    unset: str = ""
    """A line on `__constant__` and `__device__` variables that nobody set; empty if there are none."""

    def kernel(self) -> Kernel:
        """The kernel; `UsageError` where places are open."""
        if self.missing:
            raise UsageError(
                f"{self.source} needs {'; '.join(self.missing)}, or a --spec (`kernrec analyze --init` begins one)"
            )
        return load_kernel(self.source, tomllib.loads(self.text))

    def command(self, gpu: str) -> str:
        """Return a command that runs, with examples of what is missing."""
        words = [analyze_command(self.source, self.entry, gpu)]
        for text in self.missing:
            words += [pattern.sub(example, text) for pattern, example in _EXAMPLES if pattern.fullmatch(text)][:1]
        return " ".join(dict.fromkeys(words))


def analyze_command(source: Path, entry: str, gpu: str) -> str:
    """Return the command that analyzes one kernel of a file."""
    return f"kernrec analyze {shlex.quote(f'{source}:{entry}')} --gpu {gpu}"
