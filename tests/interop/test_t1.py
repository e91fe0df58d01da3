"""Test reading kernels from files in the T1 format of auto-tuners, and one-line errors for invalid files."""

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernrec.compile import compile_source
from kernrec.errors import UsageError
from kernrec.gpu import limits
from kernrec.interop.t1 import load_t1
from kernrec.kernel import Kernel, Space, bind_launches
from kernrec.profile.emulated_launch import kernel_launch
from kernrec.profile.launch_profile import ProfileTarget
from kernrec.profile.sample_profile import profile_by_sampling
from kernrec.profile.tensor_values import Tensors, sample_tensors
from kernrec.ptx import parse
from kernrec.ptx.analysis.lowering import lowered
from kernrec.ptx.execution.emulator import Emulation
from kernrec.ptx.execution.watched import EmulationOptions
from tests.helpers.paths import ROOT, beside

SOURCE = """
__constant__ float weights[8];
__global__ void scale(float *y, const float *x, float a, int n) { y[threadIdx.x] = WPT * a * x[0] * weights[0]; }
"""
T1: dict[str, Any] = json.loads(beside(__file__, "t1.json"))


@pytest.fixture
def load(tmp_path):
    def make(change: Callable[[dict[str, Any]], object] | None = None, source: str = SOURCE) -> Any:
        data = copy.deepcopy(T1)
        if change:
            change(data)
        (tmp_path / "scale.cu").write_text(source)
        (tmp_path / "scale.json").write_text(json.dumps(data))
        return load_t1(tmp_path / "scale.json")

    return make


def test_tuning_problem_file_is_read_with_all_its_fields(load):
    kernel, left_out = load()
    problem = kernel.definition.problem()
    assert kernel.name == "scale_it"
    assert {t.macro: t.values for t in kernel.tunables} == {"block_size_x": (64, 128, 256), "WPT": (1, 2)}
    assert len(Space(kernel, 86, limits(86), "f32", "any")) == 5
    assert kernel.defines({"block_size_x": 64, "wpt": 2}, "f32", "any").items() >= {"WPT": "2", "SCALE": "3"}.items()
    assert left_out == ["compiler option '--use_fast_math' was ignored"]
    (launch,) = bind_launches(kernel, {"block_size_x": 64, "wpt": 2}, problem, 86)
    assert (launch.grid, launch.block, launch.shared_bytes) == ((8, 1, 1), (64, 1, 1), 64 + 64 * 8)
    assert [getattr(a, "name", None) or a.value for a in launch.arguments] == ["y", "x", 1e-9, 1000]
    assert {name: (t.shape, t.role) for name, t in problem.tensors.items()} == {
        "y": ((1000,), "output"),
        "x": ((4000,), "input"),
        "weights": ((8,), "input"),
    }
    assert kernel.constants == {"weights": "weights"}
    assert kernel.initial_values["x"].numbers == (0.0, 2.5)


def test_grid_is_the_global_size_in_a_file_without_problem_size(load):
    def change(data: dict[str, Any]) -> None:
        spec = data["KernelSpecification"]
        del spec["ProblemSize"], spec["GridDivX"], spec["Arguments"][4:]
        spec["Arguments"][0]["Size"] = 8
        spec["GlobalSize"] = {"X": "math.ceil(1000 / WPT)"}

    config = {"block_size_x": 64, "wpt": 2}
    for kind, blocks in (("OpenCL", 8), ("CUDA", 500)):
        kernel, _ = load(lambda d, kind=kind: (change(d), d["KernelSpecification"].update(GlobalSizeType=kind)))
        assert bind_launches(kernel, config, kernel.definition.problem(), 86)[0].grid == (blocks, 1, 1)


def test_types_with_a_bit_width_are_accepted(load):
    def change(data: dict[str, Any]) -> None:
        arguments = data["KernelSpecification"]["Arguments"]
        for argument, kind in zip(arguments[:2], ("uint8", "int16"), strict=True):
            argument["Type"] = kind
        arguments[3] |= {"Type": "int8", "FillValue": -3}
        arguments.append({"Name": "four", "Type": "int4", "Size": 5})

    kernel, _ = load(change)
    tensors = kernel.definition.problem().tensors
    assert {name: (t.shape, t.dtype) for name, t in tensors.items() if name != "weights"} == {
        "y": ((1000,), "u8"),
        "x": ((1000,), "i16"),
        "four": ((20,), "i32"),
    }
    assert [argument.ctype for argument in kernel.launches[0].arguments if hasattr(argument, "ctype")] == ["f32", "i8"]


def test_tuning_problem_file_without_arguments_is_refused(load, refuses):
    def change(data: dict[str, Any]) -> None:
        del data["KernelSpecification"]["Arguments"]

    refuses(lambda: load(change))
    refuses(lambda: load(change, "__global__ void scale() { int x = WPT; }"))


