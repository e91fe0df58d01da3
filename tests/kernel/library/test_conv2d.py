"""Test the specifics of convolution kernels (tensor cores, direct, depthwise) that test_kernels.py does not cover."""

import dataclasses

import numpy as np
import pytest

from kernrec.kernel import find_kernel
from kernrec.op import Problem, encode_elements
from kernrec.ptx import EmulationError
from tests.helpers.counted import unpredicted
from tests.helpers.kernel_code import Config, not_assembled
from tests.helpers.products import broken
from tests.helpers.run_cache import Tensors
from tests.helpers.trial import CASES, Case, flaws, given_inputs, run, runs

pytestmark = pytest.mark.slow

MMA, DIRECT, DEPTHWISE = map(find_kernel, ("conv2d_implicit_gemm_mma", "conv2d_direct", "conv2d_depthwise"))
KERNELS = (MMA, DIRECT, DEPTHWISE)
AMPERE, TURING = (Case(MMA, "f16", "nhwc", sm) for sm in (86, 75))  # sm_75 loads tiles through registers
EACH = pytest.mark.parametrize("case", [*(case for case in CASES if case.kernel in KERNELS), TURING], ids=str)


def infinite(case: Case, operands: Tensors) -> Tensors:
    """Return operands with a few infinite elements in x, which must not affect outputs that do not read them."""
    x = operands["x"].copy()
    image = x[0] if case.layout == "nchw" else x[0].transpose(2, 0, 1)
    down, right = image.shape[1] // 2, image.shape[2] // 2
    image[0, max(down - 1, 0) : down + 1, max(right - 1, 0) : right + 1] = encode_elements(np.array(np.inf), case.dtype)
    return operands | {"x": x}


def is_right(case: Case, config: Config, problem: Problem) -> bool:
    """Return whether a run on operands with infinite elements matches the reference up to rounding."""
    operands = infinite(case, given_inputs(problem))
    with np.errstate(invalid="ignore"):
        return not flaws(problem, operands, run(case, config, problem, operands))


@pytest.mark.every(3)
@pytest.mark.parametrize("part", range(3))
def test_register_tiles_compute_awkward_convolutions_without_races(part):
    for config, problem in runs(TURING)[part::3]:
        operands = given_inputs(problem)
        assert flaws(problem, operands, run(TURING, config, problem, operands)) == [], config


@pytest.mark.every(4)
@EACH
def test_infinity_affects_only_the_outputs_that_read_it(case):
    for config, problem in runs(case)[1::6]:
        assert is_right(case, config, problem), (config, problem.key)


@pytest.mark.every(4)
@EACH
def test_edge_tiles_issue_as_many_instructions_as_full_tiles(case):
    kernel = case.kernel
    for config, problem in runs(case)[2::9]:
        code = not_assembled(kernel, config, case.dtype, case.layout, case.sm)
        configs = [config | {"split_k": split_k} for split_k in (1, 2, 4, 8)] if kernel is MMA else [config]
        assert unpredicted(kernel, configs, config, problem, case.sm, code, "issue barriers") == []


def notices(old: str, new: str, met_by: Config) -> bool:
    """Return whether a config with the values `met_by` gives a wrong result if `new` replaces `old` in the kernel."""
    assert MMA.source.count(old) == 1
    case = dataclasses.replace(AMPERE, kernel=broken(MMA, old, new))
    met = [(config, problem) for config, problem in runs(AMPERE) if met_by.items() <= config.items()]
    assert met
    for config, problem in met:
        try:
            if not is_right(case, config, problem):
                return True
        except EmulationError:
            return True
    return False


@pytest.mark.parametrize(
    ("old", "new", "vector"),
    [("tap.meets(g, window[i]) && k < k_end", "tap.meets(g, window[i])", 8), ("k + half < k_end", "k < k_end", 1)],
)
def test_input_read_beyond_the_summed_dimension_is_detected(old, new, vector):
    assert notices(old, new, {"vector": vector})
