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

_LOGIC = frozenset(
    {
        "add", "sub", "neg", "abs", "min", "max", "and", "or", "xor", "not", "cnot", "shl", "shr", "bfe", "bfi",
        "bfind", "brev", "clz", "popc", "prmt", "lop3", "shf", "sad", "selp", "slct", "set", "addc", "subc",
        "szext", "bmsk", "vabsdiff4",
    }
)  # fmt: skip
_MULTIPLY = frozenset({"mul", "mad", "madc", "mul24", "mad24", "dp4a", "dp2a"})
_MUFU = frozenset({"ex2", "lg2", "sin", "cos", "rcp", "rsqrt", "sqrt", "tanh"})
_ONE = {
    opcode: name
    for name, opcodes in {
        "branch": "bra brx exit ret call trap", "bar": "bar barrier mbarrier", "alu": "mapa getctarank",
        "shfl": "shfl vote match redux activemask elect", "ld_global": "tex tld4 suld", "st_global": "sust",
        "atomic": "sured", "ld_const": "txq suq", "cp_async": "cp", "mma": "mma", "ld_shared": "ldmatrix",
        "st_shared": "stmatrix",
    }.items()
    for opcode in opcodes.split()
}  # fmt: skip
"""Class of machine instruction, keyed by PTX opcode, for opcodes that compile to one instruction for any type."""
_FLOATS = ("f16", "f16x2", "bf16", "bf16x2", "f32", "f32x2", "f64")


def classify(ins: Instruction) -> Cost:
    """Return the machine instructions that a warp issues for one PTX instruction."""
    literal = len(ins.operands) > 2 and isinstance(ins.operands[-1], Immediate)
    return _classify(ins.opcode, ins.modifiers, literal)


@lru_cache(maxsize=4096)
def _classify(opcode: str, modifiers: tuple[str, ...], literal: bool) -> Cost:
    kind = modifiers[-1] if modifiers else ""
    if kind in ("f16", "bf16") and "f32" in modifiers and opcode in ("add", "sub", "fma"):
        return (("fma32", 1),)  # From sm_100 on, FHADD and FHFMA do this in the f32 pipe.
    if "argument" in modifiers:  # The assembler keeps the arguments of a call in registers.
        return (("mov", 1),)
    if opcode in ("ld", "ldu", "st", "atom", "red"):
        return ((_memory(opcode, modifiers), 1),)
    if (
        opcode in ("fma", "add", "sub", "mul", "neg", "abs", "min", "max", "mad", "copysign", "testp")
        and kind in _FLOATS
    ):
        return ((_FLOAT_CLASS[kind], 2 if kind == "f32x2" else 1),)
    if opcode in ("div", "rem"):
        return _division(kind, modifiers, literal)
    if opcode in _MUFU:
        if kind == "f64":
            return (("mufu", 1), ("f64", 20))
        if "approx" in modifiers:
            return (("mufu", 2 if "x2" in kind else 1),)
        return (("mufu", 1), ("fma32", 8))
    if opcode == "set" and "f16" in kind:
        return (("f16", 1),)
    if opcode in ("mov", "cvta", "isspacep", "createpolicy"):
        return (("mov", 1),)
    if opcode == "cvt":
        return _convert(modifiers)
    if opcode == "setp":
        return (("setp", 2 if kind in ("s64", "u64", "b64") else 1),)
    if opcode in _MULTIPLY:
        if "wide" in modifiers:
            return (("imad", 1),)
        if kind in ("s64", "u64"):
            return (("imad", 4),)
        return (("imad", 2 if "hi" in modifiers and opcode == "mad" else 1),)
    if opcode in _LOGIC:
        return (("wide64", 2),) if kind in ("s64", "u64", "b64", "f64") else (("alu", 1),)
    if opcode == "wmma":
        return _wmma(modifiers)
    if opcode in ("wgmma", "tcgen05"):
        return (("mma" if modifiers[:1] in (("mma_async",), ("mma",)) else "other", 1),)
    return ((_ONE.get(opcode, "other"), 1),)


_NATIVE = {
    "f16": 2048, "bf16": 2048, "tf32": 1024, "s8": 4096, "u8": 4096, "s4": 8192, "u4": 8192, "b1": 32768, "f64": 256,
}  # fmt: skip
"""Product m * n * k of the largest `mma` instruction, keyed by the type of matrix A (PTX ISA, shapes of `mma`)."""


_SHAPE = re.compile(r"m\d{1,4}n\d{1,4}k\d{1,4}")


def _wmma(modifiers: tuple[str, ...]) -> Cost:
    """Return the cost of a `wmma` instruction: `mma` instructions for its shape, or accesses of 4 bytes per lane."""
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


