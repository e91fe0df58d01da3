"""List the kernels of a CUDA program, and represent the draft of a kernel's spec (kernel.toml)."""

import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from kernrec.errors import KernrecError, UsageError, unknown
from kernrec.interop.host_launches import HostLaunch, host_launches
from kernrec.interop.spec_text import MARK, quoted
from kernrec.kernel import Kernel
from kernrec.kernel.cuda_signature import Signature, signatures, source_name
from kernrec.kernel.source_files import read_text
from kernrec.kernel.spec_reader import load_kernel
from kernrec.util.human import counted

_MANGLED = {
    "float": "f",
    "double": "d",
    "int": "i",
    "unsigned": "j",
    "unsigned int": "j",
    "true": "Lb1E",
    "false": "Lb0E",
}
"""Codes of template arguments in mangled kernel names, keyed by the argument in C++."""


@dataclass
class DraftTunable:
    """Tunable of a drafted spec: the block's extent along an axis, or a macro of the source."""

    values: list[int] | None
    """Values of the tunable, or None if the user must fill them in."""
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


@dataclass(frozen=True)
class Draft:
    """Drafted kernel.toml, with its missing parts and the values that kernrec assumed."""

    source: Path
    entry: str
    """Name of the kernel, or the instance of a template, such as `scale<float, 4>`."""
    text: str
    missing: tuple[str, ...]
    """Parts that the user must fill in, written as `kernrec analyze` options."""
    assumed: tuple[str, ...]
    """Descriptions of values that kernrec assumed because the source does not determine them."""
    launch: HostLaunch | None = None
    """Launch of the kernel in the program's host code, or None if there is none."""
    unset: str = ""
    """Note on `__constant__` and `__device__` variables without a value, or an empty string."""

    buffers: Mapping[str, str] = field(default_factory=dict)
    """Type and content (`x=f32` or `x=zeros:i32`) of buffers whose size the user did not state, keyed by spec name."""
    chosen: tuple[str, ...] = ()
    """Arguments of `kernrec analyze` that kernrec chose."""
    stated: tuple[str, ...] = ()
    """Arguments of `kernrec analyze` that the user gave."""

    def kernel(self) -> Kernel:
        """Return the drafted kernel. Raise `UsageError` if the draft is incomplete or invalid."""
        if self.missing:
            raise UsageError(
                f"{self.source} needs {'; '.join(self.missing)}, or a --spec (`kernrec analyze --init` writes a draft)"
            )
        try:
            content = tomllib.loads(self.text)
        except ValueError as error:
            raise UsageError(
                f"{self.source}: kernrec could not draft a valid spec ({error}); write a spec, and give it as --spec"
            ) from None
        return load_kernel(self.source, content)

    @property
    def note(self) -> str:
        """Note on the values that kernrec chose, or an empty string."""
        if not self.chosen or self.missing:
            return ""
        values = ", ".join(self.chosen)
        return f"kernrec assumed {values}, which the file does not state; to change a value, add it to the command"

    @property
    def notes(self) -> list[str]:
        """Notes on values that kernrec chose, on assumptions, and on variables without a value."""
        assumed = f"assumed: {'; '.join(self.assumed)}" if self.assumed else ""
        return [note for note in (self.note, assumed, self.unset) if note]

    def command(self, gpu: str) -> str:
        """Return a complete `kernrec analyze` command, with the user's words and example values for missing parts."""
        words = [word if '"' in word or not re.search(r"[\[(*]", word) else f"'{word}'" for word in self.chosen]
        words = [word for word in words if not word.endswith(f":{self.entry}'")]
        command = analyze_command(self.source, self.entry, gpu)
        return " ".join([command, *map(shlex.quote, self.stated), *(words if self.chosen else ["--init"])])


def analyze_command(source: Path, entry: str, gpu: str) -> str:
    """Return the `kernrec analyze` command for one kernel of a source file."""
    return f"kernrec analyze {shlex.quote(f'{source}:{entry}')} --gpu {gpu}"


def kernel_names(text: str) -> list[str]:
    """Return the names of a CUDA program's kernels, in the form that the argument `FILE:NAME` accepts.

    Instances of a template (`scale<float, 4>`) are separate names. Kernels that the program never launches come last.
    """
    launched = set(re.findall(r"([A-Za-z_]\w*)\s*(?:<[^<>;(){}]*>)?\s*<<<", text))
    kernels = sorted(signatures(text), key=lambda each: each.name not in launched)
    return [name for each in kernels for name in (_instances(text, each) if each.template else [each.name])]


def _instances(text: str, template: Signature) -> list[str]:
    explicit = re.findall(rf"\btemplate\b[^;{{}}<]*\b({template.name}\s*<[^<>;(){{}}]*>)\s*\(", text)
    launched = [launch.kernel for launch in host_launches(text, template.name, ()) if "<" in launch.kernel]
    return sorted({" ".join(each.split()) for each in (*explicit, *launched)}) or [template.name]


