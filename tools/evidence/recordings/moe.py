"""Read recorded mixtures of experts of three backends in CUDA graphs, in eight data types.

Networks that were recorded as not gated with TensorRT-LLM (the Nemotron family) count as not gated for all backends.
"""

from pathlib import Path

import numpy as np
from library_training.table import Recording

from evidence.recordings.serving import fastest, recording_of
from kernrec.model.vendor.bound import Timing

EXPERTS = Timing(40000.0, 1.0)
"""Timing of routing, sorting, two matmuls and the sum in CUDA graphs. The shortest time of each GPU is about 20 us."""
_SIZES = (
    "num_tokens AS tokens", "hidden_size AS hidden", "inter_size AS intermediate", "num_experts AS experts", "topk",
    "moe_tp_size AS tp", "moe_ep_size AS ep",
    "CASE distribution WHEN 'balanced' THEN 0 WHEN 'power_law_1.01' THEN 101 ELSE 120 END AS routing",
    "CAST(NOT (topk = 22 OR (hidden_size = 2688 AND inter_size = 1856)) AS BIGINT) AS gated",
)  # fmt: skip


def recordings(data: Path) -> list[Recording]:
    columns = fastest(data / "library" / "serving_moe.parquet", _SIZES)
    recorded = "27 networks, 1 to 65,536 tokens, routing balanced or by a power law, CUDA graphs"
    columns["latency_s"] = np.asarray(columns["latency_s"], dtype=float)
    return [
        recording_of("experts", "moe", "experts", columns, ("row",), ("f16",), 0.11, EXPERTS, ("tokens",), recorded)
    ]
