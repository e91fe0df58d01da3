"""Compile the kernel for which a spec is drafted, and list its tunables.

Compiling shows the types of the parameters and the kernel's use of the block size. Undefined macros become tunables.
"""

import re
from pathlib import Path

from kernrec.compile.compiled import CompileError, CompileJob, Result
from kernrec.compile.nvcc import find_nvcc
from kernrec.compile.pool import compile_many
from kernrec.errors import UsageError, nearest
from kernrec.interop.draft import DraftTunable, compiled_name, includer_of, select_kernel
from kernrec.interop.spec_text import LaunchWords, whole_numbers
from kernrec.kernel.cuda_program import TOOLKIT_HEADER, device_code, has_host_code
from kernrec.kernel.cuda_signature import macros
from kernrec.kernel.expression import identifier
from kernrec.kernel.source_files import whole_source
from kernrec.profile.code_facts import facts_of
from kernrec.profile.launch_profile import entry_name
from kernrec.ptx import parse

_COMPILE_LIMIT_S = 120.0
_PROVISIONAL = 16
"""Temporary value of undefined macros, which lets kernrec compile the kernel and read its signature."""
_UNDEFINED = re.compile(r'identifier "(\w+)" is undefined')
_TEXTURE = re.compile(r"^\s*(?:static\s+)?texture\s*<", re.MULTILINE)
_MACRO = re.compile(r"[A-Z][A-Z0-9_]*|(?:block|tile)_size_[xyz]")
_MOST_UNDEFINED = 8
_ABSENT = re.compile(r'cannot open source file "([\w/.]+)"')
_WHEELS = (
    ("curand", "nvidia-curand"),
    *((start, "nvidia-cuda-cccl") for start in ("cub/", "thrust/", "cuda/", "nv/", "cooperative_groups")),
)
"""Pairs (start of a header's name, Python package that contains the header)."""


