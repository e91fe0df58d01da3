"""Compile several configs of one CUDA source in a single run of NVRTC, which takes long even for an empty source.

The source is repeated with the macros of each config and a unique name for its kernel:

    #define BX 32                 #define BX 64
    #define blur blur__kr0_       #define blur blur__kr1_
    (the source)                  (the source)
    #undef BX, blur, ...          #undef BX, blur, ...

The PTX is split into one text per config, in which the kernel has its old name. Configs get their machine instructions,
but no cubin, because names in a cubin cannot be changed. Copies must not see each other's declarations, so the source
must consist of a single kernel without other functions, types or variables. Otherwise configs are compiled separately.
"""

import re
import time
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from kernrec.compile.compiled import CompileCache, Compiled, CompileError, CompileJob, parse_resources
from kernrec.compile.machine_code import read_machine_code
from kernrec.compile.nvrtc import compile_alone, compile_job, put_without_code
from kernrec.errors import KernrecError
from kernrec.kernel.cuda_program import function_name, nodes, parsed, text_of, top_level, without

if TYPE_CHECKING:
    from tree_sitter import Node

MOST_TOGETHER = 32
"""Maximum number of configs per run of the compiler."""
_RUN_S = 2.0
"""Maximum CPU seconds of a run, estimated from a single config. Longer runs would leave other processes idle."""

_KERNEL_MARK = "__global__"
_DECLARES = re.compile(
    r"__device__|__constant__|__managed__|__LINE__|__FILE__|__COUNTER__|#\s*include\s*\"|#\s*(?:undef|line)\b"
    r"|\b(?:template|namespace|struct|class|union|enum|typedef|using|inline|constexpr|_Pragma)\b"
    r"|#\s*pragma\s+(?!(?:no)?unroll\b)"
)
_CONDITION = re.compile(r"\s*#\s*(if|ifdef|ifndef|elif|elifdef|elifndef|else|endif)\b(.*)")
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.MULTILINE)
_START = "\t// .globl\t"
_ENTRY = re.compile(r"\.visible \.entry ([\w$]+)\(")
_KERNEL_OR_LINE = re.compile(r"^(?:\.visible \.entry ([\w$]+)\((?:.*\n)*?\}|.+)$", re.MULTILINE)
_DECLARATION = re.compile(r"// \S+ has been demoted|\.extern \.shared .*?([\w$]+)\[\];")
_EXTERN = ".extern .shared "
_LABEL = re.compile(r"\$L__BB\d+_")
_NUMBERED = re.compile(r"\bcallseq\b|\bcall\b|\.loc\b")
"""Matches names that NVRTC numbers across the whole compilation."""


def can_be_together(job: CompileJob) -> bool:
    """Return whether a job may be compiled together with other configs of its source."""
    plain = not (job.machine_code or job.host_code or job.triton or job.options or job.name.endswith(".ptx"))
    return plain and is_one_kernel(job.source)


@lru_cache(maxsize=1)
def is_one_kernel(source: str) -> bool:
    """Return whether a source consists of a single kernel."""
    return source.count(_KERNEL_MARK) == 1 and _DECLARES.search(source) is None


def together_key(job: CompileJob) -> tuple[str | int, ...]:
    """Return a key that is equal for jobs that may be compiled together."""
    return *_source_of(job), *(str(job.defines.get(macro)) for macro in _deciding_macros(job.source))


@lru_cache(maxsize=1)
def _deciding_macros(source: str) -> tuple[str, ...]:
    """Return the macros on which a source's declaration of dynamic shared memory depends."""
    conditions: list[str] = []
    names: set[str] = set()
    for line in source.splitlines():
        if (directive := _CONDITION.match(line)) is not None:
            word, condition = directive.groups()
            if word == "endif":
                conditions = conditions[:-1]
            elif word.startswith("if"):
                conditions.append(condition)
            elif conditions:
                conditions[-1] += f" {condition}"
        elif "extern" in line and "__shared__" in line:
            names.update(re.findall(r"[A-Za-z_]\w*", " ".join(conditions)))
    return tuple(sorted(names))


