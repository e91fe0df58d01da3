"""nvbench's JSON, as nvbench wrote it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernrec.errors import UsageError
from kernrec.interop.import_export import Recording, import_bound, import_results
from kernrec.interop.load_spec import load_spec
from kernrec.interop.read_results import read_results
from kernrec.interop.results import ReadOptions, StatedProblem
from kernrec.store import Database

SAMPLE = Path(__file__).with_name("samples") / "nvbench.json"
SPEC = """
name = "fill"
source = "fill.cu"
[problem]
dims = { n = 1048576 }
[problem.tensors]
y = { shape = ["n"], role = "output" }
[tunables]
blocksize = { values = [64, 128, 256, 512, 1024], define = "BX" }
numblocks = { values = [64, 256, 1024], define = "BPS" }
[[launch]]
entry = "fill"
grid = ["numblocks"]
block = ["blocksize"]
arguments = ["y", "i32 n"]
"""
SWEEP = ReadOptions(kernels=("copy_sweep_grid_shape",), gpu="Quadro GV100")

Write = Callable[..., Path]


def document(change: Callable[[dict[str, Any]], object] = lambda whole: None) -> dict[str, Any]:
    """The sample with the sweep alone, on one device, changed."""
    whole: dict[str, Any] = json.loads(SAMPLE.read_text(encoding="utf-8"))
    whole["benchmarks"] = whole["benchmarks"][:1]
    sweep = whole["benchmarks"][0]
    sweep["states"] = [state for state in sweep["states"] if state["device"] == 0]
    change(whole)
    return whole


def test_a_state_is_a_config_of_its_axes_and_skipped_ones_did_not_run() -> None:
    file = read_results(SAMPLE, SWEEP)
    assert (file.tool, file.device, file.kernel, len(file.results)) == (
        "nvbench", "Quadro GV100", "copy_sweep_grid_shape", 9
    )  # fmt: skip
    first = file.results[0]
    assert first.config == {"BlockSize": 64, "NumBlocks": 64}
    assert first.latency_s == pytest.approx(6.485689823444072e-3)
    other = read_results(SAMPLE, ReadOptions(kernels=("copy_type_conversion_sweep",)))
    assert (len(other.results), other.not_run, other.results[0].config["Out"]) == (3, 1, "I16")


def test_axes_named_like_dimensions_say_what_was_measured(write: Write) -> None:
    def rename(whole: dict[str, Any]) -> None:
        for state in whole["benchmarks"][0]["states"]:
            axis = state["axis_values"][1]
            axis.update(name="N", value=str(int(axis["value"]) << 14))
        whole["devices"][0]["name"] = "NVIDIA A100-SXM4-80GB"

    with Database.memory() as database:
        path = write(document(rename))
        done = import_results(database, path, StatedProblem("elementwise"))
        assert [(part.problem.dim["n"], part.results) for part in done.parts] == [
            (size << 14, 3) for size in (64, 256, 1024)
        ]
        assert {row["kernel"] for row in database.rows("measurement")} == {"copy_sweep_grid_shape"}
        some = import_results(database, path, StatedProblem("elementwise", (("n", 256 << 14),)))
        assert (some.results, some.added) == (3, 0)


def test_axes_named_like_tunables_bind_to_the_kernel_of_a_spec(write: Write, tmp_path: Path) -> None:
    source = 'extern "C" __global__ void fill(float *y, int n) { if (blockIdx.x * BX + threadIdx.x < n) y[0] = BPS; }'
    (tmp_path / "fill.cu").write_text(source)
    (tmp_path / "fill.toml").write_text(SPEC)
    own, _ = load_spec(tmp_path / "fill.toml", tmp_path / "fill.cu")
    path = write(document(lambda whole: whole["devices"][0].update(name="NVIDIA A100-SXM4-80GB")))
    with Database.memory() as database:
        done = import_bound(database, Recording(path), own, StatedProblem())
        assert (done.parts[0].kernel, done.results) == ("fill", 9)
        answers = database.measured("a100-sxm4-80gb", ["fill"], own.definition.problem().key)
        assert {"blocksize": 64, "numblocks": 64} in [answer.config for answer in answers]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda whole: whole["meta"]["version"]["json"].update(major=2), "it has schema 2 of nvbench's JSON"),
        (lambda whole: whole.pop("meta"), "it has schema None of nvbench's JSON"),
        (lambda whole: whole["benchmarks"].append({"name": "x"}), "several benchmarks (copy_sweep_grid_shape, x)"),
        (lambda whole: whole["benchmarks"][0].update(states=3), "states is not a list of objects"),
        (lambda whole: state(whole).update(summaries=None), "state 1: it lacks nv/cold/time/gpu/mean"),
        (lambda whole: state(whole).update(axis_values=None), "state 1: it has 0 tunables"),
        (lambda whole: state(whole)["axis_values"][0].update(value="9" * 5000), "is not a number of type int64"),
        (lambda whole: state(whole)["axis_values"][0].update(name="\x1b[2J"), "state 1: name of an axis is"),
        (lambda whole: state(whole).update(device=[]), ""),
    ],
)
def test_another_document_is_refused_in_one_line(
    write: Write, change: Callable[[dict[str, Any]], object], says: str
) -> None:
    path = write(document(change))
    if not says:
        assert len(read_results(path).results) == 8
        return
    with pytest.raises(UsageError) as caught:
        read_results(path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def state(whole: dict[str, Any]) -> dict[str, Any]:
    first: dict[str, Any] = whole["benchmarks"][0]["states"][0]
    return first


def test_one_of_several_devices_and_benchmarks_has_to_be_said() -> None:
    with pytest.raises(UsageError, match="results of several benchmarks"):
        read_results(SAMPLE)
    with pytest.raises(UsageError, match=r"several devices \(Quadro GV100, Quadro GP100\); say which one with --gpu"):
        read_results(SAMPLE, ReadOptions(kernels=("copy_sweep_grid_shape",)))
    with pytest.raises(UsageError, match="unknown benchmark 'copy_sweep_grid'"):
        read_results(SAMPLE, ReadOptions(kernels=("copy_sweep_grid",)))
