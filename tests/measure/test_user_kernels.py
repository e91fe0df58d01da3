"""Test `kernrec analyze --measure` on user kernels. The driver executes PTX in the emulator and reports made-up times.
With `-m gpu`, the same tests also run on a real GPU."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kernrec.cli import app
from kernrec.compile import NoCompilerError
from kernrec.errors import KernrecError
from kernrec.gpu import GPU, all_gpus, find_gpu
from kernrec.interop.t1 import load_spec
from kernrec.kernel import Kernel
from kernrec.measure.campaign.journal import waiting_measurements
from kernrec.measure.device.nvml import LocalGpu, NoGPUError, local_gpus
from kernrec.op import parse_shape
from kernrec.profile.ptx_kernel import kernel_of_ptx
from kernrec.store import Database
from kernrec.training.load_measurements import MeasurementRequest, load_measurements
from tests.helpers.machine import GPU as H200
from tests.helpers.machine import compile_all, install
from tests.helpers.paths import ROOT, beside
from tests.helpers.ptx_text import elementwise

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("compiled_here")]

SOURCE = beside(__file__, "user_kernels.cu")
OF_AN_OP = beside(__file__, "of_an_op.toml")
DECLARED = OF_AN_OP.replace('op = "reduce"\ndtypes = ["f32"]\nlayouts = ["row"]\n', "").replace(
    "tunables", 'problem = { dims = { rows = 8, columns = 256 }, tensors = { x = { shape = ["rows", "columns"] },'
    ' y = { shape = ["rows"], role = "output" } } }\ntunables',
)  # fmt: skip

ADD_WEIGHTED = beside(__file__, "add_weighted.cu")
T1: dict[str, Any] = json.loads(beside(__file__, "t1.json"))
DOUBLE_PTX = elementwise("mine", "add.f32 %f2, %f1, %f1")
PTX_ARGUMENTS = ["x=f32[500]", "y=f32[500]", "i32:500"]


class Bench:
    """Folder with a kernel, on a machine with a real or emulated GPU."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], gpu: GPU, emulated: bool) -> None:
        self.folder, self.gpu, self._capsys, self._emulated = folder, gpu, capsys, emulated
        self.database, self.code = folder / "own.duckdb", folder / "code.json"
        self._command: list[str] = []

    def spec(self, text: str, source: str = SOURCE, shape: str = "") -> Kernel:
        path = self.folder / ("mine.json" if text.lstrip().startswith("{") else "mine.toml")
        path.write_text(text)
        (self.folder / "mine.cu").write_text(source)
        kernel, _ = load_spec(path, self.folder / "mine.cu")
        self._command = [str(self.folder / "mine.cu"), "--spec", str(path), *(["--shape", shape] if shape else [])]
        self._compile(kernel, shape)
        return kernel

    def ptx(self, text: str) -> Kernel:
        """Write a kernel that consists only of PTX, for 500 elements."""
        (self.folder / "mine.ptx").write_text(text)
        kernel, _ = kernel_of_ptx(self.folder / "mine.ptx", None, [4], [128], PTX_ARGUMENTS)
        self._command = [str(self.folder / "mine.ptx"), *PTX_ARGUMENTS, "--grid", "4", "--block", "128"]
        self._compile(kernel, "")
        return kernel

    def _compile(self, kernel: Kernel, shape: str) -> None:
        if not self._emulated:
            return
        problem = kernel.definition.problem(kernel.dtypes[0], **parse_shape(shape) if shape else {})
        try:
            compile_all(kernel, problem, self.code)
        except NoCompilerError as error:
            pytest.skip(str(error))

    @property
    def command(self) -> list[str]:
        return [
            "analyze", *self._command, "--gpu", self.gpu.name, "--objective", "latency", "--top", "20",
            "--db", str(self.database), "--measure", "--effort", "quick",
        ]  # fmt: skip

    def run(self, *command: str) -> tuple[int, str, str]:
        self._capsys.readouterr()
        return app.run(list(command)), *self._capsys.readouterr()

    def measure(self) -> tuple[dict[str, Any], str]:
        status, out, err = self.run(*self.command, "--json")
        assert status == 0, err
        return json.loads(out), err

    def recommend(self, gpu: str, *more: str) -> dict[str, Any]:
        status, out, err = self.run("recommend", "--kernel", "mine", "--gpu", gpu, *more, "--db", str(self.database),
                                    "--objective", "latency", "--top", "20", "--json")  # fmt: skip
        assert status == 0, err
        return json.loads(out)

    def rows(self) -> list[dict[str, Any]]:
        with Database.open(self.database) as database:
            configs = {row["config_id"]: json.loads(str(row["tunables"])) for row in database.rows("config")}
            return [row | {"config": configs[row["config_id"]]} for row in database.rows("measurement")]


