"""Simulate a GPU for torch and Triton, so that programs can launch Triton functions without a GPU.

A launch executes nothing. Tensors on "cuda" are stored on the CPU, but report a GPU as their device. If a
package registers a CUDA implementation of a torch operator, the implementation runs on the simulated GPU, too.
"""

import functools
import importlib
import os
import re
import shlex
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kernrec.compile.triton_version import missing_name
from kernrec.errors import KernrecWarning, UsageError
from kernrec.gpu import GPU, find_gpu
from kernrec.util.patch import environment, replaced

_CUDA = re.compile(r"cuda(:\d+)?")
TESTED_TORCH = ("2.13", "2.14")
"""Releases of PyTorch that kernrec's tests cover."""
_INTERFACES = (
    "torch:autocast.__init__", "torch:autograd._engine_run_backward", "torch:cuda._lazy_init",
    "torch:cuda.get_device_properties", "torch:library.Library.impl", "torch:overrides.TorchFunctionMode",
    "torch.utils._device:DeviceContext.__init__",
)  # fmt: skip
"""Attributes of torch that kernrec replaces or extends."""


def torch_properties(gpu: GPU) -> Any:
    """Return the properties of a GPU in the form of `torch.cuda.get_device_properties`."""
    limits = gpu.limits
    return SimpleNamespace(
        name=gpu.title,
        major=gpu.sm // 10,
        minor=gpu.sm % 10,
        multi_processor_count=gpu.sms,
        total_memory=int(gpu.usable_bytes),
        L2_cache_size=int(gpu.l2_bytes),
        shared_memory_per_block=48 << 10,
        shared_memory_per_block_optin=limits.smem_per_block,
        shared_memory_per_multiprocessor=limits.smem_per_sm,
        regs_per_multiprocessor=limits.registers_per_sm,
        max_threads_per_block=limits.max_threads_per_block,
        max_threads_per_multi_processor=32 * limits.max_warps_per_sm,
        clock_rate=round(gpu.boost_clock_hz / 1e3),
        memory_clock_rate=round(gpu.memory_rate_hz / 2 / 1e3),
        memory_bus_width=gpu.memory_bus_bits,
        warp_size=32,
        is_integrated=0,
        is_multi_gpu_board=0,
        gcnArchName="",
        uuid="00000000-0000-0000-0000-000000000000",
        pci_bus_id=0,
        pci_device_id=0,
        pci_domain_id=0,
    )


def loaded_torch() -> Any:
    """Return the module torch, or None if this process has not imported it completely."""
    torch = sys.modules.get("torch")
    loading = torch is not None and getattr(getattr(torch, "__spec__", None), "_initializing", False)
    return None if loading else torch


@contextmanager
def torch_without_gpu(simulated: GPU) -> Iterator[None]:
    """Within a `with` block, make torch report `simulated` as its GPU. Do nothing if torch is not loaded."""
    torch = loaded_torch()
    if torch is None:
        yield
        return
    _check_interfaces(torch)
    mode = _mode(torch)
    context = importlib.import_module("torch.utils._device").DeviceContext
    answers = [
        (torch._C, _library_calls(torch, simulated)),
        (torch.cuda, _cuda_calls(torch, simulated)),
        (torch, {"Generator": _generator(torch)}),
        # Torch adds the default device to a call after `mode` replaced GPUs by the CPU. So replace the default, too.
        (context, {"__init__": _on_cpu(torch, context.__init__)}),
        (torch.version, {} if torch.version.cuda else {"cuda": "13.0"}),
        (torch.autocast, {"__init__": _on_cpu(torch, torch.autocast.__init__)}),
        # Torch turns `mode` off during `backward`, which may launch Triton functions, too. So turn `mode` on again.
        (torch.autograd, {"_engine_run_backward": _within(mode, torch.autograd._engine_run_backward)}),
        (torch.library.Library, {"impl": _for_both_devices(mode, torch.library.Library.impl)}),
    ]
    with ExitStack() as stack:
        for owner, attributes in answers:
            stack.enter_context(replaced(owner, **attributes))
        guards = getattr(torch._C, "_dynamo", None)
        if guards is not None:  # TorchInductor's code allocates memory with `_empty_strided_cuda`.
            empty = lambda size, stride, dtype: torch.empty_strided(size, stride, dtype=dtype)  # noqa: E731
            stack.enter_context(replaced(guards.guards, _empty_strided_cuda=empty))
        stack.enter_context(mode())
        yield


def _check_interfaces(torch: Any) -> None:
    """Raise `UsageError` if PyTorch lacks a name that kernrec replaces. Warn if the release is untested."""
    version = str(torch.__version__).partition("+")[0]
    if missing := missing_name(_INTERFACES):
        raise UsageError(
            f"PyTorch {version} has no {missing}, which kernrec replaces to simulate a GPU; install one of the tested"
            f" releases: {', '.join(TESTED_TORCH)}"
        )
    if ".".join(version.split(".")[:2]) not in TESTED_TORCH:
        tested = ", ".join(TESTED_TORCH)
        warnings.warn(f"PyTorch {version} was not tested with this kernrec; tested: {tested}", KernrecWarning, 2)


