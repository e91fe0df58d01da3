"""Estimate the machine instructions that a warp issues for PTX, by class, and their latencies (sm_75 to sm_120).

A PTX instruction becomes:

- 1 machine instruction: f32 add, mul and fma (FFMA), 32-bit integer add, logic, shift and compare (IADD3, LOP3, SHF,
  ISETP), 32-bit and wide multiply-add (IMAD, IMAD.WIDE), load, store, special function (MUFU), f16 or bf16 to f32;
- 2: 64-bit integer add, shift, compare and select (the ALU is 32 bits wide), `ex2` and `tanh` of packed halves;
- about 20: division and remainder of 32-bit integers by a value that is not a literal, division and root of f64;
- about 80: division and remainder of 64-bit integers;
- about 9: IEEE division and square root of f32.

The numbers above 2 were counted in the assembler's output. A packed f32x2 operation counts as 2: it saves an issue
slot, but no time on the FMA pipe.
"""

import re
from collections.abc import Collection
from functools import lru_cache

from kernrec.ptx.ir.operand import Immediate
from kernrec.ptx.ir.program import BasicBlock, Instruction, accumulates

CLASSES = (
    "fma32", "alu", "imad", "wide64", "mufu", "cvt", "f64", "f16", "mma", "branch", "mov", "setp",
    "ld_shared", "st_shared", "ld_global", "st_global", "ld_local", "st_local", "ld_const", "cp_async", "atomic",
    "bar", "shfl", "other",
)  # fmt: skip

Cost = tuple[tuple[str, int], ...]
"""Machine instructions of a PTX instruction, as pairs (class, number)."""

_Rules = dict[str, list[tuple[frozenset[str], frozenset[str], Cost]]]
"""Cost rules of each opcode. The first rule whose types and modifiers fit applies."""


def _read(table: str) -> _Rules:
    rules: _Rules = {}
    for line in table.strip().splitlines():
        instructions, _, cost = line.partition("=")
        opcodes, types, needed = (frozenset(part.split()) for part in f"{instructions}||".split("|")[:3])
        counts = (part.partition("*") for part in cost.split())
        rule = types, needed, tuple((name, int(count or 1)) for name, _, count in counts)
        for opcode in opcodes:
            rules.setdefault(opcode, []).append(rule)
    return rules


def _first(rules: _Rules, opcode: str, kind: str, marks: Collection[str]) -> Cost | None:
    for types, needed, cost in rules.get(opcode, ()):
        if needed.issubset(marks) and (not types or kind in types):
            return cost
    return None


# Each line has opcodes | types | modifiers = machine instructions. The first line that applies counts. From sm_100 on,
# FHADD and FHFMA add halves to f32 in the f32 pipe. `literal` marks a last operand that is a literal.
_COARSE = _read("""
add sub fma | f16 bf16 | f32 = fma32
add sub mul mad fma neg abs min max copysign testp | f32 = fma32
add sub mul mad fma neg abs min max copysign testp | f32x2 = fma32*2
add sub mul mad fma neg abs min max copysign testp | f64 = f64
add sub mul mad fma neg abs min max copysign testp set | f16 f16x2 bf16 bf16x2 = f16
atom red sured = atomic
ld ldu | | shared = ld_shared
st | | shared = st_shared
ld ldu | | local = ld_local
st | | local = st_local
ld ldu st | | const = ld_const
ld ldu st | | param = ld_const
ld ldu tex tld4 suld = ld_global
st sust = st_global
div rem | f32 | approx = mufu fma32
div rem | f32 = mufu fma32*8
div rem | f64 = mufu f64*20
div rem | u32 s32 u16 s16 | literal = imad*2 alu*2
div rem | u64 s64 = imad*40 alu*36 mufu cvt*3
div rem = imad*8 alu*9 mufu cvt*2
ex2 lg2 sin cos rcp rsqrt sqrt tanh | f64 = mufu f64*20
ex2 lg2 sin cos rcp rsqrt sqrt tanh | f16x2 bf16x2 f32x2 | approx = mufu*2
ex2 lg2 sin cos rcp rsqrt sqrt tanh | | approx = mufu
ex2 lg2 sin cos rcp rsqrt sqrt tanh = mufu fma32*8
mov cvta isspacep createpolicy = mov
setp | s64 u64 b64 = setp*2
setp = setp
mul mad madc mul24 mad24 dp4a dp2a | | wide = imad
mul mad madc mul24 mad24 dp4a dp2a | s64 u64 = imad*4
mad | | hi = imad*2
mul mad madc mul24 mad24 dp4a dp2a = imad
add sub neg abs min max and or xor not cnot shl shr bfe bfi | s64 u64 b64 f64 = wide64*2
bfind brev clz popc prmt lop3 shf sad selp slct set addc subc szext bmsk vabsdiff4 | s64 u64 b64 f64 = wide64*2
add sub neg abs min max and or xor not cnot shl shr bfe bfi mapa getctarank = alu
bfind brev clz popc prmt lop3 shf sad selp slct set addc subc szext bmsk vabsdiff4 = alu
bra brx exit ret call trap = branch
bar barrier mbarrier = bar
shfl vote match redux activemask elect = shfl
txq suq = ld_const
cp = cp_async
mma = mma
wgmma | | mma_async = mma
tcgen05 | | mma = mma
ldmatrix = ld_shared
stmatrix = st_shared
""")
_OTHER: Cost = (("other", 1),)
_FLOATS = ("f16", "f16x2", "bf16", "bf16x2", "f32", "f32x2", "f64")


