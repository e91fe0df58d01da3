"""The test suite. It mirrors the package."""