def _programs_beside(source: Path) -> Iterator[tuple[Path, str]]:
    for file in sorted(source.parent.glob("*.cu"))[:200]:
        with suppress(KernrecError):
            yield file, read_text(file, file.name, errors="replace")


def includer_of(source: Path) -> Path | None:
    """Return the path of a program in the same folder that includes the file `source`, or None if there is none."""
    pattern = re.compile(rf'^[ \t]*#[ \t]*include[ \t]*"(?:\./)?{re.escape(source.name)}"', re.MULTILINE)
    return next((file for file, text in _programs_beside(source) if file != source and pattern.search(text)), None)


def _definition_elsewhere(text: str, source: Path) -> str:
    """Return a hint that names another file with a kernel that `text` mentions, or an empty string."""
    mentioned = re.findall(r"__global__[^;{}()]*?\b(\w+)\s*\(|\b(\w+)\s*<<<", text)
    names = {name for pair in mentioned for name in pair if name}
    for file, other in _programs_beside(source) if names else ():
        if kernel := next((each.name for each in signatures(other) if each.name in names), None):
            return f"; {file.name} defines {kernel}: kernrec analyze {file}"
    return ""


def _example_instance(text: str, template: Signature) -> str:
    declared = re.search(rf"template\s*<([^;{{}}]*)>[^;{{}}()]*__global__[^;{{}}]*?\b{template.name}\s*\(", text)
    values = []
    for part in declared[1].split(",") if declared else template.template:
        kind, _, default = (each.strip() for each in part.partition("="))
        word = kind.split()[0] if kind else ""
        usual = {"typename": "float", "class": "float", "bool": "false"}.get(word, "16")
        values.append(default or usual)
    return f"{template.name}<{', '.join(values)}>"


def example_entry(text: str, entry: str | None) -> str | None:
    """Return an example instance of a template that the program never instantiates, or None for other kernels."""
    for signature in signatures(text):
        if signature.template and entry in (None, signature.name):
            instances = _instances(text, signature)
            return None if any("<" in each for each in instances) else _example_instance(text, signature)
    return None


def select_kernel(text: str, source: Path, entry: str | None) -> tuple[Signature, str | None]:
    """Return (signature of a kernel in a CUDA program, instance). The instance is None if the kernel is not a template.

    Args:
        text: Text of the program.
        entry: Name of the kernel, or an instance of a template such as `scale<float, 4>`. None selects the only kernel.

    Raises:
        UsageError: `entry` does not select exactly one kernel, or it is an instance but the kernel is not a template.
    """
    kernels = {signature.name: signature for signature in signatures(text)}
    if not kernels:
        elsewhere = _definition_elsewhere(text, source)
        raise UsageError(f"{source} has no kernel (__global__){elsewhere}")
    name = None if entry is None else entry.partition("<")[0].strip()
    if name is None and len(kernels) > 1:
        raise UsageError(
            f"{source} has {counted(len(kernels), 'kernel')} ({', '.join(kernels)}): name one as in"
            f" {source.name}:{next(iter(kernels))}"
        )
    if name is not None and name not in kernels:
        raise unknown(f"kernel in {source.name}", name, kernels)
    signature = kernels[name] if name is not None else next(iter(kernels.values()))
    if not signature.template:
        if entry is not None and "<" in entry:
            raise UsageError(f"{entry}: {name} is not a template")
        return signature, None
    instance = entry if entry is not None and "<" in entry else None
    if instance is None:
        instances = [each for each in _instances(text, signature) if "<" in each]
        if len(instances) != 1:
            several = f": {', '.join(instances[:4])}" if instances else ""
            raise UsageError(
                f"{signature.name} is a template{several}; name an instance as in"
                f" '{source.name}:{instances[0] if instances else _example_instance(text, signature)}'"
            )
        instance = instances[0]
    return signature.instantiated(instance), instance


def compiled_name(signature: Signature, instance: str | None, entries: Mapping[str, int]) -> str:
    """Return the kernel's name in the source if it is unique, or else its name in the compiled code.

    Args:
        instance: Instance such as `scale<float, 4>` of a template, or None for any other kernel.
        entries: Number of parameters of each compiled kernel, keyed by its name in the compiled code.
    """
    name = signature.name
    named = [entry for entry in entries if source_name(entry) == name]
    pattern = f"{len(name)}{name}"
    if instance is not None:
        values = map(str.strip, instance.partition("<")[2].removesuffix(">").split(","))
        pattern += f"I{''.join(f'L[a-z]{v}E' if v.isdecimal() else _MANGLED.get(v, '.*?') for v in values)}E"
    fitting = [entry for entry in named if entries[entry] == len(signature.parameters) and re.search(pattern, entry)]
    return fitting[0] if fitting and len(named) > 1 else name
