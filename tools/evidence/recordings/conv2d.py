"""Read recorded f32 convolutions of PyTorch: cuDNN's times for 3x3 filters, one call at a time."""

from pathlib import Path

import numpy as np
from library_training.table import Recording

from evidence.recordings.torch_calls import CALL, CALLS, cards_of
from evidence.recordings.vendor import columns_of
from kernrec.model.vendor.recorded_set import RecordedSet


def recordings(data: Path) -> list[Recording]:
    names = ("device", "n", "c", "h", "k", "latency_s")
    columns, gpu = cards_of(columns_of(data / "library" / "torch_conv2d_f32.parquet", names))
    about = CALLS | {"library": "cuDNN 8.9, called by PyTorch 2.1", "recorded": "square inputs, 3x3, padding 1, nchw"}
    versions = {"cuDNN": dict.fromkeys(sorted(set(gpu.tolist())), "8.9")}
    recorded = RecordedSet(
        "conv", "conv2d", "3x3", versions, ("f32",), ("nchw",), (), 0.0,
        CALL, (), {}, (), about,
    )  # fmt: skip
    dims = {name: columns[name].astype(np.int64) for name in "nchk"} | {"w": columns["h"].astype(np.int64)}
    count = len(gpu)
    backend, dtype, layout = (np.full(count, word) for word in ("cuDNN", "f32", "nchw"))
    return [Recording(recorded, gpu, backend, dtype, layout, dims, columns["latency_s"], np.full(count, np.nan))]
