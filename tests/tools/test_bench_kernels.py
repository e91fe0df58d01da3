"""The bench of the kernels, up to the card: an emulator stands in for it where there is none."""

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import baselines
import bench_kernels
import numpy as np
import profilers
import pytest
from on_gpu import Card

from kernrec.compile import Compiled, NoCompilerError
from kernrec.compile.nvrtc import compiler
from kernrec.errors import UsageError
from kernrec.kernel import all_kernels, find_kernel
from kernrec.op import encode_elements, find_op, inputs, reference
from kernrec.ptx import KernelLaunch, emulate, parse
from tests.helpers.paths import TOOLS

H200 = Card("NVIDIA H200", 90, 50 << 20)


class Array(np.ndarray):
    """A NumPy array with CuPy's way of getting it to the host."""

    def get(self) -> np.ndarray:
        return np.asarray(self)


class EmulatedCode:
    """Stands in for `on_gpu.Code`: entries that are called as CuPy's are, and run on the CPU."""

    def __init__(self, compiled: Compiled) -> None:
        module = parse(compiled.ptx)
        self.entries = {entry: _Entry(module, entry) for entry in compiled.resources}


class _Entry:
    def __init__(self, module, name: str) -> None:
        self.module, self.name = module, name

    def __call__(self, grid, block, given, *, shared_mem: int) -> None:
        buffers = {f"b{i}": np.asarray(a) for i, a in enumerate(given) if isinstance(a, Array)}
        order = [f"b{i}" if isinstance(a, Array) else a for i, a in enumerate(given)]
        emulate(self.module, KernelLaunch(self.name, grid, block, order, buffers, shared_bytes=shared_mem), count=False)


