import tomllib

import numpy as np
import pytest

from kernrec.kernel import Kernel
from kernrec.kernel.spec_reader import kernel_from
from kernrec.measure.device.correctness import compare, tolerance, tolerances
from kernrec.measure.device.interface import OutputError
from kernrec.op import find_op
from kernrec.op.data import decode_elements, encode_elements, inputs, reference
from tests.helpers.attention import with_rounded_weights

MATMUL = find_op("matmul")


def compared(output: np.ndarray, expected: np.ndarray, dtype: str = "f32") -> OutputError:
    return compare(output, dtype, expected, np, 0.0, "")


def _errors(dtype: str, k: int, spoil: float = 0.0) -> tuple[float, int, float]:
    """Return (largest error, unwritten elements, tolerance) of a product summed in f32 and rounded to `dtype`."""
    problem = MATMUL.problem(dtype=dtype, m=48, n=48, k=k)
    tensors = inputs(problem, seed=0)
    expected = reference(problem, tensors)["c"]
    a, b = (
        decode_elements(tensors[name], dtype).astype(np.float32).reshape(problem.tensors[name].shape) for name in "ab"
    )
    computed = encode_elements((a @ b).astype(np.float64) + spoil, dtype)
    errors = compared(computed.reshape(-1), expected, dtype)
    return errors.largest, errors.unwritten, tolerance(problem)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("k", [8, 300, 4096])
def test_rounding_error_is_accepted_and_a_wrong_value_is_not(dtype, k):
    largest, unwritten, allowed = _errors(dtype, k)
    assert unwritten == 0
    assert largest <= allowed
    assert _errors(dtype, k, spoil=0.02)[0] > allowed  # results are of order 1


def test_f32_tolerance_detects_a_missing_term_of_a_sum():
    problem = MATMUL.problem(dtype="f32", m=64, n=64, k=1024)
    tensors = inputs(problem, seed=0)
    shorter = {"a": tensors["a"].copy(), "b": tensors["b"]}
    shorter["a"][:, -1] = 0.0
    output = reference(problem, shorter)["c"].astype(np.float32).reshape(-1)
    assert compared(output, reference(problem, tensors)["c"]).largest > 10.0 * tolerance(problem)


def test_integers_must_be_equal_at_any_size():
    expected = np.array([2**62, 5, -7], dtype=np.int64)
    assert compared(expected.copy(), expected, "i64").largest == 0.0
    assert compared(expected + np.array([1, 0, 0]), expected, "i64").largest > 0.0


def test_expected_nan_is_skipped_and_expected_infinity_is_compared():
    expected = np.array([np.nan, 1.0, np.inf, -np.inf])
    right = np.array([3.0, 1.0, np.inf, -np.inf], dtype=np.float32)
    assert compared(right, expected) == OutputError(0.0, 0, 0.0, "")
    for place, value in ((1, np.inf), (1, np.nan), (2, 1e30), (2, np.nan), (3, np.inf)):
        wrong = right.copy()
        wrong[place] = value
        errors = compared(wrong, expected)
        assert errors.unwritten or errors.largest >= 1.0


def kernel(problem: str) -> Kernel:
    return kernel_from(
        tomllib.loads(f"""
        name = "mine"
        source = "mine.cu"
        problem = {{ dims = {{ n = 64 }}, {problem} }}
        tunables = {{ a = {{ values = [1] }} }}
        launch = [{{ entry = "mine", grid = ["1"], block = ["1"], arguments = [] }}]
        """), "mine.toml", "mine",
    )  # fmt: skip


def test_tolerance_of_a_declared_output_comes_from_the_spec_or_rounding():
    def allowed(problem: str) -> dict[str, float]:
        made = kernel(problem)
        return tolerances(made.definition.problem(), made)

    y, counts = 'y = { shape = ["n"], role = "output"', 'counts = { shape = ["n"], dtype = "u8", role = "inout" }'
    alone = allowed(f"tensors = {{ {y} }}, {counts} }}")
    assert alone["counts"] == 0.0
    assert 1e-6 < alone["y"] < 1e-4
    referenced = allowed(f'tensors = {{ {y}, reference = "zeros" }} }}')
    assert alone["y"] == pytest.approx(2.0 * referenced["y"])
    assert allowed(f'flops = "2000000 * n", tensors = {{ {y} }} }}')["y"] > 5 * alone["y"]
    assert allowed(f"tolerance = 0.25, tensors = {{ {y} }}, {counts} }}") == {"y": 0.25, "counts": 0.25}


def test_8_bit_attention_tolerates_rounded_weights_but_not_a_wrong_scale():
    attention = find_op("attention")
    problem = attention.problem("fp8", heads=2, queries=64, head_dim=64)
    tensors = inputs(problem)
    expected = reference(problem, tensors)["o"]
    rounded, _ = with_rounded_weights(problem, tensors, 128, 0.0)
    allowed = tolerance(problem)
    errors = compared(encode_elements(rounded, "bf16").reshape(-1), expected, "bf16")
    assert 0.02 < errors.largest <= allowed < 0.3
    for name in ("q_scale", "k_scale", "v_scale"):
        other = reference(problem, tensors | {name: tensors[name] * 1.5})["o"]
        assert compared(encode_elements(other, "bf16").reshape(-1), expected, "bf16").largest > allowed
    product = MATMUL.problem("fp8", m=64, n=64, k=64)
    assert tolerance(product) < 0.1 * allowed
