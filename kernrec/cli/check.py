"""`kernrec check`: run the launches of a CUDA or PTX file in the emulator, and report memory errors and data races."""

import os
import re
import sys
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernrec.cli import options
from kernrec.cli.options import argument, option
from kernrec.cli.output import AsJson, print_json, print_notes
from kernrec.cli.quantity import duration
from kernrec.errors import KernrecError, UsageError

if TYPE_CHECKING:
    from kernrec.checking.check_launch import Checked
    from kernrec.kernel.source_files import CompileFlags


PROGRAM = "--program"
"""Hidden option that `kernrec.cli.app` inserts before `--`, because the parser drops `--`."""
_BY_NAME = re.compile(r"\w+=(?:-?[\d.]+(?:e-?\d+)?|[\w:]*\[(?![\dx]*\]).*)")
"""Number without a data type, such as `n=4096`, or buffer with an expression as size, such as `x=f32[n]`."""


class CheckOptions(options.Options):
    databases_used = options.OWN
    source: Annotated[
        Path, argument("A .cu or .ptx file; kernel.cu:name selects a kernel. After --, a program: -- ./app ARGUMENTS.")
    ]
    arguments: Annotated[
        list[str] | None,
        argument(
            "Arguments in order: a=f32[4096], a=zeros:f32[64], a=@a.npy, i32:4096. Or by name, for what the host code "
            "does not state: n=4096. FILE.cu -- ARGUMENTS builds and runs the program."
        ),
    ] = None
    runs: Annotated[bool, option("Run the source as a program.", PROGRAM, hidden=True)] = False
    grid: Annotated[str | None, option("Grid size: 16 or 16,2,1. Default for arguments in order: 1.")] = None
    block: Annotated[str | None, option("Block size: 256 or 16,16. Default for arguments in order: 32.")] = None
    shared: Annotated[int, option("Dynamic shared memory per block, in bytes.")] = 0
    blocks_of_cluster: Annotated[str | None, option("Cluster size in blocks: 2 or 2,2.", "--cluster")] = None
    gpu: Annotated[str, option("GPU to compile for.", "--gpu", callback=options.gpu_names)] = "rtx3090"
    define: Annotated[list[str] | None, option(options.DEFINE, "-D")] = None
    include: Annotated[list[Path] | None, option("Folder with headers; may be repeated.", "--include", "-I")] = None
    time: Annotated[str, option("Maximum time to run the blocks of a launch.")] = "10s"
    save: Annotated[list[str] | None, option("Write a buffer after the launch: c=result.npy.")] = None
    junit: Annotated[Path | None, option("Write a JUnit report.")] = None
    as_json: AsJson = False

    @cached_property
    def flags(self) -> "CompileFlags":
        from kernrec.kernel.source_files import compile_flags

        return compile_flags(with_entry(self.source)[0], self.define or (), self.include or ())

    @cached_property
    def text(self) -> str:
        """Return the source with the files that it includes."""
        from kernrec.kernel.source_files import whole_source

        return whole_source(with_entry(self.source)[0], self.flags.include)

    @cached_property
    def entries(self) -> list[str]:
        """Return the named kernel, or else all kernels of a CUDA file and each instance of a template."""
        from kernrec.interop.draft import kernel_names

        _, entry = with_entry(self.source)
        return [entry] if entry else kernel_names(self.text)

    @cached_property
    def launches(self) -> bool:
        """Return whether the host code of a CUDA file launches kernels."""
        from kernrec.kernel.cuda_signature import without_comments

        return "<<<" in without_comments(self.text)

    @property
    def by_name(self) -> bool:
        return any(map(_BY_NAME.fullmatch, self.arguments or ()))

    @cached_property
    def complete(self) -> set[str]:
        """Return the names of all kernels without parameters, or an empty set if the user describes launches."""
        from kernrec.kernel.cuda_signature import signatures

        if self.launches or self.by_name:
            return set()
        return {each.name for each in signatures(self.text) if not (each.parameters or each.template)}

    @property
    def seconds(self) -> float:
        return duration("--time", self.time)