class DraftedCode:
    """Code of the kernel for which a spec is drafted.

    Args:
        words: The user's options, which describe the launch.
        sm: Compute capability to compile for, such as 80.
        suggest: Whether macros that the source defines between #ifndef and #endif become tunables.
        compiled: Results of earlier compilations, to which new ones are added.

    Raises:
        UsageError: A kernel, a macro, a header or a template argument is missing.
        CompileError: The compiler rejects the source.
    """

    def __init__(
        self, source: Path, words: LaunchWords, sm: int, suggest: bool, compiled: dict[tuple[object, ...], Result]
    ) -> None:
        self._source, self._words, self._sm, self._results = source, words, sm, compiled
        self._whole = whole_source(source, words.include)
        defines = "".join(f"\n#define {name} {value}" for name, value in words.defines.items())
        self.program = self._whole + defines
        """Text of the program, followed by the user's macros, which override earlier definitions."""
        self.signature, self.instance = select_kernel(self.program, source, words.entry)
        code = device_code(self._whole, self.instance)
        self.text, self.host_code = code.text, False
        self._absent = [each for each in code.headers if "." in each and not TOOLKIT_HEADER.match(each)]
        self.macros = {macro.name: macro for macro in macros(self.text)}
        self.assumed = [note for note in (code.note, words.note) if note]
        self.tunables: dict[str, DraftTunable] = {}
        for stated in words.tunables:
            self._add_tunable(stated)
        for macro in self.macros.values() if suggest else ():
            if macro.guarded and identifier(macro.name) not in self.tunables and macro.value > 0:
                around = sorted({macro.value // 2 or 1, macro.value, 2 * macro.value})
                meaning = f"{macro.value} in the source"
                self.tunables[identifier(macro.name)] = DraftTunable(around, meaning, define=macro.name)
        module = parse(self._ptx())
        counts = {name: len(each.parameters) for name, each in module.functions.items() if each.entry}
        self.entry = compiled_name(self.signature, self.instance, counts)
        self.facts = facts_of(module, entry_name(module.functions, self.entry), self.text)

    def _add_tunable(self, stated: str) -> None:
        name, _, values = stated.partition("=")
        name, source = name.strip(), self._source.name
        numbers = whole_numbers(f"--tune {stated!r:.60}: expected a macro with its values, such as TILE=1,2,4", values)
        words = set(re.findall(r"[A-Za-z_]\w*", self.text))
        if name not in words:
            close = nearest(name, [word for word in words if word.isupper()] or sorted(words), 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise UsageError(f"--tune {name}: {source} has no macro of this name{hint}")
        if (macro := self.macros.get(name)) and not macro.guarded:
            raise UsageError(
                f"--tune {name}: {source} always defines it as {macro.value}; put the #define between #ifndef {name}"
                " and #endif to make it tunable"
            )
        self.tunables[identifier(name)] = DraftTunable(numbers, define=name)

    def _ptx(self) -> str:
        """Compile the kernel with NVRTC, or with nvcc if NVRTC refuses the source."""
        result = self._compile()
        if isinstance(result, CompileError):
            self._check_instance(result)
            if has_host_code(self._whole) and find_nvcc() is not None:
                device, self.text, self.host_code = self.text, self._whole, True
                by_nvcc = self._compile()
                if isinstance(by_nvcc, CompileError):
                    self.text, self.host_code = device, False
                else:
                    self.assumed = [f"compiled by {by_nvcc.compiler}, because NVRTC refuses the device code ({result})"]
                    result = by_nvcc
        for _ in range(_MOST_UNDEFINED):
            if not isinstance(result, CompileError) or not (undefined := self._undefined(result)):
                break
            self.tunables |= {identifier(name): DraftTunable(None, define=name) for name in undefined}
            result = self._compile()
        if isinstance(result, CompileError):
            raise self._explained(result)
        return result.ptx

    def _compile(self) -> Result:
        tuned = {t.define or name.upper(): (t.values or [_PROVISIONAL])[0] for name, t in self.tunables.items()}
        defines: dict[str, str | int] = {**self._words.defines, **tuned}
        options = tuple(self._words.options)
        job = CompileJob(self.text, self._sm, defines, self._source.name, options, host_code=self.host_code)
        key = self.text, self.host_code, *sorted(defines.items())
        if key not in self._results:
            ((_, self._results[key]),) = compile_many([job], processes=1, timeout_s=_COMPILE_LIMIT_S)
        return self._results[key]

    def _undefined(self, error: CompileError) -> list[str]:
        names = dict.fromkeys(_UNDEFINED.findall(error.log))
        in_directives = set(re.findall(r"\w+", " ".join(re.findall(r"^[ \t]*#(.*)", self.text, re.MULTILINE))))
        return [name for name in names if _MACRO.fullmatch(name) or name in in_directives]

    def _check_instance(self, error: CompileError) -> None:
        """Raise `UsageError` if the instance uses template parameters whose values the source does not state."""
        used = [name for name in self._undefined(error) if re.search(rf"\b{name}\b", self.instance or "")]
        if unset := [n for n in used if re.search(rf"\btemplate\s*<[^;{{}}()]*\b{n}\b", self._whole)]:
            example = re.sub(rf"\b(?:{'|'.join(unset)})\b", "2", self.instance or "")
            raise UsageError(
                f"{self._source.name} does not state {', '.join(unset)} of the template {self.signature.name}; name an"
                f" instance as in '{self._source.name}:{example}'"
            )

    def _explained(self, error: CompileError) -> UsageError | CompileError:
        source = self._source.name
        if re.search(r'identifier "cuda[A-Z]\w+" is undefined', str(error)):
            return UsageError(f"{error}: kernrec does not emulate kernels that call the CUDA runtime")
        if _TEXTURE.search(self._whole):
            return UsageError(f"{source} uses texture references, which CUDA 12 removed: use texture objects")
        if self.instance is not None and "kernrec_instance" in error.log:
            name = self.instance.partition("<")[0].strip()
            return UsageError(f"{source}: {self.instance} is not an instance of the template {name}")
        header = _ABSENT.search(str(error))
        if wheel := next((wheel for start, wheel in _WHEELS if header and header[1].startswith(start)), None):
            return UsageError(f"{error}: pip install {wheel}")
        if (including := includer_of(self._source)) is not None:
            return UsageError(f"{error}; {including.name} includes this file: kernrec analyze {including}")
        if self._absent:
            return UsageError(f"{error}; {self._absent[0]} may declare it: name its folder with --include")
        return error