@pytest.fixture
def bench(tmp_path, capsys, monkeypatch):
    bench = Bench(tmp_path, capsys, H200, emulated=True)
    install(monkeypatch, bench.code)
    return bench


@pytest.fixture(params=["emulated", pytest.param("card", marks=pytest.mark.gpu)])
def any_bench(request, tmp_path, capsys):
    if request.param == "emulated":
        return request.getfixturevalue("bench")
    try:
        card = local_gpus()[0]
    except KernrecError as error:
        pytest.skip(str(error))
    return Bench(tmp_path, capsys, find_gpu(card.name), emulated=False)


def measured(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        recommendation["config"]
        for recommendation in answer["recommendations"]
        if recommendation["source"] == "measured"
    ]


def test_kernel_for_a_known_op_is_measured_stored_and_shown_as_measured(bench):
    bad = SOURCE.replace("int columns)", "int columns\n#if UNROLL == 2\n, int more\n#endif\n)")
    bad = bad.replace(
        "if (threadIdx.x == 0)", "if (UNROLL == 8) ((float *) x)[threadIdx.x] = 1.0f;\n    if (threadIdx.x == 0)"
    )
    kernel = bench.spec(OF_AN_OP.replace("[1, 4, 8]", "[1, 2, 4, 8]"), bad, shape="rows=8,columns=256")
    answer, errors = bench.measure()
    assert sorted(config["unroll"] for config in measured(answer)) == [1, 4]
    assert {c["energy_source"] for c in answer["recommendations"] if c["source"] == "measured"} == {"predicted"}
    assert "1 incorrect, such as: " in errors
    rows = {row["config"]["unroll"]: row for row in bench.rows()}
    assert {unroll: row["outcome"] for unroll, row in rows.items()} == {
        1: "ok", 2: "constraint", 4: "ok", 8: "incorrect",
    }  # fmt: skip
    assert rows[2]["error"] == "rowsum takes arguments of 8, 8, 4, 4 bytes; given: 8, 8, 4"
    assert {row["kernel_hash"] for row in rows.values()} == {kernel.hash}
    assert {rows[i]["checked_against"] for i in (1, 4, 8)} == {"reference of the op in float64"}
    assert all(0 < rows[i]["numeric_error"] <= rows[i]["tolerance"] for i in (1, 4))
    recommended = bench.recommend("h200-sxm", "--shape", "rows=8,columns=256")
    assert sorted(config["unroll"] for config in measured(recommended)) == [1, 4]


@pytest.mark.every(3)
def test_results_without_a_reference_are_compared_with_the_first_config(any_bench):
    bench = any_bench
    bench.spec(DECLARED)
    answer, errors = bench.measure()
    assert "the spec has no reference: results are compared with the output of unroll=1" in errors
    assert sorted(config["unroll"] for config in measured(answer)) == [1, 4]
    outcomes = {row["config"]["unroll"]: row for row in bench.rows()}
    assert {unroll: row["outcome"] for unroll, row in outcomes.items()} == {1: "ok", 4: "ok", 8: "incorrect"}
    assert {row["checked_against"] for row in outcomes.values()} == {"output of unroll=1"}
    assert outcomes[1]["numeric_error"] == 0.0
    assert outcomes[8]["numeric_error"] > 0.5 > 1e-4 > outcomes[8]["tolerance"]
    assert outcomes[1]["input_distribution"] == "x normal, y zeros"
    assert "0 measured, 3 already known" in bench.measure()[1]
    (group,) = load_measurements(MeasurementRequest((bench.database,))).groups
    assert (len(group.latency_s), group.gpu, group.kernel) == (2, bench.gpu.name, "mine")
    assert group.inputs.tunables["unroll"].tolist() == [1, 4]

    here = bench.recommend(bench.gpu.name)
    assert sorted(config["unroll"] for config in measured(here)) == [1, 4]
    assert {find_gpu(c["device"]) for c in here["recommendations"] if c["source"] == "measured"} == {bench.gpu}
    elsewhere = bench.recommend(next(g.name for g in all_gpus() if g.sm == bench.gpu.sm and g != bench.gpu))
    assert measured(elsewhere) == []
    assert {recommendation["source"] for recommendation in elsewhere["recommendations"]} == {"predicted"}
    assert elsewhere["candidates"] == 3


