"""Instructions of a cluster: `elect mapa getctarank setmaxnreg`."""

import numpy as np

from kernrec.ptx.instructions.decoder import BlockDecoder
from kernrec.ptx.instructions.registry import Step, UnsupportedFormError, steps
from kernrec.ptx.ir.operand import Address, Immediate, Operand, Pair, Register, Symbol
from kernrec.ptx.ir.program import Instruction
from kernrec.ptx.state.batch import WARP
from kernrec.ptx.state.errors import location
from kernrec.ptx.state.memory import RANK_BITS, RANK_SHIFT


@steps("elect")
def _elect(decoder: BlockDecoder, ins: Instruction) -> Step:
    """`elect.sync d|p, mask`: one of the lanes of the mask, the same each time (PTX ISA, section 9.7.13.14)."""
    target = ins.operands[0]
    if ins.modifiers != ("sync",) or not isinstance(target, Pair):
        raise UnsupportedFormError
    leader = None if target.first == Register("_") else decoder.row(target.first, "b32")
    elected = decoder.row(target.second, "pred")
    mask = decoder.row(ins.operands[1], "b32")
    running = decoder.running_numbers(ins)

    def run() -> None:
        lanes = running()
        named = mask[lanes].astype(np.int64)
        lowest = np.log2((named & -named).astype(np.float64)).astype(np.int64)
        elected[lanes] = lanes % WARP == lowest
        if leader is not None:
            leader[lanes] = lowest

    return run


@steps("mapa")
def _mapa(decoder: BlockDecoder, ins: Instruction) -> Step:
    """`mapa`: the address of what another block of the cluster has at the same place (PTX ISA, section 9.7.9.24)."""
    kind = ins.modifiers[-1]
    if kind not in ("u32", "u64") or (kind == "u32" and "shared" not in ins.modifiers):
        raise UnsupportedFormError
    target, rank = decoder.row(ins.operands[0], kind), decoder.row(ins.operands[2], "u32")
    source = ins.operands[1]
    row, offset = decoder.address(source if isinstance(source, Address) else Address(_base(source), 0))
    running = decoder.running_numbers(ins)
    above = ~np.int64((1 << RANK_SHIFT + RANK_BITS) - 1)  # a generic address begins with its window

    def run() -> None:
        lanes = running()
        own = row[lanes].astype(np.int64) + offset
        target[lanes] = own & above | own & (1 << RANK_SHIFT) - 1 | (rank[lanes].astype(np.int64) + 1) << RANK_SHIFT

    return run


def _base(operand: Operand) -> Register | Symbol:
    if not isinstance(operand, Register | Symbol):
        raise UnsupportedFormError(f"address {operand}")
    return operand


@steps("getctarank")
def _rank_of_address(decoder: BlockDecoder, ins: Instruction) -> Step:
    """`getctarank`: the rank of the block that an address of shared memory is in (PTX ISA, section 9.7.9.25)."""
    target = decoder.row(ins.operands[0], "b32")
    row, offset = decoder.address(Address(_base(ins.operands[1]), 0))
    own_rank = decoder.row(Register("%cluster_ctarank"), "u32")
    running = decoder.running_numbers(ins)

    def run() -> None:
        lanes = running()
        above = row[lanes].astype(np.int64) + offset >> RANK_SHIFT & (1 << RANK_BITS) - 1
        target[lanes] = np.where(above == 0, own_rank[lanes], above - 1)

    return run


@steps("setmaxnreg")
def _move_registers(decoder: BlockDecoder, ins: Instruction) -> Step:
    """`setmaxnreg`: a warp gives registers back, or waits for more (PTX ISA, section "setmaxnreg")."""
    action, count = ins.modifiers[0], ins.operands[0]
    if action not in ("inc", "dec") or not isinstance(count, Immediate):
        raise UnsupportedFormError
    pool, registers, place = decoder.memory.pending.registers, int(count.value), location(decoder.function, ins)
    pool.begin(decoder.function.directives)
    warps = decoder.warps_with_lanes(ins)
    return lambda: pool.move(place, warps(), registers, grows=action == "inc")
