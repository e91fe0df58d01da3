"""The compiled engine runs the kernels of the library as the interpreter in Python does: results, counts and races."""

from typing import Any

import numpy as np
import pytest

from kernrec.profile.emulated_launch import emulate_config
from kernrec.ptx import parse
from kernrec.ptx.execution import engine
from tests.helpers.kernel_code import ptx_of
from tests.helpers.trial import CASES, Case, given_inputs, runs, unwritten

pytestmark = pytest.mark.skipif(engine.load() is None, reason="the engine is not compiled")

FIRST = {case.kernel.name: case for case in CASES if case.sm == 86}
"""One case of each kernel, by its name."""


@pytest.mark.parametrize("name", FIRST)
def test_library_kernels_agree(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case: Case = FIRST[name]
    ranked = sorted(runs(case), key=lambda run: run[1].flops)
    config, problem = ranked[len(ranked) // 4]
    ptx = ptx_of(case.kernel, config, case.dtype, case.layout, case.sm)
    made: list[Any] = []
    for switch in ("python", "engine"):
        monkeypatch.setenv(engine.SWITCH, switch)
        outputs = unwritten(problem)
        memory = {key: tensor.copy() for key, tensor in given_inputs(problem).items()} | outputs
        launches = emulate_config(case.kernel, config, problem, case.sm, parse(ptx), memory, check_races=True)
        made.append((outputs, [dict(counts) for _, counts in launches]))
    (expected, counts), (computed, engine_counts) = made
    assert engine_counts == counts
    for key, tensor in expected.items():
        np.testing.assert_array_equal(computed[key], tensor)
