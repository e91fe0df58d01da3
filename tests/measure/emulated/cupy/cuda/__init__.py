"""Emulated driver, runtime, events and streams. Each launch takes 100 us of simulated time."""

import ctypes

import numpy as np

from kernrec.ptx import KernelLaunch, emulate

LAUNCH_S = 1e-4
now = 0.0
functions: list = []
"""(module, entry) pairs, indexed by the handle that `Module.get_function` returns, minus 1."""


class Clock:
    """Simulated replacement of the `time` module, so that no result depends on the emulator's speed."""

    @staticmethod
    def perf_counter():
        return now

    @staticmethod
    def sleep(seconds):
        global now
        now += seconds


class Event:
    done = True

    def record(self, stream):
        self.time_s = now


class Stream:
    ptr = 1
    captured: list | None = None

    def __init__(self, non_blocking=False):
        pass

    def use(self):
        return self

    def synchronize(self):
        pass

    def begin_capture(self):
        Stream.captured = []

    def end_capture(self):
        graph, Stream.captured = Graph(Stream.captured), None
        return graph


class Graph:
    def __init__(self, launches):
        self.launches = launches

    def upload(self, stream):
        pass

    def launch(self, stream):
        for run in self.launches:
            run()


def get_elapsed_time(start, end):
    return (end.time_s - start.time_s) * 1e3


class runtime:  # noqa: N801
    @staticmethod
    def getDeviceProperties(index):  # noqa: N802
        return {"major": 9, "minor": 0, "l2CacheSize": 1 << 16, "totalGlobalMem": 1 << 27, "multiProcessorCount": 1}

    @staticmethod
    def runtimeGetVersion():  # noqa: N802
        return 13000

    memcpyDeviceToDevice = 3  # noqa: N815

    @staticmethod
    def memcpyAsync(target, source, size, kind, stream):  # noqa: N802
        if target in function.CONSTANTS:
            function.CONSTANTS[target][:] = np.frombuffer(ctypes.string_at(source, size), np.uint8)
        else:
            ctypes.memmove(target, source, size)

    @staticmethod
    def memsetAsync(address, value, size, stream):  # noqa: N802
        ctypes.memset(address, value, size)


class driver:  # noqa: N801
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8

    class CUDADriverError(RuntimeError):
        def __init__(self, status):
            super().__init__(str(status))
            self.status = status

    @staticmethod
    def funcSetAttribute(handle, attribute, value):  # noqa: N802
        if value > 227 * 1024:
            raise driver.CUDADriverError(1)

    @staticmethod
    def launchKernel(handle, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra):  # noqa: N802
        module, entry = functions[handle - 1]
        if bx * by * bz > 1024:
            raise driver.CUDADriverError(1)
        if entry in ("wait", "sm_clock", "reference_compute", "reference_memory"):
            run = _helper(entry, parameters)
        else:
            arguments, buffers = _arguments(module.parsed.functions[entry], parameters)

            def run():
                global now
                now += LAUNCH_S
                grid, block = (gx, gy, gz), (bx, by, bz)
                launch = KernelLaunch(entry, grid, block, arguments, buffers, shared, module.constants)
                emulate(module.parsed, launch, count=False)

        if Stream.captured is None:
            run()
        else:
            Stream.captured.append(run)


def _helper(entry, parameters):
    """Compute the result of a helper kernel that reads clocks, which the emulator lacks."""
    if entry == "sm_clock":
        first = (ctypes.c_void_p * 1).from_address(parameters)[0]
        words = (ctypes.c_uint64 * 2).from_address(ctypes.c_uint64.from_address(first).value)
        words[:] = [680_000, 400_000]

    def run():
        global now
        now += LAUNCH_S if entry.startswith("reference") else 0.0

    return run


def _arguments(kernel, parameters):
    import cupy

    addresses = (ctypes.c_void_p * len(kernel.parameters)).from_address(parameters)
    arguments, buffers = [], {}
    for place, parameter in zip(addresses, kernel.parameters, strict=True):
        raw = ctypes.string_at(place, parameter.size)
        address = int.from_bytes(raw, "little")
        if parameter.size == 8 and address in cupy.LIVE:
            buffers[f"b{address}"] = cupy.LIVE[address].view(np.ndarray).reshape(-1).view(np.uint8)
            arguments.append(f"b{address}")
        else:
            arguments.append(raw)
    return arguments, buffers


from . import function  # noqa: E402
