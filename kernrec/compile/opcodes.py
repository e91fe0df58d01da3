"""Name and classify machine instructions of Turing to Blackwell from their encoding.

An instruction has 128 bits. The lowest 9 bits are its opcode. The next 3 bits state which operands are registers,
immediates or constants. The names of opcodes are from NVIDIA's "CUDA Binary Utilities". A test compares decoded
instructions with the output of NVIDIA's nvdisasm.
"""

from collections.abc import Mapping
from functools import cache

_OPCODES: Mapping[str, str] = {
    "fma32": "FFMA:23 FADD:21 FMUL:20 FFMA2:49 FADD2:4b FMUL2:4a FSWZADD:22 FCHK:102",
    "fcmp": "FSETP:b FMNMX:9 FMNMX3:76 FSET:a",
    "alu": "IADD3:10 LOP3:12 PLOP3:1c,1d,1e,1f SHF:19 LEA:11 PRMT:16 SEL:7 FSEL:8 IMNMX:17 VIMNMX:48 VIMNMX3:f "
    "VIADD:36 VIADDMNMX:46 VABSDIFF:14 VABSDIFF4:15 FLO:100 POPC:109 BREV:101 BMSK:1b SGXT:1a IABS:13 P2R:3 "
    "R2P:4 VHMNMX:47",
    "setp": "ISETP:c",
    "imad": "IMAD:24,25,27 IDP:26",
    "f16": "HFMA2:31,35 HADD2:30 HMUL2:32 HMNMX2:40 HSET2:33 HSETP2:34",
    "mufu": "MUFU:108",
    "f2i": "F2I:105 F2IP:43 FRND:107,113 I2F:106",
    "i2f": "I2FP:45",
    "cvt": "F2F:104 F2FP:3e I2I:38 I2IP:39",
    "cvt64": "F2F:110 F2I:111 I2F:112",
    "f64": "DADD:29 DFMA:2b DMUL:28 DSETP:2a",
    "mma": "HMMA:3c IMMA:37 DMMA:3f BMMA:3d QMMA:7a OMMA:7f HGMMA:1f0 IGMMA:1f1 BGMMA:1f2 QGMMA:1f3 UTCHMMA:1ea",
    "branch": "BRA:147 BRX:149 BRXU:158 JMP:14a JMX:14c JMXU:159 EXIT:14d RET:150 CALL:143,144 BREAK:142 BPT:15c "
    "KILL:15b",
    "converge": "BSSY:145 BSYNC:141 BMOV:155,156,157 WARPSYNC:148 YIELD:146 RPCMOV:152,153,154 NANOSLEEP:15d",
    "move": "MOV:2 S2R:119 S2UR:1c3 CS2R:5 R2UR:ca,1c2 MOVM:3a LEPC:14e GETLMEMBASE:1c0",
    "load_const": "LDC:182",
    "ld_shared": "LDS:184 LDSM:3b",
    "st_shared": "STS:188 STSM:44",
    "ld_global": "LDG:17e,181 LD:180 TEX:160,161,162 TLD:166,167,168 TLD4:163,164,165 TMML:169,16a,16b "
    "TXD:16c,16d,16e SULD:197,198,199,19a",
    "st_global": "STG:17f,186 ST:185 SUST:19b,19c,19d,19e",
    "ld_local": "LDL:183",
    "st_local": "STL:187",
    "cp_async": "LDGSTS:1ae",
    "atomic": "ATOM:18a,18b,1a2 ATOMG:1a3,1a8,1a9 ATOMS:18c,18d RED:18e,1a6 SUATOM:193,194,195,196 SURED:19f,1a0",
    "bar": "BAR:11d B2R:11c",
    "other": "VOTEU:86",
    "shfl": "SHFL:189 VOTE:6 MATCH:1a1 REDUX:1c4 CREDUX:cc ELECT:2f",
    "uniform": "UBLKCP:1ba UBLKPF:1bc UBLKRED:1bb UBMSK:9b UBREV:be UCGABAR:1c7 UCLEA:bc UF2FP:ba UF2I:5c UF2IP:59 "
    "UFADD:54 UFFMA:55 UFLO:bd UFMNMX:50 UFMUL:56 UFSEL:51 UFSET:52 UFSETP:53 UI2F:5a UI2FP:5e UI2I:4e UI2IP:4f "
    "UIABS:4d UIADD3:90,97 UIMAD:a4,a5,a6 UIMNMX:85 UISETP:8c ULDC:b8,b9,bb ULEA:91 ULEPC:1ce ULOP3:92 UMOV:82 "
    "UP2UR:83 UPLOP3:9c,9d,9e,9f UPOPC:bf UPRMT:96 UR2UP:84 USEL:87 USETMAXREG:1c8 USETSHMSZ:1c9 USGXT:9a USHF:99 "
    "UGETNEXTWORKID:1ca UMEMSETS:1cb USTGR:177 UREDGR:178 UF2F:5b UFRND:5d UVIRTCOUNT:4c",
}
"""Names and codes (hexadecimal) of opcodes, keyed by class. Opcodes that are not listed have the class `other`."""
_EXCEPTIONS: tuple[tuple[range, str, str], ...] = (
    (range(75, 80), "mma", "HMMA:36"),
    (range(100, 130), "alu", "IADD:35"),
    (range(110, 130), "uniform", "UVIADD:49 UVIMNMX:4a"),
)
"""Exceptions to `_OPCODES`: (compute capabilities, class, opcodes). Their codes replace those of `_OPCODES`."""
PADDING = "padding"
"""Class of instructions that take no issue slot."""
_OTHER = ("?", "other")
_CODE, _CARRY = 0x1FF, 1 << 10
"""Mask of the opcode in an instruction's lower half, and the bit of its upper half that makes IMAD add a carry."""
_ZERO = 255
"""Number of the register RZ."""
_SIZES = (1, 1, 2, 2, 4, 8, 16, 16)
"""Bytes per lane for each value of the size field of loads and stores."""
SIZED = frozenset({"ld_global", "st_global", "ld_shared", "st_shared", "ld_local", "st_local", "cp_async"})
"""Classes whose loads and stores have a size field. Textures and matrix loads have other fields in its place."""


