"""Test importing Nsight Compute's CSV, also as measurements of a given kernel."""

from pathlib import Path

import pytest

from kernrec.errors import UsageError
from kernrec.interop.import_results import import_results
from kernrec.interop.read_results import read_results
from kernrec.interop.results import ReadOptions, StatedProblem
from kernrec.interop.t1 import load_spec
from kernrec.kernel import Kernel
from kernrec.store import Database
from tests.helpers.paths import beside

SAMPLES = Path(__file__).with_name("samples")
METRICS = (SAMPLES / "ncu_metrics.csv").read_text(encoding="utf-8")
RAW = (SAMPLES / "ncu_raw.csv").read_text(encoding="utf-8")
SOURCE = """extern "C" __global__ void smooth(const float *x, float *y, int n) {
    int i = blockIdx.x * BX + threadIdx.x;
    if (i < n) y[i] = 0.5f * x[i];
}
"""


def kernel(folder: Path, taps: str = "") -> Kernel:
    (folder / "smooth.cu").write_text(SOURCE)
    (folder / "smooth.toml").write_text(beside(__file__, "nsight_compute.toml").replace("TAPS", taps))
    return load_spec(folder / "smooth.toml", folder / "smooth.cu")[0]


def test_equal_launches_are_repetitions_of_one_config():
    file = read_results(SAMPLES / "ncu_metrics.csv", ReadOptions(kernels=("smooth",)))
    assert (file.tool, file.device, file.kernel) == ("Nsight Compute", "NVIDIA GeForce RTX 4090", "smooth")
    assert [result.config for result in file.results] == [{"block_x": 128}, {"block_x": 512}]
    assert file.results[0].samples_s == pytest.approx((161.25e-6, 160.83e-6))
    assert file.results[0].latency_s == pytest.approx(161.04e-6)
    assert file.results[1].latency_s == pytest.approx(1162.4e-6)
    raw = read_results(SAMPLES / "ncu_raw.csv")
    assert [(r.config["block_x"], r.latency_s, r.registers, r.smem_bytes, r.sm_clock_hz) for r in raw.results] == [
        (64, pytest.approx(171.264e-6), 10, 0, 2.52e9), (128, pytest.approx(162.016e-6), 10, 0, 2.52e9)
    ]  # fmt: skip


def test_device_index_is_not_a_gpu_name(tmp_path, refuses):
    (path := tmp_path / "ncu.csv").write_text(METRICS.replace("NVIDIA GeForce RTX 4090", "0"))
    with Database.memory() as database:
        refuses(lambda: import_results(database, path, StatedProblem(), kernel="smooth"))


def test_stored_profile_contains_no_host_user_or_path():
    with Database.memory() as database:
        import_results(database, SAMPLES / "ncu_metrics.csv", StatedProblem("elementwise", (("n", 1 << 24),)),
                       kernel="smooth")  # fmt: skip
        text = str([*database.rows("measurement"), *database.rows("config"), *database.rows("kernel")])
    assert "NVIDIA GeForce RTX 4090" in text
    for secret in ("lab-42", "someone", "20798"):
        assert secret not in text


def test_rows_profiled_at_the_base_clock_store_this_clock():
    with Database.memory() as database:
        done = import_results(database, SAMPLES / "ncu_metrics.csv", StatedProblem("elementwise", (("n", 1 << 24),)),
                              kernel="smooth")  # fmt: skip
        assert any("held at the base clock, 2235 MHz" in note for note in done.notes)
        assert {row["locked_sm_clock_hz"] for row in database.rows("measurement")} == {2.235e9}
    with Database.memory() as database:
        done = import_results(database, SAMPLES / "ncu_raw.csv", StatedProblem("elementwise", (("n", 1 << 24),)))
        assert any("the SMs ran at 2520 MHz" in note for note in done.notes)
        assert {row["locked_sm_clock_hz"] for row in database.rows("measurement")} == {None}


def test_imported_launch_gets_its_config_from_the_spec(tmp_path):
    own = kernel(tmp_path)
    with Database.memory() as database:
        done = import_results(database, SAMPLES / "ncu_raw.csv", StatedProblem(), kernel=own)
        assert (done.kernels[0].kernel, done.results) == ("halved", 2)
        answers = database.measured("rtx4090", ["halved"], own.definition.problem().key)
        assert {answer.config["bx"]: answer.latency_s for answer in answers} == pytest.approx(
            {64: 171.264e-6, 128: 162.016e-6}
        )


def test_imported_launch_must_match_exactly_one_config(tmp_path):
    path = SAMPLES / "ncu_raw.csv"
    with Database.memory() as database:
        with pytest.raises(UsageError, match=r"2 configs of halved launch a grid of 262144x1x1 .* give taps one value"):
            import_results(database, path, StatedProblem(), kernel=kernel(tmp_path, "taps = { values = [1, 8] }"))
        with pytest.raises(UsageError, match="no config of halved launches a grid of 262144x1x1 blocks of 64x1x1"):
            import_results(database, path, StatedProblem(None, (("n", 1 << 20),)), kernel=kernel(tmp_path))


def test_incomplete_csv_is_refused_in_one_line(write, refuses):
    refuses(lambda text: read_results(write(text, "profile.csv")), [
        METRICS, RAW.replace('"nsecond"', '"furlong"'), RAW.replace("gpu__time_duration.sum", "other"),
        RAW.replace("(64, 1, 1)", "64"), RAW.replace('"171,264"', '"-5"'), RAW.replace('"171,264"', '"nan"'),
        "\n".join(RAW.splitlines()[::2]), RAW.replace("smooth(", "\x1b[2J("), RAW + '"2","3"\n', RAW.splitlines()[0],
    ])  # fmt: skip
