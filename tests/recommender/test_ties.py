"""Places that admit what cannot be told apart."""

from hypothesis import given
from hypothesis import strategies as st

from kernrec.recommender.ties import places

choices = st.lists(st.tuples(st.floats(1, 2), st.floats(0, 0.3), st.booleans()), max_size=12)


def shown(*given: tuple[float, float, bool]) -> list[str]:
    return [str(place) for place in places([[(low, high)] for low, high, _ in given], [exact for *_, exact in given])]


def test_a_tie_is_with_the_best_of_it_not_with_a_neighbor() -> None:
    assert shown((1.0, 1.2, True), (1.1, 1.3, True), (1.25, 1.4, True), (2.0, 3.0, True)) == ["1=", "1=", "3", "4"]


def test_a_prediction_between_does_not_break_a_tie() -> None:
    assert shown((1.0, 1.2, True), (0.5, 2.0, False), (1.1, 1.3, True)) == ["1=", "~2", "1="]


def test_two_costs_must_both_overlap() -> None:
    ranks = places([[(1, 2), (5, 6)], [(1, 2), (3, 4)]], [True, True])
    assert [place.number for place in ranks] == [1, 2]


@given(choices)
def test_places_begin_at_one_and_never_fall_among_the_exact(drawn: list[tuple[float, float, bool]]) -> None:
    ordered = sorted(drawn)
    intervals = [[(value - width, value + width)] for value, width, _ in ordered]
    ranks = places(intervals, [exact for *_, exact in ordered])
    numbers = [place.number for place in ranks]
    assert not numbers or numbers[0] == 1
    exact = [place.number for place in ranks if place.exact]
    assert exact == sorted(exact)
    for number, place in enumerate(ranks, start=1):
        assert place.number <= number
        assert place.exact or place.number == number
        if place.number < number:
            assert place.ambiguous
            assert ranks[place.number - 1].ambiguous
