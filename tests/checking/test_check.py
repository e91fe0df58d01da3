"""Test `kernrec.check` in a separate process, its refused requests, and reference expressions."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernrec
from kernrec.checking.check import CheckResult
from kernrec.checking.child_process import Limits
from kernrec.checking.reference import evaluate
from kernrec.errors import UsageError
from kernrec.store.measurement import Outcome
from tests.helpers.command import environment
from tests.helpers.depth import few_examples
from tests.helpers.paths import beside

pytest.importorskip("cupy", reason="needs the extra cuda13")

AXPY = beside(__file__, "axpy.cu")
RACE = beside(__file__, "race.cu")
X = np.linspace(-2, 2, 1000, dtype=np.float32)
Y = np.ones(1000, dtype=np.float32)


def checked(source: str, reference: object = None, **changed: object) -> CheckResult:
    arguments = {"alpha": 2.0, "x": X, "y": Y, "n": 1000}
    inputs = {"arguments": arguments, "grid": [4], "block": [256], **changed}
    return kernrec.check(source, reference, **inputs)  # type: ignore[arg-type]


def test_correct_kernel_passes_with_an_expression_as_reference():
    result = checked(AXPY, {"y": "alpha * x + y"})
    assert result.correct, result.message
    assert result.counts["global.y.write_bytes"] == 4000
    assert (result.registers or 0) > 0
    np.testing.assert_array_equal(Y, np.ones(1000))  # the check must not write to the caller's arrays


def test_wrong_kernel_fails_and_reports_the_first_wrong_element():
    off_by_one = AXPY.replace("i < n", "i < n - 1")
    result = checked(off_by_one, lambda a: {"y": a["alpha"] * a["x"] + a["y"]})
    assert result.outcome is Outcome.INCORRECT
    assert result.outputs["y"].where == (999,)
    assert "y[999] is 1, expected 5" in result.message


def test_access_out_of_bounds_is_reported():
    result = checked(AXPY.replace("if (i < n) ", ""))
    assert result.outcome is Outcome.CRASH
    assert "offset 4000 of x, which has 4000 bytes" in result.message


def test_race_is_reported():
    result = checked(RACE, arguments={"y": np.zeros(64, np.float32)}, grid=[1], block=[64])
    assert result.outcome is Outcome.CRASH
    assert "race" in result.message


@pytest.mark.every(2)
@pytest.mark.slow
def test_check_stops_a_source_that_exhausts_memory_or_time():
    doubled = "".join(f"#define D{n} D{n - 1} D{n - 1}\n" for n in range(1, 40))
    result = checked(f"#define D0 y[i] += 1.0f;\n{doubled}{AXPY.replace('if (i < n)', 'D39')}", time_limit_s=2)
    assert result.outcome in (Outcome.TIMEOUT, Outcome.CRASH, Outcome.COMPILE)


def test_compile_error_is_reported():
    result = checked("__global__ void f() { undefined(); }")
    assert result.outcome is Outcome.COMPILE
    assert result.message == 'kernel.cu:1: identifier "undefined" is undefined'


def test_invalid_check_request_is_refused_in_one_line(refuses):
    refuses(lambda source, changed: checked(source, changed.pop("reference", None), **changed), [
        ('#include "/etc/passwd"\n' + AXPY, {}), ("", {}), ("x" * 300_000, {}), (AXPY, {"grid": [0]}),
        (AXPY, {"gpu": "h2000"}), (AXPY, {"reference": {"z": "x"}}), (AXPY, {"reference": {"n": "x"}}),
        (AXPY, {"reference": "x"}), (AXPY, {"arguments": {"x": np.zeros(9 << 20)}}),
        (AXPY, {"arguments": {"x": np.array(["a"])}}), (AXPY, {"tolerance": -1.0}),
        (AXPY, {"defines": {"N": "1 -I/etc"}}),
    ])  # fmt: skip


@pytest.mark.parametrize("text", ["z + 1", "x[:10]"])
def test_reference_of_the_wrong_shape_is_refused(text):
    with pytest.raises(UsageError):
        checked(AXPY, {"y": text})


@pytest.mark.parametrize(("reference", "correct"), [("y + (x - x) / (x - x)", False), ("alpha * x + y", True)])
def test_number_is_incorrect_if_the_reference_is_nan(reference, correct):
    assert checked(AXPY, {"y": reference}).correct is correct


def test_infinite_integer_reference_is_refused():
    whole = "__global__ void f(int* y) { y[threadIdx.x] = 1; }"
    with pytest.raises(UsageError, match="is not finite"):
        checked(whole, {"y": "1 / y"}, arguments={"y": np.zeros(32, np.int32)}, grid=[1], block=[32])


PROGRAM = """
import json, os, socket, sys
from pathlib import Path
import numpy
from kernrec.checking.child_process import Limits, limit_process
folder = Path(sys.argv[1])
confined = limit_process(Limits(time_s=30), folder)
def attempt(action):
    try:
        action()
        return "done"
    except OSError as error:
        return type(error).__name__
