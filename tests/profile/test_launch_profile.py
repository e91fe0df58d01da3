"""Test cache behavior, launch profiles and arguments of launches."""

import math
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.compile import compile_source
from kernrec.errors import UsageError
from kernrec.model.analytical.dram_traffic import Footprint, sampled_dram_bytes
from kernrec.profile.cache_behavior import AGAIN_KIB, reuse_metrics, wave_metrics
from kernrec.profile.code_facts import facts_of
from kernrec.profile.launch_arguments import read_arguments
from kernrec.profile.launch_profile import ProfileError, fit_profile
from kernrec.profile.tensor_values import load_npy
from kernrec.ptx import KernelLaunch, TensorMap, parse
from kernrec.ptx.execution.watched import BlockTrace, EmulationOptions
from kernrec.util.engine import module as engine
from tests.helpers.paths import beside

FEW = EmulationOptions(budget=10_000)
PROBES = [{"block": 1, "trips": 4}, {"block": 1, "trips": 6}, {"block": 2, "trips": 9}]


@given(
    st.dictionaries(
        st.sampled_from(["issue", "barriers", "lanes"]), st.tuples(st.integers(0, 10**6), st.integers(0, 10**6))
    )
)
def test_linear_counts_are_fitted_exactly(truth):
    counts = [{m: a * p["block"] + b * p["trips"] for m, (a, b) in truth.items()} for p in PROBES]
    profile = fit_profile(PROBES, counts)
    for metric, (a, b) in truth.items():
        assert profile.counts({"block": 7, "trips": 1000})[metric] == 7 * a + 1000 * b


def test_nonlinear_metric_is_refused_by_name():
    counts = [{"issue": p["trips"] ** 2, "barriers": 1} for p in PROBES]
    with pytest.raises(ProfileError, match="issue is not linear in block, trips"):
        fit_profile(PROBES, counts)


@pytest.mark.parametrize(("factors", "tile"), [((64, -4), 64), ((64, 32), 32), ((-4,), 0)])
def test_tile_size_is_the_smallest_positive_factor_of_the_block_index(factors, tile):
    products = "".join(f"mul.lo.s32 %r2, %r1, {factor};\n" for factor in factors)
    code = f".reg .b32 %r<3>;\nmov.u32 %r1, %ctaid.x;\n{products}ret;\n"
    ptx = f".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry f()\n{{\n{code}}}\n"
    assert facts_of(parse(ptx), "f").tiles == (tile, 0, 0)


@pytest.mark.parametrize(
    "text", ["x=f32[{0}]", "x=texture:u8[{0}x1]", "x=texture(axes={0}):u8[4]", "x=texture(axes=²):u8[4]", "i32:{0}"]
)
def test_numbers_with_thousands_of_digits_are_refused(text):
    with pytest.raises(UsageError):
        read_arguments([text.format("5" * 5000)])


def test_overlong_kernel_argument_is_refused(refuses):
    refuses(lambda: read_arguments(["x" * 70_000]))


@pytest.mark.parametrize("header", ["{'descr': '<f4', 'shape': (", "\0", "{'descr': " + "[" * 5000])
def test_damaged_numpy_header_is_refused(tmp_path, header):
    path = tmp_path / "a.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode())
    with pytest.raises(UsageError, match="is not a NumPy file of plain values"):
        load_npy(path)


def test_tensor_map_lists_its_extents_fastest_first():
    arguments = read_arguments(["a=map(box=16x64,swizzle=128,steps=2x1,nan):f16[40x104]", "b=map(box=4):i32[8]"])
    a, b = arguments.order
    assert a == TensorMap("a", "f16", (104, 40), (208,), (64, 16), 128, (1, 2), fill_nan=True)
    assert b == TensorMap("b", "s32", (8,), (), (4,))
    assert arguments.buffers["a"].size == 40 * 104


