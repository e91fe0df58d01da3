"""Compiled code on a CUDA device: modules, their `__constant__` symbols, and the check of a launch's arguments."""

from collections.abc import Iterable, Mapping
from typing import Any

from cupy.cuda import Stream, driver, runtime
from cupy.cuda.function import Module

from kernrec.compile import Compiled
from kernrec.kernel import BoundLaunch, Kernel
from kernrec.measure.device.interface import MeasurementFailure
from kernrec.profile.emulated_launch import argument_mismatch
from kernrec.ptx.ir.program import Module as Ptx
from kernrec.store.measurement import Outcome


def loaded_module(compiled: Compiled) -> Module:
    """Code on the device; PTX without a cubin is compiled by the driver.

    Raises `MeasurementFailure` if the driver refuses it.
    """
    module = Module()
    try:
        module.load(compiled.cubin or compiled.ptx.encode() + b"\0")
    except driver.CUDADriverError as error:
        raise MeasurementFailure(Outcome.COMPILE, f"the driver does not load the code: {error}") from None
    return module


def check_arguments(code: Ptx, names: Mapping[str, str], launches: Iterable[BoundLaunch]) -> None:
    """Check that launches pass the arguments that their kernels take; otherwise the device would read past their end.

    Args:
        code: the compiled code.
        names: of the kernels in the code, by their names in the spec.
        launches: to check.

    Raises:
        MeasurementFailure: naming the first mismatch.
    """
    for launch in launches:
        if mismatch := argument_mismatch(code, names[launch.entry], launch):
            raise MeasurementFailure(Outcome.CONSTRAINT, mismatch)


def fill_constants(module: Module, code: Ptx, kernel: Kernel, tensors: Mapping[str, Any], stream: Stream) -> None:
    """Queue copies of the tensors that are `__constant__` symbols to the module's symbols.

    A symbol that the code of this config lacks is skipped. Raises `MeasurementFailure` for one that is too small.
    """
    for name, symbol in kernel.constants.items():
        if (variable := code.variables.get(symbol)) is None:
            continue
        array = tensors[name]
        if array.nbytes > variable.size:
            text = f"__constant__ {symbol} has {variable.size} bytes, {name} of the spec has {array.nbytes}"
            raise MeasurementFailure(Outcome.CONSTRAINT, text)
        target = int(module.get_global_var(symbol))
        runtime.memcpyAsync(target, array.data.ptr, array.nbytes, runtime.memcpyDeviceToDevice, stream.ptr)
