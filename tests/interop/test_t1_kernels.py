"""Test with the T1 kernels of datasets/kernels that a sample of blocks predicts the counts of the whole grid."""

import random
from pathlib import Path

import pytest

from kernrec.compile import NoCompilerError, compile_source
from kernrec.compile.nvrtc import compiler
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
from kernrec.ptx.execution.options import EmulationOptions
from tests.helpers.paths import ROOT

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


@pytest.fixture(autouse=True)
def nvrtc():
    try:
        compiler()
    except NoCompilerError as error:
        pytest.skip(str(error))


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
