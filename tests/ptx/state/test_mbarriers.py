"""Barriers in shared memory: phases complete when neither arrivals nor bytes are pending, and misuse is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.ptx.state.mbarriers import MOST_ARRIVALS, BarrierMisuseError, Mbarriers, Phase, phase_of
from kernrec.ptx.state.region import POISON

COUNTS = st.integers(0, MOST_ARRIVALS)


@given(COUNTS, COUNTS, st.integers(-MOST_ARRIVALS, MOST_ARRIVALS), st.integers(0, 1))
def test_a_state_survives_its_word(pending: int, expected: int, tx: int, parity: int) -> None:
    state = Phase(pending, expected, tx, parity)
    assert phase_of(state.word()) == state


@given(st.integers(1, 5), st.lists(st.tuples(st.sampled_from(["arrive", "expect", "came"]), st.integers(1, 64))))
def test_phases_complete_as_a_plain_count_of_arrivals_and_bytes_says(count: int, events: list[tuple[str, int]]) -> None:
    barriers = Mbarriers(np.zeros(2, np.uint64))
    barriers.initialize(8, count)
    pending, tx, phases = count, 0, 0
    for what, amount in events:
        if what == "arrive":
            barriers.arrive(8, 1)
            pending -= 1
        else:
            sign = 1 if what == "expect" else -1
            barriers.expect(8, sign * amount)
            tx += sign * amount
        if pending == 0 and tx == 0:
            pending, phases = count, phases + 1
        elif pending == 0:
            break  # one arrival more would be misuse
        assert barriers.phase(8) == Phase(pending, count, tx, phases % 2)
        # A test of a parity succeeds once that phase is over: at first for the one before the first.
        assert barriers.passed(np.array([8, 8]), np.array([0, 1])).tolist() == [phases % 2 == 1, phases % 2 == 0]
    assert barriers.completed == phases


def test_dropped_arrivals_are_missing_in_later_phases() -> None:
    barriers = Mbarriers(np.zeros(1, np.uint64))
    barriers.initialize(0, 3)
    barriers.arrive(0, 1, drop=True)
    assert barriers.phase(0) == Phase(2, 2, 0, 0)
    barriers.arrive(0, 2)
    assert barriers.phase(0) == Phase(2, 2, 0, 1)


@pytest.mark.parametrize("filled", [0, POISON])
def test_memory_that_nobody_initialized_is_no_barrier(filled: int) -> None:
    barriers = Mbarriers(np.full(8, filled, np.uint8).view(np.uint64))
    with pytest.raises(BarrierMisuseError, match="no initialized barrier"):
        barriers.arrive(0, 1)
    with pytest.raises(BarrierMisuseError, match="no initialized barrier"):
        barriers.passed(np.array([0]), np.array([0]))
    barriers.initialize(0, 1)
    barriers.arrive(0, 1)
    barriers.invalidate(0)
    with pytest.raises(BarrierMisuseError, match="no initialized barrier"):
        barriers.expect(0, 16)


def test_what_does_not_fit_a_barrier_is_refused() -> None:
    barriers = Mbarriers(np.zeros(1, np.uint64))
    with pytest.raises(BarrierMisuseError, match="0 arrivals"):
        barriers.initialize(0, 0)
    barriers.initialize(0, 2)
    with pytest.raises(BarrierMisuseError, match="2 arrivals are pending in this phase, and 3 come"):
        barriers.arrive(0, 3)
    with pytest.raises(BarrierMisuseError, match="noComplete"):
        barriers.arrive(0, 2, completes=False)
    barriers.expect(0, MOST_ARRIVALS)
    with pytest.raises(BarrierMisuseError, match="transaction count"):
        barriers.expect(0, 16)
