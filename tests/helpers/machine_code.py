"""Assembles PTX and reads its machine code, although the tests count instructions from PTX."""

from functools import cache

import pytest

from kernrec.compile.disassemble import COUNTS, MachineCode, machine_code


@cache
def machine_code_of(ptx: str, sm: int) -> dict[str, MachineCode]:
    """Return the machine code of each kernel of a PTX module on an architecture."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(COUNTS, raising=False)
        code = machine_code(ptx, sm)
    assert code is not None
    return code