def test_invalid_tensor_map_description_is_refused(refuses):
    refuses(lambda text: read_arguments([text]), [
        "a=map(swizzle=128):f16[40x104]", "a=map(box=16):f16[40x104]", "a=map(box=16x64,swizle=128):f16[40x104]",
        "a=map(box=16x64):f16",
    ])  # fmt: skip


LINE = 4  # sectors per cache line


def trace(sectors: list[int], *, step: list[int] | None = None, read: bool = True) -> BlockTrace:
    """Return a trace of one warp. Each request is a separate step unless `step` gives the steps."""
    count = len(sectors)
    steps = np.arange(count) if step is None else np.array(step)
    return BlockTrace(steps, np.zeros(count, np.uint8), np.array(sectors), np.full(count, read))


def hits(sectors: list[int] | np.ndarray, *lines: float) -> list[int]:
    """Return how many of one warp's loads hit in an LRU cache with each number of lines."""
    steps, warps, loads = np.arange(len(sectors)), np.zeros(len(sectors), np.uint8), np.ones(len(sectors), np.bool_)
    requests: list[int] = engine().reuse(steps, warps, np.array(sectors, np.int64), loads, list(map(float, lines)))[0]
    return requests


def again_metrics(trace: BlockTrace) -> dict[str, float]:
    return {metric: value for metric, value in reuse_metrics(trace) if metric.startswith("again.")}


@given(st.lists(st.integers(0, 20), min_size=1, max_size=200))
def test_hits_follow_from_reuse_times(lines):
    last, times = dict[int, int](), []
    for i, line in enumerate(lines):
        times.append(i - last[line] if line in last else len(lines))
        last[line] = i
    footprint = [0.0]
    for n in range(len(lines)):
        footprint.append(footprint[-1] + sum(time > n for time in times) / len(lines))
    repeats = [footprint[time] for time in times if time < len(lines)]
    sizes = (0, 1, 2, 5, 10, 20, math.inf)
    assert hits([LINE * line for line in lines], *sizes) == [sum(d <= size for d in repeats) for size in sizes]
    first = engine().first_requests(np.array(lines))
    assert first.tolist() == [i for i, line in enumerate(lines) if line not in lines[:i]]


@pytest.mark.parametrize("lines", [8, 100])
def test_repeated_pass_hits_a_cache_that_holds_all_lines(lines):
    sectors = [line * LINE for line in range(lines)] * 50
    assert hits(sectors, 0.95 * lines, 1.05 * lines) == [0, 49 * lines]


@given(st.integers(0, 1 << 32))
def test_hit_rates_match_an_lru_cache(seed):
    draw = np.random.default_rng(seed)
    lines = np.minimum(draw.geometric(0.01, 2000), 500)
    for size in (8, 32, 64, 256):
        cache: OrderedDict[int, None] = OrderedDict()
        expected = 0
        for line in lines.tolist():
            expected += line in cache
            cache[line] = None
            cache.move_to_end(line)
            if len(cache) > size:
                cache.popitem(last=False)
        assert hits(lines * LINE, size)[0] / len(lines) == pytest.approx(expected / len(lines), abs=0.05)


