"""The learner's arithmetic: features of candidates, how far they lie outside of the training data, what trees say.

One source in two forms, as `kernrec.model.prior.core` explains: as Python an axis of length one stands in front of the
candidates, and of features or trees, and each name stands for all pairs of them.

Rows of quantities are those of `features.QUANTITIES`.
"""

from typing import Any

from kernrec.model.learn.elementwise import (
    ceil,
    largest,
    largest_mean,
    leaves,
    log1p,
    log2,
    maximum,
    minimum,
    select,
    sqrt,
)

CLOCK_HZ, FIXED_S, THREADS, RESIDENT, SHARED_BYTES, FLOPS, BYTES, BLOCKS = 3, 9, 12, 13, 15, 16, 17, 18
BUSY_S, WAIT_S, L2_S, PIPES_S = 19, 20, 21, 22
"""Rows of inputs; the last is that of the first pipe."""
ONE, SMS, CONSTANTS, PEAK_FLOPS, BANDWIDTH = 31, 32, 7, 7, 8
"""Rows of what is the same for all candidates, and how many there are; places of other figures of the GPU."""
SOME_FLOPS, COMPUTE_S, TRAFFIC_S, ROOFLINE_S, WARPS, LANES, ALL_THREADS = 38, 39, 40, 41, 42, 43, 44
SOME_RESIDENT, RESIDENT_WARPS, RESIDENT_BYTES, WAVES, ROUNDS, SOME_BUSY_S = 45, 46, 47, 48, 49, 50
"""Rows of what follows from those."""
TIMES_BUSY, TIMES_WAIT, TIMES_L2 = 3, 4, 5
"""Rows of `prior.launch_time.LaunchTime`."""
LEAST = 1e-30
"""Stands for a time of 0 where something is divided by it."""
LEAST_RATIO, MOST_RATIO = 1e-6, 1e6
MOST_DEVIATIONS = 10.0
"""Largest distance in a single feature, in standard deviations."""
INFINITY = float("inf")


class Ratios:
    """Features of one kind: which quantities they divide."""

    def __init__(self, above: Any, below: Any, places: Any, bounded: bool, logarithmic: bool) -> None:
        """Of columns that are bounded or not, logarithms or not.

        Args:
            above, below: rows of quantities, (F,).
            places: where the features are among the columns of a model, (F,).
        """
        self.above = above
        self.below = below
        self.places = places
        self.bounded = bounded
        self.logarithmic = logarithmic


class FeaturePlan:
    """The columns of a model that are ratios, for candidates on a GPU."""

    def __init__(self, gpu: Any, bounded: Ratios, logarithmic: Ratios, plain: Ratios) -> None:
        """The three kinds; gpu: its figures, `features.figures_of`."""
        self.gpu = gpu
        self.bounded = bounded
        self.logarithmic = logarithmic
        self.plain = plain


def add_times(who: Any, places: Any, pipes: Any, pipe_clk: Any, times: Any, quantities: Any) -> None:
    """Adds the times of one launch to the inputs of candidates.

    Args:
        who: the candidates that perform the launch, each once, (N,).
        places: of these in `pipe_clk` and `times`, the arrays of `prior.launch_time.LaunchTime`, (N,).
        pipes: the numbers of all pipes, (P,).
        quantities: (Q, C), changed in place.
    """
    for k in range(len(who)):
        i, place = who[k], places[k]
        busy_s = times[TIMES_BUSY, place]
        share_s = busy_s / maximum(largest(pipe_clk, place), LEAST)
        for p in range(len(pipes)):
            pipe = pipes[p]
            quantities[PIPES_S + pipe, i] += pipe_clk[pipe, place] * share_s
        quantities[BUSY_S, i] += busy_s
        quantities[WAIT_S, i] += times[TIMES_WAIT, place]
        quantities[L2_S, i] += times[TIMES_L2, place]


def features(plan: FeaturePlan, quantities: Any, columns: Any) -> None:
    """Fills the columns of a plan, (F, C), from `quantities` (Q, C), whose rows after the inputs are filled, too."""
    derive(plan.gpu, quantities)
    divide(plan.bounded, quantities, columns)
    divide(plan.logarithmic, quantities, columns)
    divide(plan.plain, quantities, columns)


