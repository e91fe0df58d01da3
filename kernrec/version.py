"""The version of kernrec."""

__version__ = "0.1.0"
