"""Replace environment variables, or attributes of an object, within a `with` block."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

_MISSING = object()


@contextmanager
def replaced(owner: Any, **attributes: Any) -> Iterator[None]:
    """Replace attributes of `owner` within a `with` block."""
    with ExitStack() as restoring:
        for name, value in attributes.items():
            before = owner.__dict__.get(name, _MISSING)
            setattr(owner, name, value)
            if before is _MISSING:
                restoring.callback(delattr, owner, name)
            else:
                restoring.callback(setattr, owner, name, before)
        yield


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
