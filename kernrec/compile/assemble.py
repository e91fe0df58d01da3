"""Assemble PTX with the CUDA toolkit. Without an assembler, estimate registers and memory from the PTX."""

import re
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

from kernrec.compile.compiled import Compiled, CompileError, Resources, assembler, first_error, parse_resources
from kernrec.compile.machine_code import LINE_INFORMATION
from kernrec.errors import UsageError
from kernrec.ptx import parse
from kernrec.ptx.analysis.liveness import live_registers
from kernrec.ptx.ir.program import Module

NEWEST_ISA = (9, 5)
"""Newest PTX ISA version that kernrec accepts. Newer versions may change the meaning of instructions."""

ESTIMATED = "registers estimated from PTX"
_ASSEMBLER_LIMIT_S = 120.0
VERSION_LINE = re.compile(r"^([ \t]*\.version[ \t]+)(\d+)\.(\d+)", re.MULTILINE)
_TOO_NEW = re.compile(r"Unsupported \.version ([\d.]+); current version is '([\d.]+)'")
_TOO_OLD = re.compile(r"Value '\w+' is not defined for option 'gpu-name'")
_TURING = 75
"""Oldest compute capability that CUDA 13's assembler supports."""
_MESSAGE = re.compile(r"line (\d+); (?:error|fatal)\s*: (.+)")


def check_target(module: Module, sm: int) -> None:
    """Raise `UsageError` if the compute capability `sm` cannot run a module, or its PTX ISA version is too new."""
    major, _, minor = module.version.partition(".")
    if not (major.isdigit() and minor.isdigit()) or (int(major), int(minor)) > NEWEST_ISA:
        newest = ".".join(map(str, NEWEST_ISA))
        raise UsageError(f"PTX ISA {module.version[:20]} is newer than {newest}, the newest that kernrec knows")
    target = "".join(c for c in module.target.removeprefix("sm_") if c.isdigit())
    if target and int(target) > sm:
        raise UsageError(f"the PTX is for {module.target}, which the GPU's sm_{sm} cannot run")


def assemble(ptx: str, sm: int, name: str) -> Compiled:
    """Assemble PTX text for the compute capability `sm`. Return machine code (`cubin`) and resources of the kernels.

    Without an assembler, `cubin` is empty and the resources are estimates. If the assembler does not support the PTX
    ISA version of the text, kernrec assembles the text as the newest version that the assembler supports.

    Raises:
        CompileError: the assembler rejects the PTX.
    """
    module = parse(ptx)
    check_target(module, sm)
    tool = assembler()
    if tool is None:
        resources = {
            entry: Resources(min(live_registers(function), 255), 0, 0, 0, module.bytes_of(function, "shared"))
            for entry, function in module.functions.items()
            if function.entry
        }
        return Compiled(ptx, b"", resources, ESTIMATED, "")
    target = module.target if module.target in (f"sm_{sm}a", f"sm_{sm}f") else f"sm_{sm}"
    status, log, cubin = run_assembler(tool, ptx, target, name)
    if status and (versions := _TOO_NEW.search(log)):
        stated, newest = versions.groups()
        status, log, cubin = run_assembler(tool, VERSION_LINE.sub(rf"\g<1>{newest}", ptx, count=1), target, name)
        if status:
            raise CompileError(
                f"{name} is PTX ISA {stated}, but {tool} supports up to {newest}; `pip install nvidia-cuda-nvcc` has a"
                f" newer one ({_refusal(log, name)})",
                log,
            )
    if status and _TOO_OLD.search(log) and sm < _TURING:
        # Assemble for Turing, which has as many registers as Volta. Volta cannot run Turing's code, so drop the code.
        turing = assemble(ptx, _TURING, name)
        return replace(turing, cubin=b"")
    if status:
        raise CompileError(_refusal(log, name), log)
    return Compiled(ptx, cubin, parse_resources(log), "ptxas", log)


def _refusal(log: str, name: str) -> str:
    match = _MESSAGE.search(log)
    return f"{name}:{match[1]}: {match[2]}" if match else first_error(log, name)


def run_assembler(tool: str, ptx: str, target: str, name: str) -> tuple[int, str, bytes]:
    """Return the exit status, output and machine code of `ptxas`. Raise `CompileError` on a timeout."""
    with tempfile.TemporaryDirectory() as folder:
        path, cubin = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        path.write_text(ptx, encoding="utf-8")
        linked_later = ["--compile-only"] if "cudaCDP2" in ptx else []  # Only linking defines these functions.
        command = [tool, "-v", LINE_INFORMATION, *linked_later, f"--gpu-name={target}", str(path), "-o", str(cubin)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_ASSEMBLER_LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            raise CompileError(f"{name}: ptxas took longer than {_ASSEMBLER_LIMIT_S:g} s", reason="timeout") from None
        log = (done.stderr + done.stdout).replace(str(path), name)
        return done.returncode, log, b"" if done.returncode else cubin.read_bytes()
