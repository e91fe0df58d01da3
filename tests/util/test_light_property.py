"""A light property is computed once, when it is first read."""

from functools import cached_property as standard

import pytest

from kernrec.util.light_property import cached_property as light


@pytest.mark.parametrize("kind", [light, standard])
def test_property_is_computed_once_on_first_read(kind):
    computed = []

    class Circle:
        def area(self) -> float:
            """Of the whole circle."""
            computed.append(1)
            return 3.0

        area = kind(area)

    circle = Circle()
    assert computed == []
    assert (circle.area, circle.area, computed) == (3.0, 3.0, [1])
    assert vars(circle) == {"area": 3.0}
    assert Circle.area.__doc__ == "Of the whole circle."
    del circle.area
    assert (circle.area, computed) == (3.0, [1, 1])
