"""Fixtures for tests of file formats of other tools."""

import json
from pathlib import Path

import pytest

from kernrec.store import Database


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a file from text, bytes or JSON data."""

    def write(content: object, name: str = "results.json") -> Path:
        path = tmp_path / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


@pytest.fixture
def database():
    with Database.memory() as database:
        yield database