@cache
def _table(sm: int) -> dict[int, tuple[str, str]]:
    groups = [*_OPCODES.items(), *((name, opcodes) for sms, name, opcodes in _EXCEPTIONS if sm in sms)]
    table: dict[int, tuple[str, str]] = {0x118: ("NOP", PADDING)}
    for name, opcodes in groups:
        for opcode, _, codes in (each.partition(":") for each in opcodes.split()):
            table |= {int(code, 16): (opcode, name) for code in codes.split(",")}
    return table


def opcode_of(low: int, high: int, sm: int) -> tuple[str, str]:
    """Return the name and the class of an instruction, from its lower and upper 64 bits.

    Instructions that only move a value have the class `move`.
    """
    opcode, name = _table(sm).get(low & _CODE, _OTHER)
    if opcode in ("IMAD", "HFMA2"):
        # The second factor is a register in forms 1 to 3, and an immediate or a constant in the others.
        form = low >> 9 & 7
        first_is_zero = low >> 24 & 0xFF == _ZERO
        second_is_zero = form in (1, 2, 3) and (low >> 32 if form == 1 else high) & 0xFF == _ZERO
        if opcode == "HFMA2":
            is_move = first_is_zero and second_is_zero
        else:
            is_move = (first_is_zero or second_is_zero) and low & _CODE == 0x24 and form < 6 and not high & _CARRY
        name = "move" if is_move else name
    return opcode, name


def access_bytes(low: int, high: int, sm: int) -> int:
    """Return the bytes per lane that a load or store moves, from its lower and upper 64 bits."""
    size = high >> 9 & 7
    if low & _CODE in (0x17E, 0x17F):
        return 32
    if low & _CODE == 0x1AE and sm >= 100:  # LDGSTS has no sizes below 4 bytes.
        size = 4 + (size >> 1)
    return _SIZES[size]