class StandInTimer:
    """Runs the work, and calls it a millisecond."""

    def __init__(self, card: Card) -> None:
        self.timed = 0

    def seconds(self, work) -> float:
        work()
        self.timed += 1
        return 1e-3

    def copy_bandwidth(self) -> float:
        return 1e9


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> bench_kernels.Bench:
    try:
        compiler()
    except NoCompilerError as error:
        pytest.skip(str(error))
    cupy = ModuleType("cupy")
    cupy.__dict__.update(
        asarray=lambda a: np.ascontiguousarray(a).view(Array),
        full=lambda size, value, dtype: np.full(size, value, dtype).view(Array),
        uint8=np.uint8,
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(bench_kernels, "Code", EmulatedCode)
    monkeypatch.setattr(bench_kernels, "Timer", StandInTimer)
    monkeypatch.setattr(bench_kernels, "RECOMMENDED", 2)
    monkeypatch.setattr(bench_kernels, "AT_RANDOM", 1)
    return made(tmp_path)


def made(folder: Path, minutes: float = 10) -> bench_kernels.Bench:
    results = bench_kernels.Results(folder / "results.json", H200)
    return bench_kernels.Bench(H200, results, time.monotonic() + 60 * minutes, sample=3)


def test_without_a_gpu_it_says_so_in_one_line() -> None:
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(TOOLS.parent)}
    command = [sys.executable, str(TOOLS / "bench_kernels.py"), "--op", "matmul"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith("bench_kernels: no GPU can be used: ")
    assert "not verified" in done.stderr


def test_every_op_with_a_kernel_is_timed_and_checked() -> None:
    ops = {kernel.op for kernel in all_kernels()}
    assert ops <= {case.op for case in bench_kernels.CASES}
    assert ops <= bench_kernels.CHECKED.keys()


@pytest.mark.parametrize("case", bench_kernels.CASES, ids=lambda case: case.problem.key)
def test_a_case_has_forty_recommended_configs_and_ten_others(case, tmp_path: Path) -> None:
    kernels = [k for k in all_kernels() if k.op == case.op and case.dtype in k.dtypes and case.layout in k.layouts]
    kernels = [kernel for kernel in kernels if kernel.runs_on(case.dtype, H200.sm)]
    if not kernels:
        pytest.skip("no kernel of the library computes this")
    contenders = made(tmp_path)._contenders(case.problem, kernels)
    assert [rank for *_, rank in contenders] == [*range(len(contenders) - 10), *[None] * 10]
    assert len(contenders) > 10


@pytest.mark.parametrize("sm", [75, 90])
def test_a_tenth_of_every_space_is_checked(sm: int) -> None:
    for kernel, dtype, layout in bench_kernels.variants([kernel.op for kernel in all_kernels()], sm):
        configs = bench_kernels.sampled(kernel, dtype, layout, sm)
        assert len(configs) >= 4, (kernel.name, dtype, layout)
        assert configs == bench_kernels.sampled(kernel, dtype, layout, sm), "the same in every run"
        config, problem = bench_kernels.one_run(kernel, dtype, layout, sm)
        assert config == configs[0]
        assert problem.op == kernel.op


def test_configs_are_checked_once_and_the_broken_are_found(bench, tmp_path: Path, capsys) -> None:
    bench.only = "transpose_tiled,f16,row"
    bench.check(["transpose"])
    assert "3 of 3 configs, right" in capsys.readouterr().out
    assert not bench.wrong
    again = made(tmp_path)
    again.only = bench.only
    again._wrong = None  # nothing is left to be checked
    again.check(["transpose"])
    kernel = find_kernel("transpose_tiled")
    broken = dataclasses.replace(kernel, source=kernel.source.replace("column % 2 ? 0x7632 : 0x5410", "0x5410"))
    configs = [c for c in bench_kernels.sampled(kernel, "f16", "row", 90) if c["vector"] > 1][:1]
    (wrong,) = {text.partition(" on ")[0] for text in bench._wrong(broken, "f16", "row", configs)}
    assert wrong == str(configs[0])


def test_a_case_is_timed_once_and_the_best_is_held_against_its_yardstick(bench, monkeypatch, capsys, tmp_path) -> None:
    case = bench_kernels.Case("transpose", "f32", "row", {"rows": 65, "columns": 70}, 0.85)
    monkeypatch.setattr(bench_kernels, "CASES", (case,))
    bench.time(["transpose"])
    assert bench.timer.timed == 3
    (timing,) = [f for what, f in bench.results.findings["time"].items() if what != "copy"]
    assert timing["share"] == pytest.approx(case.problem.bytes / 1e-3 / 1e9)
    assert "MISSED" in capsys.readouterr().out
    again = made(tmp_path)
    again.time(["transpose"])
    assert again.timer.timed == 0
    assert json.loads((tmp_path / "results.json").read_text())["NVIDIA H200"]["time"]["copy"] == 1e9


def test_when_the_time_is_up_nothing_new_begins(bench, tmp_path: Path, capsys) -> None:
    late = made(tmp_path, minutes=0)
    late.check(["transpose"])
    assert "0 of 3 configs" in capsys.readouterr().out
    assert "check" not in late.results.findings


@pytest.mark.parametrize(("op", "dtype"), [("matmul", "f32"), ("matmul", "bf16"), ("softmax", "f16")])
def test_what_rounding_explains_is_right_and_the_rest_is_wrong(op: str, dtype: str) -> None:
    problem = find_op(op).problem(dtype, None, **bench_kernels.CHECKED[op][0])
    expected = reference(problem, inputs(problem))
    (name, right), *_ = expected.items()
    assert bench_kernels.difference(problem, {name: encode_elements(right, dtype)}, expected) is None
    for wrong in (np.nan, 0.0):
        changed = right.copy()
        changed.flat[np.abs(right).argmax()] = wrong
        assert "1 of" in bench_kernels.difference(problem, {name: encode_elements(changed, dtype)}, expected)


def test_a_file_that_holds_no_results_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text("not JSON")
    with pytest.raises(UsageError, match=r"results\.json is not a file of results"):
        bench_kernels.Results(path, H200)


def test_reports_of_the_profilers_are_read() -> None:
    report = (
        "==PROF== Connected to process 7\n"
        f'"ID","Process ID","Kernel Name","{profilers.METRIC}"\n'
        '"","","","inst"\n'
        '"0","7","matmul_simt","1,024"\n"1","7","matmul_simt_reduce(const float *)","8"\n"2","7","matmul_simt","2"\n'
    )
    assert profilers.executed(report) == {"matmul_simt": 1026, "matmul_simt_reduce": 8}
    assert profilers.verdict(0, "========= ERROR SUMMARY: 0 errors\n") == "clean (ERROR SUMMARY: 0 errors)"
    assert profilers.verdict(86, "========= ERROR SUMMARY: 3 errors\n") == "ERRORS (ERROR SUMMARY: 3 errors)"
    assert profilers.verdict(1, "Device not supported\n") == "not finished: exit status 1 (Device not supported)"
    assert profilers.verdict(None, "").startswith("not finished in")


def test_tools_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profilers, "shutil", SimpleNamespace(which=lambda name: None))
    assert "compute-sanitizer is not installed" in profilers.sanitized("memcheck", "matmul", 1)
    assert "not installed" in profilers.counted_on_card(find_kernel("matmul_simt"), "f32", "nn")


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines.importlib.util, "find_spec", lambda name: None)
    for case in bench_kernels.CASES:
        if case.op in ("conv2d", "attention"):
            works, missing = baselines.baseline(case.problem)
            assert works == {}
            assert missing == f"PyTorch is not installed: {case.op} in {case.dtype} is held against no library"
