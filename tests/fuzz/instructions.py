"""Random PTX instructions, each of which kernrec must execute or refuse with an error that names the instruction."""

import random
from pathlib import Path

import numpy as np

from kernrec.ptx import KernelLaunch, emulate, parse
from kernrec.ptx.analysis import issue_cost
from kernrec.ptx.execution.engine import known_opcodes
from kernrec.ptx.ir.operand import BITS

_CONTROL = ("bar", "barrier", "bra", "brx", "call", "ret", "trap")
_OPCODES = sorted({opcode.partition(".")[0] for opcode in known_opcodes()} | {*_CONTROL})
_TYPES = (*sorted(BITS), "x")
_WORDS = """
wide hi lo rn rz rm rp ftz sat approx full cc sync aligned warp cta cluster shared global param const local v2 v4 v8
eq ne lt le gt ge num nan and or xor popc l r b f4e b4e rc8 idx up down bfly all any ballot uni arrive red read m8n8
x1 x2 x4 trans m16n8k16 row col acquire release relaxed sc volatile async bulk tensor tile 1d 2d 3d mbarrier
complete_tx bytes cas exch add inc dec min max noftz NaN xorsign abs relu satfinite to shiftamt ca cg wait_group
commit_group wait_all expect_tx init inval parity try_wait test_wait mma_async fence m64n8k16 ld st mma load store
alloc dealloc cp wait commit shape 32x32b replace global_address pending_count range clamp wrap nc L1 no_allocate
cache_hint unified multicast sys gpu
"""
_MODIFIERS = _WORDS.split()
_OF_BITS = {1: "%p", 8: "%c", 16: "%h", 32: "%r", 64: "%d"}
_REGISTERS = (*_OF_BITS.values(), "%f", "%g", "%x")
_ODD = (
    *("0", "1", "-1", "<0", "0f3F800000", "0d3FF0000000000000", "99999999999999999999", "1.5", "WARP_SZ", "", "_"),
    *(
        "[%d1]", "[%r1]", "[shm]", "[buf]", "[gone]", "[%d1+4]", "[0]", "[%p1]", "[%d1, {%r1, %r2}]", "shm", "L1",
        "gone",
    ),
    *("%tid.x", "%ntid", "%clock64", "!%p1", "%p1|%p2", "-%r1", "{%r1, %r2}", "{%f1, %f2, %f3, %f1}", "(%r1)", "{%r1"),
)  # fmt: skip
SAMPLE = b"""\
.version 8.6
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 buf)
{
.reg .pred %p<4>;
.reg .b8 %c<4>;
.reg .b16 %h<4>;
.reg .b32 %r<4>;
.reg .b64 %d<4>;
.reg .f32 %f<4>;
.reg .f64 %g<4>;
.reg .f16x2 %x<4>;
.shared .align 16 .b8 shm[1024];
ld.param.u64 %d1, [buf];
mov.u32 %r1, 4; mov.u32 %r2, %tid.x; mov.u32 %r3, 7;
mov.u64 %d2, 8; mov.u64 %d3, 9;
mov.f32 %f1, 0f3F800000; mov.f32 %f2, 0f40000000; mov.f32 %f3, %f2;
mov.f64 %g1, 0d3FF0000000000000; mov.f64 %g2, %g1; mov.f64 %g3, %g1;
mov.b16 %h1, 3; mov.b16 %h2, 4; mov.b16 %h3, 5;
setp.eq.u32 %p1, %r2, 3; setp.ne.u32 %p2, %r2, 3; setp.lt.u32 %p3, %r2, %r3;
add.u32 %r1, %r1, %r2;
L1:
st.global.u32 [%d1], %r2;
ret;
}
"""


def other_instruction(sample: bytes, chance: random.Random) -> bytes:
    """Return the sample with a random instruction in place of its addition."""
    modifiers = [chance.choice(_MODIFIERS) for _ in range(chance.choice((0, 0, 0, 1, 1, 2, 3)))]
    types = [chance.choice(_TYPES) for _ in range(chance.choice((0, 1, 1, 1, 1, 2, 2, 3)))]
    kind = types[-1] if types else "b32"
    operands = [_operand(kind, chance) for _ in range(chance.choice((0, 1, 2, 3, 3, 3, 4, 4, 5)))]
    opcode = chance.choice(_OPCODES)
    if "wide" in modifiers and operands:
        operands[0] = _OF_BITS.get(2 * BITS.get(kind, 32), "%d") + "1"
    if opcode in ("ld", "ldu", "atom", "st", "red") and len(operands) > 1 and chance.random() < 0.8:
        operands[opcode not in ("st", "red")] = "[%d1]"
    guard = chance.choice(("", "", "", "@%p1 ", "@!%p2 ", "@%r1 "))
    line = f"{guard}{'.'.join([opcode, *modifiers, *types])} {', '.join(operands)};"
    return sample.replace(b"add.u32 %r1, %r1, %r2;", line.encode())


def _operand(kind: str, chance: random.Random) -> str:
    if (place := chance.random()) < 0.15:
        return chance.choice(_ODD)
    register = chance.choice(_REGISTERS) if place < 0.2 else {"f32": "%f", "f64": "%g"}.get(kind)
    if register is None or place > 0.8:
        register = _OF_BITS.get(BITS.get(kind, 32), "%d")
    return f"{register}{chance.randrange(1, 4)}"


def executed(path: Path) -> None:
    module = parse(path.read_text(encoding="utf-8"))
    for block in module.functions["k"].blocks:
        issue_cost.chain_clk(block)
    content = np.zeros(256, np.uint32)
    emulate(module, KernelLaunch("k", (1,), (32,), ["buf"], {"buf": content}), check_races=True, budget=100_000)
