"""A simulated GPU that runs every library config, for measuring plans without a GPU."""

import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np

from kernrec.gpu import find_gpu
from kernrec.measure import collect
from kernrec.measure.campaign.compile_queue import CompileQueue
from kernrec.measure.device import nvml
from kernrec.measure.device.interface import ConfigUnderTest, DeviceInfo
from kernrec.measure.device.simulated import SimulatedGpu, SimulatedKernel
from kernrec.measure.measuring_device import STANDARD_INPUTS, MeasuringDevice
from kernrec.measure.request import CollectRequest
from kernrec.op import Problem

OPENING = {"device": "tests.helpers.simulated_library:simulated_gpu"}
GPU = "h200-sxm"
UUID_HASH = "00112233aabbccdd"


def simulated_gpu(gpu: str = GPU) -> SimulatedGpu:
    """Open the simulated GPU in a worker. Times depend on the problem's work and the config, with 1 % noise."""
    entry = find_gpu(gpu)
    info = DeviceInfo(
        gpu=entry.name, name=entry.title, sm=entry.sm, l2_bytes=entry.l2_bytes,
        memory_bytes=int(entry.usable_bytes), generation=entry.generation, virtual=True, uuid_hash=UUID_HASH,
    )  # fmt: skip

    def kernel_of(subject: ConfigUnderTest) -> SimulatedKernel:
        seed = zlib.crc32(repr((subject.problem.key, subject.kernel_name, sorted(subject.config.items()))).encode())
        draw = np.random.default_rng(seed)
        slower, power_w = 1.0 + draw.random(), 200.0 + 300.0 * draw.random()
        needed_s = footprint(subject.problem) / entry.memory_bandwidth + subject.problem.flops / 400e12
        seconds = slower * (5e-6 + 2.0 * needed_s)
        return SimulatedKernel(
            lambda n: seconds * (1.0 + 0.01 * np.abs(draw.standard_normal(n))),
            power_w,
            footprint_bytes=footprint(subject.problem),
        )

    return SimulatedGpu(info, kernel_of)


def footprint(problem: Problem) -> int:
    return sum(tensor.bytes for tensor in problem.tensors.values())


@dataclass(frozen=True)
class _WithoutCode(MeasuringDevice):
    """A GPU whose kernels need no compilation."""

    def compile_queue(self) -> CompileQueue | None:
        return None


@contextmanager
def in_this_machine(gpu: str = GPU) -> Iterator[None]:
    """Make the simulated GPU the only GPU of this machine inside the context."""
    entry = find_gpu(gpu)
    present = nvml.LocalGpu(0, "GPU-simulated", entry.title, 0)
    opened = _WithoutCode(OPENING, entry.name, entry.sm, UUID_HASH, STANDARD_INPUTS)

    def device(request: CollectRequest, scratch: Path) -> MeasuringDevice:
        return opened

    with patch.object(nvml, "choose_gpu", lambda wanted: present), patch.object(collect, "device_of", device):
        yield


def command_in(folder: Path) -> Path:
    """Write a `kernrec` command that sees only the simulated GPU."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "kernrec"
    program.write_text(
        f"#!{sys.executable}\n"
        "import sys\n"
        f"sys.path[:0] = {[path for path in sys.path if path]!r}\n"
        "from kernrec.cli.app import run\n"
        "from tests.helpers.simulated_library import in_this_machine\n"
        "with in_this_machine():\n"
        "    sys.exit(run(sys.argv[1:]))\n"
    )
    program.chmod(0o755)
    return program