def keys(*path: Any, to: Any = None) -> Callable[[dict[str, Any]], None]:
    def change(data: Any) -> None:
        for key in path[:-1]:
            data = data[key]
        if to is None:
            del data[path[-1]]
        else:
            data[path[-1]] = to

    return change


SPEC, SPACE = "KernelSpecification", "ConfigurationSpace"


def test_invalid_tuning_problem_file_is_refused_in_one_line(load, refuses):
    refuses(load, [
        keys(SPACE), keys(SPEC, "Language", to="OpenCL"), keys(SPEC, "KernelName", to="scael"),
        keys(SPEC, "KernelFile", to="other.cu"), keys(SPACE, "TuningParameters", 0, "Values", to="[64, 'x']"),
        keys(SPACE, "TuningParameters", 0, "Values", to="[]"),
        keys(SPACE, "TuningParameters", 0, "Values", to="__import__('os')"),
        keys(SPACE, "Conditions", 0, "Expression", to="block_size_z > 1"),
        keys(SPEC, "Arguments", 0, "Type", to="flaot"), keys(SPEC, "Arguments", 0, "MemoryType", to="Texture"),
        keys(SPEC, "Arguments", 0, "FillValue", to=True), keys(SPEC, "Arguments", 0, "Size", to="block_size_x"),
        keys(SPEC, "Arguments", 4, "Name", to="coefficients"), keys(SPEC, "Arguments", 1, "FillType", to="BinaryHDF"),
        keys(SPEC, "LocalSize"), keys(SPEC, "ProblemSize", to=[-1]), keys(SPEC, "Arguments", to={}),
    ])  # fmt: skip


@pytest.mark.parametrize("divisors", [5, "block_size_x", {"X": 1}])
def test_grid_divisors_that_are_not_a_list_give_a_one_line_error(load, divisors):
    with pytest.raises(UsageError, match="GridDivX: expected a list, got"):
        load(lambda data: data["KernelSpecification"].update(GridDivX=divisors))
    with pytest.raises(UsageError, match="GridDivX: expected a list, got"):  # only GlobalSize sets the grid
        load(lambda data: data["KernelSpecification"].update(GridDivX=divisors, ProblemSize=[], Arguments=[]))


FOLDER = ROOT / "datasets" / "kernels"
SM = 86
SMALLER = {
    "stencil2d": {"4096, 4096": "150, 70", 'Scalar", "FillValue": 4096': 'Scalar", "FillValue": SIZE'},
    "filter2d": {"4096": "100"},
    "dedisperse": {"16384": "1536", "17408": "2560", "512": "36"},
}


def smaller(name: str, folder: Path) -> Kernel:
    """Return a kernel whose problem is small enough to emulate the whole grid."""
    text = (FOLDER / f"{name}.json").read_text()
    for old, new in SMALLER[name].items():
        assert old in text
        text = text.replace(old, new)
    text = text.replace("SIZE", "150", 1).replace("SIZE", "70", 1)
    path = folder / f"{name}.json"
    path.write_text(text)
    return load_t1(path, FOLDER / f"{name}.cu")[0]


@pytest.mark.parametrize(("name", "apart"), [("stencil2d", 0.0), ("filter2d", 0.0), ("dedisperse", 0.02)])
def test_sampled_blocks_give_the_counts_of_the_whole_grid(name, apart, tmp_path):
    """Counts must match exactly, or within `apart` if the kernel reads addresses from a table."""
    kernel = smaller(name, tmp_path)
    problem = kernel.definition.problem()
    space = Space(kernel, SM, limits(SM), "f32", "any")
    small = [
        config
        for config in map(space.config, random.Random(name).sample(list(space.at(problem).rows), 60))
        if config["tile_size_x"] * config["tile_size_y"] <= 2 and config.get("unroll_rows", 0) < 17
    ]
    tensors = sample_tensors(kernel, problem)
    for config in small[:2]:
        compiled = compile_source(kernel.source, SM, kernel.defines(config, "f32", "any"), kernel.source_name)
        (launch,) = profile_by_sampling(kernel, config, ProfileTarget(problem, SM), compiled, Tensors(kernel, problem))
        (bound,) = bind_launches(kernel, config, problem, SM)
        module = parse(compiled.ptx)
        constants = {symbol: tensors[t] for t, symbol in kernel.constants.items() if symbol in module.variables}
        options = EmulationOptions(bound.blocks, lowering=lowered)
        whole = Emulation(module, kernel_launch(bound, dict(tensors), constants), options).run(range(bound.blocks))
        estimate = dict(zip(launch.profile.metrics, launch.profile.coefficients[:, 0] * bound.blocks, strict=True))
        for metric, count in whole.items():
            if metric.startswith("issue") or metric == "barriers" or metric.endswith("_requests"):
                assert estimate[metric] == pytest.approx(count, rel=apart or 1e-9), (config, metric)
            elif metric.startswith("global."):
                assert estimate[metric] == pytest.approx(count, rel=0.05), (config, metric)
