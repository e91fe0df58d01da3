"""The vendors' libraries on a problem: cuBLAS, cuDNN and fused attention, through PyTorch where it is.

`baseline` gives the work to time and the name of the library; without PyTorch, CuPy reaches cuBLAS.
"""

import importlib.util
from collections.abc import Callable
from typing import Any

from kernrec.op import Problem

Work = Callable[[], object]


def baseline(problem: Problem) -> tuple[dict[str, Work], str | None]:
    """({library: what runs the problem there}, what is missing) for a problem of a product, convolution or attention.

    Of several the best counts. The inputs are random values of their own.
    """
    if importlib.util.find_spec("torch") is not None:
        return {"matmul": _torch_matmul, "conv2d": _torch_conv2d, "attention": _torch_attention}[problem.op](
            problem
        ), None
    if problem.op == "matmul" and problem.dtype != "bf16":
        return _cupy_matmul(problem), None
    return {}, f"PyTorch is not installed: {problem.op} in {problem.dtype} is held against no library"


def _torch_tensors(problem: Problem) -> dict[str, Any]:
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    kind = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[problem.dtype]
    return {
        name: torch.randn(tensor.shape, device="cuda", dtype=kind)
        for name, tensor in problem.tensors.items()
        if tensor.role == "input"
    }


def _torch_matmul(problem: Problem) -> dict[str, Work]:
    import torch

    tensors = _torch_tensors(problem)
    a, b = (tensors[name] if side == "n" else tensors[name].mT for name, side in zip("ab", problem.layout, strict=True))
    return {"cuBLAS": lambda: torch.matmul(a, b)}


def _torch_conv2d(problem: Problem) -> dict[str, Work]:
    import torch

    tensors, dim = _torch_tensors(problem), problem.sizes
    x, w = tensors["x"], tensors["w"]
    if problem.layout == "nhwc":  # the same memory, named as PyTorch names it
        x, w = x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2)
    stride, padding, dilation, groups = (dim[name] for name in ("stride", "padding", "dilation", "groups"))
    return {"cuDNN": lambda: torch.nn.functional.conv2d(x, w, None, stride, padding, dilation, groups)}


def _torch_attention(problem: Problem) -> dict[str, Work]:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    tensors, dim = _torch_tensors(problem), problem.sizes
    q, k, v = (tensors[name] if problem.layout == "bhsd" else tensors[name].transpose(1, 2) for name in "qkv")
    options = {"is_causal": bool(dim["causal"]), "enable_gqa": dim["heads"] != dim["kv_heads"]}
    if dim["causal"] and dim["queries"] != dim["keys"]:  # PyTorch lets the first query meet the first key alone
        keep = torch.ones(dim["queries"], dim["keys"], dtype=torch.bool, device="cuda")
        options |= {"is_causal": False, "attn_mask": keep.tril(dim["keys"] - dim["queries"])}
    backends = (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION)

    def with_backend(backend: SDPBackend) -> Work:
        def work() -> object:
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)

        return work

    works = {}
    for backend in backends:
        try:
            with_backend(backend)()
        except RuntimeError:  # not for this shape, dtype or card
            continue
        works[f"SDPA {backend.name.lower()}"] = with_backend(backend)
    return works


def _cupy_matmul(problem: Problem) -> dict[str, Work]:
    import cupy

    kind = {"f32": cupy.float32, "f16": cupy.float16}[problem.dtype]
    shapes = {name: tensor.shape for name, tensor in problem.tensors.items()}
    a, b = (cupy.random.standard_normal(shapes[name], dtype=cupy.float32).astype(kind) for name in "ab")
    a = a if problem.layout[0] == "n" else a.swapaxes(-1, -2)
    b = b if problem.layout[1] == "n" else b.swapaxes(-1, -2)
    return {"cuBLAS": lambda: cupy.matmul(a, b)}
