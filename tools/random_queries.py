"""Draw random queries over all ops, kernels, GPUs, data types, layouts, objectives, bounds and operating points.

Queries are plain values for other processes, grouped by GPU. There are several of each kind (GPU, op or kernel, data
type, layout), because building a kind's static tables takes longer than an answer. Most queries have an answer, and
some shapes come from recorded rows.
"""

import random
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import groupby
from math import log2
from pathlib import Path
from typing import Any

from evidence.recordings.files import recorded_dicts

from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import GPU, all_gpus, find_gpu
from kernrec.kernel import all_kernels, kernels_for
from kernrec.kernel.library import triton_kernels
from kernrec.op import Op, all_ops, find_op
from kernrec.paths import shipped
from kernrec.recommender import Recommender
from kernrec.store.recorded import contents

Query = dict[str, Any]
"""Query as a dictionary. Its keys are `gpu`, `op` or `kernel`, `dtype`, `layout`, `query` (arguments of
`kernrec.recommender.Query`), and `shape`, or `shapes` for several shapes in one call."""
Sizes = dict[str, int]
Kind = tuple[str, str, str, str | None, bool]
"""(GPU, name of an op or kernel, data type, layout or None, whether the name is that of a kernel)."""

OF_A_KIND = 8
"""Number of queries of each kind."""
_AT_ONCE = 12
"""Number of shapes in a query for several shapes."""
TYPICAL: Mapping[str, Sizes] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_WEIGHTS = {"matmul": 5, "attention": 3, "conv2d": 3, "moe": 2}
"""Relative frequency of an op. It is 1 for all other ops."""
_RECOMMENDER = Recommender([])
_BACKENDS = ("PyTorch", "vLLM", "SGLang", "cuBLAS")


