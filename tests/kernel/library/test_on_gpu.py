"""Test every library kernel on a real GPU, if there is one, against the op's float64 reference."""

import pytest

from tests.helpers.kernel_code import assembled
from tests.helpers.on_gpu import Code, Prepared
from tests.helpers.trial import CASES, Case, flaws, given_inputs, runs


@pytest.mark.every(4)
@pytest.mark.gpu
@pytest.mark.parametrize(
    ("kernel", "dtype", "layout"),
    list(dict.fromkeys((case.kernel, case.dtype, case.layout) for case in CASES)),
    ids=lambda value: getattr(value, "name", value),
)
def test_extreme_configs_compute_the_op_on_the_gpu(card, kernel, dtype, layout):
    if not kernel.runs_on(dtype, card.sm):
        pytest.skip(f"the GPU {card.name}, sm_{card.sm}, does not run {kernel.name} in {dtype}")
    chosen = runs(Case(kernel, dtype, layout, card.sm))
    if card.emulated:  # Other tests run all configs in the emulator. This one checks their launches.
        chosen = sorted(chosen, key=lambda run: run[1].flops)[:2]
    codes: dict[tuple[int, ...], Code] = {}
    for config, problem in chosen:
        key = tuple(config[name] for name in kernel.compile_time_tunables)
        if key not in codes:
            codes[key] = card.code(kernel, config, dtype, layout)
        operands = given_inputs(problem)
        prepared = Prepared(kernel, config, problem, card.sm, codes[key], operands)
        prepared.launch()
        assert flaws(problem, operands, prepared.outputs()) == [], config


THOROUGH = pytest.mark.parametrize("case", [case for case in CASES if case.thorough], ids=str)


@THOROUGH
def test_machine_code_has_every_launched_entry_point(case):
    compiled = assembled(case.kernel, runs(case)[0][0], case.dtype, case.layout, case.sm)
    assert compiled.cubin[:4] == b"\x7fELF"
    assert {launch.entry for launch in case.kernel.launches} <= compiled.resources.keys()
