"""Let torch describe a GPU that it does not have, for wrappers of Triton functions that ask before a launch."""

import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

from kernrec.gpu import GPU

_CUDA = re.compile(r"cuda(:\d+)?")


def torch_properties(gpu: GPU) -> Any:
    """Return a GPU's properties like `torch.cuda.get_device_properties`, as far as they affect kernels."""
    limits = gpu.limits
    return SimpleNamespace(
        name=gpu.title,
        major=gpu.sm // 10,
        minor=gpu.sm % 10,
        multi_processor_count=gpu.sms,
        total_memory=int(gpu.memory_bytes),
        L2_cache_size=int(gpu.l2_bytes),
        shared_memory_per_block=48 << 10,
        shared_memory_per_block_optin=limits.smem_per_block,
        shared_memory_per_multiprocessor=limits.smem_per_sm,
        regs_per_multiprocessor=limits.registers_per_sm,
        max_threads_per_multi_processor=32 * limits.max_warps_per_sm,
        warp_size=32,
        is_integrated=0,
        gcnArchName="",
    )


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace the value of an attribute while the `with` block runs."""
    missing = object()
    before = owner.__dict__.get(name, missing)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is missing:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


@contextmanager
def torch_without_gpu(card: GPU) -> Iterator[None]:
    """While the `with` block runs, let torch, if loaded, describe `card` as its GPU."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    answers = {
        "current_device": lambda: 0,
        "device_count": lambda: 1,
        "set_device": lambda device: None,
        "synchronize": lambda device=None: None,
        "device": lambda device: nullcontext(),
        "get_device_name": lambda device=None: card.title,
        "get_device_capability": lambda device=None: divmod(card.sm, 10),
        "get_device_properties": lambda device=None: torch_properties(card),
        "current_stream": lambda device=None: SimpleNamespace(cuda_stream=0),
    }
    with ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(replaced(torch.cuda, name, answer))
        yield


@contextmanager
def on_cpu() -> Iterator[None]:
    """While the `with` block runs, create torch's GPU tensors on the CPU, but let `is_cuda` be true."""
    torch = sys.modules["torch"]

    def instead(value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device("cpu") if value.type == "cuda" else value
        return "cpu" if isinstance(value, str) and _CUDA.fullmatch(value) else value

    class OnCpu(torch.overrides.TorchFunctionMode):  # type: ignore[misc, name-defined]
        """Replaces a GPU by the CPU in the arguments of torch's functions."""

        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function == torch.Tensor.is_cuda.__get__:
                return True
            if function is torch.Tensor.cuda:
                return args[0]
            return function(*map(instead, args), **{name: instead(value) for name, value in (kwargs or {}).items()})

    with OnCpu():
        yield
