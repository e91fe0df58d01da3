"""Run `kernrec` on a machine with an emulated H200. `EMULATED_PTX` names the file of PTX that `compile_all` writes."""

import json
import os
import sys
from pathlib import Path

import pytest

from kernrec.compile import compile_source
from kernrec.gpu import find_gpu
from kernrec.kernel import Kernel, Space
from kernrec.measure.device.nvml import LocalGpu
from kernrec.op import Problem
from kernrec.profile.kernel_code import compile_job_for
from tests.helpers.paths import ROOT

EMULATED = ROOT / "tests" / "measure" / "emulated"
GPU = find_gpu("h200-sxm")


def compile_all(kernel: Kernel, problem: Problem, path: Path) -> None:
    """Write a JSON file that maps each compile request of the measuring process to its PTX."""
    space = Space(kernel, GPU.sm, GPU.limits, problem.dtype, problem.layout)
    code = {}
    for row in space.at(problem).rows.tolist():
        job = compile_job_for(kernel, space.config(row), problem, GPU.sm)
        key = json.dumps([job.name, dict(sorted(job.defines.items()))])
        if key not in code:
            code[key] = compile_source(job.source, job.sm, job.defines, job.name).ptx
    path.write_text(json.dumps(code))


def install(patch: pytest.MonkeyPatch, code: Path) -> None:
    """Make this process find an H200 whose kernels run in the emulator."""
    path = os.pathsep.join([str(EMULATED), str(EMULATED.parents[2])])
    script = code.with_name("python")
    script.write_text(
        f"#!/bin/sh\nPYTHONPATH='{path}' EMULATED_PTX='{code}' exec '{sys.executable}' '{EMULATED / 'worker.py'}'\n"
    )
    script.chmod(0o755)
    patch.setattr("kernrec.measure.worker.worker_client.module_command", lambda *_: [str(script)])
    patch.setattr("kernrec.measure.device.nvml.local_gpus", lambda: [LocalGpu(0, "GPU-emulated", "NVIDIA H200", 0)])


if __name__ == "__main__":
    from kernrec.cli import app

    with pytest.MonkeyPatch.context() as patch:
        install(patch, Path(os.environ["EMULATED_PTX"]))
        sys.exit(app.run(sys.argv[1:]))
