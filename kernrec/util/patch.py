"""Replace attributes of objects and environment variables within a `with` block."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_MISSING = object()


@contextmanager
def replaced(owner: Any, **attributes: Any) -> Iterator[None]:
    """Replace attributes of `owner` within a `with` block."""
    before = {name: owner.__dict__.get(name, _MISSING) for name in attributes}
    try:
        for name, value in attributes.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in before.items():
            if value is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


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
