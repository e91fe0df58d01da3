"""Map machine instructions to the classes of `kernrec.ptx.analysis.machine_cost`.

The opcodes come from NVIDIA's "CUDA Binary Utilities", tables of the instruction sets of Turing to Blackwell.
"""

from collections.abc import Mapping

from kernrec.compile.disassemble import MachineInstruction

_OPCODES: Mapping[str, str] = {
    "fma32": "FFMA FADD FMUL FFMA32I FADD32I FMUL32I FFMA2 FADD2 FMUL2 FHADD FHFMA FSWZADD FCHK",
    "fcmp": "FSETP FMNMX FMNMX3 FSET",
    "alu": "IADD IADD2 IADD3 IADD32I LOP LOP3 LOP32I PLOP3 SHF SHL SHR LEA PRMT SEL FSEL IMNMX VIMNMX VIMNMX3 VIADD "
    "VIADDMNMX VABSDIFF VABSDIFF4 FLO POPC BREV BMSK SGXT IABS P2R R2P PSETP VHMNMX SHFL32 ISCADD BFE BFI ICMP NOTP",
    "setp": "ISETP ISET CSETP",
    "imad": "IMAD IMAD32I IDP IDP4A IMUL IMUL32I XMAD",
    "f16": "HFMA2 HADD2 HMUL2 HMNMX2 HSET2 HSETP2 HADD2_32I HMUL2_32I HFMA2_32I HMNMX HFMA",
    "mufu": "MUFU",
    "f2i": "F2I F2IP FRND I2F",
    "i2f": "I2FP",
    "cvt": "F2F F2FP I2I I2IP",
    "f64": "DADD DFMA DMUL DSETP DMNMX",
    "mma": "HMMA IMMA DMMA BMMA QMMA OMMA HGMMA IGMMA BGMMA QGMMA UTCHMMA UTCIMMA UTCQMMA UTCOMMA UTCMXQMMA",
    "branch": "BRA BRX BRXU EXIT RET CALL JMP JMX BREAK BPT KILL",
    "converge": "BSSY BSYNC BMOV WARPSYNC YIELD BSYNCHRONOUS RPCMOV NANOSLEEP",
    "move": "MOV MOV32I S2R S2UR CS2R R2UR MOVM LEPC GETLMEMBASE",
    "load_const": "LDC",
    "ld_shared": "LDS LDSM",
    "st_shared": "STS STSM",
    "ld_global": "LDG LD TEX TLD TLD4 TMML TXD SULD",
    "st_global": "STG ST SUST",
    "ld_local": "LDL",
    "st_local": "STL",
    "cp_async": "LDGSTS",
    "atomic": "ATOM ATOMG ATOMS RED REDG SUATOM SURED",
    "bar": "BAR B2R",
    "shfl": "SHFL VOTE MATCH REDUX CREDUX ELECT",
}
_CLASS = {opcode: name for name, opcodes in _OPCODES.items() for opcode in opcodes.split()}
_NONE = frozenset({"NOP"})
_ZERO = "-RZ, RZ, "
_WIDTHS = {"64": 8, "128": 16, "256": 32, "U8": 1, "S8": 1, "U16": 2, "S16": 2}


def machine_class(ins: MachineInstruction) -> str | None:
    """Return the class of a machine instruction; None for padding, which takes no issue slot."""
    opcode = ins.opcode
    if opcode in _NONE:
        return None
    if opcode == "IMAD" and "MOV" in ins.modifiers:
        return "move"
    if opcode.startswith("HFMA2") and _ZERO in ins.operands:
        return "move"  # the f16 pipe loads a constant
    if opcode == "F2F" and "64" in "".join(ins.modifiers):
        return "cvt64"
    if opcode in ("F2I", "I2F") and any("64" in mark for mark in ins.modifiers):
        return "cvt64"
    name = _CLASS.get(opcode)
    if name is None:
        return "uniform" if opcode.startswith("U") and opcode[:2] != "UT" else "other"
    return name


def access_bytes(ins: MachineInstruction) -> int:
    """Return the bytes that a load or store moves per lane."""
    return next((_WIDTHS[mark] for mark in reversed(ins.modifiers) if mark in _WIDTHS), 4)
