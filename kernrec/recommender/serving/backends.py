"""Determine whether an engine runs its tuned Triton kernel, from its order of kernels on a GPU.

vLLM 0.33.0: `fused_moe/oracle/{unquantized,fp8,int_wna16}.py` and `kernels/linear/__init__.py`, with FlashInfer and
DeepGEMM installed as its wheel requires. SGLang 0.5.23: `quantization/{fp8,fp8_utils,moe_wna16}.py`. Flags of the
engines override this order.
"""

from kernrec.recommender.serving.engines import Deployment, Kind, TunedFile


def kernel_taken(file: TunedFile, served: Deployment) -> str:
    """Return the kernel that the engine prefers to the tuned kernel, with the flag that changes this; else empty."""
    sm = served.gpu.sm
    if file.quantization.group:
        if file.quantization.method != "compressed-tensors":
            return "Marlin (--quantization moe_wna16)"
        return f"Marlin ({'--moe-backend' if served.engine == 'vllm' else '--moe-runner-backend'} triton)"
    if served.engine == "vllm":
        if file.kind is Kind.EXPERTS:
            taken = _vllm_experts(file, served, sm)
            return f"{taken} (--moe-backend triton)" if taken else ""
        if file.kind is Kind.BLOCK_GEMM:
            return _vllm_products(sm)
    elif file.kind is Kind.BLOCK_GEMM and sm >= 90:
        return "CUTLASS (--fp8-gemm-backend triton)" if sm // 10 == 12 else "DeepGEMM (--fp8-gemm-backend triton)"
    return ""


def _vllm_experts(file: TunedFile, served: Deployment, sm: int) -> str:
    family = sm // 10
    if file.weights is None:
        return {10: "FlashInfer TRTLLM", 12: "FlashInfer CUTLASS"}.get(family, "")
    if file.weights != "fp8_w8a8":
        return ""
    if file.block == (128, 128):
        if sm == 90:
            return "FlashInfer CUTLASS" if served.ep > 1 else ""
        return {10: "FlashInfer TRTLLM", 12: "DeepGEMM"}.get(family, "")
    if file.block is not None:
        return ""  # Only the Triton kernel accepts other blocks.
    return {9: "FlashInfer or vLLM's CUTLASS", 10: "FlashInfer", 12: "FlashInfer CUTLASS"}.get(family, "")


def _vllm_products(sm: int) -> str:
    if sm >= 90:
        return "DeepGEMM or CUTLASS (--linear-backend triton)"
    return "Marlin (--linear-backend triton)"
