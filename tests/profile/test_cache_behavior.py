"""Test reuse, contiguous runs and atomic conflicts on traces small enough to calculate by hand."""

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.profile.cache_behavior import AGAIN_KIB, again_metrics, lines_between, reuse_metrics, reuse_times
from kernrec.ptx.execution.watched import BlockTrace

LINE = 4  # sectors per cache line


def trace(sectors: list[int], *, step: list[int] | None = None, read: bool = True) -> BlockTrace:
    """Return a trace of one warp. Each request is a separate step unless `step` gives the steps."""
    count = len(sectors)
    steps = np.arange(count) if step is None else np.array(step)
    return BlockTrace(steps, np.zeros(count, np.int64), np.array(sectors), np.full(count, read))


@given(st.lists(st.integers(0, 20), max_size=200))
def test_reuse_time_is_the_distance_to_the_previous_use(units):
    times = reuse_times(np.array(units, np.int64))
    for i, unit in enumerate(units):
        earlier = [j for j in range(i) if units[j] == unit]
        assert times[i] == i - earlier[-1] if earlier else times[i] > len(units)


@pytest.mark.parametrize("lines", [8, 100])
def test_round_trip_over_lines_hits_a_cache_that_holds_all_of_them(lines):
    sectors = [line * LINE for line in range(lines)] * 50
    distance = lines_between(np.array(sectors))
    assert np.isinf(distance[:lines]).all()
    assert distance[lines:] == pytest.approx(lines, rel=0.05)


@given(st.integers(0, 1 << 32))
def test_hit_rates_match_an_lru_cache(seed):
    draw = np.random.default_rng(seed)
    lines = np.minimum(draw.geometric(0.01, 2000), 500)
    distance = lines_between(lines * LINE)
    for size in (8, 32, 64, 256):
        cache: OrderedDict[int, None] = OrderedDict()
        hits = 0
        for line in lines.tolist():
            hits += line in cache
            cache[line] = None
            cache.move_to_end(line)
            if len(cache) > size:
                cache.popitem(last=False)
        assert (distance <= size).mean() == pytest.approx(hits / len(lines), abs=0.05)


def test_load_waits_unless_all_its_sectors_are_cached():
    # Each step reads a new sector and one that the step before read.
    sectors = [s * LINE for i in range(100) for s in (i, i + 1)]
    metrics = dict(reuse_metrics(trace(sectors, step=[i // 2 for i in range(200)])))
    assert metrics["reuse.1"] == pytest.approx(0.5, abs=0.01)
    assert metrics["reuse.wait.1"] == 0.0


def test_second_pass_loads_data_again_after_one_row_of_other_data():
    row = list(range(64 * 32))  # 64 KiB in sectors of 32 bytes
    again = dict(again_metrics(trace(row * 2)))
    assert [again[f"again.{size}"] for size in AGAIN_KIB if size < 64] == pytest.approx([0.5] * 3, abs=0.02)
    assert all(again[f"again.{size}"] == 0.0 for size in AGAIN_KIB if size > 64)


def test_stores_take_space_between_repeated_loads():
    row, stored = list(range(32 * 32)), list(range(1 << 20, (1 << 20) + 96 * 32))  # 32 and 96 KiB
    parts = [trace(row), trace(stored, read=False), trace(row)]
    columns = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("step", "warp", "sector", "is_read")
    )
    assert dict(again_metrics(BlockTrace(*columns)))["again.64"] == pytest.approx(0.5, abs=0.02)
    assert dict(again_metrics(trace(row))) == {}
