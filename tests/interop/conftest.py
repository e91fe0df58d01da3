"""What these tests share; makes `foreign_files` importable however pytest is started."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes a file: text, bytes, or what becomes JSON."""

    def write(content: object, name: str = "results.json") -> Path:
        path = tmp_path / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write