_RESULTS = {"query": True, "elapsed_time": 0.0, "pool": (0, 1)}


class _Idle:
    """Base class of streams, events and graphs that execute nothing."""

    cuda_stream = cuda_event = stream_id = device_index = 0
    device_type = 1

    def __init__(self, *args: Any, **options: Any) -> None:
        """Accept and ignore all arguments."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _constant(_RESULTS.get(name))

    @property
    def device(self) -> Any:
        return sys.modules["torch"].device("cuda", 0)

    def __enter__(self) -> "_Idle":
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self)

    def __hash__(self) -> int:
        return 0


class Event(_Idle):
    """Stand-in for a CUDA event that has already happened."""


class Stream(_Idle):
    """Stream whose work is always done."""

    def record_event(self, event: Any = None) -> Any:
        return event or Event()


class Graph(_Idle):
    """Graph of launches that does nothing."""


def _library_calls(torch: Any, simulated: GPU) -> dict[str, Any]:
    """Return replacements for functions of torch's C++ library that need a driver."""
    numbers = {
        "cuda_getDeviceCount": 1, "cuda_getDevice": 0, "cuda_setDevice": None, "cuda_init": None,
        "cuda_exchangeDevice": 0, "cuda_maybeExchangeDevice": 0, "cuda_isInBadFork": False, "cuda_synchronize": None,
        "cuda_getCurrentRawStream": 0, "cuda_isCurrentStreamCapturing": False, "cuda_emptyCache": None,
        "cuda_getArchFlags": f"sm_{simulated.sm}", "cuda_canDeviceAccessPeer": False, "cuda_setMemoryFraction": None,
        "cuda_resetPeakMemoryStats": None, "cuda_resetAccumulatedMemoryStats": None, "cuda_setStream": None,
        "cuda_getCurrentBlasHandle": 0, "cuda_sleep": None, "cuda_ipc_collect": None,
        "accelerator_getAccelerator": torch.device("cuda"), "accelerator_getDeviceIndex": 0,
        "accelerator_setDeviceIndex": None, "accelerator_exchangeDevice": 0, "accelerator_maybeExchangeDevice": 0,
        "accelerator_synchronizeDevice": None, "accelerator_emptyCache": None, "accelerator_getStream": Stream(),
        "accelerator_setStream": None, "graph_pool_handle": (0, 1),
    }  # fmt: skip
    calls = {f"_{name}": _constant(value) for name, value in numbers.items()}
    return calls | {"_cuda_memoryStats": lambda device: {}, "_has_cuda": True}


def _cuda_calls(torch: Any, simulated: GPU) -> dict[str, Any]:
    """Return replacements for functions of `torch.cuda` that need a GPU."""
    total, properties = int(simulated.usable_bytes), torch_properties(simulated)
    results = {
        "_lazy_init": None, "_exchange_device": 0, "_maybe_exchange_device": 0, "_get_device_properties": properties,
        "get_device_properties": properties, "mem_get_info": (total, total), "memory_usage": 0, "utilization": 0,
        "is_current_stream_capturing": False, "current_stream": Stream(), "default_stream": Stream(),
        "set_stream": None,
    }  # fmt: skip
    return {
        **{name: _constant(value) for name, value in results.items()},
        "_initialized": True,
        "_cached_device_count": 1,
        "default_generators": (torch.default_generator,),
        "stream": lambda stream: stream if stream is not None else Stream(),
        **dict.fromkeys(("Stream", "ExternalStream"), Stream),
        "Event": Event,
        "CUDAGraph": Graph,
        "graph": _Idle,
    }


def _constant(value: Any) -> Callable[..., Any]:
    return lambda *args, **options: value


def _generator(torch: Any) -> type:
    """Return a class of random number generators that run on the CPU but report another device."""
    real: Any = torch.Generator

    class Kind(type(real)):  # type: ignore[misc]
        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, real)

    class Generator(real, metaclass=Kind):  # type: ignore[misc]
        def __new__(cls, device: Any = "cpu") -> Any:
            generator = real.__new__(cls, "cpu")
            generator.shown = torch.device(device)
            return generator

        @property
        def device(self) -> Any:
            return self.shown

    return Generator


