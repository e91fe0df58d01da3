"""Describe a launch of vLLM's kernel for state-space layers, for one token per sequence, with given configs.

The arguments follow vLLM 0.33.0 (`mamba_ssm.py`, `mamba_mixer2.py`) without speculative decoding. States are rounded to
the nearest value.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernrec.profile.triton_call_file import TritonCall
from kernrec.recommender.analyze.triton import argument
from kernrec.recommender.serving.engine_defaults import Tiles
from kernrec.recommender.serving.engines import StateShape

_NONE = {"python": "None"}


def state_call(shape: StateShape, batch: int, tiles: Sequence[Tiles], path: Path, own: str) -> TritonCall:
    """Return the launch that processes one token of each of `batch` sequences, with contiguous states.

    `path` contains the kernel's source. `own` is vLLM's kernel as `module:function`.
    """
    heads, width, state = shape.heads, shape.width, shape.state
    mixed = heads * width + 2 * shape.groups * state  # Outputs of the preceding convolution for each token
    sequences = np.arange(1, batch + 1, dtype=np.int32)  # Start at 1: entry 0 of the cache is unused.
    of_tokens = {"dtype": "bf16", "shape": [batch, mixed]}
    of_heads = {"dtype": "bf16", "shape": [heads]}
    cache = {"float32": "f32", "float16": "bf16"}[shape.cache_dtype]
    arguments: dict[str, Any] = {
        "state_ptr": {"dtype": cache, "shape": [batch + 1, heads, width, state]},
        "rand_seed_ptr": _NONE,
        "x_ptr": of_tokens,
        "dt_ptr": {"dtype": "bf16", "shape": [batch, heads]},
        "dt_bias_ptr": of_heads,
        "A_ptr": {"dtype": "f32", "shape": [heads]},
        "B_ptr": of_tokens,
        "C_ptr": of_tokens,
        "D_ptr": of_heads,
        "z_ptr": _NONE,
        "out_ptr": {"dtype": "bf16", "shape": [batch, heads, width]},
        "state_batch_indices_ptr": argument(sequences),
        "dst_state_batch_indices_ptr": argument(sequences),
        "num_accepted_tokens_ptr": _NONE,
        "cu_seqlens_ptr": _NONE,
        "null_block_id": 0,
        "N": batch,
        "nheads": heads,
        "dim": width,
        "dstate": state,
        "nheads_ngroups_ratio": heads // shape.groups,
        **_strides("state", batch=heads * width * state, head=width * state, dim=state, dstate=1),
        **_strides("x", batch=mixed, head=width, dim=1),
        **_strides("dt", batch=heads, head=1, dim=0),
        **_strides("dt_bias", head=1, dim=0),
        **_strides("A", head=1, dim=0, dstate=0),
        **_strides("B", batch=mixed, group=state, dstate=1),
        **_strides("C", batch=mixed, group=state, dstate=1),
        **_strides("D", head=1, dim=0),
        **_strides("z", batch=0, head=0, dim=0),
        **_strides("out", batch=heads * width, head=width, dim=1),
        **_strides("state_indices", batch=1, T=1),
        **_strides("dst_state_indices", batch=1, T=1),
        "DT_SOFTPLUS": True,
        "TIE_HDIM": True,
        "USE_RS_ROUNDING": False,
        "PHILOX_ROUNDS": 0,
    }
    module, _, function = own.partition(":")
    grid = ["ceil_div(dim, BLOCK_SIZE_M)", "N", "nheads"]
    operations = f"6 * {batch * heads * width * state}"
    return TritonCall(path, function, arguments, grid, tiles, operations, module=module)


def _strides(tensor: str, **sizes: int) -> dict[str, int]:
    return {f"stride_{tensor}_{axis}": size for axis, size in sizes.items()}