class Together:
    """Compiler of groups of jobs. It remembers sources that it must compile separately."""

    def __init__(self, cache: CompileCache) -> None:
        self._cache = cache
        # Name of each source's kernel, and the maximum number of configs per run
        self._kernels: dict[tuple[str, int, str], tuple[str, int]] = {}

    def results(self, jobs: Sequence[CompileJob]) -> Iterator[Compiled | CompileError | int]:
        """Yield the result of each job, in order. All jobs must have the same `together_key`.

        If the remaining jobs cannot be compiled as one group, yield the maximum number of jobs per group instead of
        their results.
        """
        source = _source_of(jobs[0])
        rest = [*jobs]
        # Compile a config alone to measure the time. If two configs fail, the source probably has the error.
        for job in jobs[:2]:
            if source not in self._kernels and len(jobs) > 1:
                start = time.process_time()
                result = self._alone(job)
                rest.remove(job)
                yield result
                if isinstance(result, Compiled):
                    self._kernels[source] = _limit(result, time.process_time() - start)
        if len(rest) < 2:
            yield from map(self._alone, rest)
            return
        kernel, most = self._kernels.setdefault(source, ("", 1))
        together = compile_together(rest, kernel) if len(rest) <= most else None
        if together is None:
            self._kernels[source] = kernel, (most if len(rest) > most else 1)
            yield self._kernels[source][1]
            return
        for job, compiled in zip(rest, together, strict=True):
            if compiled is not None:
                put_without_code(job, compiled, self._cache)
            yield compiled or self._alone(job)

    def _alone(self, job: CompileJob) -> Compiled | CompileError:
        try:
            return compile_job(job, self._cache)
        except CompileError as error:
            return error
        except Exception as error:  # An error such as too little memory concerns only this job.
            return CompileError(f"{job.name}: {type(error).__name__}: {' '.join(str(error).split())}", reason="crash")


def _limit(compiled: Compiled, seconds: float) -> tuple[str, int]:
    """Return the PTX name of a source's only kernel, and the maximum number of configs per run of the compiler.

    Return an empty name and 1 if the source has several kernels.

    Args:
        compiled: result for a config of the source.
        seconds: processor time that the compilation took.
    """
    entries = _ENTRY.findall(compiled.ptx)
    most = int(_RUN_S / max(seconds, _RUN_S / MOST_TOGETHER))
    return (entries[0], max(most, 1)) if len(entries) == 1 else ("", 1)


def compile_together(jobs: Sequence[CompileJob], kernel: str) -> list[Compiled | None] | None:
    """Compile several configs of one source together.

    Args:
        jobs: jobs with the same `together_key` for which `can_be_together` is true.
        kernel: name of the source's kernel in the PTX of a single config.

    Returns:
        PTX, resources and machine instructions of each job, or None in place of a job that must be compiled separately.
        The whole result is None if all jobs must be compiled separately.
    """
    name = _identifier(kernel)
    copies = [f"{name}__kr{number}_" for number in range(len(jobs))]
    own = [name, *_MACRO.findall(jobs[0].source)]
    lines: list[str] = []
    for job, copy in zip(jobs, copies, strict=True):
        lines += [f"#define {macro} {value}" for macro, value in sorted(job.defines.items())]
        lines += [f"#define {name} {copy}", job.source]
        lines += [f"#undef {macro}" for macro in dict.fromkeys((*job.defines, *own))]
    job = CompileJob("\n".join(lines), jobs[0].sm, {}, jobs[0].name)
    try:
        whole = compile_alone(job)
    except CompileError:
        return None
    parts = _parts(whole.ptx)
    from_ptxas = all(line.startswith(("ptxas", " ")) for line in whole.log.splitlines())
    if parts is None or len(parts) != len(jobs) or not from_ptxas:
        return None
    logs = re.split(r"(?=^.*Compiling entry function ')", whole.log, flags=re.MULTILINE)
    codes = read_machine_code(whole.cubin, job.sm)
    results: list[Compiled | None] = []
    for copy in copies:
        length = rf"{len(copy)}{copy}(?<!\d{len(copy)}{copy})"

        def under_old_name(text: str, copy: str = copy, length: str = length) -> str:
            return re.sub(length, f"{len(name)}{name}", text).replace(copy, name)

        ptx = [(entry, *part) for entry, part in parts.items() if copy in entry]
        log = [under_old_name(text) for text in logs[1:] if copy in text]
        if len(ptx) != 1 or len(log) != 1 or list(resources := parse_resources(log[0])) != [kernel]:
            return None
        # Compile a job without dynamic shared memory separately if other jobs in the file use dynamic shared memory,
        # because dynamic shared memory changes the alignment of static shared memory.
        entry, text, skipped = ptx[0]
        alone = _EXTERN in whole.ptx and _EXTERN not in text
        code = {kernel: codes[entry].renumbered(skipped)} if entry in codes else {}
        compiled = Compiled(under_old_name(text), b"", resources, whole.compiler, log[0], code)
        results.append(None if alone else compiled)
    return results


