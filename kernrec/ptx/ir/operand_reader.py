"""Parse operands of instructions (PTX ISA, sections 4.4 to 4.6 and 6)."""

import re

from kernrec.ptx.ir.declarations import INTEGER, integer
from kernrec.ptx.ir.operand import Address, Immediate, Negated, Operand, Pair, Register, Symbol, Texel, Vector
from kernrec.ptx.ir.program import Function

_REGISTER = re.compile(r"%[%$\w.@]*|_")
_NAME = re.compile(r"[A-Za-z_$.%(][\w$.@%, ()]*")
"""Matches a symbol, or the argument list of a call."""
_F32 = re.compile(r"0[fF][0-9a-fA-F]{8}")
_F64 = re.compile(r"0[dD][0-9a-fA-F]{16}")


class OperandReader:
    """Parser of one function's operands, with a cache by text."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._cached: dict[str, Operand] = {}

    def forget(self) -> None:
        """Clear the cache after a declaration, which may change what a text means."""
        self._cached.clear()

    def read(self, text: str) -> Operand:
        """Return the operand that `text` describes.

        Raises:
            ValueError: the text is not an operand.
        """
        operand = self._cached.get(text)
        if operand is None:
            operand = self._cached[text] = self._build(text.strip())
        return operand

    def _build(self, text: str) -> Operand:
        if _REGISTER.fullmatch(text):
            return Register(text)
        if not text:
            raise ValueError("an operand is missing")
        if text.count("[") > 1:
            raise ValueError(f"cannot read the address {text[:60]!r}")
        first = text[0]
        if first == "%":
            return self._sum_or_pair(text)
        if first == "[":
            return self._address(text)
        if first == "{":
            return Vector(tuple(self.read(item) for item in text[1:-1].split(",") if item.strip()))
        if first == "!":
            return Negated(Register(text[1:].strip()))
        if first in "0123456789+-.":
            return self._literal(text)
        if "|" in text:
            return self._pair(text)
        if text == "WARP_SZ":
            return self._immediate(32, "int")
        name, plus, offset = text.partition("+")
        if not _NAME.fullmatch(name.strip()):
            raise ValueError(f"cannot read the operand {text!r:.60}")
        if self._function.register_type(name.strip()) is not None:
            return Register(name.strip())
        return Symbol(name.strip(), _offset(text, offset) if plus else 0)

    def _sum_or_pair(self, text: str) -> Operand:
        if "|" in text:
            return self._pair(text)
        name, plus, offset = text.partition("+")
        if not plus:
            raise ValueError(f"cannot read the operand {text!r}")
        return Address(Register(name.strip()), _offset(text, offset))

    def _pair(self, text: str) -> Pair:
        first, _, second = text.partition("|")
        return Pair(self.read(first), self.read(second))

    def _address(self, text: str) -> Address | Texel:
        if "," in text:
            return self._texel(text)
        base_text, plus, offset = text[1:-1].strip().partition("+")
        base = self.read(base_text)
        if not isinstance(base, Register | Symbol | Immediate):
            raise ValueError(f"cannot read the address {text!r}")
        try:
            return Address(base, integer(offset.strip()) if plus else 0)
        except ValueError:
            raise ValueError(f"cannot read the address {text!r}") from None

    def _texel(self, text: str) -> Texel:
        names, brace, listed = text[1:-1].partition("{")
        parts = [part.strip() for part in names.split(",") if part.strip()]
        coordinates = [part for part in listed.rstrip("} \t\n").split(",") if part.strip()] if brace else parts[-1:]
        parts = parts if brace else parts[:-1]
        images = [self.read(part) for part in parts]
        if not 1 <= len(images) <= 2 or not coordinates or not all(isinstance(i, Register | Symbol) for i in images):
            raise ValueError(f"cannot read the address {text!r}")
        image, sampler = (*images, None)[:2]
        assert isinstance(image, Register | Symbol)
        assert sampler is None or isinstance(sampler, Register | Symbol)
        return Texel(image, tuple(self.read(part) for part in coordinates), sampler)

    def _literal(self, text: str) -> Immediate:
        if _F32.fullmatch(text):
            return self._immediate(int(text[2:], 16), "f32")
        if _F64.fullmatch(text):
            return self._immediate(int(text[2:], 16), "f64")
        if INTEGER.match(text):
            return self._immediate(integer(text), "int")
        try:
            return self._immediate(float(text), "float")
        except ValueError:
            raise ValueError(f"cannot read the operand {text!r}") from None

    def _immediate(self, value: int | float, kind: str) -> Immediate:
        immediate = Immediate(value, kind)
        self._function.immediates.add(immediate)
        return immediate


def _offset(text: str, offset: str) -> int:
    try:
        return integer(offset.strip())
    except ValueError:
        raise ValueError(f"cannot read the operand {text!r}") from None
