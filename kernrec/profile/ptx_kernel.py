"""Create a launch of a kernel in a CUDA or PTX file, or a `Kernel` with several block shapes from PTX.

PTX is fixed, so a `Kernel` from PTX can vary only the block shape. The shape is fixed, too, if the code declares a
block size, never reads the block size, or uses shared memory. Otherwise, a note asks the user to check that the result
does not depend on the shape.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from kernrec.compile.compiled import Compiled, CompileError, CompileJob, Resources, assembler
from kernrec.compile.pool import compile_many
from kernrec.errors import UsageError, unknown
from kernrec.kernel import Kernel, bind_launches
from kernrec.kernel.cuda_signature import Parameter, signatures, source_name
from kernrec.kernel.expression import identifier
from kernrec.kernel.source_files import CompileFlags, read_source, read_text
from kernrec.kernel.spec_reader import kernel_from
from kernrec.kernel.tensor_map import ImageLayout
from kernrec.op.dtype import ELEMENT_BYTES
from kernrec.profile.code_facts import CodeFacts, assigned_variables, device_variables, facts_of, unset_note
from kernrec.profile.emulated_launch import argument_mismatch
from kernrec.profile.launch_arguments import (
    BUFFER_TYPES,
    SCALAR_TYPES,
    Arguments,
    BufferDescription,
    MapModes,
    ScalarDescription,
    read_description,
)
from kernrec.profile.tensor_values import load_npy
from kernrec.ptx import BufferPlace, KernelLaunch, Module, parse
from kernrec.ptx.analysis.indexes import indexes_of
from kernrec.ptx.ir.declarations import OPAQUE_TYPES
from kernrec.ptx.ir.inline import inlined
from kernrec.ptx.ir.program import Function, Variable
from kernrec.ptx.state.launch_layout import MOST_THREADS
from kernrec.util.human import Note, counted
from kernrec.util.light_dataclass import dataclass

LARGEST_SOURCE = 16 << 20
"""Maximum size of a CUDA or PTX file in bytes."""
_COMPILE_LIMIT_S = 120.0
LINE_INFO = "--generate-line-info"
"""Option of NVRTC and nvcc for source lines in the PTX."""


@dataclass(frozen=True)
class FileLaunch:
    ptx: str
    module: Module
    launch: KernelLaunch
    resources: Mapping[str, Resources]
    """Registers and memory of each kernel. Empty for a PTX file."""
    unset: str = ""
    """Note on `__constant__` and `__device__` variables that nothing sets, or an empty string."""


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
    """Return a launch of a kernel. A CUDA file is compiled with line information.

    Args:
        grid: thread blocks along x, y and z; one to three extents.
        block: threads per block along x, y and z; one to three extents.
        entry: name of the kernel, or None if the file has only one.
        sm: compute capability for a CUDA file.
        flags: macros, options and header folders for a CUDA file.
        shared_bytes: dynamic shared memory in bytes per block.
        cluster: thread blocks per cluster; one to three extents. If empty, the kernel's own size applies, or one block.

    Raises:
        KernrecError: the compiler fails, or the arguments do not fit.
    """
    if shared_bytes < 0:
        raise UsageError(f"shared memory is {shared_bytes} bytes; expected 0 or more")
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
    # Textures that the code declares as variables are not parameters.
    variables = {v.name for v in module.variables.values() if v.type in OPAQUE_TYPES}
    name = select_entry(module, entry, path)
    passed = [a for a in arguments.order if not (isinstance(a, str) and a in arguments.images and a in variables)]
    parameters = module.functions[name].parameters
    settable = device_variables(module, name, text)
    contents = assigned_variables(passed, len(parameters), settable)
    passed = [argument for place, argument in enumerate(passed) if place not in contents]
    buffers: dict[str, np.ndarray] = dict(arguments.buffers)
    constants: dict[str, np.ndarray] = {}
    for variable in contents.values():
        space = constants if module.variables[variable.symbol].space == "const" else buffers
        space[variable.symbol] = buffers.pop(variable.name)
    if len(passed) != len(parameters):
        expected = _descriptions(name, parameters, text)
        takes = f"takes {counted(len(parameters), 'argument')}, not {len(passed)}"
        raise UsageError(
            f"kernel {source_name(name)!r} {takes}; for example, with your own sizes and values: {expected}"
        )
    if arguments.drawn:
        _cover_indexes(inlined(module, name), dict(zip((p.name for p in parameters), passed, strict=True)), arguments)
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


def _cover_indexes(function: Function, passed: Mapping[str, Any], arguments: Arguments) -> None:
    """Make random indices cover all valid indices of the buffers into which they point."""
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
        if index.ascending:  # Start of each range of elements, from 0 to the end of the buffer
            values[...] = np.sort(draw.integers(0, end + 1, values.size))
            values.flat[0], values.flat[-1] = 0, end
        else:
            values[...] = draw.integers(0, end, values.size)


def _descriptions(entry: str, parameters: Sequence[Variable], source: str) -> str:
    """Return an example description of each parameter. Names are from the CUDA source, if there is one."""
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
    """Compile a job in another process with a time limit."""
    ((_, result),) = compile_many([job], processes=1, timeout_s=_COMPILE_LIMIT_S)
    if isinstance(result, CompileError):
        raise result
    return result


def select_entry(module: Module, entry: str | None, path: Path) -> str:
    """Return the PTX name of a kernel, or of the only kernel if `entry` is None. Raise `UsageError` if this fails."""
    if entry is None:
        if not module.entries:
            raise UsageError(f"{path} has no kernel: expected at least one .entry")
        if len(module.entries) > 1:
            names = [_name_in_source(each, module) for each in module.entries]
            raise UsageError(
                f"{path} has {len(names)} kernels ({', '.join(names)}): name one as in {path.name}:{names[0]}"
            )
        return module.entries[0]
    if entry not in module.entries:
        name = entry.partition("<")[0].strip()
        mangled = [each for each in module.entries if each.startswith("_Z") and f"{len(name)}{name}" in each]
        if len(mangled) == 1:
            return mangled[0]
        raise unknown(f"kernel in {path.name}", entry, module.entries)
    return entry


_WIDTHS = (8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
_HEIGHTS = (1, 2, 4, 8, 16, 32)


def kernel_of_ptx(
    path: Path,
    entry: str | None,
    grid: Sequence[int],
    block: Sequence[int],
    arguments: Sequence[str],
    shared: int = 0,
    captured: bool = False,
) -> tuple[Kernel, list[str]]:
    """Return the kernel of a PTX file, and notes for the user. Raise `UsageError` if an argument is invalid."""
    text = read_text(path, str(path), LARGEST_SOURCE)
    module = parse(text)
    entry = select_entry(module, entry, path)
    (gx, gy, gz), (bx, by, bz) = ([*extents, 1, 1][:3] for extents in (grid, block))
    if bx * by * bz > MOST_THREADS:
        raise UsageError(f"block {bx} x {by} x {bz} has {bx * by * bz} threads; at most {MOST_THREADS} are accepted")
    if shared < 0:
        raise UsageError(f"shared memory is {shared} bytes; expected 0 or more")
    facts = facts_of(module, entry)
    reason = _why_fixed(facts, shared)
    widths = (bx,) if reason else sorted({bx, *_WIDTHS})
    heights = (by,) if reason or (gy == 1 and by == 1) else sorted({by, *_HEIGHTS})
    tensors, passed = _arguments(arguments)
    contents = assigned_variables(passed, len(facts.parameters), facts.variables)
    for place, variable in contents.items():
        tensors[passed[place]] |= {"role": "constant", "symbol": variable.symbol}
    passed = [text for place, text in enumerate(passed) if place not in contents]
    _fill_indexes(tensors, dict(zip(facts.names, passed, strict=False)), facts)
    constraints = [f"32 <= block_x * block_y * {bz} <= {MOST_THREADS} or (block_x == {bx} and block_y == {by})"]
    if facts.most_threads is not None and not reason:
        constraints.append(f"block_x * block_y * {bz} <= {facts.most_threads}")
    target = re.match(r"sm_(\d+)", module.target)
    spec = {
        "name": identifier(_name_in_source(entry, module)),
        "source": path.name,
        **({"min_sm": int(target[1])} if target and int(target[1]) < 75 else {}),
        "problem": {"tensors": tensors or {"nothing": {"shape": [1]}}},
        # List the given shape first, because it is known to be correct.
        "tunables": {
            "block_x": {"values": [bx, *(width for width in widths if width != bx)], "launch": True},
            "block_y": {"values": [by, *(height for height in heights if height != by)], "launch": True},
        },
        "constraints": constraints,
        "launch": [
            {
                "entry": entry,
                "grid": [f"ceil_div({gx * bx}, block_x)", f"ceil_div({gy * by}, block_y)", f"{gz}"],
                "block": ["block_x", "block_y", f"{bz}"],
                "shared": f"{shared}",
                "arguments": passed,
            }
        ],
    }
    note = Note(
        f"the block stays {bx} x {by} x {bz}: {reason}" if reason else "check the results with other blocks",
        "" if reason else "They stay right if each thread computes its work from blockDim, as this kernel seems to do.",
    )
    unset = unset_note(facts.variables, (variable.name for variable in contents.values()))
    notes: list[str] = [note, *([unset] if unset and not captured else [])]
    if assembler() is None:
        notes.append(Note("registers are estimated: ptxas is not installed", "The PTX shows up to 30 % too many."))
    kernel = kernel_from(spec, path.name, text)
    (bound,) = bind_launches(kernel, {"block_x": bx, "block_y": by}, kernel.definition.problem(), kernel.min_sm)
    if misfit := argument_mismatch(module, entry, bound):
        expected = _descriptions(entry, module.functions[entry].parameters, text)
        raise UsageError(f"{path}: {misfit}; for example, with your own sizes and values: {expected}")
    return kernel, notes


def _name_in_source(entry: str, module: Module) -> str:
    """Return the kernel's source name, or its PTX name if the source name is ambiguous."""
    name = source_name(entry)
    return name if [source_name(other) for other in module.entries].count(name) == 1 else entry


