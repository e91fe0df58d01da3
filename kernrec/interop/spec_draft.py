"""Draft a kernel's spec (kernel.toml) from its CUDA source and the user's options.

The source is compiled to find the types of the parameters and the use of the block size.
"""

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernrec.compile.compiled import CompileError, Result
from kernrec.errors import UsageError
from kernrec.interop.assumed_words import TIMED, Sizes, assumed_words, bound_along, is_size, with_words
from kernrec.interop.draft import Draft, DraftTunable, example_entry
from kernrec.interop.drafted_code import DraftedCode
from kernrec.interop.host_launches import STRUCTURE, HostLaunch, filled_variables, host_launches
from kernrec.interop.host_program import make_arguments
from kernrec.interop.python_expressions import Translator
from kernrec.interop.spec_arguments import SpecArguments, read_arguments
from kernrec.interop.spec_text import (
    MARK,
    LaunchWords,
    blocks_to_try,
    listed,
    one_line,
    quoted,
    short_extents,
    split_expressions,
    three_extents,
)
from kernrec.kernel.cuda_signature import kernel_body
from kernrec.kernel.expression import identifier
from kernrec.kernel.source_files import whole_source

_AXES = "xyz"
_BLOCKS = {
    1: ((64,), (128,), (256,), (512,)),
    2: ((16, 16), (32, 4), (32, 8), (32, 16), (64, 4)),
    3: ((256, 1, 1), (32, 8, 1), (8, 8, 4), (32, 4, 2)),
}
"""Block sizes to try by default, keyed by the number of axes."""


def draft_spec(
    source: Path,
    words: LaunchWords,
    sm: int = 80,
    suggest: bool = False,
    assume: bool = False,
    sizes: Sizes = TIMED,
) -> Draft:
    """Draft the spec of a kernel in a CUDA source.

    Args:
        words: The user's options, which describe the launch.
        sm: Compute capability to compile for, such as 80.
        suggest: Whether macros that the source defines between #ifndef and #endif become tunables. The values to try
            are the macro's value, half of it and twice as much.
        assume: Whether to choose values for missing parts of the launch.
        sizes: Sizes to choose.

    Raises:
        UsageError: A kernel, parameter or macro does not exist, or a value is invalid.
        CompileError: The compiler rejects the source.
    """
    compiled: dict[tuple[object, ...], Result] = {}
    instance = example_entry(whole_source(source, words.include), words.entry) if assume else None
    named = (*((f"'{source.name}:{instance}'",) if instance else ()), *words.assumed)
    stated = words.stated
    words = with_words(replace(words, entry=instance or words.entry, assumed=()), words.assumed)
    drafter = _Drafter(source, words, sm, suggest, compiled)
    draft = drafter.draft()
    if not draft.missing or suggest:
        return replace(draft, chosen=named, stated=stated)
    chosen = drafter.assumed_words(sizes)
    if chosen is None or not assume:
        return replace(draft, chosen=chosen or (), stated=stated)
    with suppress(UsageError, CompileError):  # If the chosen values are invalid, return the draft without them.
        drafter = _Drafter(source, with_words(words, chosen), sm, suggest, compiled)
        complete = drafter.draft()
        if complete.missing and (further := drafter.assumed_words(sizes)):  # Choose sizes that are still unknown, too.
            chosen = (*chosen, *further)
            complete = _Drafter(source, with_words(words, chosen), sm, suggest, compiled).draft()
        draft = draft if complete.missing else complete
    return replace(draft, chosen=(*named, *chosen), stated=stated)


def _reached_code(source: str, kernel: str) -> str:
    """Return the code of a kernel, of the device functions that it calls, and of the macros in this code."""
    code = kernel_body(source, kernel)
    helpers = dict.fromkeys(re.findall(r"__device__[^;{}()]{0,200}?\b(\w+)\s*\(", source))
    for name in reversed(helpers):  # C++ defines a function after the functions that it calls.
        if re.search(rf"\b{name}\b", code):
            code += kernel_body(source, name)
    for name, text in reversed(re.findall(r"#[ \t]*define[ \t]+(\w+)((?:\\\n|.)*)", source)):
        if re.search(rf"\b{name}\b", code):
            code += text
    return code


