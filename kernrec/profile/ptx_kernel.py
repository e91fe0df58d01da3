"""Build a kernel from PTX. Its code is fixed, so only its block shape can be chosen.

Some code also fixes the block: it declares a block size, never reads it, or uses shared memory, whose layout probably
depends on it. Otherwise kernrec also tries other blocks that cover the same threads. It assumes that they give the same
result; a note says so.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from kernrec.compile.assemble import assembler
from kernrec.errors import UsageError, unknown
from kernrec.kernel import Kernel, bind_launches
from kernrec.kernel.expression import identifier
from kernrec.kernel.source_files import read_text
from kernrec.kernel.spec_reader import kernel_from
from kernrec.op.dtype import ELEMENT_BYTES
from kernrec.profile.code_facts import CodeFacts, facts_of
from kernrec.profile.device_variables import taken_out, unset_note
from kernrec.profile.emulate_file import LARGEST_SOURCE, select_entry
from kernrec.profile.emulated_launch import argument_mismatch
from kernrec.profile.launch_arguments import (
    BufferDescription,
    BytesDescription,
    ImageDescription,
    MapDescription,
    PlaceDescription,
    ScalarDescription,
    read_description,
)
from kernrec.profile.tensor_values import load_npy
from kernrec.ptx import Module, parse
from kernrec.ptx.state.launch_layout import MOST_THREADS
from kernrec.util.human import Note

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
    """Return one kernel of a PTX file with its launch, and notes on it.

    Args:
        entry: name of the kernel; None for the only kernel of the file.
        grid, block: one to three extents each.
        arguments: as `kernrec check` takes them.
        shared: dynamic shared memory per block, bytes.
        captured: whether the PTX holds variables as captured from a program; variables without contents were then zero.

    Raises:
        UsageError: the file or arguments cannot be read, the kernel is unknown, or the arguments do not fit.
    """
    text = read_text(path, str(path), LARGEST_SOURCE)
    module = parse(text)
    entry = select_entry(module, entry, path)
    (gx, gy, gz), (bx, by, bz) = ([*extents, 1, 1][:3] for extents in (grid, block))
    if bx * by * bz > MOST_THREADS:
        raise UsageError(f"block {bx} x {by} x {bz} has {bx * by * bz} threads; at most {MOST_THREADS} are accepted")
    if shared < 0:
        raise UsageError(f"{shared} bytes of shared memory: 0 or more are accepted")
    facts = facts_of(module, entry)
    reason = _why_fixed(facts, shared)
    widths = (bx,) if reason else sorted({bx, *_WIDTHS})
    heights = (by,) if reason or (gy == 1 and by == 1) else sorted({by, *_HEIGHTS})
    tensors, passed = _arguments(arguments)
    contents = taken_out(passed, len(facts.parameters), facts.variables)
    for place, variable in contents.items():
        tensors[passed[place]] |= {"role": "constant", "symbol": variable.symbol}
    passed = [text for place, text in enumerate(passed) if place not in contents]
    _fill_indexes(tensors, dict(zip(facts.names, passed, strict=False)), facts)
    constraints = [f"32 <= block_x * block_y * {bz} <= {MOST_THREADS} or (block_x == {bx} and block_y == {by})"]
    if facts.most_threads is not None and not reason:
        constraints.append(f"block_x * block_y * {bz} <= {facts.most_threads}")
    spec = {
        "name": identifier(entry),
        "source": path.name,
        **_oldest_sm(module),
        "problem": {"tensors": tensors or {"nothing": {"shape": [1]}}},
        # Put the given shape first, because it is known to be correct.
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
        "" if reason else "Other sizes are right if each thread finds its own work by blockDim, as it seems here.",
    )
    unset = unset_note(facts.variables, (variable.name for variable in contents.values()))
    notes: list[str] = [note, *([unset] if unset and not captured else [])]
    if assembler() is None:
        notes.append(Note("registers are estimated: ptxas is not installed", "The PTX shows up to 30 % too many."))
    kernel = kernel_from(spec, path.name, text)
    (bound,) = bind_launches(kernel, {"block_x": bx, "block_y": by}, kernel.definition.problem(), kernel.min_sm)
    if misfit := argument_mismatch(module, entry, bound):
        raise UsageError(f"{path}: {misfit}")
    return kernel, notes


def _oldest_sm(module: Module) -> dict[str, int]:
    """Return the spec key `min_sm` for PTX that runs on GPUs before Turing; empty for newer PTX."""
    target = re.match(r"sm_(\d+)", module.target)
    return {"min_sm": int(target[1])} if target and int(target[1]) < 75 else {}


def _why_fixed(facts: CodeFacts, shared: int) -> str:
    """Return the reason why a kernel's block cannot change; empty if it can."""
    if facts.required_block is not None:
        return "the code requires it (.reqntid)"
    if not facts.reads_block:
        return "the code never reads the size of its block"
    if shared or facts.static_shared or facts.dynamic_shared:
        return "the code keeps data in shared memory, whose layout is likely made for it"
    return ""


def _arguments(descriptions: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the tensors of the spec by name, and the arguments of its launch."""
    tensors: dict[str, Any] = {}
    passed = []
    for text in descriptions:
        match read_description(text):
            case BufferDescription(name) as buffer:
                name = identifier(name)
                tensors[name] = _tensor(buffer)
                tensors[name]["shape"] = [str(math.prod(tensors[name]["shape"]))]
                passed.append(name)
            case ImageDescription(content, layout):
                name = identifier(content.name)
                tensors[name] = _tensor(content)
                tensors[name]["shape"] = list(map(str, tensors[name]["shape"]))
                tensors[name]["texture"] = {k: v for k, v in asdict(layout).items() if v is not None}
                passed.append(f"texture {name}")
            case MapDescription(content):
                raise UsageError(f"argument {content.name}: kernrec can emulate tensor maps, but not analyze them")
            case PlaceDescription(_, buffer, elements):
                passed.append(f"{identifier(buffer)} + {elements}")
            case BytesDescription(raw):
                passed.append(f"bytes {raw.hex()}")
            case ScalarDescription("f16", value):
                passed.append(f"bytes {np.float16(value).tobytes().hex()}")
            case ScalarDescription(dtype, value):
                passed.append(f"{dtype} {value!r}")
    return tensors, passed


def _fill_indexes(tensors: dict[str, Any], places: Mapping[str, str], facts: CodeFacts) -> None:
    """Let random integers that index a tensor cover its full range.

    Args:
        tensors: tensors of the spec by name.
        places: arguments by parameter.
        facts: properties of the code.
    """
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
