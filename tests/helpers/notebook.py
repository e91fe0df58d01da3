"""Converts notebooks to Python programs, including their shell lines."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_SHELL = re.compile(r"^!(?P<command>.+)$", re.MULTILINE)
_INSTALL = re.compile(r'^%pip install --quiet "(?P<requirement>[^"]+)"$', re.MULTILINE)
_BEGINNING = """
import subprocess, sys
def _shell(command):
    print(subprocess.run(command, shell=True, check=True, stdout=subprocess.PIPE, text=True).stdout, end="", flush=True)
"""


def cells(notebook: Path, kind: str = "code") -> list[dict[str, Any]]:
    """Return the notebook's cells of one kind, with their source joined to one string."""
    document = json.loads(notebook.read_text(encoding="utf-8"))
    assert document["nbformat"] == 4
    return [each | {"source": "".join(each["source"])} for each in document["cells"] if each["cell_type"] == kind]


def requirements(notebook: Path) -> list[str]:
    """Return the pip requirements that the notebook installs."""
    return [match["requirement"] for cell in cells(notebook) for match in _INSTALL.finditer(cell["source"])]


def program(notebook: Path, parameters: Mapping[str, object]) -> str:
    """Return the notebook as a program without its installations; `parameters` override the parameter cell."""
    parts = [_BEGINNING]
    for cell in cells(notebook):
        source = _INSTALL.sub("pass", cell["source"])
        parts.append(_SHELL.sub(lambda match: f"_shell(f{match['command']!r})", source))
        if "parameters" in cell["metadata"].get("tags", ()):
            parts += [f"{name} = {value!r}" for name, value in parameters.items()]
    text = "\n".join(parts) + "\n"
    assert not re.search(r"^[!%]", text, re.MULTILINE), "a line for the notebook's shell that this does not know"
    return text
