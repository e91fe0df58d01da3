"""`cached_property` as in the standard library, for objects of which every query makes some.

That of Python 3.11 takes a lock of the whole class each time, and that of later versions looks twice: reading a value
for the first time takes a third of the time here. Threads that ask at once may both compute it.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from functools import cached_property as cached_property
else:

    class cached_property:  # noqa: N801 - named as the standard one
        """A property that is computed when it is first read, and then an attribute of the instance."""

        def __init__(self, function: Callable[[Any], Any]) -> None:
            self.function, self.__doc__ = function, function.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self.name = name

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            value = instance.__dict__[self.name] = self.function(instance)
            return value