def classify(ins: Instruction) -> Cost:
    """Return the machine instructions that a warp issues for one PTX instruction."""
    literal = len(ins.operands) > 2 and isinstance(ins.operands[-1], Immediate)
    return _classify(ins.opcode, ins.modifiers, literal)


@lru_cache(maxsize=4096)
def _classify(opcode: str, modifiers: tuple[str, ...], literal: bool) -> Cost:
    if "argument" in modifiers:  # The assembler keeps the arguments of a call in registers.
        return (("mov", 1),)
    if opcode == "cvt":
        return _convert(modifiers)
    if opcode == "wmma":
        return _wmma(modifiers)
    kind = modifiers[-1] if modifiers else ""
    return _first(_COARSE, opcode, kind, (*modifiers, "literal") if literal else modifiers) or _OTHER


_NATIVE = {
    "f16": 2048, "bf16": 2048, "tf32": 1024, "s8": 4096, "u8": 4096, "s4": 8192, "u4": 8192, "b1": 32768, "f64": 256,
}  # fmt: skip
"""Product m * n * k of the largest `mma` instruction, keyed by the type of matrix A (PTX ISA, shapes of `mma`)."""


_SHAPE = re.compile(r"m\d{1,4}n\d{1,4}k\d{1,4}")


def _wmma(modifiers: tuple[str, ...]) -> Cost:
    shape = next((mark for mark in modifiers if _SHAPE.fullmatch(mark)), "m16n16k16")
    m, n, k = (int(extent) for extent in re.split("[mnk]", shape)[1:])
    action = modifiers[0] if modifiers else ""
    if action == "mma":
        kind = next((m for m in modifiers[-4:] if m in _NATIVE), "f16")
        return (("mma", max(m * n * k // _NATIVE[kind], 1)),)
    elements = m * k if "a" in modifiers else k * n if "b" in modifiers else m * n
    width = re.fullmatch(r"[a-z]{1,2}(\d{1,3})", modifiers[-1] if modifiers else "")
    bits = int(width[1]) if width else 32
    space = "shared" if "shared" in modifiers else "global"
    return ((f"{'st' if action == 'store' else 'ld'}_{space}", max(elements * bits // 1024, 1)),)


def _convert(modifiers: tuple[str, ...]) -> Cost:
    to, source = modifiers[-2:] if len(modifiers) >= 2 else ("", "")
    if to == "f32" and source in ("f16", "bf16"):
        return (("f16" if source == "f16" else "alu", 1),)
    if to in _FLOATS or source in _FLOATS:
        return (("cvt", 1),)
    return (("mov", 1),)


# Clocks until another instruction can use a result, rounded. Sources: Jia et al., "Dissecting the NVIDIA Turing T4 GPU
# via Microbenchmarking", arXiv 1903.07486, and Abdelkhalik et al., arXiv 2208.11174. The 23 clocks of shared memory
# were also measured on an RTX 2070 and an RTX 3060. Generations differ by only a few clocks.
_LATENCY_CLK = {
    "fma32": 4, "alu": 4, "setp": 6, "imad": 5, "wide64": 5, "f16": 5, "f64": 8, "mov": 0, "cvt": 14, "mufu": 20,
    "ld_shared": 23, "st_shared": 1, "shfl": 23, "ld_const": 8, "ld_global": 1, "st_global": 1, "ld_local": 30,
    "st_local": 1, "mma": 18, "atomic": 1, "cp_async": 1, "branch": 8, "bar": 1, "other": 4,
}  # fmt: skip
# Assume that an atomic addition in shared memory takes as long as two loads, because it returns the old value.
_SHARED_ATOMIC_CLK = 50
_WGMMA_COLUMNS_PER_CLK = 2
"""Columns of the result that `wgmma.mma_async` computes per clock. A column has 64 rows, and sums up 32 bytes along K.

An SM performs 2,048 f16 multiply-adds per clock (H100 data sheet).
"""


def chain_clk(block: BasicBlock) -> int:
    """Return the minimum number of clock cycles that a warp needs for a basic block.

    The result is the latency of the longest dependency chain, but at least one clock per instruction. Loads from global
    memory are not included.
    """
    ready: dict[str, int] = {}  # Clock at which the value of each register is available.
    last, issued = 0, 0
    for ins in block.instructions:
        slots, latency = _slots_and_latency(classify(ins))
        if ins.opcode == "atom" and "shared" in ins.modifiers:
            latency = _SHARED_ATOMIC_CLK
        elif accumulates(ins):
            shape = next((mark for mark in ins.modifiers if _SHAPE.fullmatch(mark)), "m64n8k16")
            columns = int(shape[shape.index("n") + 1 : shape.index("k")])
            latency = max(columns // _WGMMA_COLUMNS_PER_CLK, _LATENCY_CLK["mma"])
        done = max([ready[name] for name in ins.sources if name in ready], default=0) + latency
        for name in ins.results:
            ready[name] = done
        last = max(last, done)
        issued += slots
    return max(last, issued)


@lru_cache(maxsize=4096)
def _slots_and_latency(cost: Cost) -> tuple[int, int]:
    slots = sum(count for name, count in cost if name != "mov")
    return slots, sum(_LATENCY_CLK.get(name, 4) * count for name, count in cost)


MACHINE_CLASSES = ("fcmp", "i2f", "f2i", "cvt64", "move", "load_const", "uniform", "converge")
"""Classes of machine instructions that only `machine_cost` distinguishes."""

_LONG = ("s64", "u64", "b64", "f64")
_TO_WHOLE = frozenset({"rni", "rzi", "rmi", "rpi"})
_PACKED = ("u32", "s32", "u16")
_I2FP_ROUNDING = frozenset({"rn", "rz"})

# Without .ftz, f32 special functions scale their operand and result to keep denormal values. IEEE division of f32 is
# MUFU.RCP, FCHK, BRA, BSSY and BSYNC.
_PRECISE = _read("""
min max | f32 f32x2 | NaN = fcmp*2
setp min max set | f32 f32x2 = fcmp
setp | f64 = f64
min max | f64 = f64 alu*3 move*3
min max | s64 u64 b64 = setp*2 alu*2
and or xor | pred = alu
sin cos | f32 | approx = mufu fma32
div | f32 | approx ftz = mufu fma32
div | f32 | approx = mufu fma32*3 fcmp
ex2 lg2 rsqrt sqrt rcp | f32 | approx ftz = mufu
ex2 lg2 rsqrt sqrt | f32 | approx = mufu fcmp fma32*2
rcp | f32 | approx = mufu fcmp*2 fma32*2 alu*2
div rcp sqrt rsqrt ex2 lg2 sin cos | f32 | full = mufu fma32*5 fcmp*2
div | f32 = mufu*2 fma32*5 branch converge*2
rcp | f32 = mufu fma32*3 alu*3 branch converge*2
sqrt | f32 = mufu fma32*4 alu*3 branch converge*2
rsqrt ex2 lg2 sin cos | f32 = mufu
div | f64 = mufu f64*8 fma32 fcmp*2 move branch converge*2
rcp | f64 = mufu f64*5 fcmp alu*3 move branch converge*2
sqrt | f64 = mufu f64*8 alu*3 move*4 branch converge*2
rsqrt | f64 = mufu f64*5 alu*2 move*4 branch converge*2
div | s32 = imad*6 alu*12 move*4 mufu f2i*2
div | u32 = imad*5 alu*7 move*3 mufu f2i*2
rem | s32 = imad*6 alu*10 move*4 mufu f2i*2
rem | u32 = imad*5 alu*6 move*2 mufu f2i*2
mul mad | s64 u64 | hi = imad*4 alu*3
mul | s64 u64 = imad*3 alu
mad | s64 u64 = imad*3 alu*2
popc | b32 = alu
clz | b32 = alu*2
clz | b64 = alu*6
clz popc = alu*3
ld ldu | | param v4 = load_const*2
ld ldu | | const v4 = load_const*2
""")


AGGREGATED = "warp_aggregated"
"""Modifier that kernrec adds to atomic operations that the assembler combines within a warp."""
_AGGREGATION = (("move", 1), ("uniform", 2), ("alu", 1), ("setp", 1), ("atomic", 1))  # S2R, VOTEU, UFLO, POPC, ISETP


def machine_cost(ins: Instruction) -> Cost:
    """Return the machine instructions that a warp issues for one PTX instruction.

    The result is more precise than the result of `classify`, and may contain the classes in `MACHINE_CLASSES`.
    """
    literal = len(ins.operands) > 2 and isinstance(ins.operands[-1], Immediate)
    return _machine_cost(ins.opcode, ins.modifiers, literal)


_RENAMED = {"mov": "move", "ld_const": "load_const"}


@lru_cache(maxsize=4096)
def _machine_cost(opcode: str, modifiers: tuple[str, ...], literal: bool) -> Cost:
    if AGGREGATED in modifiers:
        return _AGGREGATION
    kind = modifiers[-1] if modifiers else ""
    if not (literal and opcode in ("div", "rem")):
        cost = _first(_PRECISE, opcode, kind, modifiers)
        if cost is None:
            cost = () if kind == "pred" else _conversion(modifiers) if opcode == "cvt" else None
        if cost is not None:
            return cost
    return tuple((_RENAMED.get(name, name), count) for name, count in _classify(opcode, modifiers, literal))


def _conversion(modifiers: tuple[str, ...]) -> Cost | None:
    to, source = modifiers[-2:] if len(modifiers) >= 2 else ("", "")
    floats = to[:1] in "fb" or source[:1] in "fb"
    if floats and (to in _LONG or source in _LONG):
        return (("cvt64", 1),)
    if floats and to == source:
        return (("f2i", 1),) if _TO_WHOLE & {*modifiers} else (("fma32", 1),)
    if to == "tf32":
        return (("fcmp", 1), ("alu", 2))
    if floats and (to[:1] in "su" or source[:1] in "su"):
        return (("i2f" if to == "f32" and source in _PACKED and _I2FP_ROUNDING & {*modifiers} else "f2i", 1),)
    if to.startswith(("f", "bf")) or source.startswith(("f", "bf")):
        return None
    if to == "s64" and source[:1] == "s":
        return (("alu", 1),)
    narrow = source in ("s8", "s16", "u8", "b8")
    return (("alu", 1),) if narrow else ()


def issue_of(block: BasicBlock) -> dict[str, int]:
    """Count the machine instructions of a basic block by class, as if each PTX instruction were compiled separately."""
    issue: dict[str, int] = {}
    for ins in block.instructions:
        for name, cost in classify(ins):
            issue[name] = issue.get(name, 0) + cost
    return issue
