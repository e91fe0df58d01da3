"""Describe a GPU to a captured program: attributes and `cudaDeviceProp`, as in the CUDA Runtime API reference."""

import struct
from typing import Any

from kernrec.gpu import GPU

_LARGEST_GRID, _LARGEST_GRID_YZ = 2**31 - 1, 65_535
_LARGEST_BLOCK_Z = 64
_DEFAULT_SHARED = 48 << 10
_TEXTURE = 131_072
_FIELDS = """
name:256s uuid:16s luid:8s luid_mask:I memory:Q shared:Q registers:i warp:i pitch:Q threads:i block:3i grid:3i -clock:i
constant:Q major:i minor:i texture_align:Q pitch_align:Q -overlap:i sms:i -timeout:i integrated:i maps_host:i -mode:i
t1:i t1m:i -t1l:i t2:2i t2m:2i t2l:3i t2g:2i t3:3i t3a:3i tc:i t1y:2i t2y:3i tcy:2i s1:i s2:2i s3:3i s1y:2i s2y:3i sc:i
scy:2i surface_align:Q concurrent:i ecc:i bus:i device:i domain:i tcc:i engines:i unified:i -memory_clock:i bus_width:i
l2:i persisting:i sm_threads:i priorities:i l1:i l1_local:i sm_shared:Q sm_registers:i managed:i multi:i group:i
host_atomics:i -double_ratio:i pageable:i concurrent_managed:i preemption:i host_pointer:i cooperative:i -multi_device:i
shared_optin:Q host_tables:i direct_managed:i sm_blocks:i window:i reserved_shared:Q host_register:i sparse:i
register_read_only:i semaphores:i pools:i rdma:i rdma_flush:I rdma_order:i pool_handles:I deferred:i ipc:i cluster:i
function_pointers:i
"""
"""Fields of `cudaDeviceProp`, with types as in Python's `struct`. A leading `-` marks a field that only CUDA 12 has."""
_RESERVED_BYTES = 63 * 4


def attributes(gpu: GPU) -> dict[int, int]:
    """Return the known attributes of a GPU, keyed by their number in `cudaDeviceAttr`."""
    limits = gpu.limits
    return {
        1: limits.max_threads_per_block,
        2: 1024, 3: 1024, 4: _LARGEST_BLOCK_Z,
        5: _LARGEST_GRID, 6: _LARGEST_GRID_YZ, 7: _LARGEST_GRID_YZ,
        8: _DEFAULT_SHARED,
        9: 64 << 10,
        10: 32,
        11: 2**31 - 1,
        12: limits.registers_per_block,
        13: round(gpu.boost_clock_hz / 1e3),
        14: 512,
        15: 1,
        16: gpu.sms,
        19: 1,
        21: _TEXTURE, 22: _TEXTURE, 23: 65_536, 24: 16_384, 25: 16_384, 26: 16_384, 27: 32_768, 28: 32_768, 29: 2048,
        30: 512,
        31: 1,
        36: round(gpu.memory_rate_hz / 2 / 1e3),
        37: gpu.memory_bus_bits,
        38: gpu.l2_bytes,
        39: 32 * limits.max_warps_per_sm,
        40: 2,
        41: 1,
        42: 32_768, 43: 2048,
        51: 32,
        69: 1 << 28, 70: _TEXTURE, 71: 65_000, 72: 2_097_120,
        75: gpu.sm // 10, 76: gpu.sm % 10,
        78: 1, 79: 1, 80: 1,
        81: limits.smem_per_sm,
        82: limits.registers_per_sm,
        83: 1,
        87: 2 if gpu.fma_per_clk_sm.get("f64", 0) * 4 > gpu.fma_per_clk_sm.get("f32", 1) else 64,
        89: 1, 90: 1,
        95: 1,
        97: limits.smem_per_block,
        99: 1,
        106: limits.max_blocks_per_sm,
        108: gpu.l2_bytes * 3 // 4, 109: min(gpu.l2_bytes * 3 // 4, 128 << 20),
        111: limits.smem_reserved_per_block,
        115: 1,
        120: int(gpu.sm >= 90),
        121: 0,
    }  # fmt: skip


def device_name(gpu: GPU) -> str:
    return f"{gpu.title} (emulated by kernrec)"


def properties(gpu: GPU, version: int) -> bytes:
    """Return the bytes of a GPU's `cudaDeviceProp`. `version` is the major version of CUDA, 12 or 13."""
    a = attributes(gpu)
    memory_clock, name = a[36], device_name(gpu).encode()[:255]
    values: dict[str, object] = {
        "name": name, "uuid": b"kernrec-emulated", "luid": b"", "memory": gpu.usable_bytes, "shared": a[8],
        "registers": a[12], "warp": 32, "pitch": a[11], "threads": a[1], "block": (a[2], a[3], a[4]),
        "grid": (a[5], a[6], a[7]), "clock": a[13], "constant": a[9], "major": a[75], "minor": a[76],
        "texture_align": 512, "pitch_align": 32, "overlap": 1, "sms": a[16], "maps_host": 1, "t1": a[21], "t1m": 32_768,
        "t1l": a[69], "t2": (a[22], a[23]), "t2m": (32_768, 32_768), "t2l": (a[70], a[71], a[72]),
        "t2g": (32_768, 32_768), "t3": (a[24], a[25], a[26]), "t3a": (8192, 8192, 32_768), "tc": 32_768,
        "t1y": (a[42], a[43]), "t2y": (a[27], a[28], a[29]), "tcy": (32_768, 2046), "s1": 32_768,
        "s2": (_TEXTURE, 65_536), "s3": (16_384, 16_384, 16_384), "s1y": (32_768, 2048), "s2y": (32_768, 32_768, 2048),
        "sc": 32_768, "scy": (32_768, 2046), "surface_align": 512, "concurrent": 1, "engines": 2, "unified": 1,
        "memory_clock": memory_clock, "bus_width": a[37], "l2": a[38], "persisting": a[108], "sm_threads": a[39],
        "priorities": 1, "l1": 1, "l1_local": 1, "sm_shared": a[81], "sm_registers": a[82], "managed": 1,
        "double_ratio": a[87], "concurrent_managed": 1, "preemption": 1, "cooperative": 1, "shared_optin": a[97],
        "sm_blocks": a[106], "window": a[109], "reserved_shared": a[111], "host_register": 1, "pools": 1,
        "cluster": a[120],
    }  # fmt: skip
    layout = "@"
    packed: list[Any] = []
    for text in _FIELDS.split():
        field, _, kind = text.lstrip("-").partition(":")
        if text.startswith("-") and version > 12:
            continue
        layout += kind
        count = int(kind[:-1]) if kind[-1] != "s" and len(kind) > 1 else 1
        value = values.get(field, b"" if kind[-1] == "s" else (0,) * count if count > 1 else 0)
        packed += value if isinstance(value, tuple) else [value]
    data = struct.pack(layout, *packed)
    data += bytes(_RESERVED_BYTES)
    return data + bytes(-len(data) % 8)