def test_load_waits_unless_all_its_sectors_are_cached():
    # Each step reads a new sector, and reads a sector of the previous step again.
    sectors = [s * LINE for i in range(100) for s in (i, i + 1)]
    metrics = dict(reuse_metrics(trace(sectors, step=[i // 2 for i in range(200)])))
    assert metrics["reuse.1"] == pytest.approx(0.5, abs=0.01)
    assert metrics["reuse.wait.1"] == 0.0


def test_second_pass_over_a_row_misses_only_in_smaller_caches():
    row = list(range(64 * 32))  # 64 KiB in sectors of 32 bytes
    again = again_metrics(trace(row * 2))
    assert [again[f"again.{size}"] for size in AGAIN_KIB if size < 64] == pytest.approx([0.5] * 3, abs=0.02)
    assert all(again[f"again.{size}"] == 0.0 for size in AGAIN_KIB if size > 64)


def test_reuse_distance_of_loads_includes_stores():
    row, stored = list(range(32 * 32)), list(range(1 << 20, (1 << 20) + 96 * 32))  # 32 and 96 KiB
    parts = [trace(row), trace(stored, read=False), trace(row)]
    columns = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("step", "warp", "sector", "is_read")
    )
    assert again_metrics(BlockTrace(*columns))["again.64"] == pytest.approx(0.5, abs=0.02)
    assert again_metrics(trace(row)) == {}


SOURCE = beside(__file__, "cache_behavior.cu")
ROWS, COLUMNS, THREADS = 32, 16, 64


def launch(band: int, blocks: int = ROWS * COLUMNS) -> KernelLaunch:
    buffers = {name: np.zeros(size * THREADS, np.float32) for name, size in zip("abc", (32, 16, 512), strict=True)}
    arguments = ["a", "b", "c", np.int32(ROWS), np.int32(COLUMNS), np.int32(band)]
    return KernelLaunch("tiles", (blocks, 1, 1), (THREADS, 1, 1), arguments, buffers, 0, {}, {})


@pytest.fixture
def module(nvrtc):
    return parse(compile_source(SOURCE, 80).ptx)


def test_profile_detects_block_order_in_bands_of_eight_rows(module):
    metrics = wave_metrics(module, launch(8), FEW, [1.0, 0.0])
    assert [metrics[f"wave.a.{n}"] for n in (2, 8, 64, 128)] == [2, 8, 8, 8]
    assert [metrics[f"wave.b.{n}"] for n in (2, 8, 64, 128)] == [1, 1, 8, 16]


def test_reads_after_a_barrier_are_traced_only_on_request(nvrtc):
    """The kernel passes addresses between threads through shared memory before it reads."""
    handed = SOURCE.replace(
        "    float sum", "    __shared__ int rows_of[64]; rows_of[63 - threadIdx.x] = row; __syncthreads();\n"
    )
    handed = handed.replace("= a[row *", "    row = rows_of[threadIdx.x];\n    float sum = a[row *")
    behind = parse(compile_source(handed, 80).ptx)
    assert wave_metrics(behind, launch(8), FEW, [1.0, 0.0]) == {}
    metrics = wave_metrics(behind, launch(8), FEW, [1.0, 0.0], wanted=["a", "b"])
    assert [metrics[f"wave.a.{n}"] for n in (2, 8, 64, 128)] == [2, 8, 8, 8]
    assert [metrics[f"wave.b.{n}"] for n in (2, 8, 64, 128)] == [1, 1, 8, 16]


def test_banded_block_order_reduces_dram_traffic_of_large_tensors():
    blocks, wave, own = np.array([4096.0]), np.array([64.0]), np.array([1 << 20])

    def moved(a: tuple[float, ...], b: tuple[float, ...]) -> float:
        size = np.array([64 * 2.0**20])
        fresh = (np.array([1.0]), np.array([0.0]), np.array([0.0]))
        shared = (np.array([0.0]), np.array([0.0]), np.array([0.0]))
        windows = [tuple(np.array([ratio]) for ratio in ratios) for ratios in (a, b)]
        footprints = [
            Footprint(own * 1.0, fresh, size, False, in_window=windows[0]),
            Footprint(own * 1.0, shared, size, False, in_window=windows[1]),
        ]
        ones = np.array([1.0])
        return float(sampled_dram_bytes((blocks, ones, ones), footprints, wave, 2.0**25)[0])

    in_bands = moved((2, 4, 8, 8, 8, 8), (1, 1, 1, 2, 4, 8))
    in_columns = moved((2, 4, 8, 16, 32, 64), (1, 1, 1, 1, 1, 1))
    assert in_bands < 0.5 * in_columns
