"""Emulate the launches of a program or of one kernel, block by block, and find errors of their threads."""

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from math import prod
from pathlib import Path

import numpy as np

from kernrec.checking.child_process import LAUNCH_BUDGET
from kernrec.checking.findings import Describer, Finding, distinct
from kernrec.compile.compiled import Compiled, CompileError, CompileJob, Resources
from kernrec.compile.pool import compile_many
from kernrec.errors import UsageError
from kernrec.gpu import GPU
from kernrec.gpu.entry import SmLimits
from kernrec.interop.assumed_words import TIMED, Sizes
from kernrec.interop.draft import Draft
from kernrec.interop.spec_draft import draft_spec
from kernrec.interop.spec_text import LaunchWords
from kernrec.kernel import Kernel, bind_launches
from kernrec.kernel.source_files import line_origins
from kernrec.op import Problem
from kernrec.profile.code_facts import variable_contents
from kernrec.profile.emulated_launch import kernel_launch
from kernrec.profile.kernel_code import compile_job_for
from kernrec.profile.launch_profile import entry_name
from kernrec.profile.ptx_kernel import LINE_INFO
from kernrec.profile.tensor_values import ELEMENTS, Tensors
from kernrec.ptx import Counts, KernelLaunch, Module, parse
from kernrec.ptx.execution.emulator import Emulation, check_block
from kernrec.ptx.execution.engine import RawFinding
from kernrec.ptx.execution.watched import CheckedMemory, EmulationOptions
from kernrec.ptx.ir.inline import inlined
from kernrec.ptx.ir.operand import Register
from kernrec.ptx.ir.program import Function, Instruction, SourceLines
from kernrec.ptx.state.launch_layout import impossible_shape
from kernrec.ptx.state.results import EmulationError
from kernrec.util.light_dataclass import dataclass

_CHUNK = 64
_FIRST, _LAST = 1024, 64
"""Number of thread blocks to run at the start and at the end of the grid, before random blocks."""

_ARITHMETIC = frozenset({"add", "mul", "fma", "max", "min", "cvt", "mov"})


@dataclass(frozen=True)
class Checked:
    """Findings and event counts from checking a launch."""

    findings: tuple[Finding, ...]
    counts: Counts
    """Event counts of the blocks that ran."""
    blocks: int
    """Number of thread blocks that ran before the time limit."""
    of_blocks: int
    notes: tuple[str, ...] = field(default=())
    """Notes for the user on checks that were skipped."""


@dataclass(frozen=True)
class LaunchLimits:
    """Time limit of a launch, resources of the GPU, and resources that the launch needs."""

    seconds: float = 10.0
    sm: SmLimits | None = None
    resources: Resources | None = None
    """Registers and shared memory that the compiled kernel needs."""


def check_launch(
    module: Module,
    launch: KernelLaunch,
    describer: Describer,
    limits: LaunchLimits,
    uninitialized: frozenset[str] = frozenset(),
) -> Checked:
    """Run thread blocks of a launch until the time limit, and return the errors that were found.

    Args:
        module: Module that was compiled with line information.
        launch: The launch. The contents of its buffers change.
        uninitialized: Names of buffers that nothing wrote before the launch.

    Raises:
        EmulationError: The emulator does not support an instruction.
        UsageError: The arguments do not fit the kernel.
    """
    blocks = prod(launch.grid)
    if refusal := refused(module, launch, limits):
        return Checked((Finding("launch", describer.kernel, refusal, describer.place(0).file),), Counts(), 0, blocks)
    function = inlined(module, launch.entry)
    watched, notes = watched_memory(function, uninitialized)
    start, counts = time.monotonic(), Counts()
    ran: set[int] = set()
    findings: list[Finding] = []
    options = EmulationOptions(min(blocks, _CHUNK), budget=LAUNCH_BUDGET, checked=watched)
    emulation = Emulation(module, launch, options)
    try:
        for chunk in _chunks(blocks):
            numbers = [number for number in emulation.whole_clusters(chunk) if number not in ran]
            for name, value in emulation.run(numbers).items():
                counts.bump(name, value)
            ran.update(numbers)
            if time.monotonic() - start > limits.seconds:
                break
    except EmulationError as error:
        finding = describer.of_error(str(error), list(launch.buffers))
        if finding is None:
            raise
        findings.append(finding)
    findings = [*(describer.of(raw) for raw in emulation.findings if not is_harmless(function, raw)), *findings]
    return Checked(distinct(findings), counts, len(ran), blocks, tuple(notes))


