"""Provide `cached_property` for objects that every query creates.

The standard `cached_property` takes a lock in Python 3.11, and does two look-ups in later versions, so the first read
is slower. Here, concurrent threads may both compute the value.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from functools import cached_property as cached_property
else:

    class cached_property:  # noqa: N801 - named as the standard one
        """Property that is computed on first read and then stored as an attribute of the instance."""

        def __init__(self, function: Callable[[Any], Any]) -> None:
            self.function, self.__doc__ = function, function.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self.name = name

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            value = instance.__dict__[self.name] = self.function(instance)
            return value