def connect():
    socket.create_connection(("127.0.0.1", int(sys.argv[2])), timeout=5)
print(json.dumps({
    "confined": confined,
    "passwd": attempt(lambda: open("/etc/passwd").read()),
    "link": attempt(lambda: open(folder / "link").read()),
    "elsewhere": attempt(lambda: open(sys.argv[3], "w")),
    "parent": attempt(lambda: open(f"/proc/{os.getppid()}/environ").read()),
    "own": attempt(lambda: (folder / "own").write_text("x")),
    "network": attempt(connect),
    "numpy": attempt(lambda: __import__("numpy.fft")),
}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Landlock is Linux's")
def test_sandboxed_process_cannot_reach_files_or_network(tmp_path):
    import json
    import socket

    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to("/etc/passwd")
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = str(listening.getsockname()[1])
        command = [sys.executable, "-c", PROGRAM, str(folder), port, str(tmp_path / "elsewhere")]
        done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=True)
    ended = json.loads(done.stdout)
    if not ended.pop("confined"):
        pytest.skip("this kernel has no Landlock")
    reached = {name for name, how in ended.items() if how == "done"}
    assert reached - {"network"} == {"own", "numpy"}  # old versions of Landlock cannot restrict the network


@pytest.mark.parametrize("wrong", [{"time_s": 0.0}, {"time_s": float("nan")}, {"memory_bytes": 1000}])
def test_impossible_limits_are_refused(wrong):
    with pytest.raises(UsageError):
        Limits(**wrong)  # type: ignore[arg-type]


VECTOR = np.arange(12.0)
ARRAYS = {"x": VECTOR, "y": VECTOR[::-1].copy(), "n": np.int64(3), "alpha": np.float64(0.5)}

EQUAL = {
    "alpha * x + y": 0.5 * VECTOR + VECTOR[::-1],
    "x.reshape(3, 4) @ y.reshape(4, 3)": VECTOR.reshape(3, 4) @ VECTOR[::-1].reshape(4, 3),
    "np.exp(x - x.max()) / np.exp(x - max(x)).sum()": np.exp(VECTOR - 11) / np.exp(VECTOR - 11).sum(),
    "x.reshape(3, 4).sum(axis=1, keepdims=1) ** 2": VECTOR.reshape(3, 4).sum(axis=1, keepdims=True) ** 2,
    "where(x > n, x, -1)": np.where(VECTOR > 3, VECTOR, -1),
    "x.reshape(3, 4).T[::2, 1:]": VECTOR.reshape(3, 4).T[::2, 1:],
    "einsum('ij,kj->ik', x.reshape(3, 4), y.reshape(3, 4))": VECTOR.reshape(3, 4) @ VECTOR[::-1].reshape(3, 4).T,
    "concatenate([x[1:], x[:1]])": np.concatenate([VECTOR[1:], VECTOR[:1]]),
}

HOSTILE = (
    "__import__('os').system('true')", "x.__class__", "x.tofile('/tmp/out')", "np.load('/etc/passwd')",
    "np.fromfile('/etc/passwd')", "open('/etc/passwd')", "(lambda: 0)()", "[i for i in x]", "x.dump('/tmp/out')",
    "f'{x}'", "np.ctypeslib", "x if n else y", "(y := x)", "exp(x, out=y)", "z", "x +", "9 ** 9 ** 9 // (1 << 3)",
    "99999999999999999999 * 9", "x @ y @ x.reshape(5, 5)", "(" * 3000 + "x" + ")" * 3000, "x[1000]",
)  # fmt: skip


@pytest.mark.parametrize("text", EQUAL)
def test_reference_expression_matches_numpy(text):
    np.testing.assert_allclose(evaluate(text, ARRAYS), EQUAL[text])


@pytest.mark.parametrize("text", HOSTILE)
def test_unsupported_expression_is_refused(text):
    with pytest.raises(UsageError) as refused:
        evaluate(text, ARRAYS)
    assert "\n" not in str(refused.value)


@few_examples(50)
@given(st.text(alphabet="xyn0123.()[]+-*/@,:<>= _'abcdefT", max_size=30))
def test_any_text_is_evaluated_or_refused(text):
    try:
        assert isinstance(evaluate(text, ARRAYS), np.ndarray)
    except UsageError as error:
        assert str(error)  # noqa: PT017 - a value is as good an answer
