"""A device that fails on demand, for recovery tests with real crashes, hangs and exhausted memory. A config's tunable
`fault` is the index of its failure in `FAULTS`. A config with index 0 or without the tunable runs."""

import ctypes
import os
import signal
import time
from dataclasses import replace

import numpy as np

from kernrec.measure.device.interface import ConfigUnderTest, DeviceInfo, MeasurementFailure, OutputError
from kernrec.measure.device.simulated import SimulatedGpu, SimulatedKernel, constant_time
from kernrec.store.measurement import GpuSettings, Outcome

OPENING = {"device": "tests.helpers.fault_injection:faulty_gpu"}
"""Request with which a worker opens the device."""
FAULTS = (
    "none", "segfault", "abort", "hang", "memory", "raise", "incorrect", "unwritten", "lost", "deaf", "slow", "limit",
)  # fmt: skip
_MEMORY_BYTES = 2 << 30


def faulty_gpu(gpu: str = "h200-sxm", launch_s: float = 1e-4) -> SimulatedGpu:
    """Return a simulated GPU with constant run times that differ slightly per config, and with the configs' faults."""
    info = DeviceInfo(
        gpu=gpu, name="faulty test device", sm=90, l2_bytes=50 << 20, memory_bytes=1 << 30, generation="hopper",
        energy="the test device has no sensors", virtual=True,
    )  # fmt: skip

    def kernel_of(subject: ConfigUnderTest) -> SimulatedKernel:
        fault = FAULTS[subject.config.get("fault", 0)]
        seconds = launch_s * (1.0 + sum(subject.config.values()) % 97 / 97.0)
        errors = OutputError(0.0, 0, tolerance=1e-5, reference="nothing: this is a test")
        if fault == "segfault":
            ctypes.string_at(0)
        elif fault == "abort":
            os.abort()
        elif fault == "hang":
            time.sleep(3600.0)
        elif fault == "deaf":  # ignores SIGTERM, so that only SIGKILL ends the hang
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while True:
                time.sleep(0.01)
        elif fault == "memory":
            import resource  # POSIX only: a limit protects the machine's memory

            resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
            np.ones(4 * _MEMORY_BYTES, dtype=np.uint8)
        elif fault == "raise":
            raise RuntimeError("invalid argument")
        elif fault == "lost":
            raise MeasurementFailure(Outcome.CRASH, "an illegal memory access was encountered", lost=True)
        elif fault == "slow":  # the GPU becomes permanently slower
            device._references = {"compute": constant_time(2.1e-4), "memory": constant_time(3e-4)}
        elif fault == "limit":  # another user changes the power limit
            device.info = replace(info, settings=GpuSettings(power_limit_w=400.0))
        elif fault == "incorrect":
            errors = replace(errors, largest=0.5)
        elif fault == "unwritten":
            errors = replace(errors, unwritten=7)
        return SimulatedKernel(lambda n: np.full(n, seconds), 300.0, errors)

    device = SimulatedGpu(info, kernel_of)
    return device
