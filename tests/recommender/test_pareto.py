"""Test the Pareto front, its hypervolume, and the trimming of a long front."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kernrec.recommender.pareto import pareto_front, spread
from kernrec.training.scores import hypervolume

costs = st.integers(1, 60).flatmap(
    lambda n: st.tuples(*(arrays(np.float64, n, elements=st.integers(1, 20).map(float)) for _ in range(2)))
)


@given(costs)
def test_front_contains_exactly_the_undominated_points(both):
    x, y = both
    front = pareto_front(x, y)
    beaten = [
        any((x[j] <= x[i] and y[j] < y[i]) or (x[j] < x[i] and y[j] <= y[i]) for j in range(len(x)))
        for i in range(len(x))
    ]
    assert {(x[i], y[i]) for i in front} == {(x[i], y[i]) for i in range(len(x)) if not beaten[i]}
    assert len(front) == len({(x[i], y[i]) for i in front})


@given(costs)
def test_front_runs_from_the_fastest_to_the_lowest_energy(both):
    x, y = both
    front = pareto_front(x, y)
    assert x[front[0]] == x.min()
    assert y[front[-1]] == y.min()
    assert (np.diff(x[front]) > 0).all()
    assert (np.diff(y[front]) < 0).all()


@given(costs)
def test_front_has_the_hypervolume_of_all_points(both):
    x, y = both
    front = pareto_front(x, y)
    # Costs are whole numbers, so that counting unit cells gives the hypervolume.
    cells = sum(any(x[i] <= a and y[i] <= b for i in range(len(x))) for a in range(1, 21) for b in range(1, 21))
    assert hypervolume(x, y, (21.0, 21.0)) == hypervolume(x[front], y[front], (21.0, 21.0)) == cells


@given(costs, st.integers(2, 8))
def test_trimmed_front_keeps_its_ends_and_order(both, count):
    x, y = both
    front = pareto_front(x, y)
    trimmed = spread(front, x, y, count)
    assert len(trimmed) == min(count, len(front))
    assert trimmed[0] == front[0]
    assert trimmed[-1] == front[-1]
    assert list(trimmed) == [i for i in front if i in set(trimmed)]
