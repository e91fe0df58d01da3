"""Compiles library kernels and copies with planted bugs, and reads the machine code of PTX. The assembler runs only for
tests of registers, spills or machine code, because it takes as long as the compiler."""

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kernrec.compile import Compiled, NoCompilerError, Resources, compile_source
from kernrec.compile.assemble import assemble
from kernrec.compile.machine_code import MachineCode, read_machine_code
from kernrec.kernel import Kernel, load_kernel
from kernrec.ptx import Module
from tests.helpers.paths import ROOT
from tests.helpers.ptx_text import cuda_to_ptx, parsed

Config = dict[str, int]

_NOT_ASSEMBLED = Resources(registers=0, spill_store_bytes=0, spill_load_bytes=0, stack_bytes=0, static_smem_bytes=0)


def ptx_of(kernel: Kernel, config: Config, dtype: str, layout: str, sm: int) -> str:
    return cuda_to_ptx(kernel.source, f"sm_{sm}", kernel.defines(config, dtype, layout))


def module_of(kernel: Kernel, config: Config, dtype: str, layout: str, sm: int) -> Module:
    return parsed(ptx_of(kernel, config, dtype, layout, sm))


def not_assembled(kernel: Kernel, config: Config, dtype: str, layout: str, sm: int) -> Compiled:
    """Return a config's PTX as `Compiled`, without machine code and with all resources set to zero."""
    ptx = ptx_of(kernel, config, dtype, layout, sm)
    resources = {launch.entry: _NOT_ASSEMBLED for launch in kernel.launches}
    return Compiled(ptx, b"", resources, "nvrtc", "")


def assembled(kernel: Kernel, config: Config, dtype: str, layout: str, sm: int) -> Compiled:
    return _assembled(kernel, sm, tuple(kernel.defines(config, dtype, layout).items()))


@cache
def _assembled(kernel: Kernel, sm: int, defines: tuple[tuple[str, str], ...]) -> Compiled:
    try:
        return compile_source(kernel.source, sm, dict(defines))
    except NoCompilerError as error:
        pytest.skip(str(error))


@cache
def machine_code_of(ptx: str, sm: int) -> dict[str, MachineCode]:
    return read_machine_code(assemble(ptx, sm, "kernel.ptx").cubin, sm)


def written_kernel(folder: Path, source: str, spec: str) -> Kernel:
    (folder / tomllib.loads(spec)["source"]).write_text(source)
    (folder / "kernel.toml").write_text(spec)
    return load_kernel(folder / "kernel.toml")


def mutants(kernel: str, group: str = "mutant") -> list[dict[str, Any]]:
    """Return the changes of a kernel's source that `mutants/KERNEL.toml` lists as mutants or as equivalent."""
    path = ROOT / "tests" / "kernel" / "library" / "mutants" / f"{kernel}.toml"
    rows: list[dict[str, Any]] = tomllib.loads(path.read_text(encoding="utf-8"))[group]
    return rows


def source_of(mutant: object) -> str:
    """Return the start of the text that a mutant replaces, as a test ID."""
    return mutant["old"].strip()[:60] if isinstance(mutant, dict) else str(mutant)
