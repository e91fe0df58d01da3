"""Instructions of a whole warp: `shfl vote match redux activemask`."""

from collections.abc import Callable

import numpy as np

from kernrec.ptx.instructions.decoder import BlockDecoder
from kernrec.ptx.instructions.registry import Step, UnsupportedFormError, steps
from kernrec.ptx.ir.operand import Pair, Register
from kernrec.ptx.ir.program import Instruction
from kernrec.ptx.state.errors import EmulationError, location
from kernrec.ptx.state.types import Array


def whole_warps(decoder: BlockDecoder, ins: Instruction, numbers: Array | None) -> Array | slice:
    """The warps of the lanes with these `numbers` (None: all).

    Raises:
        EmulationError: a warp of which not all 32 lanes are there.
    """
    if numbers is None:
        return slice(None)
    warps = numbers[::32] >> 5
    if len(numbers) % 32 or not np.array_equal(numbers, (warps[:, None] * 32 + np.arange(32)).reshape(-1)):
        present = np.bincount(numbers >> 5, minlength=decoder.lanes.shape.lanes // 32)
        lane = int(np.flatnonzero((present > 0) & (present < 32))[0]) * 32
        block, thread = decoder.lanes.coordinates(lane)
        raise EmulationError(
            f"{location(decoder.function, ins)}: not all 32 threads of the warp of block {block} thread {thread} run it"
        )
    return warps


def _running(decoder: BlockDecoder, ins: Instruction) -> Callable[[], Array]:
    """A function that gives the lanes that an instruction runs for, as a mask."""
    count = decoder.lanes.shape.lanes
    running_lanes = decoder.running_lanes(ins)

    def mask() -> Array:
        numbers = running_lanes()
        full = np.zeros(count, np.bool_)
        full[slice(None) if numbers is None else numbers] = True
        return full

    return mask


def _put(row: Array, values: Array, mask: Array) -> None:
    np.copyto(row, values, where=mask, casting="unsafe")


@steps("shfl")
def _shuffle(decoder: BlockDecoder, ins: Instruction) -> Step | None:
    mode = next((m for m in ins.modifiers if m in ("up", "down", "bfly", "idx")), None)
    if mode is None or ins.modifiers[0] != "sync":
        raise UnsupportedFormError
    target = ins.operands[0]
    first, second = (target.first, target.second) if isinstance(target, Pair) else (target, None)
    out = decoder.row(first, "b32")
    flag = decoder.row(second, "pred") if second is not None and second != Register("_") else None
    source = decoder.row(ins.operands[1], "b32")
    b = decoder.row(ins.operands[2], "u32")
    c = decoder.row(ins.operands[3], "u32")
    if not decoder.computes(ins):
        return None
    running = _running(decoder, ins)
    numbers = decoder.lanes.shape.numbers
    lane = numbers & 31
    warp = numbers - lane

    def run() -> None:
        mask = running()
        delta = (b & 31).astype(np.int64)
        clamp = (c & 31).astype(np.int64)
        segment = ((c >> 8) & 31).astype(np.int64)
        top = (lane & segment) | (clamp & ~segment)
        bottom = lane & segment
        if mode == "up":
            sources = lane - delta
            inside = sources >= top
        elif mode == "down":
            sources = lane + delta
            inside = sources <= top
        elif mode == "bfly":
            sources = lane ^ delta
            inside = sources <= top
        else:
            sources = bottom | (delta & ~segment)
            inside = sources <= top
        _put(out, source[np.where(inside, sources, lane) + warp], mask)
        if flag is not None:
            _put(flag, inside, mask)

    return run


def _ballots(bits: Array) -> Array:
    """One 32-bit mask per warp of a flag per lane."""
    return np.packbits(bits.reshape(-1, 32), axis=1, bitorder="little").view(np.uint32)[:, 0]


@steps("vote")
def _vote(decoder: BlockDecoder, ins: Instruction) -> Step:
    mode = next((m for m in ins.modifiers if m in ("all", "any", "uni", "ballot")), None)
    if mode is None or "sync" not in ins.modifiers[:2]:  # inline assembly also has vote.ballot.sync
        raise UnsupportedFormError
    out = decoder.row(ins.operands[0], "b32" if mode == "ballot" else "pred")
    flag, negated = decoder.flag(ins.operands[1])
    running = _running(decoder, ins)

    def run() -> None:
        mask = running()
        yes = _ballots(mask & (~flag if negated else flag))
        members = _ballots(mask)
        if mode == "ballot":
            result: Array = yes
        elif mode == "any":
            result = yes != 0
        elif mode == "all":
            result = yes == members
        else:
            result = (yes == 0) | (yes == members)
        _put(out, result.repeat(32), mask)

    return run


@steps("activemask")
def _active(decoder: BlockDecoder, ins: Instruction) -> Step:
    out = decoder.row(ins.operands[0], "b32")
    running = _running(decoder, ins)

    def run() -> None:
        mask = running()
        _put(out, _ballots(mask).repeat(32), mask)

    return run


@steps("match")
def _match(decoder: BlockDecoder, ins: Instruction) -> Step:
    mode, kind = ins.modifiers[0], ins.modifiers[-1]
    target = ins.operands[0]
    first, second = (target.first, target.second) if isinstance(target, Pair) else (target, None)
    out = decoder.row(first, "b32")
    flag = decoder.row(second, "pred") if second is not None else None
    source = decoder.row(ins.operands[1], kind)
    running = _running(decoder, ins)
    if mode not in ("any", "all"):
        raise UnsupportedFormError

    def run() -> None:
        mask = running()
        values, is_running = source.reshape(-1, 32), mask.reshape(-1, 32)
        same = (values[:, :, None] == values[:, None, :]) & is_running[:, None, :]
        matches = np.packbits(same, axis=2, bitorder="little").view(np.uint32)[:, :, 0]
        if mode == "all":
            agree = matches == _ballots(mask)[:, None]
            if flag is not None:
                _put(flag, agree.reshape(-1), mask)
            matches = np.where(agree, matches, 0)
        _put(out, matches.reshape(-1), mask)

    return run


_REDUCE: dict[str, tuple[np.ufunc, int]] = {
    "add": (np.add, 0),
    "min": (np.minimum, 1),
    "max": (np.maximum, -1),
    "and": (np.bitwise_and, 2),
    "or": (np.bitwise_or, 0),
    "xor": (np.bitwise_xor, 0),
}


@steps("redux")
def _redux(decoder: BlockDecoder, ins: Instruction) -> Step:
    operation, kind = ins.modifiers[1], ins.modifiers[-1]
    if kind == "f32" and operation in ("min", "max"):
        return _redux_float(decoder, ins)
    if operation not in _REDUCE or kind not in ("u32", "s32", "b32") or len(ins.modifiers) != 3:
        raise UnsupportedFormError
    ufunc, neutral = _REDUCE[operation]
    out = decoder.row(ins.operands[0], kind)
    info = np.iinfo(out.dtype)
    fill = {0: 0, 1: info.max, -1: info.min, 2: info.max if info.min == 0 else -1}[neutral]
    return _reduced(decoder, ins, ufunc, fill)


def _redux_float(decoder: BlockDecoder, ins: Instruction) -> Step:
    """`redux.sync.{min,max}{.abs}{.NaN}.f32`, from sm_100 on (PTX ISA, section 9.7.13.13): of numbers and NaN the
    number, with `.NaN` the NaN."""
    least, with_nan = ins.modifiers[1] == "min", "NaN" in ins.modifiers
    if {*ins.modifiers} - {"sync", "min", "max", "abs", "NaN", "f32"}:
        raise UnsupportedFormError
    if with_nan:
        return _reduced(decoder, ins, np.minimum if least else np.maximum, np.inf if least else -np.inf)
    return _reduced(decoder, ins, np.fmin if least else np.fmax, np.nan)


def _reduced(decoder: BlockDecoder, ins: Instruction, ufunc: np.ufunc, fill: float) -> Step:
    """A reduction over the lanes of each warp that run; `fill` stands for the others."""
    kind, absolute = ins.modifiers[-1], "abs" in ins.modifiers
    out, source = decoder.row(ins.operands[0], kind), decoder.row(ins.operands[1], kind)
    running = _running(decoder, ins)

    def run() -> None:
        mask = running()
        values = np.where(mask, np.abs(source) if absolute else source, source.dtype.type(fill)).reshape(-1, 32)
        reduced = ufunc.reduce(values, axis=1, dtype=source.dtype)
        if kind == "f32":
            reduced.view(np.uint32)[np.isnan(reduced)] = 0x7FFFFFFF  # the NaN of the machine
        _put(out, reduced.repeat(32), mask)

    return run