def _memory(opcode: str, modifiers: tuple[str, ...]) -> str:
    space = next((m for m in modifiers if m in ("shared", "local", "const", "param", "global")), "global")
    if opcode in ("atom", "red"):
        return "atomic"
    if space in ("const", "param"):
        return "ld_const"
    return f"{'st' if opcode == 'st' else 'ld'}_{space}"


_FLOAT_CLASS = {
    "f32": "fma32", "f32x2": "fma32", "f64": "f64", "f16": "f16", "f16x2": "f16", "bf16": "f16", "bf16x2": "f16",
}  # fmt: skip


def _division(kind: str, modifiers: tuple[str, ...], literal: bool) -> Cost:
    if kind == "f32":
        if "approx" in modifiers:
            return (("mufu", 1), ("fma32", 1))
        return (("mufu", 1), ("fma32", 8))
    if kind == "f64":
        return (("mufu", 1), ("f64", 20))
    if literal and kind in ("u32", "s32", "u16", "s16"):
        return (("imad", 2), ("alu", 2))
    if kind in ("u64", "s64"):
        return (("imad", 40), ("alu", 36), ("mufu", 1), ("cvt", 3))
    return (("imad", 8), ("alu", 9), ("mufu", 1), ("cvt", 2))


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
"""Columns of a `wgmma.mma_async` that the tensor cores of an SM compute per clock. A column has 64 rows and 32 bytes
along K. An SM performs 2,048 f16 multiply-adds per clock (H100 data sheet)."""


