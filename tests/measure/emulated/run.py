"""Measure the cases read as JSON on the emulated CUDA driver and print JSON; the parent process compiles."""

import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

from cupy.cuda import Clock
from cupy.cuda.function import PTX
from no_sensors import MissingSensors

import kernrec.measure.device.cuda as cuda
from kernrec.kernel import find_kernel
from kernrec.measure.device.interface import ConfigUnderTest, MeasurementFailure, PreparedProblem
from kernrec.measure.protocol.measure_config import Probe, measure_config
from kernrec.op import problem_from_key
from kernrec.ptx import parse
from kernrec.store.measurement import Tier

inputs = json.load(sys.stdin)


def compiled(source, sm, defines=None, name="kernel.cu"):
    key = json.dumps([name, dict(sorted((defines or {}).items()))])
    if key in inputs["ptx"]:
        PTX[key.encode()] = inputs["ptx"][key]
    entries = parse(PTX[key.encode()]).entries if key in inputs["ptx"] else {}
    return SimpleNamespace(cubin=key.encode(), ptx=inputs["ptx"].get(key, ""), resources=dict.fromkeys(entries))


cuda.compile_source = compiled
cuda.compile_job = lambda job, cache: compiled(job.source, job.sm, job.defines, job.name)
cuda.time = Clock
cuda.sensors = lambda uuid: MissingSensors("NVIDIA H200", "emulated")
device = cuda.CudaDevice("GPU-emulated", Path(tempfile.mkdtemp()))
answers = []
for case in inputs["cases"]:
    problem = problem_from_key(case["problem"])
    device.prepare(PreparedProblem(problem))
    if case["spoiled"]:
        device._buffers.expect({name: array * 1.02 for name, array in device._buffers._expected.items()})
    subject = ConfigUnderTest(case["kernel"], case["config"], problem, find_kernel(case["kernel"]))
    try:
        report = measure_config(device, subject, Tier.SCREEN, None, Probe())
        answers.append(report.as_json() | {"copies": len(device._buffers.sets)})
    except MeasurementFailure as failure:
        answers.append({"failure": failure.outcome, "error": str(failure)})
loaded = device.references()["memory"]
loaded.submit(3)
loaded.mark()
loaded.submit(300)
loaded.mark()
json.dump({"rows": answers, "facts": device.info.as_dict(), "outstanding": loaded.outstanding()}, sys.stdout)
