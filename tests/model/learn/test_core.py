"""The learner's arithmetic as Python and compiled: equal results."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernrec.model.learn import core, extent, features, forest, lower_bound
from kernrec.model.prior.core import TIMES
from kernrec.model.prior.demand import PIPES
from kernrec.model.prior.launch_time import LaunchTime
from tests.helpers.core_forms import draws, in_both_forms
from tests.helpers.depth import few_examples
from tests.helpers.simulated_groups import simulated_inputs


@few_examples(30)
@given(draws, st.integers(0, 6), st.integers(0, 30), st.integers(1, 3))
def test_candidates_go_down_complete_trees_alike_in_both_forms(
    draw: np.random.Generator, levels: int, rows: int, eights: int
) -> None:
    splits = 8 * eights * (2**levels - 1)
    column = draw.integers(0, 2 * 5, splits).astype(np.uint16)
    thresholds, leaves = draw.normal(size=splits), draw.exponential(size=splits + 8 * eights)
    value = np.concatenate([thresholds, leaves]).astype(np.float32)
    trained = forest.Forest(5, 8 * eights, levels, column, value, 0.5)
    matrix = np.where(draw.random((rows, 5)) < 0.2, np.nan, draw.normal(size=(rows, 5)))
    in_both_forms(forest, lambda: [trained.predict(matrix)], within=1e-12)


def some_inputs(draw: np.random.Generator, count: int) -> features.ModelInputs:
    """Inputs of which some are 0, and some are not known."""
    inputs = simulated_inputs(count, int(draw.integers(1000)))
    for name in ("busy_s", "wait_s", "dram_s", "blocks", "pipe_s"):
        values = getattr(inputs, name)
        values[..., draw.random(count) < 0.2] = 0.0
        values[..., draw.random(count) < 0.1] = np.nan
    return inputs


@few_examples(30)
@given(draws, st.integers(0, 30), st.booleans())
def test_features_are_alike_in_both_forms(draw: np.random.Generator, rows: int, without: bool) -> None:
    inputs, columns = some_inputs(draw, rows), list(features.names(("tile", "other")))
    draw.shuffle(columns)
    if without:
        inputs = replace(inputs, resident=None, l2_s=None)
    with np.errstate(divide="ignore"):
        # The last bit of a logarithm may decide to which of two float32 it is rounded.
        in_both_forms(features, lambda: [features.matrix(inputs, columns)], within=2.0**-23)


@few_examples(30)
@given(draws, st.integers(1, 20))
def test_times_of_launches_add_up_alike_in_both_forms(draw: np.random.Generator, rows: int) -> None:
    who = np.flatnonzero(draw.random(rows) < 0.7)
    pipe_clk, times = draw.exponential(size=(len(PIPES), rows + 3)), draw.exponential(size=(TIMES, rows + 3))
    pipe_clk[:, draw.random(rows + 3) < 0.2] = 0.0
    places, before = draw.permutation(rows + 3)[: len(who)], draw.normal(size=(len(features.QUANTITIES), rows))

    def added() -> list[np.ndarray]:
        arithmetic, quantities = features.core("kernrec.model.learn"), before.copy()
        pipes = np.arange(len(PIPES))
        pipes = pipes if arithmetic.compiled else pipes[np.newaxis, :, np.newaxis]
        indexes = *map(arithmetic.rows, (who, places)), pipes
        arithmetic.functions.add_times(*indexes, pipe_clk, times, quantities)
        return [quantities]

    in_both_forms(features, added)


@few_examples(30)
@given(draws, st.integers(0, 30), st.sets(st.sampled_from(["pipe_s", "clock_hz", "fixed_s"])))
def test_least_times_are_alike_in_both_forms(draw: np.random.Generator, rows: int, unknown: set[str]) -> None:
    inputs = replace(some_inputs(draw, rows), clock_hz=draw.uniform(1e9, 2e9, rows))
    inputs = replace(inputs, **dict.fromkeys(unknown))
    in_both_forms(lower_bound, lambda: [lower_bound.least_seconds(inputs)])


@few_examples(30)
@given(draws, st.integers(0, 30), st.sampled_from([0.1, 3.0]))
def test_distances_are_alike_in_both_forms(draw: np.random.Generator, rows: int, far: float) -> None:
    seen, matrix = draw.normal(size=(100, 6)), far * draw.normal(size=(rows, 6))
    seen[:, 2], matrix[draw.random((rows, 6)) < 0.2] = np.nan, np.nan
    matrix[draw.random((rows, 6)) < 0.1] = np.inf
    of_training = extent.Extent.of(seen.astype(np.float32), np.array([0, 0, 1, 1, 1, 3]))
    in_both_forms(extent, lambda: [of_training.distance(matrix.astype(np.float32))], within=1e-12)


def test_rows_of_the_core_are_those_of_the_quantities() -> None:
    names = (
        "clock_hz", "fixed_s", "threads", "resident", "shared_bytes", "flops", "bytes", "blocks", "busy_s", "wait_s",
        "l2_s", f"pipe_s[{PIPES[0]}]", "1", "SMs", "max(flops, 1)", "compute_s", "traffic_s", "roofline_s", "warps",
        "lanes", "all_threads", "max(resident, 1)", "resident_warps", "resident_bytes", "waves", "rounds",
        "max(busy_s, 1e-30)",
    )  # fmt: skip
    rows = (
        core.CLOCK_HZ, core.FIXED_S, core.THREADS, core.RESIDENT, core.SHARED_BYTES, core.FLOPS, core.BYTES,
        core.BLOCKS, core.BUSY_S, core.WAIT_S, core.L2_S, core.PIPES_S, core.ONE, core.SMS, core.SOME_FLOPS,
        core.COMPUTE_S, core.TRAFFIC_S, core.ROOFLINE_S, core.WARPS, core.LANES, core.ALL_THREADS, core.SOME_RESIDENT,
        core.RESIDENT_WARPS, core.RESIDENT_BYTES, core.WAVES, core.ROUNDS, core.SOME_BUSY_S,
    )  # fmt: skip
    assert rows == tuple(map(features.QUANTITIES.index, names))
    assert features.QUANTITIES[core.ONE + core.CONSTANTS] == "max(flops, 1)"
    times = LaunchTime(np.zeros((len(PIPES), 1)), np.arange(float(TIMES))[:, np.newaxis], np.zeros(1))
    assert (times.busy_s[0], times.latency_s[0], times.l2_s[0]) == (core.TIMES_BUSY, core.TIMES_WAIT, core.TIMES_L2)
