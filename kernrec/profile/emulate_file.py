"""Create a launch of one kernel of a CUDA or PTX file from descriptions of its arguments."""

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from kernrec.compile.compiled import Compiled, CompileError, CompileJob, Resources
from kernrec.compile.pool import compile_many
from kernrec.errors import UsageError, unknown
from kernrec.kernel.cuda_signature import Parameter, signatures
from kernrec.kernel.source_files import CompileFlags, read_source, read_text
from kernrec.profile.device_variables import device_variables, taken_out, unset_note
from kernrec.profile.launch_arguments import BUFFER_TYPES, SCALAR_TYPES, Arguments
from kernrec.ptx import KernelLaunch, Module, parse
from kernrec.ptx.analysis.indexes import indexes_of
from kernrec.ptx.ir.declarations import OPAQUE_TYPES
from kernrec.ptx.ir.inline import inlined
from kernrec.ptx.ir.program import Function, Variable
from kernrec.util.human import counted
from kernrec.util.light_dataclass import dataclass

LARGEST_SOURCE = 16 << 20
"""Maximum bytes of a CUDA or PTX file."""
_COMPILE_LIMIT_S = 120.0
LINE_INFO = "--generate-line-info"
"""Option of NVRTC and nvcc that adds source lines to the PTX."""


@dataclass(frozen=True)
class FileLaunch:
    """Launch of a kernel of a CUDA or PTX file."""

    ptx: str
    module: Module
    launch: KernelLaunch
    resources: Mapping[str, Resources]
    """Registers and memory of each kernel; empty for PTX."""
    unset: str = ""
    """Note on `__constant__` and `__device__` variables that nothing set; empty if there are none."""


def file_launch(
    path: Path,
    arguments: Arguments,
    grid: Sequence[int],
    block: Sequence[int],
    *,
    entry: str | None = None,
    sm: int = 86,
    flags: CompileFlags | None = None,
    shared_bytes: int = 0,
    cluster: Sequence[int] = (),
) -> FileLaunch:
    """Return one launch of a kernel, compiled with line information.

    Args:
        path: A `.cu` or `.ptx` file.
        arguments: Arguments from `read_arguments`.
        grid: Thread blocks: one to three extents.
        block: Threads of a block: one to three extents.
        entry: Name of the kernel; None: the only one of the file.
        sm: Compute capability that CUDA is compiled for.
        flags: Macros, options and folders with headers that CUDA is compiled with.
        shared_bytes: Dynamic shared memory per block.
        cluster: Thread blocks per cluster: one to three extents; if empty, the size compiled into the kernel, or 1.

    Raises:
        KernrecError: The compiler fails, or the arguments do not fit.
    """
    if shared_bytes < 0:
        raise UsageError(f"{shared_bytes} bytes of shared memory: 0 or more are accepted")
    if path.suffix not in (".cu", ".ptx") and path.is_file():
        raise UsageError(f"{path} is neither CUDA nor PTX: a .cu or .ptx file is expected")
    text, resources = "", {}
    if path.suffix == ".ptx":
        ptx = read_text(path, str(path), LARGEST_SOURCE)
    else:
        instance = entry if entry is not None and "<" in entry else None
        flags = flags or CompileFlags()
        text = read_source(path, flags.include, instance)
        compiled = _compiled(CompileJob(text, sm, flags.defines, path.name, (LINE_INFO, *flags.options)))
        ptx, resources = compiled.ptx, compiled.resources
    module = parse(ptx)
    # Skip textures that the code declares as variables, because they are not parameters.
    variables = {v.name for v in module.variables.values() if v.type in OPAQUE_TYPES}
    name = select_entry(module, entry, path)
    passed = [a for a in arguments.order if not (isinstance(a, str) and a in arguments.images and a in variables)]
    parameters = module.functions[name].parameters
    settable = device_variables(module, name, text)
    contents = taken_out(passed, len(parameters), settable)
    passed = [argument for place, argument in enumerate(passed) if place not in contents]
    buffers: dict[str, np.ndarray] = dict(arguments.buffers)
    constants: dict[str, np.ndarray] = {}
    for variable in contents.values():
        space = constants if module.variables[variable.symbol].space == "const" else buffers
        space[variable.symbol] = buffers.pop(variable.name)
    if len(passed) != len(parameters):
        expected = _descriptions(name, parameters, text)
        takes = f"takes {counted(len(parameters), 'argument')}, not {len(passed)}"
        raise UsageError(f"kernel {name!r} {takes}; expected, with your own sizes and values: {expected}")
    if arguments.drawn:
        _fill_indexes(inlined(module, name), dict(zip((p.name for p in parameters), passed, strict=True)), arguments)
    launch = KernelLaunch(
        name,
        tuple(grid),
        tuple(block),
        passed,
        buffers,
        shared_bytes,
        constants,
        images=arguments.images,
        cluster=tuple(cluster),
    )
    unset = unset_note(settable, (variable.name for variable in contents.values()))
    return FileLaunch(ptx, module, launch, resources, unset)


