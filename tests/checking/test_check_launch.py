"""Test that `kernrec check` reports the line of every planted bug, and reports nothing for correct kernels."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from kernrec.cli import app


@dataclass(frozen=True)
class Case:
    """Kernel with one launch. `kind` and `memory` describe the finding that `kernrec check` must report."""

    name: str
    source: str
    arguments: list[str]
    grid: int = 1
    block: int = 64
    shared: int = 0
    kind: str = ""
    memory: str = ""


CASES = tomllib.loads(Path(__file__).with_name("planted.toml").read_text())
BUGS, CLEAN = ([Case(**case) for case in CASES[group]] for group in ("bugs", "clean"))

pytestmark = pytest.mark.usefixtures("compiled_here", "nvrtc")


def run(case: Case, folder: Path, *options: object) -> int:
    (path := folder / "case.cu").write_text(case.source)
    words = ["check", path, *case.arguments, "--grid", case.grid, "--block", case.block, "--shared", case.shared]
    return app.run([str(word) for word in (*words, *options)])


@pytest.mark.parametrize("case", BUGS, ids=lambda case: case.name)
def test_bug_is_reported_with_its_source_line(case, tmp_path, capsys):
    assert run(case, tmp_path) == 1
    printed = capsys.readouterr()
    assert f"[{case.kind}, kernel " in printed.out, printed.out + printed.err
    lines = [number for number, text in enumerate(case.source.splitlines(), 1) if "// BUG" in text]
    (finding,) = [line for line in printed.out.splitlines() if f"[{case.kind}, " in line][:1]
    assert not lines or finding.startswith(f"case.cu:{lines[0]}: error: "), finding
    named = (f" of {case.memory}", f" before `{case.memory}`")
    assert not case.memory or any(name in finding for name in named), finding


@pytest.mark.parametrize("case", CLEAN, ids=lambda case: case.name)
def test_correct_kernel_has_no_findings(case, tmp_path, capsys):
    assert run(case, tmp_path) == 0, capsys.readouterr().out
