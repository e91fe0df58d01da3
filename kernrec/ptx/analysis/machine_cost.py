"""Count the machine instructions of a single PTX instruction by class.

`kernrec.ptx.analysis.lowering` handles combinations of PTX instructions. The classes are those of
`kernrec.ptx.analysis.issue_cost`, with eight additional ones:

- `fcmp`: comparison, minimum and maximum of f32 (FSETP, FMNMX), which run in parallel with integer instructions;
- `i2f`: integers to f32 that ptxas converts by I2FP from sm_86, and by I2F before;
- `f2i`: conversions to integers, conversions from integers that are not `i2f`, and rounding to integers (F2I, I2F,
  FRND);
- `cvt64`: conversions from and to 64-bit types, which take the slow conversion path;
- `move` and `load_const`: moves and loads of constants that the assembler keeps; `mov` and `ld_const` also count the
  PTX instructions that it removes;
- `uniform`: warp-uniform integer arithmetic and loads of constants, on the uniform datapath;
- `converge`: reconvergence of a warp after a branch (BSSY, BSYNC).

The counts come from assembling each instruction separately with ptxas 13 for sm_75, sm_86 and sm_90. Those of
conversions come from nvdisasm for sm_75 to sm_120. IEEE division, reciprocal and square root call a separate function
for operands that are zero, infinite, denormal or near the limits of the exponent. The counts leave out this function.
"""

from functools import lru_cache

from kernrec.ptx.analysis.issue_cost import Cost, classify
from kernrec.ptx.ir.operand import Immediate
from kernrec.ptx.ir.program import Instruction

CLASSES = ("fcmp", "i2f", "f2i", "cvt64", "move", "load_const", "uniform", "converge")
"""Classes in addition to those of `issue_cost`."""

_F32 = ("f32", "f32x2")
_LONG = ("s64", "u64", "b64", "f64")
_TO_WHOLE = frozenset({"rni", "rzi", "rmi", "rpi"})
_PACKED = ("u32", "s32", "u16")
_NEAR = frozenset({"rn", "rz"})
"""Rounding modes of I2FP."""

# Without .ftz, special functions of f32 scale their operand and result to keep denormal values.
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
# For 32-bit values that are not literals: quotient signed, unsigned; remainder signed, unsigned.
_INTEGER = {
    ("div", "s32"): (("imad", 6), ("alu", 12), ("move", 4), ("mufu", 1), ("f2i", 2)),
    ("div", "u32"): (("imad", 5), ("alu", 7), ("move", 3), ("mufu", 1), ("f2i", 2)),
    ("rem", "s32"): (("imad", 6), ("alu", 10), ("move", 4), ("mufu", 1), ("f2i", 2)),
    ("rem", "u32"): (("imad", 5), ("alu", 6), ("move", 2), ("mufu", 1), ("f2i", 2)),
}


AGGREGATED = "warp_aggregated"
"""Modifier that marks atomic operations that the assembler combines within a warp; PTX has no such modifier."""
_AGGREGATION = (("move", 1), ("uniform", 2), ("alu", 1), ("setp", 1), ("atomic", 1))  # S2R, VOTEU, UFLO, POPC, ISETP


def machine_cost(ins: Instruction) -> Cost:
    """Return the machine instructions that a warp issues for a single PTX instruction."""
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
    """Return the cost of an instruction if it differs from `issue_cost`; else None."""
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