def _fill_indexes(function: Function, passed: Mapping[str, Any], arguments: Arguments) -> None:
    """Let buffers of random integers that index other buffers cover the full range of indices.

    Args:
        function: The kernel.
        passed: Number or name of the buffer, by parameter.
        arguments: The arguments; index buffers change in place.
    """
    for parameter, index in indexes_of(function).items():
        if (name := passed[parameter]) not in arguments.drawn:
            continue
        counts = []
        for target, (step, factors) in index.targets.items():
            buffer = arguments.buffers.get(passed[target]) if isinstance(passed[target], str) else None
            bytes_of_each = step * prod(int(passed[factor]) for factor in factors)
            counts.append(0 if buffer is None or bytes_of_each <= 0 else buffer.nbytes // bytes_of_each)
        values = arguments.buffers[name]
        end = min([*counts, int(np.iinfo(values.dtype).max)])
        if end < 1:
            continue
        draw = np.random.default_rng(0)
        if index.ascending:  # These are offsets of ranges; the last offset is the end of the buffer.
            values[...] = np.sort(draw.integers(0, end + 1, values.size))
            values.flat[0], values.flat[-1] = 0, end
        else:
            values[...] = draw.integers(0, end, values.size)


def _descriptions(entry: str, parameters: Sequence[Variable], source: str) -> str:
    """Return descriptions of arguments that fit a kernel's parameters, with names from the CUDA source if available."""
    declared = [each for each in signatures(source) if entry == each.name or f"{len(each.name)}{each.name}" in entry]
    if len(declared) != 1 or len(declared[0].parameters) != len(parameters):
        shown = (_description(each.name, None, each) for each in parameters)
    else:
        shown = (_description(a.name, a, b) for a, b in zip(declared[0].parameters, parameters, strict=True))
    return " ".join(shown) or "none"


def _description(name: str, declared: Parameter | None, parameter: Variable) -> str:
    dtype = declared.dtype if declared else None
    if declared.pointer if declared else parameter.type in ("u64", "b64"):
        return f"{name}={dtype if dtype in BUFFER_TYPES else 'f32'}[4096]"
    scalar = dtype or {"s": "i", "b": "i"}.get(parameter.type[0], parameter.type[0]) + parameter.type[1:]
    fits = scalar in SCALAR_TYPES and 8 * parameter.size == int(scalar[1:])
    return f"{scalar}:1" if fits else f"{name} ({parameter.size} bytes)"


def _compiled(job: CompileJob) -> Compiled:
    """Compile in another process with a time limit, because nested macros can keep the compiler busy forever."""
    ((_, result),) = compile_many([job], processes=1, timeout_s=_COMPILE_LIMIT_S)
    if isinstance(result, CompileError):
        raise result
    return result


def select_entry(module: Module, entry: str | None, path: Path) -> str:
    """Return the PTX name of the kernel `entry` (a C++ or PTX name); for None, of the only kernel.

    Raises:
        UsageError: the kernel does not exist, or `entry` is None and there are several kernels.
    """
    if entry is None:
        if not module.entries:
            raise UsageError(f"{path} has no kernel; a file with one is expected")
        if len(module.entries) > 1:
            names = ", ".join(module.entries)
            raise UsageError(
                f"{path} has {len(module.entries)} kernels ({names}): name one as in {path.name}:{module.entries[0]}"
            )
        return module.entries[0]
    if entry not in module.entries:
        name = entry.partition("<")[0].strip()
        mangled = [each for each in module.entries if each.startswith("_Z") and f"{len(name)}{name}" in each]
        if len(mangled) == 1:
            return mangled[0]
        raise unknown(f"kernel in {path.name}", entry, module.entries)
    return entry