def _why_fixed(facts: CodeFacts, shared: int) -> str:
    if facts.required_block is not None:
        return "the code requires it (.reqntid)"
    if not facts.reads_block:
        return "the code never reads the size of its block"
    if shared or facts.static_shared or facts.dynamic_shared:
        return "the code keeps data in shared memory, whose layout is likely made for it"
    return ""


def _arguments(descriptions: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the spec's table of tensors, and the arguments of its launch."""
    tensors: dict[str, Any] = {}
    passed = []
    for text in descriptions:
        match read_description(text):
            case BufferDescription(view=MapModes()) as buffer:
                raise UsageError(f"argument {buffer.name}: kernrec can emulate tensor maps, but not analyze them")
            case BufferDescription(view=None) as buffer:
                name = identifier(buffer.name)
                tensors[name] = _tensor(buffer)
                tensors[name]["shape"] = [str(math.prod(tensors[name]["shape"]))]
                passed.append(name)
            case BufferDescription(view=ImageLayout() as layout) as buffer:
                name = identifier(buffer.name)
                tensors[name] = _tensor(buffer)
                tensors[name]["shape"] = list(map(str, tensors[name]["shape"]))
                tensors[name]["texture"] = {k: v for k, v in asdict(layout).items() if v is not None}
                passed.append(f"texture {name}")
            case BufferPlace() as place:
                passed.append(f"{identifier(place)} + {place.offset}")
            case bytes() as raw:
                passed.append(f"bytes {raw.hex()}")
            case ScalarDescription("f16", value):
                passed.append(f"bytes {np.float16(value).tobytes().hex()}")
            case ScalarDescription(dtype, value):
                passed.append(f"{dtype} {value!r}")
    return tensors, passed


def _fill_indexes(tensors: dict[str, Any], places: Mapping[str, str], facts: CodeFacts) -> None:
    """Make random indices in a spec's `tensors` cover all valid indices of the tensors into which they point."""
    for parameter, index in facts.indexes.items():
        tensor = tensors.get(places.get(parameter, ""), {"values": None})
        if tensor["values"] != "normal" or tensor["dtype"][0] == "f":
            continue
        steps = []
        for target, (count, numbers) in index.targets.items():
            indexed = tensors.get(name := places.get(target, ""))
            values = [places.get(number, "").rpartition(" ")[2] for number in numbers]
            if indexed is not None and all(value.isdecimal() for value in values):
                count = math.prod([count, *map(int, values)])
                steps.append(f"{name} {max(count // ELEMENT_BYTES[indexed['dtype']], 1)}")
        if len(steps) == len(index.targets):
            tensor["values"] = f"{'offsets' if index.ascending else 'index'} {', '.join(steps)}"


def _tensor(buffer: BufferDescription) -> dict[str, Any]:
    if buffer.path is None:
        if buffer.dtype not in ELEMENT_BYTES:
            raise unknown("element type", buffer.dtype, ELEMENT_BYTES)
        values = "zeros" if buffer.fill else "normal" if buffer.value is None else f"constant {buffer.value}"
        return {"shape": buffer.shape, "dtype": buffer.dtype, "role": "inout", "values": values}
    array = load_npy(buffer.path)
    dtype = f"{array.dtype.kind}{8 * array.dtype.itemsize}"
    if dtype not in ELEMENT_BYTES:
        raise UsageError(f"{buffer.path} holds {array.dtype}: expected one of {', '.join(ELEMENT_BYTES)}")
    return {"shape": array.shape, "dtype": dtype, "role": "inout", "values": str(buffer.path.resolve())}