def _instead(torch: Any, value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == "cuda" else value
    return "cpu" if isinstance(value, str) and _CUDA.fullmatch(value) else value


def _on_cpu(torch: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def called(*args: Any, **keywords: Any) -> Any:
        named = {name: _instead(torch, value) for name, value in keywords.items()}
        return function(*(_instead(torch, value) for value in args), **named)

    return called


def _within(mode: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def called(*args: Any, **keywords: Any) -> Any:
        with mode():
            return function(*args, **keywords)

    return called


def _for_both_devices(mode: Any, register: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap torch's `Library.impl`, so that it registers each CUDA implementation also for the CPU."""
    replaced_names: set[tuple[str, str]] = set()

    @functools.wraps(register)
    def impl(self: Any, op_name: Any, fn: Any, dispatch_key: str = "", **options: Any) -> Any:
        key, place = dispatch_key or self.dispatch_key, (self.ns, str(op_name))
        if key == "CPU" and place in replaced_names:
            return None
        if key == "CUDA":
            replaced_names.add(place)
            fn = _within(mode, fn)
            register(self, op_name, fn, "CPU", **options)
        return register(self, op_name, fn, dispatch_key, **options)

    return impl


def _mode(torch: Any) -> Any:
    """Return a torch mode that stores GPU tensors on the CPU."""
    gpu, tensor = torch.device("cuda", 0), torch.Tensor
    shown = {
        tensor.device.__get__: gpu,
        tensor.is_cuda.__get__: True,
        tensor.is_cpu.__get__: False,
        tensor.get_device: 0,
        tensor.record_stream: None,
    }
    unchanged = (tensor.cuda, tensor.pin_memory)
    products = (torch.mm, torch.bmm, torch.addmm, torch.baddbmm)  # The CPU functions have no argument `out_dtype`.

    class OnCpu(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        """Torch mode that replaces GPUs in arguments by the CPU."""

        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is torch.device:
                return function(*args, **(kwargs or {}))
            if function in shown:
                return shown[function]
            if function in unchanged:
                return args[0]
            named = {name: _instead(torch, value) for name, value in (kwargs or {}).items() if name != "pin_memory"}
            if function in products and (dtype := named.pop("out_dtype", None)) is not None:
                args = [value.to(dtype) if isinstance(value, tensor) else value for value in args]
            return function(*(_instead(torch, value) for value in args), **named)

    return OnCpu


ASSUMED = "a100"
"""GPU that Triton reports by default."""


def has_driver() -> bool:
    """Return whether Triton finds a driver with a GPU. Under `kernrec capture`, it never does."""
    if os.environ.get("KERNREC_CAPTURE_SOCKET"):
        return False
    from triton.backends import backends

    try:
        return any(backend.driver.is_active() for backend in backends.values() if backend.driver is not None)
    except Exception:  # Triton raises various exceptions if a driver library cannot be loaded.
        return False


class StandInDriver:
    """Triton driver with a simulated GPU."""

    def __init__(self, gpu: GPU) -> None:
        from triton.backends.compiler import GPUTarget

        self.utils = self
        self.launcher_cls = _constant(_constant(None))
        self.get_current_target = _constant(GPUTarget("cuda", gpu.sm, 32))
        self.get_current_device = self.get_current_stream = _constant(0)
        # `load_binary` returns a module, a function, and the numbers of registers, spills and threads per block.
        self.load_binary, self.unload_module = _constant((1, 1, 32, 0, 1024)), _constant(None)
        properties = {
            "max_shared_mem": gpu.limits.smem_per_block,
            "max_num_regs": gpu.limits.registers_per_sm,
            "multiprocessor_count": gpu.sms,
            "warpSize": 32,
            "sm_clock_rate": int(gpu.boost_clock_hz / 1e3),
            "mem_clock_rate": 0,
            "mem_bus_width": 0,
        }
        self.get_device_properties = _constant(properties)

    def get_active_torch_device(self) -> Any:
        return sys.modules["torch"].device("cpu")

    def get_device_interface(self) -> Any:
        return sys.modules["torch"].cuda

    def get_benchmarker(self) -> Any:
        """Return a replacement of `do_bench` that measures 0."""
        return lambda launch, *times, quantiles=None, **options: [0.0] * len(quantiles) if quantiles else 0.0


@contextmanager
def _nvidia_smi(gpu: GPU) -> Iterator[None]:
    """Within a `with` block, let child processes find an `nvidia-smi` that prints the name of a GPU."""
    name = shlex.quote(gpu.title)
    with tempfile.TemporaryDirectory(prefix="kernrec-") as folder:
        program = Path(folder, "nvidia-smi")
        program.write_text(f'#!/bin/sh\ncase "$*" in *query-gpu=name*) echo {name};; *) echo GPU 0: {name};; esac\n')
        program.chmod(0o755)
        with environment(PATH=os.pathsep.join([folder, os.environ.get("PATH", os.defpath)])):
            yield


@contextmanager
def stand_in_driver(name: str = ASSUMED) -> Iterator[None]:
    """Within a `with` block, make Triton and torch report a GPU, unless Triton has a driver."""
    if has_driver():
        yield
        return
    from triton.backends import backends
    from triton.runtime.driver import driver

    simulated = find_gpu(name)
    stand_in = StandInDriver(simulated)
    testing, benchmark = importlib.import_module("triton.testing"), stand_in.get_benchmarker()
    with ExitStack() as stack:
        stack.enter_context(replaced(backends["nvidia"].driver, is_active=staticmethod(lambda: True)))
        stack.enter_context(replaced(driver, _active=stand_in))
        stack.enter_context(replaced(testing, do_bench=benchmark, do_bench_cudagraph=benchmark))
        stack.enter_context(_nvidia_smi(simulated))
        stack.enter_context(torch_without_gpu(simulated))
        yield
