"""The operands of instructions on barriers in memory, of copies in bulk and of clusters; see `signatures`."""

from functools import cache

from kernrec.ptx.ir.slot import Slot
from kernrec.ptx.ir.types import BITS

_ADDRESS, _TENSOR = Slot("address"), Slot("tensor")
_U32, _POLICY, _MASK = Slot("read", "u32"), Slot("read", "b64"), Slot("read", "u16")


@cache
def async_signature(opcode: str, modifiers: tuple[str, ...]) -> tuple[Slot, ...] | None:
    """The operands of an instruction; None for one that this module does not know."""
    first = modifiers[0] if modifiers else ""
    if opcode == "mbarrier":
        return _mbarrier(first, "parity" in modifiers)
    if opcode == "cp" and "bulk" in modifiers:
        return _bulk(modifiers)
    if opcode in ("st", "red") and first == "async":
        vector = next((int(mark[1:]) for mark in modifiers if mark in ("v2", "v4")), 1)
        return (_ADDRESS, Slot("read", modifiers[-1], vector=vector), _ADDRESS) if modifiers[-1] in BITS else None
    if opcode == "tensormap" and first == "replace" and len(modifiers) > 3 and modifiers[-1] in BITS:
        ordinal = modifiers[2] in ("box_dim", "global_dim", "global_stride", "element_stride")
        return (_ADDRESS, *((_U32,) if ordinal else ()), Slot("read", modifiers[-1]))
    if opcode == "tensormap" and first == "cp_fenceproxy":
        return (_ADDRESS, _ADDRESS, _U32)
    if opcode == "mapa" and modifiers[-1:] in (("u32",), ("u64",)):
        return (Slot("write", modifiers[-1]), Slot("read", modifiers[-1]), _U32)
    if opcode == "getctarank" and modifiers[-1:] in (("u32",), ("u64",)):
        return (Slot("write", "u32"), Slot("read", modifiers[-1]))
    if opcode == "setmaxnreg":
        return (_U32,)
    return () if opcode == "griddepcontrol" or (opcode == "barrier" and first == "cluster") else None


def _mbarrier(what: str, parity: bool) -> tuple[Slot, ...] | None:
    if what in ("init", "expect_tx", "complete_tx"):
        return (_ADDRESS, _U32)
    if what == "inval":
        return (_ADDRESS,)
    if what in ("arrive", "arrive_drop"):
        return (Slot("write", "b64"), _ADDRESS, Slot("read", "u32", optional=True))
    if what in ("test_wait", "try_wait"):
        phase = _U32 if parity else Slot("read", "b64")
        return (Slot("write", "pred"), _ADDRESS, phase, Slot("read", "u32", optional=True))
    return (Slot("write", "u32"), Slot("read", "b64")) if what == "pending_count" else None


def _bulk(modifiers: tuple[str, ...]) -> tuple[Slot, ...] | None:
    marks = {*modifiers}
    if "commit_group" in marks:
        return ()
    if "wait_group" in marks:
        return (_U32,)
    if marks & {"im2col", "cp_mask", "ignore_oob"}:
        return None
    tail = ((_MASK,) if "multicast" in marks else ()) + ((_POLICY,) if "cache_hint" in marks else ())
    barrier = (_ADDRESS,) if "mbarrier" in marks else ()
    if "prefetch" in marks:
        return (_TENSOR, *tail) if "tensor" in marks else (_ADDRESS, _U32, *tail)
    if "tensor" in marks:
        return (_ADDRESS, _TENSOR, *barrier, *tail) if barrier else (_TENSOR, _ADDRESS, *tail)
    return (_ADDRESS, _ADDRESS, _U32, *barrier, *tail)