def chain_clk(block: BasicBlock) -> int:
    """Return the minimum number of clock cycles that a warp needs for a basic block.

    The result is the latency of the longest dependency chain, but at least one clock per instruction. Loads from global
    memory count as 0, because `dependence.load_depths` counts them.
    """
    ready: dict[str, int] = {}  # Clock at which the value of each register is available.
    last, issued = 0, 0
    for ins in block.instructions:
        cost = classify(ins)
        slots = sum(count for name, count in cost if name != "mov")
        latency = sum(_LATENCY_CLK.get(name, 4) * count for name, count in cost)
        if ins.opcode == "atom" and "shared" in ins.modifiers:
            latency = _SHARED_ATOMIC_CLK
        elif accumulates(ins):
            latency = max(_wgmma_columns(ins) // _WGMMA_COLUMNS_PER_CLK, _LATENCY_CLK["mma"])
        done = max((ready.get(name, 0) for name in ins.sources), default=0) + latency
        for name in ins.results:
            ready[name] = done
        last = max(last, done)
        issued += slots
    return max(last, issued)


def _wgmma_columns(ins: Instruction) -> int:
    shape = next((mark for mark in ins.modifiers if _SHAPE.fullmatch(mark)), "m64n8k16")
    return int(shape[shape.index("n") + 1 : shape.index("k")])


MACHINE_CLASSES = ("fcmp", "i2f", "f2i", "cvt64", "move", "load_const", "uniform", "converge")
"""Classes of machine instructions that only `machine_cost` distinguishes."""

_F32 = ("f32", "f32x2")
_LONG = ("s64", "u64", "b64", "f64")
_TO_WHOLE = frozenset({"rni", "rzi", "rmi", "rpi"})
_PACKED = ("u32", "s32", "u16")
_NEAR = frozenset({"rn", "rz"})
"""Rounding modes that the instruction I2FP supports."""

# Without .ftz, f32 special functions scale their operand and result to keep denormal values.
_APPROXIMATE = {
    "ex2": (("fcmp", 1), ("fma32", 2)), "lg2": (("fcmp", 1), ("fma32", 2)), "rsqrt": (("fcmp", 1), ("fma32", 2)),
    "sqrt": (("fcmp", 1), ("fma32", 2)), "rcp": (("fcmp", 2), ("fma32", 2), ("alu", 2)),
}  # fmt: skip
_IEEE = {
    "div": (("mufu", 2), ("fma32", 5), ("branch", 1), ("converge", 2)),  # MUFU.RCP, FCHK, BRA, BSSY, BSYNC
    "rcp": (("mufu", 1), ("fma32", 3), ("alu", 3), ("branch", 1), ("converge", 2)),
    "sqrt": (("mufu", 1), ("fma32", 4), ("alu", 3), ("branch", 1), ("converge", 2)),
}
_DOUBLE = {
    "div": (("mufu", 1), ("f64", 8), ("fma32", 1), ("fcmp", 2), ("move", 1), ("branch", 1), ("converge", 2)),
    "rcp": (("mufu", 1), ("f64", 5), ("fcmp", 1), ("alu", 3), ("move", 1), ("branch", 1), ("converge", 2)),
    "sqrt": (("mufu", 1), ("f64", 8), ("alu", 3), ("move", 4), ("branch", 1), ("converge", 2)),
    "rsqrt": (("mufu", 1), ("f64", 5), ("alu", 2), ("move", 4), ("branch", 1), ("converge", 2)),
}
# Division of 32-bit integers by a value that is not a literal.
_INTEGER = {
    ("div", "s32"): (("imad", 6), ("alu", 12), ("move", 4), ("mufu", 1), ("f2i", 2)),
    ("div", "u32"): (("imad", 5), ("alu", 7), ("move", 3), ("mufu", 1), ("f2i", 2)),
    ("rem", "s32"): (("imad", 6), ("alu", 10), ("move", 4), ("mufu", 1), ("f2i", 2)),
    ("rem", "u32"): (("imad", 5), ("alu", 6), ("move", 2), ("mufu", 1), ("f2i", 2)),
}


AGGREGATED = "warp_aggregated"
"""Modifier of atomic operations that the assembler combines within a warp. PTX itself has no such modifier."""
_AGGREGATION = (("move", 1), ("uniform", 2), ("alu", 1), ("setp", 1), ("atomic", 1))  # S2R, VOTEU, UFLO, POPC, ISETP


def machine_cost(ins: Instruction) -> Cost:
    """Return the machine instructions that a warp issues for one PTX instruction, more precisely than `classify`.

    The result may contain the additional classes in `MACHINE_CLASSES`.
    """
    if AGGREGATED in ins.modifiers:
        return _AGGREGATION
    literal = ins.opcode in ("div", "rem") and isinstance(ins.operands[-1], Immediate)
    special = None if literal else _special(ins.opcode, ins.modifiers)
    if special is not None:
        return special
    return tuple((_RENAMED.get(name, name), count) for name, count in classify(ins))


_RENAMED = {"mov": "move", "ld_const": "load_const"}


@lru_cache(maxsize=4096)
def _special(opcode: str, modifiers: tuple[str, ...]) -> Cost | None:
    """Return the exact machine instructions if `classify` is imprecise for this instruction, or else None."""
    kind = modifiers[-1] if modifiers else ""
    if opcode in ("setp", "min", "max", "set") and kind in _F32:
        return (("fcmp", 2 if opcode in ("min", "max") and "NaN" in modifiers else 1),)
    if opcode in ("setp", "min", "max") and kind == "f64":
        return (("f64", 1),) if opcode == "setp" else (("f64", 1), ("alu", 3), ("move", 3))
    if opcode in ("min", "max") and kind in _LONG:
        return (("setp", 2), ("alu", 2))
    if kind == "pred":
        return (("alu", 1),) if opcode in ("and", "or", "xor") else ()
    if opcode in ("div", "rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos") and kind == "f32":
        return _special_function(opcode, modifiers)
    if kind == "f64" and opcode in _DOUBLE:
        return _DOUBLE[opcode]
    if (opcode, kind) in _INTEGER:
        return _INTEGER[opcode, kind]
    if opcode == "cvt":
        return _conversion(modifiers)
    if opcode in ("mul", "mad") and kind in ("s64", "u64"):
        return (("imad", 4), ("alu", 3)) if "hi" in modifiers else (("imad", 3), ("alu", 1 if opcode == "mul" else 2))
    if opcode in ("clz", "popc"):
        return (("alu", {"clz.b32": 2, "popc.b32": 1, "clz.b64": 6}.get(f"{opcode}.{kind}", 3)),)
    if opcode in ("ld", "ldu") and {"param", "const"} & {*modifiers} and "v4" in modifiers:
        return (("load_const", 2),)
    return None


def _special_function(opcode: str, modifiers: tuple[str, ...]) -> Cost:
    if "approx" in modifiers:
        if opcode in ("sin", "cos"):
            return (("mufu", 1), ("fma32", 1))
        if opcode == "div":
            return (("mufu", 1), ("fma32", 1)) if "ftz" in modifiers else (("mufu", 1), ("fma32", 3), ("fcmp", 1))
        return (("mufu", 1),) if "ftz" in modifiers else (("mufu", 1), *_APPROXIMATE[opcode])
    if "full" in modifiers:
        return (("mufu", 1), ("fma32", 5), ("fcmp", 2))
    return _IEEE.get(opcode, (("mufu", 1),))


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
        return (("i2f" if to == "f32" and source in _PACKED and _NEAR & {*modifiers} else "f2i", 1),)
    if to.startswith(("f", "bf")) or source.startswith(("f", "bf")):
        return None
    if to == "s64" and source[:1] == "s":
        return (("alu", 1),)
    narrow = source in ("s8", "s16", "u8", "b8")
    return (("alu", 1),) if narrow else ()


def issue_of(block: BasicBlock) -> dict[str, int]:
    """Return the machine instructions of a basic block by class, if the compiler folds no instruction into another."""
    issue: dict[str, int] = {}
    for ins in block.instructions:
        for name, cost in classify(ins):
            issue[name] = issue.get(name, 0) + cost
    return issue
