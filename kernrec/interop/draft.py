"""Write drafts of a kernel.toml: its text, and a command line that names the missing parts."""

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
"""Command-line example for each kind of missing part; the user replaces the example's values."""


@dataclass
class DraftTunable:
    """Tunable of the spec: an axis of the block, or a macro of the source."""

    values: list[int] | None
    """Values; None if the user must fill them in."""
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
    """Constraints with their reasons."""


@dataclass(frozen=True)
class Draft:
    """Text of a kernel.toml, with its assumptions."""

    source: Path
    entry: str
    """Name of the kernel, or of the template's instance."""
    text: str
    missing: tuple[str, ...]
    """Parts to fill in, as arguments of `kernrec analyze`."""
    assumed: tuple[str, ...]
    """Assumed values."""
    launch: HostLaunch | None = None
    """Launch in the host code, or None."""
    unset: str = ""
    """Note on `__constant__` and `__device__` variables that nothing set; empty if there are none."""

    def kernel(self) -> Kernel:
        """Return the kernel; raise `UsageError` if parts are missing or the text is not TOML."""
        if self.missing:
            raise UsageError(
                f"{self.source} needs {'; '.join(self.missing)}, or a --spec (`kernrec analyze --init` writes a draft)"
            )
        try:
            content = tomllib.loads(self.text)
        except ValueError as error:
            raise UsageError(f"{self.source}: the drafted spec is not TOML ({error}): give a --spec") from None
        return load_kernel(self.source, content)

    def command(self, gpu: str) -> str:
        """Return a complete command, with examples for missing parts."""
        words = [analyze_command(self.source, self.entry, gpu)]
        for text in self.missing:
            words += [pattern.sub(example, text) for pattern, example in _EXAMPLES if pattern.fullmatch(text)][:1]
        return " ".join(dict.fromkeys(words))


def analyze_command(source: Path, entry: str, gpu: str) -> str:
    """Return the command that analyzes one kernel of a file."""
    return f"kernrec analyze {shlex.quote(f'{source}:{entry}')} --gpu {gpu}"
