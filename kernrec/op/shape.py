"""Parses a shape as users type it: `n=1,c=64,h=56,w=56,k=64`."""

import re

from kernrec.errors import UsageError
from kernrec.util.human import short

_EQUALS = re.compile(r"\s*=\s*")
_SEPARATOR = re.compile(r"[,;\s]+")
_VALUE = re.compile(r"([+-]?[0-9]{1,18})(k?)", re.ASCII | re.IGNORECASE)
_EXAMPLE = "write a shape as name=value,name=value, such as m=1024,n=1024,k=4k"


def parse_shape(text: str) -> dict[str, int]:
    """Dimensions by name from `name=value` pairs separated by commas, semicolons or spaces.

    Names are converted to lower case. A value is a whole number; the suffix `k` multiplies by 1024 (`4k` is 4096).
    `Op.problem` checks later whether the op has the dimension and whether the value is in its range.

    Raises:
        UsageError: The text is not a shape, or gives a dimension twice.
    """
    shape: dict[str, int] = {}
    for item in _SEPARATOR.split(_EQUALS.sub("=", text.strip(" ,;\t\n"))):
        name, equals, value = item.lower().partition("=")
        if not (name and equals):
            raise UsageError(f"{short(item)} is not part of a shape; {_EXAMPLE}")
        if name in ("dtype", "layout"):
            raise UsageError(f"{name} is not a dimension; give it separately from the shape")
        if not (match := _VALUE.fullmatch(value)):
            raise UsageError(
                f"dimension {short(name)} is {short(value)}; a whole number such as 4096 or 4k is accepted"
            )
        if name in shape:
            raise UsageError(f"dimension {short(name)} is given twice, as {shape[name]} and as {value}")
        shape[name] = int(match[1]) * (1024 if match[2] else 1)
    return shape
