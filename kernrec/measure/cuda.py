"""The real device: CuPy for the kernels, NVML for the sensors. Lives in the child process alone.

Its clocks, power limit and modes are only read.
"""

import ctypes
import time
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import cupy
import numpy as np
from cupy.cuda import Stream, runtime
from cupy.cuda.function import Module

from kernrec.compile import compile_source
from kernrec.compile.compiled import Resources
from kernrec.compile.sample import entry_name
from kernrec.gpu import find_gpu
from kernrec.kernel import bind_launches, workspaces
from kernrec.kernel.spec import WORKSPACE_BYTES
from kernrec.measure.device import Facts, Failure, Sample, Settings, Subject
from kernrec.measure.launcher import Launch, Tools
from kernrec.measure.loaded import Checked, CudaLoaded
from kernrec.measure.nvml import Card, sensors
from kernrec.op import Problem
from kernrec.op.data import inputs, reference

ROTATION = 4
"""Rotating buffers together are at least so many times L2."""
_MOST_COPIES = 512
_REFERENCE_BYTES = 256 << 20
_REFERENCE_TRIPS = 4096


class CudaDevice:
    """The GPU of this UUID, which `CUDA_VISIBLE_DEVICES` makes the only one.

    scratch: a folder for the reference of the problem at hand, of this device alone.
    """

    def __init__(self, uuid: str, scratch: Path) -> None:
        self._sensors = sensors(uuid)  # before the context, so that its processes are others' alone
        self._scratch = scratch
        scratch.mkdir(parents=True, exist_ok=True)
        properties = runtime.getDeviceProperties(0)
        card = Card(0, uuid, self._sensors.name, self._sensors.others)
        entry = find_gpu(card.name)
        version = runtime.runtimeGetVersion()
        versions = self._sensors.versions()
        self.facts = Facts(
            gpu=entry.name,
            name=card.name,
            sm=properties["major"] * 10 + properties["minor"],
            l2_bytes=int(properties["l2CacheSize"]),
            memory_bytes=int(properties["totalGlobalMem"]),
            generation=entry.generation,
            energy=self._sensors.why_no_energy(),
            uuid_hash=card.uuid_hash,
            vbios=versions["vbios"],
            driver=versions["driver"],
            nvml=versions["nvml"],
            cuda=f"{version // 1000}.{version % 1000 // 10}",
            cupy=str(cupy.__version__),
            other_processes=card.others,
            settings=self._sensors.settings(),
        )
        self._stream = Stream(non_blocking=True)
        self._stream.use()
        self._helpers, _ = self._module(_helper_source(), {}, "reference.cu")
        self._tools = Tools(self._helpers, self._stream, self.facts.l2_bytes)
        self._problem: Problem | None = None
        self._buffers: list[dict[str, Any]] = []
        self._reference: dict[str, Any] = {}
        self._tools.sm_clock_hz()  # the first launches load code

    def settings(self) -> Settings:
        return self._sensors.settings()

    def prepare(self, problem: Problem) -> None:
        self._buffers, self._reference = [], {}
        cupy.get_default_memory_pool().free_all_blocks()
        given = inputs(problem, seed=0)
        first: dict[str, Any] = {name: cupy.asarray(values) for name, values in given.items()}
        for name, tensor in problem.tensors.items():
            if tensor.role == "output":
                first[name] = cupy.empty(tensor.bytes, dtype=cupy.uint8)
        footprint = sum(tensor.bytes for tensor in problem.tensors.values())
        copies = min(_MOST_COPIES, max(1, -(-ROTATION * self.facts.l2_bytes // footprint)))
        self._buffers = [first] + [{name: a.copy() for name, a in first.items()} for _ in range(copies - 1)]
        self._reference = {name: cupy.asarray(a) for name, a in self._expected(problem, given).items()}
        self._problem = problem
        self._stream.synchronize()

    def load(self, subject: Subject) -> "CudaLoaded":
        problem, kernel = subject.problem, subject.kernel
        if kernel is None:
            raise Failure("constraint", f"there is no kernel {subject.kernel_name} in this library")
        if problem != self._problem:
            self.prepare(problem)
        defines = kernel.defines(subject.config, problem.dtype, problem.layout)
        module, entries = self._module(kernel.source, defines, kernel.source_name)
        names = {launch.entry: entry_name(entries, launch.entry) for launch in kernel.launches}
        scratch = {
            s.name: cupy.empty(s.elements * WORKSPACE_BYTES[s.dtype], dtype=cupy.uint8)
            for s in workspaces(kernel, subject.config, problem, self.facts.sm)
        }
        bound = bind_launches(kernel, subject.config, problem, self.facts.sm)
        sequences = []
        for buffers in self._buffers:
            addresses = {name: array.data.ptr for name, array in (buffers | scratch).items()}
            sequences.append([Launch.bound(module, launch, names[launch.entry], addresses) for launch in bound])
        footprint = sum(tensor.bytes for tensor in problem.tensors.values())
        checked = Checked(problem, self._buffers[0], scratch, self._reference)
        return CudaLoaded(self._tools, sequences, footprint, checked, (module, scratch))

    def references(self) -> Mapping[str, "CudaLoaded"]:
        properties = runtime.getDeviceProperties(0)
        blocks, threads = properties["multiProcessorCount"] * 8, 256
        size = min(_REFERENCE_BYTES, self.facts.memory_bytes // 16) // 16 * 16
        grid, block = (blocks, 1, 1), (threads, 1, 1)
        out = cupy.empty(blocks * threads, dtype=cupy.float32)
        source, target = cupy.zeros(size, dtype=cupy.uint8), cupy.empty(size, dtype=cupy.uint8)
        compute = [
            ctypes.c_void_p(out.data.ptr),
            ctypes.c_uint32(_REFERENCE_TRIPS),
            ctypes.c_float(0.999),
            ctypes.c_float(0.001),
        ]
        memory = [ctypes.c_void_p(target.data.ptr), ctypes.c_void_p(source.data.ptr), ctypes.c_uint32(size // 16)]
        launches = {
            "compute": (Launch(self._helpers, "reference_compute", grid, block, 0, compute), out.nbytes),
            "memory": (Launch(self._helpers, "reference_memory", grid, block, 0, memory), 2 * size),
        }
        held = (out, source, target)
        return {
            name: CudaLoaded(self._tools, [[launch]], footprint, None, held)
            for name, (launch, footprint) in launches.items()
        }

    def sample(self) -> Sample:
        read = self._sensors
        with_energy = self.facts.energy is None
        return Sample(
            time_s=time.perf_counter(),
            energy_j=read.energy_j() if with_energy else None,
            power_w=read.power_w() if with_energy else None,
            sm_clock_hz=read.sm_clock_hz(),
            memory_clock_hz=read.memory_clock_hz(),
            temperature_c=read.temperature_c(),
            reasons=read.reasons(),
        )

    def sm_clock_hz(self) -> float | None:
        return self._tools.sm_clock_hz()

    def now(self) -> float:
        return time.perf_counter()

    def rest(self, seconds: float) -> None:
        time.sleep(seconds)

    def _module(
        self, source: str, defines: Mapping[str, str | int], name: str
    ) -> tuple[Module, Mapping[str, Resources]]:
        """The code on the device, and its entries by the name they have there."""
        compiled = compile_source(source, self.facts.sm, defines, name)  # from the cache: the parent has compiled it
        module = Module()
        module.load(compiled.cubin)
        return module, compiled.resources

    def _expected(self, problem: Problem, given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The float64 reference; kept in a file, for it takes long and this process may be replaced."""
        path = self._scratch / f"{sha256(problem.key.encode()).hexdigest()[:16]}.npz"
        if path.exists():
            with np.load(path, allow_pickle=False) as kept:
                return {name: kept[name] for name in kept.files}
        found = reference(problem, given)
        for earlier in self._scratch.glob("*.npz"):
            earlier.unlink()
        partial = path.with_suffix(".partial.npz")
        np.savez(partial, **found)  # type: ignore[arg-type]  # its stub takes keywords for flags
        partial.replace(path)
        return found


def _helper_source() -> str:
    return Path(__file__).with_name("reference.cu").read_text(encoding="utf-8")