class _Drafter:
    def __init__(
        self, source: Path, words: LaunchWords, sm: int, suggest: bool, compiled: dict[tuple[object, ...], Result]
    ) -> None:
        self.source, self.suggest = source, suggest
        self.sized = {text.partition("=")[0].strip() for text in words.arguments}  # Names of the user's arguments
        self.words = replace(words, arguments=[*words.arguments, *words.assumed])
        code = self.code = DraftedCode(source, words, sm, suggest, compiled)
        self.signature, self.instance, self.text = code.signature, code.instance, code.text
        self.facts, self.macros, self.tunables, self.assumed = code.facts, code.macros, code.tunables, code.assumed
        self.missing: list[str] = []
        parameters = [
            (each.name, (each.dtype or STRUCTURE) if each.pointer else None) for each in self.signature.parameters
        ]
        launches = host_launches(code.program, self.signature.name, parameters, make_arguments(source.parent))
        self.launch: HostLaunch | None = max(  # the launch in the host code with the most known values
            launches,
            key=lambda each: (each.kernel == self.instance, (each.grid is not None) + len(each.arguments)),
            default=None,
        )
        self.extents: dict[int, Sequence[int]] = {}
        """Block extents that are correct with the grid of the host code, keyed by axis. Other axes have no limits."""
        self._take_launch()
        self.arguments: SpecArguments = read_arguments(
            self.text, self.signature, self.facts, self.words.arguments, self.words.expressions, self._filled()
        )
        self.names: dict[str, str] = dict(self.arguments.names)
        for name, tunable in self.tunables.items():
            self.names |= {name: name, tunable.define or name: name}

    def _filled(self) -> dict[str, str]:
        types = {each.name: each for each in self.facts.variables if each.typed}
        return {
            name: value
            for name, value in filled_variables(self.code.program).items()
            if name in types and (value or types[name].elements > 1 or types[name].dtype[0] not in "iu")
        }

    def _take_launch(self) -> None:
        """Set omitted options to the values in the host code's kernel launch."""
        if (launch := self.launch) is None:
            return
        stated = {text.partition("=")[0].strip() for text in self.words.arguments}
        arguments = [text for text in launch.arguments if text.partition("=")[0] not in stated]
        fixed = not self.facts.reads_block or self.facts.static_shared
        parts = {
            "grid": launch.grid if fixed or not launch.grid or self.words.grid else self._grid_for_any_block(launch),
            "block": "x".join(map(str, launch.block)) if launch.block and fixed else None,
            "shared": launch.shared if self.facts.dynamic_shared else None,
        }
        taken: dict[str, Any] = {n: text for n, text in parts.items() if text and getattr(self.words, n) is None}
        self.words = replace(self.words, **taken, arguments=[*self.words.arguments, *arguments])
        shown = [*(f"{name} {text}" for name, text in taken.items() if name != "shared"), *arguments]
        if shown:
            self.assumed.append(f"from the launch in {self.source.name}: {', '.join(shown)}")

    def _grid_for_any_block(self, launch: HostLaunch) -> str:
        """Return the launch's grid as an expression of the block size. Put the correct block sizes into `self.extents`.

        If an axis only numbers threads (`blockIdx.x * blockDim.x`) and counts them (`blockDim.x * gridDim.x`), keep its
        number of threads. If the threads of a block share a loop (`i += blockDim.x`), any block size is correct.
        Otherwise, keep the launch's block size.
        """
        axes = [*split_expressions(launch.grid or ""), "1", "1"][:3]
        code = _reached_code(self.text, self.signature.name)
        for n, extent in enumerate(short_extents(launch.block or _BLOCKS[self.facts.block_axes][2])):
            block, size, of_grid = (rf"{word}\.{_AXES[n]}" for word in ("blockIdx", "blockDim", "(?:blockIdx|gridDim)"))
            # The comma separates the factors of `__mul24(blockIdx.x, blockDim.x)`.
            rest = re.sub(rf"{of_grid}\s*[*,]\s*\(?\s*{size}|{size}\s*[*,]\s*{of_grid}", "", code)
            numbered = re.search(block, code) and not re.search(f"{of_grid}|{size}", rest)
            strided = re.search(rf"\+=\s*{size}\b", code) and not re.search(rf"{block}\s*\*\s*[A-Z\d]", code)
            if "block_" in axes[n] or (strided and not numbered):
                continue
            self.extents[n] = [extent]
            if launch.block and numbered:
                constant = axes[n].isdecimal()
                threads = extent * int(axes[n]) if constant else extent
                self.extents[n] = [size for size in range(1, 1025) if threads % size == 0]
                axes[n] = f"ceil({threads if constant else f'({axes[n]})*{extent}'}/block_{_AXES[n]})"
        return ", ".join(short_extents(axes))

    def draft(self) -> Draft:
        grid, block, shared, constraints = self._launch()
        self.arguments.size_buffers(self._expression)
        self.arguments.fill_indexes(self.facts.indexes)
        self.missing += self.arguments.missing
        self.assumed += self.arguments.assumed
        for name, tunable in self.tunables.items():
            if tunable.values is None:
                self.missing.append(f"--tune {tunable.define or name}=VALUES")
        name, stem, words = one_line(self.source.name), one_line(self.source.stem), self.words
        defines = ", ".join(f"{macro} = {quoted(text)}" for macro, text in words.defines.items())
        top = {
            "name": quoted(identifier(self.signature.name)),
            "source": quoted(self.source.name),
            "include": words.include and listed(words.include),
            "options": words.options and listed(words.options),
            "defines": defines and f"{{ {defines} }}",
            "host_code": self.code.host_code and "true  # nvcc compiles it",
            "template": self.instance and quoted(self.instance),
        }
        launched = {
            "entry": quoted(self.code.entry),
            "grid": listed(grid) + "  # blocks along each axis, such as ceil_div(n, block_x)" * (MARK in grid),
            "block": listed(block),
            "shared": shared != "0" and f"{quoted(shared)}  # bytes of dynamic shared memory",
            "arguments": f"[{', '.join(quoted(text) for text in self.arguments.passed)}]",
        }
        lines = [
            f"# What kernrec tunes, launches and fills for {name}:"
            f" `kernrec analyze {name} --spec {stem}.toml --gpu GPU`."
        ]
        if self.missing or self.suggest:
            lines.append(f"# Fill in what is {MARK}. Expressions use the tunables and dimensions below.")
        lines += [f"{key} = {value}" for key, value in top.items() if value]
        if constraints:
            lines += ["constraints = ["]
            lines += [*(f"    {quoted(text)},  # {why}" for text, why in constraints.items()), "]"]
        lines += ["", "[problem]", *self.arguments.problem_lines()]
        lines += ["", "[problem.tensors]", *self.arguments.tensor_lines()]
        if self.tunables:
            lines += ["", "# Values to try. A macro of the source has the name in upper case, or that of `define`."]
            lines += ["[tunables]", *(tunable.line(name) for name, tunable in self.tunables.items())]
        fixed = ", ".join(f"{macro.name} ({macro.value})" for macro in self.macros.values() if not macro.guarded)
        if fixed and self.suggest:
            lines += [
                "",
                f"# Macros that the source fixes: {fixed}. Between #ifndef NAME and #endif they could be tuned.",
            ]
        lines += ["", "[[launch]]", *(f"{key} = {value}" for key, value in launched.items() if value)]
        unsized = {each.name for each in self.signature.parameters} - self.sized
        buffers = {
            name: f"{tensor.parameter.name}={'zeros:' if tensor.values == 'zeros' else ''}{tensor.dtype}"
            for name, tensor in self.arguments.tensors.items()
            if tensor.dtype and tensor.parameter.name in unsized
        }
        entry, missing, assumed = self.instance or self.signature.name, tuple(self.missing), tuple(self.assumed)
        text = "\n".join([*lines, ""])
        return Draft(self.source, entry, text, missing, assumed, self.launch, self.arguments.unset, buffers)

    def assumed_words(self, sizes: Sizes) -> tuple[str, ...] | None:
        tensors = [tensor for name, tensor in self.arguments.tensors.items() if name not in self.arguments.stated]
        unsized = {each.parameter.name: each.parameter.ctype for each in tensors if each.parameter.pointer}
        axes = self.facts.grid_axes, self.facts.block_axes
        threads = self.facts.most_threads or 1024
        return assumed_words(self.missing, self.text, self.signature.name, axes, threads, unsized, sizes)

    def _launch(self) -> tuple[list[str], list[str], str, dict[str, str]]:
        """Return expressions for (grid, block, shared memory, constraints on the block with their reasons)."""
        block, constraints = self._block()
        if block == [MARK] and self.launch is not None:  # Let the grid use the names of the block's axes.
            self.names |= {f"block_{axis}": f"block_{axis}" for axis in _AXES}
        shared = "0"
        if self.words.shared is not None:
            shared = self._expression("--shared", self.words.shared)
        elif self.facts.dynamic_shared:
            shared = MARK.strip('"')
            self.missing.append("--shared BYTES")
        if self.words.grid is None:
            self.missing.append(f'--grid, such as --grid "{self._grid_example()}"')
            return [MARK], block, shared, constraints
        axes = split_expressions(self.words.grid.replace("blockDim.", "block_"))
        if block == [MARK] and any("block_" in axis for axis in axes):
            if self.launch is not None and self.launch.grid == self.words.grid:
                return [MARK], block, shared, constraints
            raise UsageError(f"--grid {self.words.grid!r:.60} needs a block size; add one, for example --block 128")
        if not 1 <= len(axes) <= 3:
            raise UsageError(f"--grid {self.words.grid!r:.60}: expected one to three expressions, separated by commas")
        return [self._expression("--grid", axis) for axis in axes], block, shared, constraints

    def _grid_example(self) -> str:
        axes = self.facts.grid_axes
        names = [name for name in self.arguments.dims if is_size(name)] or ["4096" if axes == 1 else "1024"]
        names += names[-1:] * (axes - len(names))  # A single size is the side of a square.
        body = kernel_body(self.text, self.signature.name)
        bounds = [bound_along(axis, body, names) for axis in _AXES[:axes]]
        others = iter([name for name in names if name not in bounds] or names)
        dims = [bound or next(others, names[-1]) for bound in bounds]
        tiles = [0 if self.facts.reads_block else tile for tile in self.facts.tiles[:axes]]
        extents = [str(tile) if tile > 1 else f"block_{axis}" for tile, axis in zip(tiles, _AXES, strict=False)]
        return ", ".join(f"ceil({dim}/{extent})" for dim, extent in zip(dims, extents, strict=False))

    def _block(self) -> tuple[list[str], dict[str, str]]:
        """Return (expressions for the block's extents, constraints on the block with their reasons)."""
        required, most = self.facts.required_block, self.facts.most_threads
        stated = self.words.block
        if stated is not None and not re.fullmatch(r"[\d\sx,]+", stated):
            block = [self._expression("--block", axis) for axis in split_expressions(stated)]
            self._name_axes(block)
            return block, {}
        blocks = blocks_to_try(stated) if stated is not None else [required] if required is not None else []
        if required is not None and any(three_extents(some) != three_extents(required) for some in blocks):
            shown = "x".join(map(str, required))
            raise UsageError(
                f"--block {stated}: {self.signature.name} was compiled for blocks of {shown} (__block_size__)"
            )
        if most is not None and (large := next((some for some in blocks if math.prod(some) > most), None)):
            raise UsageError(
                f"--block {stated}: {self.signature.name} was compiled for at most {most} threads"
                f" (__launch_bounds__), so a block of {'x'.join(map(str, large))} cannot be launched"
            )
        macros_of_axes = [] if self.facts.reads_block else self._block_macros()
        if not blocks and macros_of_axes:
            self._name_axes(macros_of_axes)
            self.assumed.append(f"block {' x '.join(macros_of_axes)}")
            return macros_of_axes, {}
        if not blocks and not self.facts.reads_block:
            self.missing.append("--block, which the code never reads")
            return [MARK], {}
        if not blocks:
            # Block of the host code's launch
            own = short_extents(self.launch.block) if self.launch and self.launch.block else ()
            usual = _BLOCKS.get(len(own) or self.facts.block_axes, ())
            blocks = [
                some
                for some in dict.fromkeys((own, *usual))
                if some and math.prod(some) <= (most or 1024)
                if all(extent in self.extents.get(axis, (extent,)) for axis, extent in enumerate(some))
            ]
            blocks = blocks or [(most or 32,) + (1,) * (self.facts.block_axes - 1)]
            self.assumed.append(f"blocks {', '.join('x'.join(map(str, some)) for some in blocks)}")
        return self._block_tunables(blocks, macros_of_axes, most)

    def _block_tunables(
        self, blocks: Sequence[tuple[int, ...]], macros_of_axes: list[str], most: int | None
    ) -> tuple[list[str], dict[str, str]]:
        """Add a tunable for each axis on which the extents of `blocks` differ. The result is that of `_block`."""
        if len(blocks) > 1 and not self.facts.reads_block and not macros_of_axes:
            raise UsageError(
                f"--block {self.words.block}: kernel {self.signature.name} does not use blockDim, and no macro with a"
                " usual name sets its block size; give one block size, or the macro: --tune THREADS=64,128"
                " --block THREADS"
            )
        axes = max(map(len, blocks))
        padded = [(*some, 1, 1)[:axes] for some in blocks]
        block: list[str] = []
        for axis in range(axes):
            values = list(dict.fromkeys(some[axis] for some in padded))
            name = macros_of_axes[axis] if axis < len(macros_of_axes) else f"block_{_AXES[axis]}"
            if axis < len(macros_of_axes):
                self.tunables[name].values = values
            elif len(values) > 1:
                launch = f"BLOCK_{_AXES[axis].upper()}" not in self.text
                self.tunables[name] = DraftTunable(values, f"threads of a block along {_AXES[axis]}", launch)
            else:
                name = str(values[0])
            block.append(name)
        self._name_axes(block)
        constraints: dict[str, str] = {}
        if math.prod(len({some[axis] for some in padded}) for axis in range(axes)) > len(padded):
            tests = (
                " and ".join(
                    f"{name} == {extent}" for name, extent in zip(block, some, strict=True) if not name.isdigit()
                )
                for some in padded
            )
            constraints[" or ".join(f"({test})" for test in tests)] = "the blocks to try"
        if most is not None and any(not name.isdigit() for name in block):
            constraints[f"{' * '.join(block)} <= {most}"] = f"__launch_bounds__({most})"
        return block, constraints

    def _name_axes(self, block: Sequence[str]) -> None:
        for axis, text in zip(_AXES, (*block, "1", "1"), strict=False):
            self.names.setdefault(f"block_{axis}", f"({text})" if not re.fullmatch(r"\w+", text) else text)

    def _block_macros(self) -> list[str]:
        """Return the macros that set the block's extents, such as BLOCK_X, or an empty list."""
        by_macro = {tunable.define or name.upper(): name for name, tunable in self.tunables.items()}
        for macro in self.macros.values():
            if macro.guarded:
                by_macro.setdefault(macro.name, identifier(macro.name))
        block = []
        for axis in _AXES[: self.facts.block_axes].upper():
            names = [f"{word}{axis}" for word in ("B", "BLOCK_", "BLOCK_SIZE_", "BLOCK_DIM_", "BLOCKDIM_")]
            names.append(f"block_size_{axis.lower()}")  # Kernel Tuner's name
            if self.facts.block_axes == 1:
                names += ["BLOCK", "BLOCK_SIZE", "BLOCKSIZE", "BLOCK_DIM", "THREADS", "NUM_THREADS", "NTHREADS", "TPB"]
            name = next((name for name in names if name in by_macro), None)
            if name is None:
                return []
            place = by_macro[name]
            stated = self.macros.get(name)
            self.tunables.setdefault(place, DraftTunable([stated.value] if stated else None, define=name))
            self.names |= {place: place, name: place}
            block.append(place)
        return block

    def _expression(self, flag: str, text: str) -> str:
        """Translate a user's expression to a spec's grammar. Users write `/` for integer division, and `ceil(a/b)`."""
        translator = Translator(self.names, {}, 0, "name")
        translated = translator.expression(flag, text)
        return re.sub(r"(?<!/)/(?!/)", "//", translated)