def test_t1_kernel_is_measured_with_its_constants_and_accumulators(any_bench):
    """Each launch adds to the result of the previous launch. The check must use the result of the first launch."""
    bench = any_bench
    bench.spec(json.dumps(T1), ADD_WEIGHTED)
    answer, _ = bench.measure()
    rows = bench.rows()
    assert Counter(str(row["outcome"]) for row in rows) == {"ok": 4, "incorrect": 2}
    assert {row["config"]["shift"] for row in rows if row["outcome"] == "incorrect"} == {1}
    assert len(measured(answer)) == 4
    assert {row["checked_against"] for row in rows} == {"output of block_size_x=64 wpt=1 shift=0"}
    assert "sums as earlier launches left it" in rows[0]["input_distribution"]
    assert "renewed" not in "".join(str(row["l2_policy"]) for row in rows)


@pytest.mark.every(3)
def test_ptx_is_measured_and_block_sizes_with_wrong_results_are_found(any_bench):
    bench = any_bench
    kernel = bench.ptx(DOUBLE_PTX)
    answer, _ = bench.measure()
    rows = bench.rows()
    assert {row["outcome"] for row in rows} == {"ok"}
    assert len(measured(answer)) == len(rows) == len(kernel.tunables[0].values) - 2  # 8 and 16 are below a warp
    assert {row["checked_against"] for row in rows} == {"output of block_x=128 block_y=1"}
    assert measured(bench.recommend(bench.gpu.name)) == measured(answer)

    bench.ptx(DOUBLE_PTX.replace("mad.lo.s32 %r4, %r1, %r2, %r3", "mad.lo.s32 %r4, %r1, 128, %r3"))
    bench.database.unlink()
    bench.measure()
    right = {row["config"]["block_x"] for row in bench.rows() if row["outcome"] == "ok"}
    assert right == {128, 384, 512, 768, 1024}  # the other block sizes skip elements


@pytest.mark.deep
def test_killed_analysis_loses_nothing_and_resumes(bench):
    bench.spec(json.dumps(T1), ADD_WEIGHTED)
    bench.run(*[item for item in bench.command if item not in ("--measure", "--effort", "quick")])  # compute profiles
    start = [sys.executable, "-m", "tests.helpers.machine", *bench.command]
    environment = os.environ | {"EMULATED_PTX": str(bench.code), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(start, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        while process.poll() is None and waiting_measurements(bench.database).measurements < 2:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    acknowledged = waiting_measurements(bench.database).measurements
    assert 2 <= acknowledged < 6
    bench.measure()
    rows = bench.rows()
    assert len({str(row["config_id"]) for row in rows}) == 6
    assert min(Counter(row["session"] for row in rows).values()) >= min(acknowledged, 1)
    assert len({row["session"] for row in rows}) == 2  # the killed session's measurements are kept


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("y[blockIdx.x] =", "if (blockIdx.x > 99) y[blockIdx.x] =", "every element of y is NaN or was not written"),
        ('"i32 columns"]', '"i32 columns", "i32 rows"]', "takes 3 arguments, not 4"),
    ],
)
def test_unusable_first_config_is_a_one_line_error(bench, old, new, says):
    bench.spec(DECLARED.replace(old, new), SOURCE.replace(old, new))
    status, _, err = bench.run(*bench.command)
    assert status != 0
    assert says in err


@pytest.mark.parametrize("text", [OF_AN_OP, DECLARED])
def test_missing_gpu_is_reported_before_any_work(bench, monkeypatch, text):
    bench.spec(text, shape="rows=8,columns=256")

    def none() -> list[LocalGpu]:
        raise NoGPUError("no driver answers")

    for card, says in (
        (lambda: [LocalGpu(0, "GPU-emulated", "Tesla T4", 0)], "there is no NVIDIA H200 in this machine to measure"),
        (none, "there is no GPU to measure on: no driver answers; predictions need no GPU"),
    ):
        monkeypatch.setattr("kernrec.measure.device.nvml.local_gpus", card)
        status, _, err = bench.run(*bench.command)
        assert status == 1
        (line,) = err.splitlines()
        assert says in line
        assert not bench.database.exists()
