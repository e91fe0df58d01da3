"""Which Helion is installed: caches, configs and searches change with each release, so that an unknown is refused."""

from importlib.metadata import PackageNotFoundError, version

from kernrec.errors import KernrecError

SUPPORTED = ("1.5",)
"""Releases of Helion that the tests have run with."""


def check_helion() -> str:
    """The version of the installed Helion; raises `KernrecError` where there is none, or one that is not known."""
    try:
        installed = version("helion")
    except PackageNotFoundError:
        raise KernrecError(f"Helion is not installed; known are releases {', '.join(SUPPORTED)}") from None
    if ".".join(installed.split(".")[:2]) not in SUPPORTED:
        raise KernrecError(f"Helion {installed} is installed, which kernrec does not know: {', '.join(SUPPORTED)} are")
    return installed
