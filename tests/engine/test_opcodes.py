"""The compiled engine has a builder for each opcode that the emulator knows."""

import pytest

from kernrec.ptx.execution import emulator, engine
from kernrec.ptx.instructions.registry import known_opcodes

pytestmark = pytest.mark.skipif(engine.load() is None, reason="the engine is not compiled")


def test_engine_knows_all_opcodes() -> None:
    assert emulator.SEMANTICS  # importing them registers their opcodes
    assert not known_opcodes() - set(engine.load().opcodes())