def without_guesses(checked: Checked, draft: Draft) -> Checked:
    """Remove out-of-bounds errors for buffers whose size was guessed, and add a note."""
    stated = {text.partition("=")[0] for text in draft.launch.arguments} if draft.launch is not None else set()
    guessed = {name: text for name, text in draft.buffers.items() if text.partition("=")[0] not in stated}
    beyond = {each.memory for each in checked.findings if each.kind == "out-of-bounds"} & guessed.keys()
    if not beyond:
        return checked
    findings = tuple(each for each in checked.findings if each.kind != "out-of-bounds" or each.memory not in beyond)
    names = ", ".join(guessed[name].partition("=")[0] for name in sorted(beyond))
    sizes = " ".join(f"{text}[ELEMENTS]" for text in guessed.values())  # Other guesses may be as wrong.
    note = f"a thread accesses bytes beyond {names}, whose size kernrec assumed; to report an error, state: {sizes}"
    return replace(checked, findings=findings, notes=(*checked.notes, note))


def watched_memory(function: Function, uninitialized: frozenset[str]) -> tuple[CheckedMemory, list[str]]:
    """Return the kinds of memory that can be checked without false findings, and notes on skipped checks."""
    notes = []
    shared = not any(map(_moves_shared_memory, function.instructions))
    if not shared:
        notes.append("races and unwritten bytes of shared memory were not checked: bulk copies or mbarriers order them")
    ordered = any(map(_orders_blocks, function.instructions))
    if ordered:
        notes.append("races in global memory were not checked: the kernel has fences or volatile accesses")
    return CheckedMemory(uninitialized, shared, not ordered), notes


def is_harmless(function: Function, raw: RawFinding) -> bool:
    """Return whether the emulator reported a load of unwritten shared memory that cannot affect the results."""
    load = function.instructions[raw.source]
    value = load.operands[0] if load.operands else None
    if raw.kind != "uninitialized-shared" or load.opcode != "ld" or not isinstance(value, Register):
        return False
    users = [ins for ins in function.instructions if value.name in ins.sources]
    # Accept values that are only copied within shared memory: stencils copy border values that they never use.
    copies = all(ins.opcode == "st" and "shared" in ins.modifiers and ins.operands[1] == value for ins in users)
    return copies or _is_speculative(function, value.name)


def _is_speculative(function: Function, name: str, steps: int = 2) -> bool:
    """Return whether the compiler probably moved a load into the register `name` above the `if` that guards it."""
    # Only `selp`, or a comparison that is combined with the guard, uses the value of a speculative load.
    users = [ins for ins in function.instructions if name in ins.sources]
    return bool(users) and all(
        (ins.opcode == "selp" and ins.operands[-1] != Register(name))
        or (ins.opcode == "setp" and all(_is_joined(function, result) for result in ins.results))
        or (
            ins.opcode in _ARITHMETIC
            and steps > 0
            and all(_is_speculative(function, r, steps - 1) for r in ins.results)
        )
        for ins in users
    )


def _is_joined(function: Function, predicate: str) -> bool:
    return all(ins.opcode in ("and", "or") for ins in function.instructions if predicate in ins.sources)


def _moves_shared_memory(ins: Instruction) -> bool:
    return (
        ins.opcode in ("mbarrier", "tcgen05", "wgmma")
        or "bulk" in ins.modifiers
        or ("async" in ins.modifiers[:1] and (ins.opcode in ("st", "red")))
    )


def _orders_blocks(ins: Instruction) -> bool:
    if ins.opcode in ("fence", "membar"):
        return True
    waits = {"volatile", "acquire", "release", "relaxed"} & set(ins.modifiers)
    return (
        ins.opcode in ("ld", "st", "atom", "red")
        and bool(waits)
        and "shared" not in ins.modifiers
        and (ins.opcode in ("ld", "st") or bool(waits - {"relaxed"}))
    )


def _chunks(blocks: int) -> Iterator[Sequence[int]]:
    """Yield chunks of block numbers: the start of the grid, then its end, then random blocks."""
    first = min(blocks, _FIRST)
    last = range(max(first, blocks - _LAST), blocks)
    rest = np.random.default_rng(0).permutation(np.arange(first, last.start)) if blocks < 1 << 24 else np.arange(0)
    for numbers in (range(first), last, rest):
        for start in range(0, len(numbers), _CHUNK):
            yield [int(number) for number in numbers[start : start + _CHUNK]]