@options.takes(CheckOptions)
def check(wanted: CheckOptions) -> None:
    """Check kernels for errors without a GPU, as compute-sanitizer does with one.

    The kernels run in the emulator. Errors are memory accesses that are misaligned, out of bounds or past an array of
    shared memory, reads of unwritten memory, data races, barriers and warp operations that not all threads reach,
    deadlocks, endless loops, and launches that a GPU would refuse. Each error is reported with its source line, thread,
    buffer, byte and the usual fix.

    After --, `kernrec check` runs a program: -- ./app ARGUMENTS, -- python app.py, or FILE.cu -- ARGUMENTS. It checks
    the program's launches with their real data, as `kernrec capture` runs them. The program's output goes to standard
    error. Source lines need nvcc -lineinfo, with which FILE.cu is compiled.

    The exit status is 1 if errors were found. If arguments were given for a single kernel without errors, its numbers
    of instructions and memory accesses are printed.
    """
    path, entry = with_entry(wanted.source)
    program = wanted.runs or (path.suffix == ".cu" and _is_drafted(wanted))
    own = wanted.runs or (program and wanted.launches and not wanted.by_name)
    for name in (*(("grid", "block", "shared") if own else ()), *(("blocks_of_cluster", "save") if program else ())):
        # A program chooses the grids and blocks of its launches itself.
        if getattr(wanted, name) != getattr(CheckOptions, name):
            flag = "cluster" if name == "blocks_of_cluster" else name
            raise UsageError(
                f"--{flag} needs one kernel and its arguments, as in {path.name}:KERNEL --{flag} ... a=f32[4096]; "
                f"without them, kernrec checks the launches in the host code of {path}"
            )
    status, errors = 0, dict[str, str]()
    if wanted.runs:
        results, status = _check_run(wanted)
    elif program:
        results, errors = _check_program(wanted, path, entry)
    else:
        results = _check_one(wanted, path, entry)
    findings = {name: list(checked.findings) for name, checked in results.items()}
    if wanted.junit is not None:
        from kernrec.checking.findings import junit
        from kernrec.emit.formats import write_file

        write_file(wanted.junit, junit(path.name, findings, errors).encode())
    _print(wanted, results, errors, bool(wanted.arguments) and not program)
    if any(findings.values()):
        raise typer.Exit(1)
    if status:
        raise typer.Exit(status)
    if errors:
        raise KernrecError(f"{len(errors)} of {len(errors) + len(results)} kernels could not be checked")


def _check_run(wanted: CheckOptions) -> "tuple[dict[str, Checked], int]":
    """Run a program, and return (results keyed by kernel, exit status of the program)."""
    from kernrec.capture.launch_checks import LaunchChecks
    from kernrec.capture.program_run import run_program
    from kernrec.capture.recorded_calls import Recorder
    from kernrec.checking.child_process import LAUNCH_BUDGET
    from kernrec.gpu import find_gpu

    checks = LaunchChecks(wanted.seconds)
    command = [str(wanted.source), *(wanted.arguments or ())]
    if "/" not in command[0] and Path(command[0]).is_file() and wanted.source.suffix != ".cu":
        command[0] = f"./{command[0]}"  # Restore the `./` that the parser has removed.
    sys.stdout.flush()
    own = os.dup(1)
    os.dup2(2, 1)
    try:
        gpu, recorder, build = find_gpu(wanted.gpu), Recorder(checks=checks), options.build_options(wanted)
        status = run_program(command, gpu, Path("calls").absolute(), recorder, build, LAUNCH_BUDGET)
    finally:
        os.dup2(own, 1)
        os.close(own)
    if not checks.results and not status:
        raise KernrecError("the program launched no CUDA kernel; without a GPU, it may choose another path")
    return checks.results, status if status >= 0 else 128 - status


def _is_drafted(wanted: CheckOptions) -> bool:
    """Return whether the user's arguments, if any, only complete a launch from host code or from assumptions."""
    from kernrec.kernel.cuda_signature import variable_types

    if wanted.by_name or not wanted.arguments:
        return len(wanted.entries) != 1 or wanted.entries[0] not in wanted.complete
    stated = {text.partition("=")[0] for text in wanted.arguments}
    return wanted.launches and stated <= variable_types(wanted.text).keys()


def _check_one(wanted: CheckOptions, path: Path, entry: str | None) -> "dict[str, Checked]":
    import numpy as np

    from kernrec.checking.check_launch import LaunchLimits, check_launch
    from kernrec.checking.findings import Describer
    from kernrec.gpu import find_gpu
    from kernrec.kernel.cuda_signature import source_name
    from kernrec.kernel.source_files import line_origins
    from kernrec.profile.launch_arguments import read_arguments
    from kernrec.profile.ptx_kernel import file_launch
    from kernrec.ptx.ir.inline import inlined
    from kernrec.ptx.ir.program import SourceLines

    gpu = find_gpu(wanted.gpu)
    read = read_arguments(wanted.arguments or [])
    flags = wanted.flags
    targets = dict(_target(text, list(read.buffers)) for text in wanted.save or [])
    made = file_launch(
        path,
        read,
        extents("--grid", wanted.grid or "1"),
        extents("--block", wanted.block or "32"),
        entry=entry,
        sm=gpu.sm,
        flags=flags,
        shared_bytes=wanted.shared,
        cluster=() if wanted.blocks_of_cluster is None else extents("--cluster", wanted.blocks_of_cluster),
    )
    function, launch = inlined(made.module, made.launch.entry), made.launch
    origins = line_origins(path, flags.include) if path.suffix == ".cu" else []
    name = entry or source_name(launch.entry)
    describer = Describer(name, function, SourceLines(made.ptx), origins, path.name)
    limits = LaunchLimits(wanted.seconds, gpu.limits, made.resources.get(launch.entry))
    checked = check_launch(made.module, launch, describer, limits, frozenset(read.unwritten))
    if not checked.findings:
        for buffer, file in targets.items():
            np.save(file, read.buffers[buffer])
    return {name: _with_notes(checked, made.unset)}


