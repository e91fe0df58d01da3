"""Measuring process on the emulated driver; a file holds the code that its parent compiled."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

from cupy.cuda import Clock
from cupy.cuda.function import PTX
from no_sensors import MissingSensors

import kernrec.measure.device.cuda as cuda
from kernrec.measure.worker.worker import main
from kernrec.ptx import parse

ptx_by_key = json.loads(Path(os.environ["EMULATED_PTX"]).read_text())


def compiled(source, sm, defines=None, name="kernel.cu"):
    key = json.dumps([name, dict(sorted((defines or {}).items()))])
    entries = ()
    if key in ptx_by_key:
        PTX[key.encode()] = ptx_by_key[key]
        entries = parse(ptx_by_key[key]).entries
    return SimpleNamespace(cubin=key.encode(), ptx=ptx_by_key.get(key, ""), resources=dict.fromkeys(entries))


cuda.compile_source = compiled
cuda.compile_job = lambda job, cache: compiled(job.source, job.sm, job.defines, job.name)
cuda.time = Clock
cuda.sensors = lambda uuid: MissingSensors("NVIDIA H200", "emulated")
main()