def derive(gpu: Any, quantities: Any) -> None:
    """Fills the rows of quantities that follow from the inputs and the figures of the GPU."""
    for i in range(quantities.shape[1]):
        for constant in range(CONSTANTS):
            quantities[ONE + constant, i] = gpu[constant]
        flops, moved = maximum(quantities[FLOPS, i], 1.0), quantities[BYTES, i]
        compute_s, traffic_s = flops / gpu[PEAK_FLOPS], moved / gpu[BANDWIDTH]
        quantities[SOME_FLOPS, i] = flops
        quantities[COMPUTE_S, i] = compute_s
        quantities[TRAFFIC_S, i] = traffic_s
        quantities[ROOFLINE_S, i] = maximum(compute_s, traffic_s)
        threads, blocks, resident = quantities[THREADS, i], quantities[BLOCKS, i], quantities[RESIDENT, i]
        warps, some_resident = ceil(threads / 32.0), maximum(resident, 1.0)
        waves = blocks / (quantities[SMS, i] * some_resident)
        quantities[WARPS, i] = warps
        quantities[LANES, i] = warps * 32.0
        quantities[ALL_THREADS, i] = blocks * threads
        quantities[SOME_RESIDENT, i] = some_resident
        quantities[RESIDENT_WARPS, i] = resident * warps
        quantities[RESIDENT_BYTES, i] = resident * quantities[SHARED_BYTES, i]
        quantities[WAVES, i] = waves
        quantities[ROUNDS, i] = maximum(ceil(waves), 1.0)
        quantities[SOME_BUSY_S, i] = maximum(quantities[BUSY_S, i], LEAST)


def divide(ratios: Ratios, quantities: Any, columns: Any) -> None:
    """Fills the columns of one kind."""
    above, below, places = ratios.above, ratios.below, ratios.places
    for f in range(len(above)):
        for i in range(quantities.shape[1]):
            value, under = quantities[above[f], i], quantities[below[f], i]
            if ratios.bounded:
                value = minimum(maximum(value / maximum(under, LEAST), LEAST_RATIO), MOST_RATIO)
            else:
                value = value / under
            if ratios.logarithmic:
                value = log2(value)
            columns[places[f], i] = value


def least_seconds(
    quantities: Any,
    bandwidth: float,
    boost_hz: float,
    first_pipe: int,
    second_pipe: int,
    third_pipe: int,
    seconds: Any,
) -> None:
    """Fills `seconds` (C,) of `lower_bound.least_seconds`.

    Args:
        quantities: rows with the inputs, (Q, C).
        bandwidth, boost_hz: of the GPU.
        first_pipe, second_pipe, third_pipe: rows of the pipes of arithmetic.
    """
    for i in range(quantities.shape[1]):
        busiest_s = maximum(quantities[first_pipe, i], quantities[second_pipe, i])
        busiest_s = maximum(busiest_s, quantities[third_pipe, i])
        arithmetic_s = busiest_s * (boost_hz / if_known(quantities[CLOCK_HZ, i], boost_hz))
        least_s = maximum(quantities[BYTES, i] / bandwidth, if_known(arithmetic_s, 0.0))
        seconds[i] = least_s + if_known(quantities[FIXED_S, i], 0.0)


def if_known(value: Any, otherwise: float) -> Any:
    """A value, or another one where it is NaN."""
    return select(value == value, value, otherwise)


def distances(
    matrix: Any, low: Any, high: Any, spread: Any, means: Any, squares: Any, of_groups: Any, distance: Any
) -> None:
    """Fills `distance` (C,), how far candidates lie outside of the training data (`extent.Extent.distance`).

    Args:
        matrix: features, (C, F); what is not known, or infinite, is never outside.
        low, high, spread: of each feature in the training data, (F,).
        means: what takes the mean over each group of features, (F, groups).
        squares: room for the squares of what each feature is outside of its range, in standard deviations, (C, F).
        of_groups: room for a number of each group.
    """
    for i in range(matrix.shape[0]):
        for f in range(matrix.shape[1]):
            value = matrix[i, f]
            beyond = select(value > high[f], value - high[f], select(value < low[f], low[f] - value, 0.0))
            beyond = select(beyond < INFINITY, beyond, 0.0)
            deviations = minimum(beyond / spread[f], MOST_DEVIATIONS)
            squares[i, f] = deviations * deviations
        distance[i] = 0.5 * log1p(sqrt(largest_mean(squares, i, means, of_groups)))


def both_ways(matrix: Any, left: Any, right: Any) -> None:
    """Copies features, (C, F) each, such that missing values go left, and such that they go right."""
    for i in range(matrix.shape[0]):
        for f in range(matrix.shape[1]):
            value = matrix[i, f]
            left[i, f] = select(value == value, value, -INFINITY)
            right[i, f] = select(value == value, value, INFINITY)


def add_leaves(flat: Any, row: Any, first: Any, trees: int, levels: int, column: Any, value: Any, sums: Any) -> None:
    """Adds to `sums` (C,) the leaf that each candidate reaches in each tree of a `forest.Forest`.

    Args:
        flat: features of all candidates, one candidate after the other, float32.
        row: where those of each begin, (C,).
        first: the first tree of each eight, (T / 8,); as Python every tree.
        trees, levels, column, value: of the forest, with trees that add nothing.
    """
    for eight in range(len(first)):
        for i in range(len(row)):
            sums[i] = sums[i] + leaves(flat, row[i], first[eight], trees, levels, column, value)
