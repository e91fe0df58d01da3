"""What these tests share."""

import json
from pathlib import Path

import pytest


@pytest.fixture
def write(tmp_path):
    """Writes a file: text, bytes, or what becomes JSON."""

    def write(content: object, name: str = "results.json") -> Path:
        path = tmp_path / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write