def _source_of(job: CompileJob) -> tuple[str, int, str]:
    return job.source, job.sm, job.name


def _identifier(entry: str) -> str:
    """Return a function's source name from its PTX name."""
    match = re.match(r"_Z(\d+)", entry)
    return entry if match is None else entry[match.end() :][: int(match[1])]


def _parts(ptx: str) -> dict[str, tuple[str, int]] | None:
    """Split the PTX of several kernels into one text per kernel.

    Returns:
        For each kernel, its text, and its line numbers in `ptx` minus those in the text. None if the PTX defines
        anything else, or has names that NVRTC numbers across kernels.
    """
    head, start, rest = ptx.partition(_START)
    rest, place, number = start + rest, 0, head.count("\n")
    functions: dict[str, tuple[str, int]] = {}  # Text and number of preceding lines of each kernel.
    declared: list[tuple[str, str]] = []  # Pairs (symbol, line). The symbol is empty if the line is a comment.
    for match in _KERNEL_OR_LINE.finditer(rest):
        if match[1]:
            number, place = number + rest.count("\n", place, match.start()), match.start()
            functions[match[1]] = match[0], number
        elif not match[0].startswith(_START):
            declaration = _DECLARATION.fullmatch(match[0])
            if declaration is None:
                return None
            declared.append((declaration[1] or "", match[0]))
    parts = {}
    for entry, (text, first) in functions.items():
        text = _LABEL.sub("$L__BB0_", text)
        # Search for substrings first, because this is faster.
        if ("call" in text or ".loc" in text) and _NUMBERED.search(text):
            return None
        own = [
            line for symbol, line in declared if (symbol and symbol in text) or (not symbol and _copy_of(entry, line))
        ]
        before = "\n".join([f"{head}{_START}{entry}", *own, "", ""])
        parts[entry] = f"{before}{text}\n\n", first - before.count("\n")
    return parts


def _copy_of(entry: str, comment: str) -> bool:
    number = re.search(r"__kr\d+_", entry)
    return number is not None and number[0] in comment


_DIRECTIVE = re.compile(r"^[ \t]*#(?![ \t]*pragma[ \t]+(?:no)?unroll\b)", re.MULTILINE)


def launched_only(source: str, entries: Collection[str]) -> str:
    """Remove all kernels except `entries` from a source. A source that is too complex does not change.

    Args:
        entries: kernels to keep, by source name or PTX name.
    """
    if source.count(_KERNEL_MARK) < 2:
        return source
    try:
        root = parsed(source)
    except KernrecError:  # tree-sitter is not installed.
        return source
    kernels = [node for node in top_level(root) if _defines_kernel(node)]
    others = [node for node in kernels if not any(_is_called(function_name(node), entry) for entry in entries)]
    if (
        root.has_error
        or len(kernels) != source.count(_KERNEL_MARK)
        or len(kernels) - len(others) != len(entries)
        or any(_DIRECTIVE.search(text_of(node)) for node in others)
        or {function_name(node) for node in kernels}.intersection(_MACRO.findall(source))
    ):
        return source
    reduced = without(source, [(node, "") for node in others])
    return reduced if is_one_kernel(reduced) else source


def _defines_kernel(node: "Node") -> bool:
    if node.type not in ("function_definition", "linkage_specification"):
        return False
    definition = next(nodes(node, "function_definition"), None)
    return definition is not None and any(child.type == _KERNEL_MARK for child in definition.children)


def _is_called(name: str, entry: str) -> bool:
    return name == entry or (entry.startswith("_Z") and f"{len(name)}{name}" in entry)
