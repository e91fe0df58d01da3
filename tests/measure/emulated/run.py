"""Measure the cases read as JSON on the emulated CUDA driver and print JSON. The parent process compiles."""

import json
import sys
import tempfile
from pathlib import Path

from device import use_emulated_device

from kernrec.kernel import find_kernel
from kernrec.measure.device.cuda import CudaDevice
from kernrec.measure.device.interface import ConfigUnderTest, MeasurementFailure, PreparedProblem
from kernrec.measure.protocol.measure_config import Probe, measure_config
from kernrec.op import problem_from_key
from kernrec.store.measurement import Tier

inputs = json.load(sys.stdin)
use_emulated_device(inputs["ptx"])
device = CudaDevice("GPU-emulated", Path(tempfile.mkdtemp()))
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