def random_queries(count: int, seed: int, of_a_kind: int = OF_A_KIND) -> list[list[Query]]:
    """Return about `count` random queries, as one list per GPU. Equal seeds give equal queries."""
    draw = random.Random(seed)
    chosen = sorted((_kind(draw) for _ in range(-(-count // of_a_kind))), key=lambda kind: kind[0])
    queries = [query for kind in chosen for query in _of_kind(draw, kind, of_a_kind)][:count]
    return [list(group) for _, group in groupby(queries, key=lambda query: str(query["gpu"]))]


def _kind(draw: random.Random) -> Kind:
    while True:
        which = draw.random()
        if which < 0.2:  # Take the kind of a recorded row.
            op = draw.choice(sorted(contents()))
            name, dtype, layout = draw.choice(sorted(_recorded(op)))
            free = draw.random() < 0.5 and _is_answered(op, name, dtype, None)
            return name, op, dtype, None if free else layout, False
        gpu = draw.choice(all_gpus())
        if which < 0.3:
            kernel = draw.choice([*all_kernels(), *triton_kernels()])
            dtype = draw.choice(kernel.dtypes)
            if kernel.runs_on(dtype, gpu.sm):
                return gpu.name, kernel.name, dtype, draw.choice(kernel.layouts), True
            continue
        (definition,) = draw.choices(all_ops(), [_WEIGHTS.get(op.name, 1) for op in all_ops()])
        dtype = draw.choice(definition.dtypes)
        free_or_fixed = draw.choice([None, *definition.layouts])
        if _is_answered(definition.name, gpu.name, dtype, free_or_fixed):
            return gpu.name, definition.name, dtype, free_or_fixed, False


@cache
def _is_answered(op: str, gpu: str, dtype: str, layout: str | None) -> bool:
    sm = find_gpu(gpu).sm
    if any(kernel.runs_on(dtype, sm) for kernel in kernels_for(op, dtype, layout, sm)):
        return True
    try:
        return bool(_RECOMMENDER.recommend(op, gpu, TYPICAL[op], dtype, layout))
    except KernrecError:
        return False


@cache
def _recorded(op: str) -> Mapping[tuple[str, str, str], Sequence[Sizes]]:
    """Return a sample of the recorded shapes of an op, keyed by (GPU, data type, layout)."""
    kinds: dict[tuple[str, str, str], list[Sizes]] = {}
    if op in contents():
        path = shipped("db/prebuilt") / "recorded" / f"{op}.parquet"
        present = recorded_dicts(path, "true LIMIT 1")[0]
        sizes = ", ".join(f'"{dim.name}"' for dim in find_op(op).dims if dim.name in present)
        condition = f"hash({sizes}) % 200 = 0 ORDER BY ALL"
        for row in recorded_dicts(path, condition, f"DISTINCT gpu, dtype, layout, {sizes}"):
            kinds.setdefault((row.pop("gpu"), row.pop("dtype"), row.pop("layout")), []).append(row)
    return kinds


def _of_kind(draw: random.Random, kind: Kind, count: int) -> list[Query]:
    gpu_name, name, dtype, layout, of_kernel = kind
    gpu = find_gpu(gpu_name)
    op = find_op(name.partition("_")[0] if of_kernel else name)

    def shape() -> Sizes:
        if of_kernel:
            return random_shape(draw, op, dtype, layout, plain=True)
        usual = layout or op.dtype_layouts.get(dtype, op.layouts[0])
        recorded = _recorded(op.name).get((gpu_name, dtype, usual), ())
        if recorded and (draw.random() < 0.4 or not _is_answered(name, gpu_name, dtype, layout)):
            return draw.choice(recorded)
        return random_shape(draw, op, dtype, layout)

    queries = []
    for _ in range(count):
        query: Query = {"gpu": gpu_name, "kernel" if of_kernel else "op": name, "dtype": dtype, "layout": layout}
        if not of_kernel and draw.random() < 0.15:
            shapes = [shape() for _ in range(_AT_ONCE)]
            query["shapes"] = {
                dim.name: [sizes.get(dim.name, dim.default) for sizes in shapes]
                for dim in op.dims
                if any(dim.name in sizes for sizes in shapes)
            }
            query["query"] = {"objective": draw.choice(["latency", "energy", "edp"]), **_point(draw, gpu)}
        else:
            query["shape"] = shape()
            query["query"] = _wanted(draw, gpu)
        queries.append(query)
    return queries


def _point(draw: random.Random, gpu: GPU) -> dict[str, float]:
    point = {}
    if draw.random() < 0.25:
        watts = draw.uniform(gpu.power_min_w, gpu.power_max_w)
        point["power_limit_w"] = draw.choice([watts, float(round(watts)), gpu.power_min_w, gpu.tdp_w])
    if draw.random() < 0.12:
        point["clock_hz"] = round(draw.uniform(0.4, 1.0) * gpu.boost_clock_hz / 15e6) * 15e6
    return point


def _wanted(draw: random.Random, gpu: GPU) -> dict[str, Any]:
    point = _point(draw, gpu)
    wanted: dict[str, Any] = {"objective": draw.choice(["pareto", "pareto", "latency", "energy", "edp"]), **point}
    options: Sequence[tuple[float, str, Callable[[], Any]]] = (
        (0.4, "top", lambda: draw.choice([1, 3, 40])),
        (0.2, "max_slowdown", lambda: draw.choice([0.0, 0.03, 0.1, 1.0])),
        (0.08, "max_power_w", lambda: draw.uniform(0.6, 1.0) * gpu.tdp_w),
        (0.05, "inputs", lambda: "zeros"),
        (0.04, "source", lambda: draw.choice(["predicted", "predicted", "predicted", "learned", "published"])),
        (0.05, "backends", lambda: draw.sample(_BACKENDS, 2)),
        (0.05, "each_config", lambda: True),
        (0.0 if "clock_hz" in point else 0.06, "clocks", lambda: True),
    )
    return wanted | {name: value() for chance, name, value in options if draw.random() < chance}


def random_shape(draw: random.Random, op: Op, dtype: str, layout: str | None, plain: bool = False) -> Sizes:
    """Draw a shape that the op accepts. Kernels can index most of these shapes. If `plain`, most sizes are multiples of
    64 and there is no epilogue, because many single kernels require this."""
    while True:
        shape = _DRAWN[op.name](draw)
        if plain and draw.random() < 0.8:
            shape = {name: size for name, size in shape.items() if name not in _SPECIAL}
            shape |= {name: -(-shape[name] // 64) * 64 for name in _ALIGNED if name in shape and op.name != "conv2d"}
        try:
            if op.problem(dtype, layout, **shape).too_large is None or draw.random() < 0.02:
                return shape
        except UsageError:
            continue


_SPECIAL = ("bias", "activation", "window", "kv_dtype")
_ALIGNED = ("m", "n", "k", "rows", "columns", "head_dim")


def _size(draw: random.Random, most: int) -> int:
    step = draw.choice([1, 1, 8, 16, 32, 64, 128, 256])
    size = round(2 ** draw.uniform(0, log2(most)))
    return min(max(round(size / step) * step + draw.choice([0, 0, 0, 0, 1, -1]), 1), most)


def _flags(draw: random.Random, **most: int) -> Sizes:
    return {name: draw.randint(1, high) for name, high in most.items() if draw.random() < 0.12}


def _matmul(draw: random.Random) -> Sizes:
    batch = {"batch": _size(draw, 256)} if draw.random() < 0.15 else {}
    sizes = {"m": _size(draw, 2**17), "n": _size(draw, 2**17), "k": _size(draw, 2**17)}
    return sizes | batch | _flags(draw, bias=1, activation=3, scales=1, output=2)


def _conv2d(draw: random.Random) -> Sizes:
    taps = draw.choice([1, 1, 3, 3, 3, 5, 7])
    channels, side = draw.choice([3, _size(draw, 2048)]), _size(draw, 512)
    sizes = {"n": _size(draw, 256), "c": channels, "h": side, "w": draw.choice([side, _size(draw, 512)])}
    sizes |= {"k": _size(draw, 2048), "r": taps, "s": draw.choice([taps, taps, 1]), "stride": draw.choice([1, 1, 2, 4])}
    sizes |= {"padding": draw.choice([0, taps // 2]), "dilation": draw.choice([1, 1, 1, 2])}
    if draw.random() < 0.2:
        groups = draw.choice([channels, 2, 4])
        sizes |= {"k": draw.choice([groups, 2 * groups]), "c": max(channels // groups, 1) * groups, "groups": groups}
    return sizes


def _attention(draw: random.Random) -> Sizes:
    shared, kv_heads = draw.choice([1, 1, 2, 4, 8]), _size(draw, 64)
    keys = _size(draw, 2**17)
    sizes = {"batch": _size(draw, 256), "heads": kv_heads * shared, "kv_heads": kv_heads, "keys": keys}
    sizes |= {"queries": draw.choice([1, keys, min(keys, _size(draw, 4096))]), "causal": draw.choice([0, 1])}
    sizes["head_dim"] = draw.choice([32, 64, 64, 80, 96, 128, 128, 128, 192, 256, _size(draw, 256)])
    return sizes | _flags(draw, window=keys, scales=1, output=1, kv_dtype=1)


def _moe(draw: random.Random) -> Sizes:
    experts = draw.choice([8, 16, 60, 64, 128, 256])
    sizes = {"tokens": _size(draw, 2**16), "experts": experts, "topk": draw.choice([1, 2, 4, 6, 8])}
    sizes |= {"hidden": 128 * _size(draw, 64), "intermediate": 128 * _size(draw, 128)}
    sizes |= {"tp": draw.choice([1, 1, 2, 4, 8]), "ep": draw.choice([1, 1, 1, 2, 4])}
    return sizes | _flags(draw, routing=200) | {"gated": draw.choice([1, 1, 1, 0])}


_OF_ROWS = ("layernorm", "reduce", "rmsnorm", "softmax", "transpose")
_DRAWN: Mapping[str, Callable[[random.Random], Sizes]] = {
    "matmul": _matmul, "conv2d": _conv2d, "attention": _attention, "moe": _moe,
    "matvec": lambda draw: {"m": _size(draw, 2**18), "k": _size(draw, 2**17), "n": draw.choice([1, 1, 2, 4, 7, 16])},
    "elementwise": lambda draw: {"n": _size(draw, 2**31 - 1)},
    **dict.fromkeys(_OF_ROWS, lambda draw: {"rows": _size(draw, 2**21), "columns": _size(draw, 2**18)}),
}  # fmt: skip
