"""The cards that join a cluster first are waited for, so that work is spread over all of them."""

from kernrec.cluster.driver import _HELLO_S, _Gathering


def test_the_wait_begins_with_the_first_cards_and_ends_once() -> None:
    gathering = _Gathering()
    assert not gathering.ends(1e9)
    assert gathering.begin(10.0)
    assert not gathering.begin(11.0)
    assert not gathering.ends(10.0 + 0.9 * _HELLO_S)
    assert gathering.ends(10.0 + _HELLO_S)
    assert not gathering.ends(11.0 + _HELLO_S)