def _with_notes(checked: "Checked", *notes: str) -> "Checked":
    return replace(checked, notes=(*checked.notes, *filter(None, notes)))


def _check_program(wanted: CheckOptions, path: Path, entry: str | None) -> "tuple[dict[str, Checked], dict[str, str]]":
    """Check kernels with the launches in the host code. For a file without launches, assume them.

    Return results, and reasons why other kernels could not be checked. Both are keyed by kernel.
    """
    from kernrec.checking.check_launch import check_launch, program_launch, without_guesses
    from kernrec.cli.progress import Steps
    from kernrec.gpu import find_gpu
    from kernrec.interop.assumed_words import CHECKED
    from kernrec.interop.spec_text import LaunchWords
    from kernrec.profile.launch_arguments import MOST_ELEMENTS

    gpu = find_gpu(wanted.gpu)
    flags = wanted.flags
    block = "x".join(map(str, extents("--block", wanted.block))) if wanted.block else None
    results: dict[str, Checked] = {}
    errors: dict[str, str] = {}
    progress = Steps(f"{path.name}: compiling")
    with progress:
        for name in wanted.entries:
            progress.step(f"{name}: checking")
            try:
                if name in wanted.complete:
                    results |= _check_one(wanted, path, name)
                    continue
                shared = str(wanted.shared) if wanted.shared else None
                words = LaunchWords(name, wanted.grid, block, wanted.arguments or (), shared=shared, **vars(flags))
                made = program_launch(path, words, gpu, wanted.seconds, assume=not wanted.launches, sizes=CHECKED)
                for buffer, array in made.launch.buffers.items():
                    if array.size > MOST_ELEMENTS:
                        raise UsageError(f"{buffer} has {array.size} elements; at most {MOST_ELEMENTS} are accepted")
                checked = check_launch(made.module, made.launch, made.describer, made.limits)
                checked = without_guesses(checked, made.draft)
                if not (wanted.launches or checked.findings or checked.blocks):
                    raise KernrecError("; ".join(filter(None, (*checked.notes, made.draft.note))))
                results[name] = _with_notes(checked, made.draft.note, made.draft.unset)
            except KernrecError as error:
                errors[name] = str(error)
    return results, errors


def _print(wanted: CheckOptions, results: "dict[str, Checked]", errors: dict[str, str], has_counts: bool) -> None:
    """Print the errors of each kernel. If `has_counts` is true, print counts for a kernel without errors."""
    if wanted.as_json:
        answers: dict[str, Any] = {
            name: {
                "findings": [finding.as_dict() for finding in checked.findings],
                "blocks": checked.blocks,
                "of_blocks": checked.of_blocks,
                "notes": list(checked.notes),
                "counts": dict(sorted(checked.counts.items())),
            }
            for name, checked in results.items()
        }
        answers |= {name: {"error": error} for name, error in errors.items()}
        if has_counts:
            (answer,) = answers.values()
            answers = {**answer.pop("counts"), **answer}
        print_json(answers)
    else:
        for name, checked in results.items():
            for finding in checked.findings:
                print(finding.text)
            if not checked.findings and has_counts:
                width = max(map(len, checked.counts), default=0)
                for metric, count in sorted(checked.counts.items()):
                    print(f"{metric:{width}}  {count}")
            elif not checked.findings:
                print(f"{name}: no errors")
    notes = []
    for name, checked in results.items():
        ran = "all" if checked.blocks == checked.of_blocks else f"{checked.blocks} of {checked.of_blocks}"
        notes += [f"{name}: {note}" for note in checked.notes]
        if not checked.findings:
            notes.append(f"{name}: no errors in {ran} blocks; counted by the emulator, not measured on a GPU")
    print_notes([*notes, *(f"{name}: not checked: {error}" for name, error in errors.items())])


def with_entry(source: Path) -> tuple[Path, str | None]:
    """Split `kernel.cu:name` into the path and the kernel's name. The name of `kernel.cu` is None."""
    named = re.fullmatch(r"(.+?\.(?:cu|ptx)):(.+)", str(source))
    return (Path(named[1]), named[2]) if named else (source, None)


def extents(flag: str, text: str) -> list[int]:
    """Parse one to three positive numbers, such as `16`, `16,16` or `16x16`."""
    parts = text.replace("x", ",").split(",")
    if not 1 <= len(parts) <= 3 or not all(p.strip().isdecimal() and int(p) > 0 for p in parts):
        raise UsageError(f"{flag} {text!r}: expected 1 to 3 positive whole numbers, such as 16,16")
    return [int(p) for p in parts]


def _target(text: str, buffers: list[str]) -> tuple[str, Path]:
    name, _, file = text.partition("=")
    if not file or name not in buffers:
        raise UsageError(f"--save {text!r}: expected BUFFER=FILE.npy; the buffers are {', '.join(buffers)}")
    if Path(file).suffix != ".npy" or not Path(file).absolute().parent.is_dir():
        raise UsageError(f"--save {text!r}: expected a .npy file in an existing folder")
    return name, Path(file)
