"""Estimate the time of the all-reduces between tensor-parallel GPUs.

If input features are divided among GPUs (`o_proj`, `down_proj`, experts), every GPU has a partial sum of each output.
Engines add up small tensors in one step and large tensors along a ring:

    one step    LATENCY_S + (gpus - 1) x bytes / (ONE_STEP_SHARE x link)
    ring        RING_S + 2 (gpus - 1) / gpus x bytes / (RING_SHARE x link)

The constants are fitted to published figures for H100 SXM. Other links are assumed to have the same efficiency.

    one step, two GPUs         7.0 us for 74 kB, 13.0 us for 1.7 MB (flagos-ai/FlagGems-vllm pull request 773)
    NCCL's ring, eight GPUs    19 us for 128 B, 32 us for 1 MB, 59 us for 4 MB (ByteDance-Seed/Triton-distributed
                               issue 57), 370 of 450 GB/s for large messages (NVIDIA/nccl-tests issue 212)
"""

from collections.abc import Sequence

from kernrec.gpu import GPU
from kernrec.model.analytical.spread import Source
from kernrec.op.workload import Layer, Workload
from kernrec.recommender.json_form import JsonForm
from kernrec.recommender.result import Estimate
from kernrec.util.human import Note
from kernrec.util.light_dataclass import dataclass

LATENCY_S, RING_S = 6e-6, 19e-6
ONE_STEP_SHARE, RING_SHARE = 0.6, 0.82
UNSURE = 1.5
"""Factor between an estimate and each end of its interval. All published figures are within this factor."""

_NVLINK = {
    900e9: ("b200", "b300", "gb200", "gb300"),
    450e9: ("h100-sxm", "h100-sxm-96gb", "h200-sxm", "h20", "gh200-96gb", "gh200-144gb"),
    300e9: ("a100-sxm4-40gb", "a100-sxm4-80gb"),
    200e9: ("h800-sxm",),
    150e9: ("v100-sxm2-16gb", "v100-sxm2-32gb"),
    80e9: ("p100-sxm2-16gb",),
}
"""GPUs with NVLink. Keys are bytes per second in one direction. Data sheets add up both directions."""
_BRIDGES = {
    450e9: ("h200-nvl",),
    300e9: ("h100-nvl", "h100-pcie", "a100-pcie-40gb", "a100-pcie-80gb"),
    200e9: ("h800-pcie",),
    100e9: ("a30",),
    56.25e9: ("a40", "rtx-a6000", "rtx-a5000", "rtx-a4500", "rtx3090", "rtx3090ti"),
    50e9: ("quadro-rtx-6000", "quadro-rtx-8000", "titan-rtx", "rtx2080ti"),
    25e9: ("rtx2080", "rtx2080-super"),
}
"""GPUs that support an NVLink bridge. Keys are bytes per second in one direction.

Sources are data sheets, and the GA102 and TU102 whitepapers.
"""
_PCIE = {"pascal": 15.75e9, "volta": 15.75e9, "turing": 15.75e9, "ampere": 31.5e9, "ada": 31.5e9, "hopper": 63e9}
_PCIE |= {"blackwell": 63e9}
"""Bandwidth of 16 PCIe lanes in bytes per second and direction, keyed by GPU generation (PCIe 3.0, 4.0 or 5.0)."""
_EIGHT_LANES = ("a2", "rtx4060", "rtx4060ti", "rtx4060ti-16gb", "rtx5060ti", "rtx5060ti-16gb", "rtx3050-laptop")


@dataclass(frozen=True)
class Exchange(JsonForm):
    """All-reduces in one pass through a network: number and total latency."""

    count: int
    latency_s: Estimate
    """Total latency in seconds. During an all-reduce, the GPU is assumed to draw the mean power of the layers."""
    link: str

    @property
    def note(self) -> Note:
        return Note(
            f"totals include {self.count} all-reduces over {self.link}",
            f"Each takes {LATENCY_S * 1e6:g} us, plus time for its bytes. The model fits recordings of an H100 within"
            " a factor of 1.5.",
        )


def exchange_of(workload: Workload, layers: Sequence[Layer], gpu: GPU) -> Exchange | None:
    """Return the all-reduces of one pass through a network, or None for a single GPU."""
    if workload.tp == 1:
        return None
    rate, link = link_of(gpu, workload.tp)
    seconds, count = 0.0, 0
    for layer in layers:
        if (size := _summed_bytes(layer)) is not None:
            seconds += layer.count * all_reduce_s(size, workload.tp, rate)
            count += layer.count
    return Exchange(count, Estimate(seconds, seconds / UNSURE, seconds * UNSURE, Source.PREDICTED), link)


def link_of(gpu: GPU, gpus: int) -> tuple[float, str]:
    """Return the bandwidth of the link between GPUs, in bytes per second in one direction, and the link's name."""
    for kind, table, most in (("NVLink", _NVLINK, gpus), ("an NVLink bridge", _BRIDGES, 2)):
        rate = next((rate for rate, names in table.items() if gpu.name in names), None)
        if rate is not None and gpus <= most:
            return rate, f"{kind} ({rate / 1e9:g} GB/s each way)"
    lanes = 8 if gpu.name in _EIGHT_LANES else 16
    rate = _PCIE[gpu.generation] * lanes / 16
    return rate, f"PCIe x{lanes} ({rate / 1e9:g} GB/s each way)"


def all_reduce_s(size: float, gpus: int, rate: float) -> float:
    """Return the predicted time in seconds of an all-reduce.

    Args:
        size: bytes to reduce.
        gpus: number of GPUs.
        rate: bandwidth of the link in one direction, in bytes per second.
    """
    one_step = LATENCY_S + (gpus - 1) * size / (ONE_STEP_SHARE * rate)
    return min(one_step, RING_S + 2 * (gpus - 1) / gpus * size / (RING_SHARE * rate))


def _summed_bytes(layer: Layer) -> float | None:
    if "shared experts" in layer.name:  # Routed and shared experts have one all-reduce.
        return None
    if layer.problem.op != "moe" and "k" not in layer.split:
        return None
    outputs = layer.problem.definition.outputs
    return sum(layer.problem.tensor_bytes[name] for name in outputs)
