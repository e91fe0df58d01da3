"""Compiled code on a CUDA device: modules, their `__constant__` symbols, and whether a launch fits what it launches."""

from collections.abc import Iterable, Mapping
from typing import Any

from cupy.cuda import Stream, driver, runtime
from cupy.cuda.function import Module

from kernrec.compile import Compiled
from kernrec.kernel import BoundLaunch, Kernel
from kernrec.measure.device.interface import MeasurementFailure
from kernrec.profile.sample_profile import argument_mismatch
from kernrec.ptx.ir.program import Module as Ptx


def loaded_module(compiled: Compiled) -> Module:
    """Code on the device; of PTX that nobody here could assemble, what the driver makes of it.

    Raises `MeasurementFailure` when the driver does not take it.
    """
    module = Module()
    try:
        module.load(compiled.cubin or compiled.ptx.encode() + b"\0")
    except driver.CUDADriverError as error:
        raise MeasurementFailure("compile", f"the driver does not load the code: {error}") from None
    return module


def check_arguments(code: Ptx, names: Mapping[str, str], launches: Iterable[BoundLaunch]) -> None:
    """Raises `MeasurementFailure` if a launch has not the arguments of its kernel: the device would read beyond.

    names: of the kernels in the code, by those of the spec.
    """
    for launch in launches:
        if misfit := argument_mismatch(code, names[launch.entry], launch):
            raise MeasurementFailure("constraint", misfit)


def fill_constants(module: Module, code: Ptx, kernel: Kernel, tensors: Mapping[str, Any], stream: Stream) -> None:
    """Queue the copying of the tensors that are `__constant__` symbols to where the module has these.

    A symbol that the code of this config lacks is skipped. Raises `MeasurementFailure` for one that is too small.
    """
    for name, symbol in kernel.constants.items():
        if (variable := code.variables.get(symbol)) is None:
            continue
        array = tensors[name]
        if array.nbytes > variable.size:
            text = f"__constant__ {symbol} has {variable.size} bytes, {name} of the spec has {array.nbytes}"
            raise MeasurementFailure("constraint", text)
        target = int(module.get_global_var(symbol))
        runtime.memcpyAsync(target, array.data.ptr, array.nbytes, runtime.memcpyDeviceToDevice, stream.ptr)
