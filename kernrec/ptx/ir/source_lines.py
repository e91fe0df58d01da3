"""Map PTX lines to source lines with `.loc` and `.file` directives (nvcc -lineinfo)."""

import re
from bisect import bisect_right
from typing import NamedTuple

_FILE = re.compile(r'^[ \t]*\.file[ \t]+(\d+)[ \t]+"((?:[^"\\]|\\.)*)"', re.MULTILINE)
_LOCATION = re.compile(r"[ \t]*\.loc[ \t]+(\d+)[ \t]+(\d+)")


class Place(NamedTuple):
    """Line of a source."""

    file: str
    line: int


class SourceLines:
    """Source lines of a PTX module."""

    def __init__(self, ptx: str) -> None:
        files = dict(_FILE.findall(ptx))
        self._starts: list[int] = []
        self._places: list[Place | None] = []
        for number, text in enumerate(ptx.splitlines(), 1):
            if location := _LOCATION.match(text):
                line = int(location[2])
                self._add(number, Place(files.get(location[1], ""), line) if line else None)
            elif text.startswith("}"):
                self._add(number, None)

    def _add(self, number: int, place: Place | None) -> None:
        self._starts.append(number)
        self._places.append(place)

    def of(self, line: int) -> Place | None:
        """Return the source line of a PTX line; None if there is none."""
        position = bisect_right(self._starts, line) - 1
        return self._places[position] if position >= 0 else None