def refused(module: Module, launch: KernelLaunch, limits: LaunchLimits) -> str:
    """Return why a GPU would reject a launch, or an empty string."""
    threads, function = prod(launch.block), module.functions[launch.entry]
    if reason := impossible_shape(launch.grid, launch.block):
        return reason
    try:
        check_block(module, launch)
    except UsageError as error:
        return str(error)
    static = module.bytes_of(function, "shared")
    if limits.sm is not None and static + launch.shared_bytes > limits.sm.smem_per_block:
        return (
            f"a block takes {static + launch.shared_bytes} bytes of shared memory; the GPU allows at most "
            f"{limits.sm.smem_per_block}"
        )
    if limits.sm is not None and limits.resources is not None:
        unit = limits.sm.register_allocation_unit
        per_warp = -(-limits.resources.registers * 32 // unit) * unit
        if (needed := per_warp * -(-threads // 32)) > limits.sm.registers_per_block:
            return (
                f"a block of {threads} threads takes {needed} registers ({limits.resources.registers} a thread); "
                f"the GPU allows at most {limits.sm.registers_per_block}; state __launch_bounds__({threads})"
            )
    return ""


_COMPILE_LIMIT_S = 120.0


@dataclass(frozen=True)
class ProgramLaunch:
    """Kernel launch that is ready to be checked."""

    module: Module
    launch: KernelLaunch
    describer: Describer
    limits: LaunchLimits
    draft: Draft
    kernel: Kernel
    config: dict[str, int]
    has_f64: bool
    """Whether a parameter has the type f64."""


def program_launch(
    path: Path,
    words: LaunchWords,
    gpu: GPU,
    seconds: float,
    zeros: bool = True,
    assume: bool = False,
    sizes: Sizes = TIMED,
) -> ProgramLaunch:
    """Prepare the launch of one kernel in a CUDA file.

    Args:
        words: Name of the kernel, and the user's options about its launch.
        seconds: Maximum run time of the launch.
        zeros: Whether integer arrays with unknown values contain zeros, because other values may be out of range.
        assume: Whether to assume sizes that the file does not contain. A note lists them.
        sizes: Sizes to assume.

    Raises:
        UsageError: The file does not determine the launch of the kernel.
        CompileError: The compiler rejects the file.
    """
    draft = draft_spec(path, words, gpu.sm, assume=assume, sizes=sizes)
    if draft.missing:
        run = f"add it to `kernrec check {path}:{draft.entry}`, or run the program: kernrec check {path} -- ARGUMENTS"
        instead = f"; give it to: {draft.command(gpu.name)}" if assume and sizes is TIMED else f"; {run}"
        raise UsageError(f"{draft.entry} needs {'; '.join(draft.missing)}{instead}")
    kernel = draft.kernel()
    problem = kernel.definition.problem()
    config = _config(kernel, draft, problem, gpu)
    job = compile_job_for(kernel, config, problem, gpu.sm)
    compiled = compiled_with_lines(job)
    module = parse(compiled.ptx)
    (bound, *_) = bind_launches(kernel, config, problem, gpu.sm)
    entry = entry_name(module.functions, bound.entry)
    buffers = _buffers(kernel, problem, path.parent, zeros)
    constants, device = variable_contents(kernel, module, buffers)
    launch = kernel_launch(bound, {**buffers, **device}, constants, entry)
    origins = line_origins(path, words.include)
    describer = Describer(draft.entry, inlined(module, entry), SourceLines(compiled.ptx), origins, path.name)
    limits = LaunchLimits(seconds, gpu.limits, compiled.resources.get(entry))
    types = [tensor.dtype for tensor in problem.tensors.values()] + re.findall(r'"(f64) ', draft.text)
    return ProgramLaunch(module, launch, describer, limits, draft, kernel, config, "f64" in types)


def compiled_with_lines(job: CompileJob) -> Compiled:
    """Compile a source with line information, in a separate process. Raise `CompileError` if the source is invalid."""
    ((_, result),) = compile_many(
        [replace(job, options=(*job.options, LINE_INFO))], processes=1, timeout_s=_COMPILE_LIMIT_S
    )
    if isinstance(result, CompileError):
        raise result
    return result


def _config(kernel: Kernel, draft: Draft, problem: Problem, gpu: GPU) -> dict[str, int]:
    """Return the first config with the host code's block size, or the first valid config if there is none."""
    block = (*(draft.launch.block if draft.launch and draft.launch.block else ()), 1, 1)[:3]
    values: list[dict[str, int]] = [{}]
    for tunable in kernel.tunables:
        values = [{**config, tunable.name: value} for config in values for value in tunable.values]
    fitting = [config for config in values if not kernel.misfit(config, problem, gpu.limits)] or values[:1]
    for config in fitting:
        if bind_launches(kernel, config, problem, gpu.sm)[0].block == block:
            return config
    return fitting[0]


def _buffers(kernel: Kernel, problem: Problem, folder: Path, zeros: bool) -> dict[str, np.ndarray]:
    """Return the contents of the kernel's buffers. If `zeros` is true, integers that the spec does not state are 0."""
    buffers = Tensors(kernel, problem, folder).filled
    for name, tensor in problem.tensors.items():
        sample = kernel.initial_values.get(name)
        if zeros and tensor.dtype[0] in "iu" and (sample is None or sample.kind == "normal"):
            buffers[name] = np.zeros(tensor.elements, ELEMENTS[tensor.dtype])
    return buffers


def entries_of(path: Path, include: Sequence[str]) -> list[str]:
    """Return the names of the kernels in a CUDA file, including each instance of a template."""
    from kernrec.interop.draft import kernel_names
    from kernrec.kernel.source_files import whole_source

    return kernel_names(whole_source(path, include))
