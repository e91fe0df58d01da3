"""Compares the package's error messages with `messages.txt` in the test's folder, for the fixture `refuses`.
`KERNREC_UPDATE_EXPECTED=1 pytest -n 0 TESTS` updates the files. Review the diff."""

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from kernrec.errors import KernrecError
from tests.helpers.paths import ROOT

FILE = "messages.txt"
HEAD = "Messages that tests of this folder expect. `KERNREC_UPDATE_EXPECTED=1 pytest -n 0` writes them anew.\n"
VOLATILE = re.compile(r"\b[0-9a-f]{32,}\b")


def sections(path: Path) -> dict[str, list[str]]:
    """Return the messages of each test (module and name) in a file, which may be missing."""
    texts = re.split(r"^\[(.+)\]\n", path.read_text(encoding="utf-8") if path.exists() else "", flags=re.MULTILINE)[1:]
    return {name: text.splitlines()[:-1] for name, text in zip(texts[::2], texts[1::2], strict=True)}


class Refuses:
    """Run calls that must raise a one-line error, and store the messages."""

    def __init__(self, folder: Path, temporary: Path) -> None:
        self.messages: list[str] = []
        self._folder, self._temporary = folder, temporary

    def __call__(self, call: Callable[..., object], cases: Iterable[object] = ((),)) -> None:
        """Run a call once per case. A case is a tuple of arguments, or a single argument."""
        for case in cases:
            try:
                call(*case) if isinstance(case, tuple) else call(case)
            except KernrecError as error:
                text = VOLATILE.sub("HASH", str(error).replace(str(self._folder), "FOLDER"))
                text = text.replace(self._folder.name, "FOLDER")
                text = text.replace(str(self._temporary), "TEMPORARY").replace(str(ROOT), "CHECKOUT")
                assert "\n" not in text, text
                self.messages.append(f"{type(error).__name__}: {text.encode('unicode_escape').decode()}")
            else:
                raise AssertionError(f"nothing was refused: {case!r}")

    def compare(self, path: Path, test: str) -> None:
        """Compare the messages with the messages in the file, or write them if KERNREC_UPDATE_EXPECTED is set."""
        expected = sections(path)
        if os.environ.get("KERNREC_UPDATE_EXPECTED") and expected.get(test) != self.messages:
            expected[test] = self.messages
            parts = (f"[{name}]\n" + "\n".join(lines) + "\n\n" for name, lines in sorted(expected.items()))
            path.write_text(f"{HEAD}\n{''.join(parts)}", encoding="utf-8")
        assert self.messages == expected.get(test), f"not the messages of [{test}] in {path}"
