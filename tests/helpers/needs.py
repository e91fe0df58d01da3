"""Skips tests whose optional packages are not installed, without importing the packages."""

from importlib.util import find_spec

import pytest


def needs(*packages: str) -> pytest.MarkDecorator:
    """Skip a test, or with `pytestmark` a whole module, if any of the packages is not installed."""
    missing = [package for package in packages if find_spec(package) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")
