"""Implement `Device` for a real GPU. CuPy runs kernels, and NVML reads sensors. Settings of the GPU stay unchanged."""

import ctypes
import time
from collections.abc import Mapping
from pathlib import Path

import cupy
import numpy as np
from cupy.cuda import Stream, runtime

from kernrec.compile import CompileCache, compile_source
from kernrec.compile.nvrtc import compile_job
from kernrec.errors import KernrecError
from kernrec.gpu import find_gpu
from kernrec.kernel import Config, Kernel, bind_launches, workspaces
from kernrec.measure.device.correctness import ProblemBuffers, cached_outputs, expected_outputs, initial_tensors
from kernrec.measure.device.interface import (
    ConfigUnderTest,
    DeviceInfo,
    MeasurementFailure,
    PreparedProblem,
    SensorReading,
)
from kernrec.measure.device.launch import (
    ConfigLaunches,
    DeviceLaunch,
    LaunchTools,
    LoadedCudaConfig,
    check_arguments,
    fill_constants,
    loaded_module,
)
from kernrec.measure.device.nvml import LocalGpu, sensors
from kernrec.op.dtype import ELEMENT_BYTES
from kernrec.profile.kernel_code import compile_job_for
from kernrec.profile.launch_profile import entry_name
from kernrec.ptx import parse
from kernrec.ptx.analysis.dependence import data_dependences
from kernrec.ptx.ir.inline import inlined
from kernrec.store.measurement import GpuSettings, Outcome

_REFERENCE_BYTES = 256 << 20
_REFERENCE_TRIPS = 4096


class CudaDevice:
    """The only GPU that `CUDA_VISIBLE_DEVICES` allows this process to use."""

    def __init__(self, uuid: str, scratch: Path) -> None:
        """Open the GPU. The private folder `scratch` caches the expected outputs of the current problem."""
        self._sensors = sensors(uuid)
        self._scratch = scratch
        scratch.mkdir(parents=True, exist_ok=True)
        properties = runtime.getDeviceProperties(0)
        # Count other processes first, because NVML counts this process, too, once it has a CUDA context.
        present = LocalGpu(0, uuid, self._sensors.name, self._sensors.others)
        entry = find_gpu(present.name)
        version = runtime.runtimeGetVersion()
        versions = self._sensors.versions()
        self.info = DeviceInfo(
            gpu=entry.name,
            name=present.name,
            sm=properties["major"] * 10 + properties["minor"],
            l2_bytes=int(properties["l2CacheSize"]),
            memory_bytes=int(properties["totalGlobalMem"]),
            generation=entry.generation,
            energy=self._sensors.why_no_energy(),
            uuid_hash=present.uuid_hash,
            vbios=versions["vbios"],
            driver=versions["driver"],
            nvml=versions["nvml"],
            cuda=f"{version // 1000}.{version % 1000 // 10}",
            cupy=str(cupy.__version__),
            other_processes=present.others,
            settings=self._sensors.settings(),
        )
        self._stream = Stream(non_blocking=True)
        self._stream.use()
        helpers = Path(__file__).with_name("reference.cu").read_text(encoding="utf-8")
        self._helpers = loaded_module(compile_source(helpers, self.info.sm, {}, "reference.cu"))
        self._tools = LaunchTools(self._helpers, self._stream, self.info.l2_bytes)
        self._buffers: ProblemBuffers | None = None
        self._tools.sm_clock_hz()  # Load the kernel's code now, because its first launch is slow.

    def settings(self) -> GpuSettings:
        return self._sensors.settings()

    def prepare(self, prepared: PreparedProblem) -> None:
        self._buffers = None
        cupy.get_default_memory_pool().free_all_blocks()
        initial = initial_tensors(prepared)
        buffers = ProblemBuffers(prepared, initial, self.info.l2_bytes)

        def expected() -> dict[str, np.ndarray]:
            if prepared.kernel is None or prepared.baseline is None:
                return expected_outputs(prepared, initial)
            try:
                self._loaded(prepared.kernel, prepared.baseline, buffers).run()
                return buffers.results()
            except KernrecError as error:
                outcome = error.outcome if isinstance(error, MeasurementFailure) else Outcome.CRASH
                text = f"the {prepared.reference}, which results are compared with, cannot run: {error}"
                raise MeasurementFailure(outcome, text) from None

        buffers.expect(cached_outputs(self._scratch, prepared, expected))
        self._buffers = buffers
        self._stream.synchronize()

    def load(self, subject: ConfigUnderTest) -> "LoadedCudaConfig":
        if subject.kernel is None:
            raise MeasurementFailure(Outcome.CONSTRAINT, f"there is no kernel {subject.kernel_name} in this library")
        if self._buffers is None or subject.problem != self._buffers.prepared.problem:
            self.prepare(PreparedProblem(subject.problem))
        assert self._buffers is not None
        return self._loaded(subject.kernel, subject.config, self._buffers)

    def _loaded(self, kernel: Kernel, config: Config, buffers: ProblemBuffers) -> "LoadedCudaConfig":
        problem = buffers.prepared.problem
        bound = bind_launches(kernel, config, problem, self.info.sm)
        if not bound:
            raise MeasurementFailure(Outcome.CONSTRAINT, "the config has no launch on this problem")
        job = compile_job_for(kernel, config, problem, self.info.sm)
        compiled = compile_job(job, CompileCache.default())  # The compile queue has compiled the job already.
        module = loaded_module(compiled)
        names = {launch.entry: entry_name(compiled.resources, launch.entry) for launch in bound}
        renewed = False
        if kernel.sampled or kernel.constants:
            code = parse(compiled.ptx)
            check_arguments(code, names, bound)
            fill_constants(module, code, kernel, buffers.sets[0], self._stream)
            renewed = bool(buffers.originals) and any(data_dependences(inlined(code, name)) for name in names.values())
        scratch = {
            space.name: cupy.empty(space.elements * ELEMENT_BYTES[space.dtype], dtype=cupy.uint8)
            for space in workspaces(kernel, config, problem, self.info.sm)
        }
        sequences = []
        for tensors in buffers.sets:
            addresses = {name: array.data.ptr for name, array in (tensors | scratch).items()}
            sequences.append([DeviceLaunch.bound(module, launch, names[launch.entry], addresses) for launch in bound])
        launches = ConfigLaunches(sequences, buffers.footprint_bytes, (module, scratch), scratch, renewed)
        return LoadedCudaConfig(self._tools, launches, buffers)

    def references(self) -> Mapping[str, "LoadedCudaConfig"]:
        properties = runtime.getDeviceProperties(0)
        blocks, threads = properties["multiProcessorCount"] * 8, 256
        size = min(_REFERENCE_BYTES, self.info.memory_bytes // 16) // 16 * 16
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
            "compute": (DeviceLaunch(self._helpers, "reference_compute", grid, block, 0, compute), out.nbytes),
            "memory": (DeviceLaunch(self._helpers, "reference_memory", grid, block, 0, memory), 2 * size),
        }
        arrays = (out, source, target)
        return {
            name: LoadedCudaConfig(self._tools, ConfigLaunches([[launch]], footprint, arrays))
            for name, (launch, footprint) in launches.items()
        }

    def read_sensors(self) -> SensorReading:
        reading = self._sensors.read(time.perf_counter())
        return reading if self.info.energy is None else reading._replace(energy_j=None, power_w=None)

    def sm_clock_hz(self) -> float | None:
        return self._tools.sm_clock_hz()

    def now(self) -> float:
        return time.perf_counter()

    def rest(self, seconds: float) -> None:
        time.sleep(seconds)
