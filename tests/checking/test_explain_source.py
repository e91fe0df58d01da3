"""Test that `kernrec explain FILE.cu` reports why a program is slow, and on which line."""

import json

import pytest

from kernrec.cli import app
from tests.checking.slow import SLOW
from tests.helpers.needs import needs

pytestmark = [pytest.mark.usefixtures("compiled_here", "nvrtc"), needs("tree_sitter_cuda")]


@pytest.mark.every(3)
@pytest.mark.parametrize("slow", SLOW, ids=lambda slow: slow.name)
def test_slowest_line_is_reported_first(slow, tmp_path, capsys):
    (path := tmp_path / "slow.cu").write_text(slow.source)
    assert app.run(["explain", str(path), "--gpu", "a100", "--db", str(tmp_path / "own.duckdb"), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["lines"], answer["what_to_do"]
    first = answer["lines"][0]
    assert first["problem"].startswith(slow.problem), answer["lines"]
    assert first["speedup"] > 1
    lines = [number for number, text in enumerate(slow.source.splitlines(), 1) if "// SLOW" in text]
    assert not lines or first["line"] == lines[0], first
    assert "power limit" not in answer["what_to_do"]
